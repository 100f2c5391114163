"""A search by Optuna in which one model is too large for the budget, and the next trial runs on.

    python examples/optuna_trials.py

Each trial has a scope of its own. Models up to some width are merely slower: their tensors are
evicted and recomputed. Where even that does not do, the trial fails by torch.OutOfMemoryError,
before anything else in the process has suffered, and its error names the bytes that it lacked.
"""

import optuna
import torch
from torch import nn

import dtr_alloc

BUDGET = "12MiB"
WIDTHS = [64, 128, 256, 2048, 96]  # The last but one is too large.


def objective(trial: optuna.Trial) -> float:
    width = trial.suggest_categorical("width", WIDTHS)
    torch.manual_seed(0)
    hidden = [part for _ in range(8) for part in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(nn.Linear(64, width), *hidden, nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.linspace(-1, 1, 2048 * 64).view(2048, 64)
    loss = torch.zeros(())
    with dtr_alloc.rematerialize(BUDGET) as session:
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
    trial.set_user_attr("rematerializations", session.stats().rematerializations)
    return float(loss.detach())


def main() -> list[dict[str, object]]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    for width in WIDTHS:
        study.enqueue_trial({"width": width})
    study.optimize(objective, n_trials=len(WIDTHS), catch=(torch.OutOfMemoryError,))
    return [
        {
            "width": trial.params["width"],
            "state": trial.state.name,
            "loss": trial.value,
            "rematerializations": trial.user_attrs.get("rematerializations"),
        }
        for trial in study.trials
    ]


if __name__ == "__main__":
    for row in main():
        print(row)
