"""What the eight workloads have in common: a training step to call, and the state it leaves.

A measurement wants to run a step and to compare what came out, and neither should know whether that
was one model and a loss or two that play against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dtr_alloc.demo import Job


@dataclass(frozen=True)
class Workload:
    """A training program: `step()` makes a batch, trains on it and returns the loss."""

    step: Callable[[], Tensor]
    modules: tuple[nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]

    def state(self) -> Iterator[Tensor]:
        """Every parameter, gradient, buffer and tensor of optimizer state as they are now."""
        for module in self.modules:
            yield from module.parameters()
            yield from (p.grad for p in module.parameters() if p.grad is not None)
            yield from module.buffers()
        for optimizer in self.optimizers:
            for values in optimizer.state.values():
                yield from (value for value in values.values() if isinstance(value, Tensor))


class Builder(Protocol):
    """Makes a workload. `scale` multiplies the batch: operators stay, tensors grow or shrink. Torch
    is seeded, so the same seed gives the same training, bit for bit.
    """

    def __call__(self, scale: float = 1.0, seed: int = 0) -> Workload: ...


def batch_size(samples: int, scale: float) -> int:
    """The scaled number of samples; no fewer than 2, as batch statistics need."""
    return max(2, round(samples * scale))


def supervised(make: Callable[[], Job], seed: int) -> Workload:
    """A job trained step by step."""
    torch.manual_seed(seed)
    job = make()
    optimizer = job.optimizer(job.model.parameters())
    generator = torch.Generator().manual_seed(seed)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = job.loss(job.model, job.batch(generator))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return Workload(step, (job.model,), (optimizer,))


def classifier(
    name: str, make: Callable[[], nn.Module], images: int, side: int, classes: int
) -> Job:
    """A network that classifies pictures, trained by SGD with momentum."""

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pictures = torch.randn(images, 3, side, side, generator=generator)
        return pictures, torch.randint(classes, (images,), generator=generator)

    def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
        pictures, labels = data
        return nn.functional.cross_entropy(model(pictures), labels)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=True)

    return Job(name, make(), batch, loss, optimizer)
