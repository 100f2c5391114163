"""Hugging Face's Trainer within a budget, by a callback.

The Trainer tells its callbacks when training begins and ends, and not when it raises. So a scope
whose training raised stays open until the next one begins, or `callback.session.close()` is called.
The Trainer's loggers are callbacks, too, and are called in the order of its list.
"""

from typing import Any

from transformers import TrainerCallback

from dtr_alloc.integrations import Budgeted, logged


class BudgetCallback(Budgeted, TrainerCallback):
    """Trains within a budget. What it costs is in each entry of ``trainer.state.log_history``, and
    in what callbacks after this one log.

    Example:
        >>> callback = BudgetCallback("2GiB")
        >>> trainer = Trainer(model, arguments)  # doctest: +SKIP
        >>> trainer.callback_handler.callbacks.insert(0, callback)  # doctest: +SKIP
    """

    def on_train_begin(self, args: Any, *_: Any, **kwargs: Any) -> None:
        self._open(args.device)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
        figures = logged(self.session)
        logs |= figures
        state.log_history[-1] |= figures

    def on_evaluate(self, *_: Any, metrics: Any, **kwargs: Any) -> None:
        # In transformers 5, `evaluate` returns the dict that `on_log` was given, and searches for
        # hyperparameters optimise the sum of what is in it.
        for name in logged(self.session):
            metrics.pop(name, None)

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        self._close()
