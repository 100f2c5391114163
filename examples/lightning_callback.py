"""Lightning within a budget, by a callback.

    pip install lightning
    python examples/lightning_callback.py

`on_fit_end` leaves the scope, and `on_exception` does where training raises.
"""

from contextlib import ExitStack
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dtr_alloc


class MemoryBudget(lightning.Callback):
    """Trains within `budget`: bytes, a text such as "2GiB", or None for no budget."""

    def __init__(self, budget: int | str | None) -> None:
        self.budget = budget
        self.session: dtr_alloc.Session | None = None
        self._scope = ExitStack()

    def on_fit_start(self, *args: Any) -> None:
        self.session = self._scope.enter_context(dtr_alloc.rematerialize(self.budget))

    def on_fit_end(self, *args: Any) -> None:
        self._scope.close()

    def on_exception(self, *args: Any) -> None:
        self._scope.close()


class Perceptron(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(12) for m in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1))]
        self.layers = nn.Sequential(*layers)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        (rows,) = batch
        return self.layers(rows).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def train(*callbacks: lightning.Callback) -> list[Tensor]:
    torch.manual_seed(0)
    model = Perceptron()
    trainer = lightning.Trainer(
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    rows = TensorDataset(torch.randn(2048, 128))
    trainer.fit(model, DataLoader(rows, batch_size=512))
    return list(model.parameters())


def main() -> dict[str, object]:
    plain = train()
    free = MemoryBudget(None)
    train(free)
    assert free.session is not None
    peak = free.session.stats().peak_bytes

    tight = MemoryBudget(int(0.6 * peak))
    parameters = train(tight)
    assert tight.session is not None
    stats = tight.session.stats()
    return {
        "identical": all(map(torch.equal, parameters, plain)),
        "plain_peak_bytes": peak,
        "budget_bytes": stats.budget_bytes,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
    }


if __name__ == "__main__":
    print(main())
