"""Lightning within a budget, by a callback.

The scope is open from the begin of ``trainer.fit`` to its end, also where fitting raises. The
figures go to all of the trainer's loggers, as often as its own, and once more at the end, because
short trainings end before that.
"""

from typing import Any

import lightning

from dtr_alloc.integrations import Budgeted, logged


class BudgetCallback(Budgeted, lightning.Callback):
    """Fits within a budget, and logs what it costs.

    Example:
        >>> trainer = lightning.Trainer(callbacks=[BudgetCallback("2GiB")])  # doctest: +SKIP
    """

    def on_fit_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        # The last step that was; of an accumulated gradient several batches have one.
        self._logged = 0
        self._open(trainer.strategy.root_device)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        every = trainer.log_every_n_steps
        if every and trainer.global_step % every == 0:
            self.on_train_end(trainer)

    def on_train_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step != self._logged:
            self._logged = trainer.global_step
            for logger in trainer.loggers:
                logger.log_metrics(logged(self.session), step=trainer.global_step)

    def on_fit_end(self, *_: Any) -> None:
        self._close()

    def on_exception(self, *_: Any) -> None:
        self._close()
