"""Lightning within a budget, by a callback.

The scope is open from the begin of ``trainer.fit`` to its end, also where fitting raises. The
figures go to all of the trainer's loggers, as often as its own, and once more at the end, because
short trainings end before that.
"""

from typing import Any

import lightning

from dtr_alloc import Session, rematerialize
from dtr_alloc.integrations import logged


class BudgetCallback(lightning.Callback):
    """Fits within a budget, and logs what it costs.

    Args:
        budget: as `dtr_alloc.rematerialize` takes it.

    Attributes:
        session: of the last ``fit``; None before.

    Raises:
        TypeError, ValueError, RuntimeError, torch.OutOfMemoryError: from ``trainer.fit()``, as
            `dtr_alloc.rematerialize` does.

    Example:
        >>> trainer = lightning.Trainer(callbacks=[BudgetCallback("2GiB")])  # doctest: +SKIP
    """

    def __init__(self, budget: int | str | None) -> None:
        self.budget = budget
        self.session: Session | None = None

    def on_fit_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        device = trainer.strategy.root_device
        self.session = rematerialize(self.budget, device=device).__enter__()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._log(trainer)

    def on_train_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._log(trainer)

    def on_fit_end(self, *_: Any) -> None:
        self._close()

    def on_exception(self, *_: Any) -> None:
        self._close()

    def _log(self, trainer: lightning.Trainer) -> None:
        if self.session is not None:
            for logger in trainer.loggers:
                logger.log_metrics(logged(self.session), step=trainer.global_step)

    def _close(self) -> None:
        if self.session is not None:
            self.session.close()
