"""Trainers of other libraries within a budget: a module for each, which needs that library.

Each opens a scope around the training, and logs by the trainer's own logger what the budget costs.
A scope is for the CPU: for a trainer on CUDA each raises a ValueError, which names the allocator.
"""

from typing import Any

import torch

from dtr_alloc import Session, rematerialize
from dtr_alloc.pool.size import Share, Size

_LOGGED = ("peak_bytes", "evictions", "recompute_share")


def logged(session: Session | None) -> dict[str, float]:
    """Of `Session.metrics`, what a trainer logs; nothing of no session."""
    metrics = {} if session is None else session.metrics()
    return {name: metrics[name] for key in _LOGGED if (name := f"dtr_alloc/{key}") in metrics}


class Budgeted:
    """What callbacks have in common.

    Args:
        budget: as `dtr_alloc.rematerialize` takes it. What that raises, the training raises.

    Attributes:
        session: of the last training; None before.
    """

    def __init__(self, budget: Size | Share | None) -> None:
        self.budget = budget
        self.session: Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"session": None}  # Which is this process's, and this callback's.

    def _open(self, device: torch.device) -> None:
        self._close()  # Of a training that raised.
        self.session = rematerialize(self.budget, device=device).__enter__()

    def _close(self) -> None:
        if self.session is not None:
            self.session.close()
