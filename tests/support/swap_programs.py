"""Programs whose memory nobody can recompute: optimizers' state, and gradients."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

import dtr_alloc

WIDTH, LAYERS, ROWS = 256, 6, 32


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


Make = Callable[[Any], torch.optim.Optimizer]


def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, **options)


def train(model: nn.Module, make: Make = adamw, steps: int = 4) -> list[Tensor]:
    optimizer = make(model.parameters())
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = [entry for one in optimizer.state.values() for entry in one.values()]
    return [*model.parameters(), *(entry for entry in state if isinstance(entry, Tensor))]


def floor(make: Make) -> int:
    """What gradients and the optimizer's state take: two or three times the parameters."""
    with dtr_alloc.measure() as session:
        kept = train(make_model(), make)
        taken = session.stats().live_bytes
    del kept
    return taken


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(
        torch.equal(one, other) for one, other in zip(found, expected, strict=True)
    )


KINDS: dict[str, Make] = {
    "tensor by tensor": lambda parameters: adamw(parameters, foreach=False),
    "in lists": lambda parameters: adamw(parameters, foreach=True),
    "fused": lambda parameters: adamw(parameters, fused=True),
    "with momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.01, momentum=0.9, foreach=False
    ),
}


def train_within_two_thirds(
    open_scope: Callable[[int], AbstractContextManager[dtr_alloc.Session]], make: Make = adamw
) -> dtr_alloc.Session:
    """Of what gradients and the optimizer's state take, to the bits of plain torch."""
    expected, budget = train(make_model(), make), floor(make) * 2 // 3
    model = make_model()
    with open_scope(budget) as session:
        assert equal(train(model, make), expected)
        session.check()
    stats = session.stats()
    assert stats.peak_bytes <= budget
    assert stats.swapped_out_bytes > 0
    assert stats.swapped_in_bytes > 0
    return session


def gradient(size: int = 1 << 16) -> Tensor:
    """A gradient of 256 KiB, which no operator can make again."""
    x = torch.linspace(0, 1, size, requires_grad=True)
    x.square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad
