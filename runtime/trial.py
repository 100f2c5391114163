"""Whether a choice of ``heuristic="auto"`` keeps its promise: what it adds to a program's steps.

A simulation knows a few steps, and what each operator cost in one of them. So what it prefers may
recompute more than what was in force. Every choice is therefore on trial: for some steps it is
compared with those before it, and where it adds more it is taken back.

Both are counted by the costs that the engine knows, which are a device's own times on a device.
Cost: a look at the counters when a step ends.
"""

from __future__ import annotations

import statistics
from collections import deque
from itertools import pairwise

from dtr_alloc import _core


class Added:
    """What a budget adds to each of a program's last steps, over the time of their operators:
    operators run again, choosing victims, and moving pages."""

    def __init__(self, steps: int) -> None:
        """At most so many steps count."""
        self._most = steps
        self._ends: deque[tuple[int, int]] = deque(maxlen=steps + 1)

    def step_ended(self, stats: _core.SessionStats) -> None:
        """After each step; the one in which `clear` was called does not count."""
        added = stats.remat_cost + stats.search_ns + stats.move_ns
        self._ends.append((added, stats.base_cost))

    def clear(self) -> None:
        """What is in force has changed."""
        self._ends.clear()

    @property
    def steps(self) -> int:
        """How many count."""
        return max(len(self._ends) - 1, 0)

    @property
    def whole(self) -> bool:
        """Whether as many steps count as may."""
        return self.steps == self._most

    def median(self) -> float:
        """Of the steps that count, of which there is one at least. An odd batch changes little."""
        return statistics.median(
            (added - added_before) / max(base - base_before, 1)
            for (added_before, base_before), (added, base) in pairwise(self._ends)
        )
