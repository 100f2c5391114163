"""The two lines, around a training loop as everybody writes it.

python examples/plain_loop.py
"""

import torch
from torch import nn

import dtr_alloc


def train(steps: int = 4) -> list[float]:
    torch.manual_seed(0)
    layers = [m for _ in range(12) for m in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 128)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> dict[str, object]:
    with dtr_alloc.measure() as session:  # Evicts nothing: what does plain torch need?
        plain = train()
    peak = session.stats().peak_bytes

    with dtr_alloc.rematerialize(int(0.6 * peak)) as session:
        losses = train()

    print(session.summary())
    stats = session.stats()
    return {
        "identical": losses == plain,
        "plain_peak_bytes": peak,
        "budget_bytes": stats.budget_bytes,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
    }


if __name__ == "__main__":
    print(main())
