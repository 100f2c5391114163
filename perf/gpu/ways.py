"""The ways to train within some memory that are compared, each as a user would set it up.

    stock       torch's caching allocator, which may hold so much and no more
    expandable  the same with expandable segments (run.py sets the variable that chooses them)
    checkpoint  stock, each block of the model checkpointed
    selective   stock, each block checkpointed but for what is expensive
    dtr_alloc   the budget is the memory
    strict      dtr_alloc, where an operator that is refused memory raises (exactness.md)
    torch       dtr_alloc with this budget over torch's allocator (torch_memory.md)
    swap        dtr_alloc, with a third of the host's memory, at most 32 GiB, to swap to (swap.md)
    guest       stock, and dtr_alloc evicts where it is full

A CUDA process can choose its allocator once, before it uses CUDA, so each way is a process. Without
a GPU dtr_alloc is a scope, and the others are measured in one: what passed the memory is then
called out of memory after the step. That is good for a rehearsal only.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import Any

import checkpointing
import torch
from large_models import Model
from torch import nn

import dtr_alloc
from dtr_alloc.pool.size import LARGEST_BUDGET
from dtr_alloc.runtime.scope import swapping

ALLOCATORS = ("stock", "expandable", "async", "pool", "dtr_alloc")
WAYS = ("stock", "expandable", "checkpoint", "selective", "dtr_alloc", "swap", "guest")
OPTIONS: dict[str, dict[str, Any]] = {
    "pool": {"rematerialize": False},
    "dtr_alloc": {},
    "strict": {"strict": True},
    "torch": {"memory": "torch"},
    "swap": {},
    "guest": {"memory": "torch"},
}
UNLIMITED = 100 << 30
THRASHED = "times longer than it computes"  # The words of dtr_alloc's error.


def install(allocator: str, budget: int) -> Any:
    """Puts a CUDA allocator in place, before CUDA is used; torch's own are chosen by a variable of
    the process. Returns it, or None for torch's own."""
    if allocator not in OPTIONS:
        return None
    swap = host_share() if allocator == "swap" else None
    limit = None if allocator == "guest" else budget
    made = dtr_alloc.allocator(limit, swap=swap, **OPTIONS[allocator])
    torch.cuda.memory.change_current_allocator(made)
    return made


def host_share() -> int:
    return min(swapping.spare() // 3, 32 << 30)  # Locking them takes seconds.


def how(error: torch.OutOfMemoryError) -> str:
    """Thrash is an error of its own: it fits, and takes for ever."""
    return "thrash" if THRASHED in str(error) else "out of memory"


def wrap(way: str, model: Model, made: nn.Module) -> None:
    if way == "checkpoint":
        checkpointing.each_block(model.blocks(made))
    elif way == "selective":
        checkpointing.selective(model.blocks(made))


class Memory:
    """What a way trains in, from the start of the process on. Close it at the end."""

    def __init__(self, way: str, device: str, limit: int | None) -> None:
        self.way, self.cuda, self.limit = way, device == "cuda", limit
        self._allocator: Any = None
        self._scope = ExitStack()
        self._session: Any = None
        if self.cuda:
            self._allocator = install(way, limit or UNLIMITED)
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._before = _used()
        elif way in OPTIONS:
            swap: dict[str, Any] = {"swap": 1 << 30, "swap_anywhere": True} if way == "swap" else {}
            budget = limit or (LARGEST_BUDGET if way == "guest" else None)
            scope = dtr_alloc.rematerialize(budget, **swap, **OPTIONS[way])
            self._session = self._scope.enter_context(scope)
        else:
            self._session = self._scope.enter_context(dtr_alloc.measure())
        self.bound(limit)

    def close(self) -> None:
        self._scope.close()

    def bound(self, limit: int | None) -> None:
        """From now on torch's own allocator may hold so much."""
        self.limit = limit
        torchs = self._allocator is None or self.way == "guest"
        if limit is not None and self.cuda and torchs:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))

    def check(self) -> None:
        """To be called after a step.

        Raises:
            torch.OutOfMemoryError: The rehearsal passed the memory.
        """
        if not self.cuda and self.limit is not None and self.way not in OPTIONS:
            peak = self._session.stats().peak_bytes
            if peak > self.limit:
                raise torch.OutOfMemoryError(f"{peak} bytes, of {self.limit}, in a rehearsal")

    def clear(self) -> None:
        """Frees what a former attempt has left, and begins peaks anew."""
        gc.collect()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        else:
            self._session.reset_peak()

    def held(self) -> int:
        """The most bytes that the allocator held since `clear`, used by tensors or not."""
        if self.cuda:
            return int(torch.cuda.max_memory_reserved())
        return int(self._session.stats().peak_bytes)

    def counts(self) -> dict[str, float]:
        """All that the allocator and the runtime count, by name."""
        found: dict[str, float] = {}
        if (session := self._session_of_ours()) is not None:
            found |= _numbers(session._core.stats(), "session")
        if self._allocator is not None:
            found |= _numbers(self._allocator._core.pool_stats(0), "pool")
        elif session is not None:
            found |= _numbers(session._core.pool_stats(), "pool")
        if self.cuda:
            stats = torch.cuda.memory_stats()
            found |= {name: stats.get(name, 0) for name in ("num_alloc_retries", "num_ooms")}
        return found

    def _session_of_ours(self) -> Any:
        return self._session if self._allocator is None else self._allocator.session

    def caught(self) -> dict[str, int]:
        """Operators that went on without memory, and the most that each was refused."""
        session = self._session_of_ours()
        return {} if session is None else dict(session._core.caught())

    def figures(self) -> dict[str, Any]:
        """Peaks since `clear`, and what the whole process has of the device now: pages that an
        allocator has taken stay taken between steps. CUDA's own context is not counted."""
        found: dict[str, Any] = {"held_peak_bytes": self.held(), "limit_bytes": self.limit}
        if self.cuda:
            found["allocated_peak_bytes"] = torch.cuda.max_memory_allocated()
            found["device_bytes"] = _used() - self._before
        return found


def _used() -> int:
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _numbers(counted: Any, of: str) -> dict[str, float]:
    """Every public figure of a native object, so that one added later is in the results too."""
    names = [name for name in dir(counted) if not name.startswith("_")]
    values = {name: getattr(counted, name) for name in names}
    return {f"{of}.{k}": v for k, v in values.items() if isinstance(v, int | float)}


def difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """What happened in between, of all that changed."""
    changed = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: value for name, value in changed.items() if value != 0}


def shares(changed: dict[str, float]) -> dict[str, float]:
    """Of the time that the runtime counted, as the host sees it."""
    parts = ("kernel_ns", "remat_ns", "search_ns", "move_ns", "bookkeeping_ns")
    spent = {part: changed.get(f"session.{part}", 0) for part in parts}
    total = sum(spent.values())
    return {part: round(value / total, 4) for part, value in spent.items()} if total else {}
