"""Accelerate within a budget: a scope around the training loop.

Trackers count the calls of `Accelerator.log`, some of them as steps. So the figures are logged
once, at the end. A loop that wants them with each of its own logs adds ``session.metrics()``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtr_alloc import Session, rematerialize
from dtr_alloc.integrations import logged
from dtr_alloc.pool.size import Share, Size

if TYPE_CHECKING:
    from accelerate import Accelerator


@contextmanager
def budget(accelerator: "Accelerator", budget: Size | Share | None) -> Iterator[Session]:
    """Runs the body within a budget, and then logs by ``accelerator.log`` what it cost.

    Args:
        budget: as `dtr_alloc.rematerialize` takes it.

    Raises:
        TypeError, ValueError, RuntimeError, torch.OutOfMemoryError: as `dtr_alloc.rematerialize`
            does. Nothing is logged then.

    Example:
        >>> with budget(accelerator, "2GiB") as session:  # doctest: +SKIP
        ...     for step, batch in enumerate(loader):
        ...         accelerator.log({"loss": train(batch), **session.metrics()}, step=step)
    """
    with rematerialize(budget, device=accelerator.device) as session:
        yield session
    accelerator.log(logged(session), step=session.steps)
