"""Whether a choice of ``heuristic="auto"`` keeps its promise: what it adds to a program's steps.

A simulation knows a few steps, and what each operator usually takes. A program may do otherwise
later, and what the simulation prefers then recompute more than what was in force. Every choice is
therefore on trial: for some steps it is compared with as many before it, and where it adds more
than each of them it is taken back. The limit of a choice is one for those after it, too, or choices
that are each a little worse would follow one another.

Operators count by the costs that the engine knows, which are a device's own times on a device. The
host's time for choosing and for moving counts in full there, though the device may hide it. Cost: a
look at the counters when a step ends.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import Heuristic


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why.

    Attributes:
        heuristic: in force from the end of a step on.
        seen: the number of the last step that was simulated.
        tried: how many candidates had been, by then.
        before: what was in force then.
        added: the time it added in the simulation, over that of the operators; `added_before`: what
            `before` added. Infinite where the budget did not do.
    """

    heuristic: Heuristic
    before: Heuristic
    seen: int
    tried: int
    added: float
    added_before: float


@dataclass(frozen=True)
class Trial:
    """Of a new choice: the one before it, what that added, and what the new one may add."""

    choice: Choice | None
    added: float
    most: float


class Added:
    """What a budget adds to each of a program's last steps, over the time of their operators:
    operators run again, choosing victims, and moving pages."""

    def __init__(self, steps: int, timed: bool = True) -> None:
        """The last of so many steps count. `timed`: costs are times. Where they are bytes, the time
        of the host has nothing to be compared with, and does not count."""
        self._ends: deque[tuple[int, int]] = deque(maxlen=steps + 1)
        self._timed = timed

    def step_ended(self, stats: _core.SessionStats) -> None:
        """After each step; the first after `clear` only begins another. A step without operators,
        as of a second optimizer, is part of the one before."""
        added = stats.remat_cost + (stats.search_ns + stats.move_ns) * self._timed
        if self._ends and self._ends[-1][1] >= stats.base_cost:
            self._ends.pop()
        self._ends.append((added, stats.base_cost))

    def clear(self) -> None:
        """What is in force has changed."""
        self._ends.clear()

    @property
    def whole(self) -> bool:
        """Whether all steps that may count are there."""
        return len(self._ends) == self._ends.maxlen

    def median(self) -> float:
        """Of the steps that count. An odd batch changes little."""
        return statistics.median(self._each())

    def most(self) -> float:
        """What the dearest of them added."""
        return max(self._each())

    def _each(self) -> list[float]:
        return [
            (added - added_before) / (base - base_before)
            for (added_before, base_before), (added, base) in pairwise(self._ends)
        ]
