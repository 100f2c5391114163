"""Models that torch compiles with an `activation_memory_budget`, and how right their gradients are.

Below 1 the backward graph computes again what the forward graph did not save. Of random numbers it
draws others: the loss is the same, the gradients are not, and nothing warns
(findings/memory_budget_redraws_dropout.sh). So no time is told of a model before its gradients are
compared with those that the same compiler makes without that budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._functorch import config as functorch

from dtr_alloc.demo import Job

WRONG = 1e-3
"""From this error on. Another order of additions came to 2e-7, other masks to 0.09 and more."""


def whole(job: Job, backend: str = "inductor", **options: Any) -> Job:
    """The job with all of its model compiled; parameters keep their names. Torch 2.13's
    `job.model.compile()` leaves an nn.Sequential out."""
    model: Any = torch.compile(job.model, backend=backend, options=options or None)
    return replace(job, loss=lambda _, batch: job.loss(model, batch))


def gradient_error(make: Callable[[], Job], budget: float) -> float:
    """How far the first gradients of compiled jobs are from those at 1.0: the norm of the
    difference over the norm."""

    def gradients(share: float) -> torch.Tensor:
        torch.compiler.reset()
        torch.manual_seed(0)
        job = make()
        batch = job.batch(torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        with functorch.patch(activation_memory_budget=share):
            job.loss(job.model, batch).backward()  # type: ignore[no-untyped-call]
        return torch.cat([p.grad.flatten() for p in job.model.parameters() if p.grad is not None])

    expected = gradients(1.0)
    return float((gradients(budget) - expected).norm() / expected.norm())
