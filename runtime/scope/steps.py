"""Outlier batches: which steps of optimizers did not fit the memory they were given.

A budget often serves as a net: nearly every batch fits, and the one that does not must not end the
run. It runs on, slower, and whoever watches the run wants to know which step that was, how much was
evicted, and what it cost. So the runtime tells at the end of each step of an optimizer what it
evicted and recomputed since the step before, and ``session.summary()`` names the costliest steps. A
warning comes once, at the first step with evictions after three without, all by the same budget: a
budget below what every step needs is chosen, and is no news.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from dtr_alloc import _core
from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.scope.peak_share import PeakShare

_KEPT = 10  # The costliest, so that a long run does not fill memory with them.
_QUIET = 3  # Steps in a row without evictions, before one with them is odd.


@dataclass(frozen=True)
class Step:
    """A step of an optimizer, and what led to it since the step before, where tensors were evicted
    for want of memory. Times are nanoseconds, sizes bytes.

    Attributes:
        number: of the step in its scope, from 1.
        evicted_bytes: of the tensors evicted.
        added_ns: time recomputing and finding memory.
        elapsed_ns: time between the ends of the step before and of this one.
    """

    number: int
    evicted_bytes: int
    added_ns: int
    elapsed_ns: int

    def __str__(self) -> str:
        return (
            f"{format_size(self.evicted_bytes)} evicted, {self.added_ns / 1e6:,.0f} of "
            f"{self.elapsed_ns / 1e6:,.0f} ms recomputing and finding memory"
        )


class OutlierBatchWarning(UserWarning):
    """A step of an optimizer did not fit its memory, as those before it did."""


class Steps:
    """Those of one scope; the first ones set a budget that is a `share`."""

    def __init__(self, share: PeakShare | None = None) -> None:
        self.share = share
        # Optimizers of several threads may end their steps at once. A signal's handler may ask for
        # the summary in the middle of that, in the same thread.
        self._lock = threading.RLock()
        self.count = 0  # How many have ended.
        self._evicting = self._evicted_bytes = 0
        self._ended_ns = time.perf_counter_ns()
        self._costliest: list[Step] = []
        self._quiet = 0
        self._told = False
        self.hears: Callable[[], None] | None = None  # Told of each step that has ended.
        self.stays_bytes = 0  # The most in memory as a step ended: gradients, state, what is kept.

    def ended(self, evicted_bytes: int, added_ns: int) -> None:
        """At the end of each step of an optimizer, in the thread of the program: what was evicted
        for want of memory since the step before, and the time that this and recomputing took.

        Warns:
            OutlierBatchWarning: the first step that needed evictions after some that needed none.
        """
        odd = self._add(evicted_bytes, added_ns)
        if odd is not None:
            warnings.warn(
                f"step {odd.number} of an optimizer did not fit the memory it may use: {odd}. The "
                f"{_QUIET} steps before it needed no evictions. Results are the same. This is said "
                "once in a scope; session.summary() counts such steps and names the costliest",
                OutlierBatchWarning,
                stacklevel=level_of_the_program(),
            )
        self.optimizer_ended(step=True)
        if self.hears is not None:
            self.hears()

    def optimizer_ended(self, *, step: bool) -> None:
        """After each step of an optimizer; `step`: one of the program has ended with it."""
        if self.share is not None and self.share.optimizer_ended(step=step):
            self.budget_changed()

    def costliest(self) -> list[Step]:
        """Of the steps that needed evictions the ten that lost most time, the costliest first."""
        return [*self._costliest]

    def rows(self, evicted_bytes: int) -> list[tuple[str, str, str]]:
        """Of the summary; none of steps where none has ended. So much was evicted in the scope."""
        with self._lock:
            count, evicting, evicted = self.count, self._evicting, self._evicted_bytes
        told = [] if self.share is None else [self.share.row()]
        if not count:
            return told
        note = "none needed evictions"
        if evicting:
            note = f"{evicting:,} needed evictions, of {format_size(evicted)} together"
        if evicted_bytes > evicted:
            note += f"; {format_size(evicted_bytes - evicted)} evicted since"
        told += [("steps", f"{count:,}", note)]
        if evicting < count:
            told += [("step", f"{one.number:,}", str(one)) for one in self.costliest()[:3]]
        return told

    def budget_changed(self) -> None:
        """Steps by another budget do not tell which step is odd by this one."""
        _core.locked(self._lock, self._begin_anew)

    def _begin_anew(self) -> None:
        self._quiet = 0

    def abandon_in_child(self) -> None:
        """After a fork: a thread that only the parent has may hold the lock."""
        self._lock = threading.RLock()

    def _add(self, evicted_bytes: int, added_ns: int) -> Step | None:
        """The step, if it is to be told of."""
        with self._lock:
            now = time.perf_counter_ns()
            elapsed, self._ended_ns = now - self._ended_ns, now
            self.count += 1
            self._evicted_bytes += evicted_bytes
            step = Step(self.count, evicted_bytes, added_ns, elapsed)
            if not step.evicted_bytes:
                self._quiet += 1
                return None
            self._evicting += 1
            steps = [*self._costliest, step]
            self._costliest = heapq.nlargest(_KEPT, steps, attrgetter("added_ns", "number"))
            odd = self._quiet >= _QUIET and not self._told
            self._told, self._quiet = self._told or odd, 0
            return step if odd else None


def level_of_the_program() -> int:
    """The level of the frame that called torch, for a warning of the caller's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in {
        "torch",
        "dtr_alloc",
    }:
        level, frame = level + 1, frame.f_back
    return level
