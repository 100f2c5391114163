"""Lightning within a budget, by a callback.

    pip install lightning
    python examples/lightning_callback.py

The callback opens the scope when fitting begins, leaves it when it ends or raises, and has the
trainer's loggers tell what the budget costs.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dtr_alloc.integrations.lightning import BudgetCallback


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
    free = BudgetCallback(None)
    train(free)
    assert free.session is not None
    peak = free.session.stats().peak_bytes

    tight = BudgetCallback(int(0.6 * peak))
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
