"""A small training that evicts and recomputes while events are kept, and its lines."""

import inspect
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dtr_alloc

MIB = 1 << 20


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y.sin()  # Its line is looked for.


def train(steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer() for _ in range(6)])
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(512, 128)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def squeezed(events: bool | int = True, **options: Any) -> dtr_alloc.Session:
    """Some training that evicts and recomputes; what it made is gone."""
    with dtr_alloc.rematerialize("3MiB", events=events, clock="logical", **options) as session:
        train()
    return session


def dumped(session: dtr_alloc.Session, folder: Path) -> dict[str, Any]:
    session.dump_snapshot(folder / "run.pickle")
    snapshot: dict[str, Any] = pickle.loads((folder / "run.pickle").read_bytes())
    return snapshot


def line_of(what: object, text: str) -> int:
    lines, first = inspect.getsourcelines(what)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(lines) if text in line)


SCRIPT = __file__  # Whose lines the pictures name.
