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
    shares = _shares(needs)
    order = np.argsort(-shares / needs.size, kind="stable")
    ends = np.append(moments, len(needs.cost))
    best = np.zeros(len(ends))  # From each end on.
    wanted_next = _wanted_next(needs, moments)
    for place in reversed(range(len(moments))):
        moment, following = int(moments[place]), wanted_next[place]
        asked = (needs.made < moment) & (following <= len(needs.cost))
        asked[needs.reads[moment]] = False  # In memory then.
        here = order[asked[order]]
        inside = following[here] <= ends[place + 1 :, None]  # A row for each end of the window.
        room = budget - int(needs.fixed[moment])
        left = _left_out(inside, needs.size[here], shares[here], room)
        best[place] = max(best[place + 1], float((left + best[place + 1 :]).max()))
    return int(np.ceil(best[0] * (1 - 1e-9)))  # Sums of floating point.


def pressing(needs: Needs, budget: int, most: int) -> Numbers:
    """Operators at whose worst moment not all that is still read fits, in order: all of them, or,
    where they are more than `most`, the one that is shortest of room in each of as many runs."""
    last = np.full(len(needs.made), -1, np.int64)
    for operator, values in enumerate(needs.wanted):
        last[values] = operator
    used = np.flatnonzero(last >= 0)
    steps = np.zeros(len(needs.cost) + 1, np.int64)
    np.add.at(steps, needs.made[used] + 1, needs.size[used])
    np.subtract.at(steps, last[used], needs.size[used])
    short = needs.fixed + np.cumsum(steps)[:-1] - budget
    for operator, values in enumerate(needs.reads):  # They are in `fixed` as well.
        short[operator] -= sum(int(needs.size[v]) for v in values if last[v] > operator)
    found = np.flatnonzero(short > 0)
    if len(found) <= most:
        return found
    runs = np.array_split(found, most)
    return np.array([run[np.argmax(short[run])] for run in runs], np.int64)


def _wanted_next(needs: Needs, moments: Numbers) -> Numbers:
    """When each value is wanted next after each moment, shape (moments, values); a number above
    that of any operator where it is not wanted any more."""
    found = np.full((len(moments), len(needs.made)), len(needs.cost) + 1, np.int64)
    for row, begin, end in zip(found, moments, [*moments[1:], len(needs.cost)], strict=True):
        for operator in range(end, begin, -1):
            row[needs.wanted[operator]] = operator
    # What is not wanted before the next moment is wanted when it is after that.
    return np.minimum.accumulate(found[::-1])[::-1]


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
