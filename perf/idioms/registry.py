"""A list of small trainings, and what most of them share.

Each is made anew by a function without arguments: what trains one step and returns its loss, and
the module whose parameters it trains. Synthetic data, some ten milliseconds a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Step = Callable[[], Tensor]
Make = Callable[[], tuple[Step, nn.Module]]
STEPS = 3  # What data that varies is made for.

PROGRAMS: dict[str, Make] = {}


def program(make: Make) -> Make:
    PROGRAMS[make.__name__.replace("_", " ")] = make
    return make


def supervised(
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[Step, nn.Module]:
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach().clone()

    return step, model


def mlp_of(width: int, depth: int, act: Callable[[], nn.Module] = nn.GELU) -> nn.Sequential:
    return nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(width, width), act())])
