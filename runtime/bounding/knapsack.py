"""A lower bound in milliseconds: at a moment, what does not fit must be computed again later.

Take an operator t, and a later one t'. At t's worst moment some bytes are taken whatever the policy
(needs.py). Of the values that exist by then and that the program reads after t and no later than
t', no more can be in memory than fit into the rest of the budget. Each that is not must be
recomputed after t's moment and before t' begins, so its operator runs again in between. The least
cost of those left out is a knapsack: keep the most expensive that fit. Letting the last one be kept
in part, as if values could be cut, can only lower the cost, and makes the knapsack a walk down the
values in the order of cost per byte. An operator with several results runs again once for all of
them, so its cost is shared out among them by their bytes; what is left out then costs at least the
sum of its shares.

Between t and t' is a window. Recomputations of windows that do not overlap are different ones, so
their costs add up; the best chain of windows is found from the end backwards. Every chain is a
bound, so only the moments where most would have to be left out are tried as ends of windows. What
it does not see: that a missing value's own arguments may be missing too.

Sources: Checkmate (Jain et al., MLSys 2020) for memory as a constraint at each operator; Dantzig
1957 for the knapsack.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dtr_alloc.runtime.bounding.needs import Needs

MOMENTS = 40
"""How many ends of windows are tried: time grows with its square."""

Numbers = npt.NDArray[np.int64]


def least_again_ns(needs: Needs, budget: int) -> int:
    """Nanoseconds of recomputation that every policy needs within `budget` bytes, at the least.
    The budget must not be below the floor."""
    moments = pressing(needs, budget, MOMENTS)
    if not len(moments):
        return 0
    uses = _Uses(needs)
    shares = _shares(needs)
    order = np.argsort(-shares / needs.size, kind="stable")
    ends = np.append(moments, len(needs.cost))
    best = np.zeros(len(ends))  # From each end on.
    for place in reversed(range(len(moments))):
        moment = int(moments[place])
        following = uses.after(moment)
        here = order[(following[order] <= len(needs.cost)) & uses.elsewhere(moment)[order]]
        inside = following[here] <= ends[place + 1 :, None]  # A row for each end of the window.
        room = budget - int(needs.fixed[moment])
        left = _left_out(inside, needs.size[here], shares[here], room)
        best[place] = max(best[place + 1], float((left + best[place + 1 :]).max()))
    return int(np.ceil(best[0] * (1 - 1e-9)))  # Sums of floating point.


def pressing(needs: Needs, budget: int, most: int) -> Numbers:
    """Operators at whose worst moment not all that is still read fits, in order: all of them, or,
    where they are more than `most`, the one that is shortest of room in each of as many runs."""
    steps = np.zeros(len(needs.cost) + 1, np.int64)
    last = np.full(len(needs.made), -1, np.int64)
    for value, used in enumerate(needs.uses()):
        if used:
            last[value] = used[-1]
            steps[needs.made[value] + 1] += needs.size[value]
            steps[used[-1]] -= needs.size[value]
    short = needs.fixed + np.cumsum(steps)[:-1] - budget
    for operator, values in enumerate(needs.reads):  # They are in `fixed` as well.
        short[operator] -= sum(int(needs.size[v]) for v in values if last[v] > operator)
    found = np.flatnonzero(short > 0)
    if len(found) <= most:
        return found
    runs = np.array_split(found, most)
    return np.array([run[np.argmax(short[run])] for run in runs], np.int64)


class _Uses:
    """When each value is wanted next."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._never = len(needs.cost) + 1
        pairs = [(v, use) for v, used in enumerate(needs.uses()) for use in (*used, self._never)]
        values, times = np.array(pairs, np.int64).reshape(-1, 2).T
        self._keys = values * (self._never + 1) + times
        self._times = times
        self._values = np.arange(len(needs.made), dtype=np.int64)

    def after(self, moment: int) -> Numbers:
        """Of each value; a number above that of any operator where it is not wanted any more."""
        keys = self._values * (self._never + 1) + moment
        return self._times[np.searchsorted(self._keys, keys, side="right")]

    def elsewhere(self, moment: int) -> npt.NDArray[np.bool_]:
        """Which values exist at a moment, and are not its operator's arguments."""
        found = self._needs.made < moment
        found[self._needs.reads[moment]] = False
        return found


def _shares(needs: Needs) -> npt.NDArray[np.float64]:
    """Each operator's cost, shared out among its results by their bytes."""
    together = np.bincount(needs.made, needs.size, len(needs.cost))
    return needs.cost[needs.made] * (needs.size / together[needs.made])


def _left_out(
    inside: npt.NDArray[np.bool_], size: Numbers, share: npt.NDArray[np.float64], room: int
) -> npt.NDArray[np.float64]:
    """Of each row the least sum of shares that does not fit; expensive columns come first."""
    bytes_before = np.cumsum(inside * size, axis=1) - inside * size
    kept = np.clip(room - bytes_before, 0, size) / size
    return np.asarray((inside * share * (1 - kept)).sum(axis=1))
