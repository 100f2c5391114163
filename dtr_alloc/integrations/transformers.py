"""Hugging Face's Trainer within a budget, by a callback.

The Trainer tells its callbacks when training begins and ends, and not when it raises. So a scope
whose training raised stays open until the next one begins, or `callback.session.close()` is called.
The Trainer's loggers are callbacks, too, and are called in the order of its list.
"""

from typing import Any

from transformers import TrainerCallback

from dtr_alloc import Session, rematerialize
from dtr_alloc.integrations import logged


class BudgetCallback(TrainerCallback):
    """Trains within a budget. What it costs is in each entry of ``trainer.state.log_history``, and
    in what callbacks after this one log.

    Args:
        budget: as `dtr_alloc.rematerialize` takes it.

    Attributes:
        session: of the last training; None before.

    Raises:
        TypeError, ValueError, RuntimeError, torch.OutOfMemoryError: from ``trainer.train()``, as
            `dtr_alloc.rematerialize` does.

    Example:
        >>> callback = BudgetCallback("2GiB")
        >>> trainer = Trainer(model, arguments, callbacks=[callback])  # doctest: +SKIP
        >>> trainer.callback_handler.callbacks.insert(0, callback)  # doctest: +SKIP
    """

    def __init__(self, budget: int | str | None) -> None:
        self.budget = budget
        self.session: Session | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close()
        self.session = rematerialize(self.budget, device=args.device).__enter__()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any
    ) -> None:
        if self.session is not None:
            figures = logged(self.session)
            logs |= figures
            state.log_history[-1] |= figures

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self.session is not None:
            self.session.close()
