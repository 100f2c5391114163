"""Trainers of other libraries within a budget: a module for each, which needs that library.

Each opens a scope around the training, and logs by the trainer's own logger what the budget costs.
A scope is for the CPU: for a trainer on CUDA each raises a ValueError, which names the allocator.
"""

from dtr_alloc import Session

_LOGGED = ("peak_bytes", "evictions", "recompute_share")


def logged(session: Session) -> dict[str, float]:
    """Of `Session.metrics`, what a trainer logs."""
    metrics = session.metrics()
    return {f"dtr_alloc/{name}": metrics[f"dtr_alloc/{name}"] for name in _LOGGED}
