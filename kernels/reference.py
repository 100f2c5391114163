"""Scoring and selection in plain torch: what the kernels and the C++ scorer must agree with.

Three questions. `score`: how dear is each candidate under each setting? `select`: who goes, so that
so many bytes are freed? `window`: which run of neighbours in memory is the cheapest hole that holds
them? In float64 every step is the C++ scorer's (`policy/score.h`), so scores are equal to the
bit but for powers, whose last bit is the library's.

Sources: Kirisame et al., ICLR 2021, section 4.1 (score); Zhang et al., Coop, NeurIPS 2023 (window).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dtr_alloc.kernels.columns import Columns, Settings


def score(
    columns: Columns, settings: Settings, clock: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Scores of N candidates under P settings.

    Args:
        columns: the candidates.
        settings: of the score.
        clock: the present, in ns of the columns' last accesses.
        dtype: float64 or float32, of the arithmetic and of the result. In both, sums of integers
            are exact, and powers are taken in float64: a rounded exponent of a large number, or a
            rounded penalty to a large exponent, loses more than float32 has. What float32 cannot
            hold (1e38) becomes zero or infinite there.

    Returns:
        A tensor of the shape (P, N): not a number where a candidate may not go, infinite where
        there is nothing to divide by.

    Example:
        >>> import torch
        >>> from dtr_alloc import Heuristic
        >>> one, zero = torch.tensor([2]), torch.tensor([0])
        >>> columns = Columns(
        ...     one, zero, zero, zero, one, zero, zero.int(), one.to(torch.uint8) - 1, zero
        ... )
        >>> score(columns, Settings.of([Heuristic(), Heuristic(size_exp=0)]), clock=9)
        tensor([[0.1500],
                [0.3000]], dtype=torch.float64)
    """
    device = columns.size.device
    given = {name: t.to(device)[:, None] for name, t in settings.columns().items()}

    def real(column: Tensor) -> Tensor:
        return column.to(dtype)[None, :]

    def power(base: Tensor, exponent: Tensor) -> Tensor:
        general = torch.pow(base.double().clamp(min=0), exponent).to(dtype)
        return torch.where(exponent == 1, base, torch.where(exponent == 0, 1.0, general))

    cost = real(columns.cost + columns.neighbourhood + settings.epsilon)
    free = real(columns.free_left + columns.free_right)
    staleness = real(clock - columns.last_access + settings.epsilon)
    penalty = torch.pow(given["recompute_penalty"], columns.recomputes.double()[None, :])
    bytes_ = real(columns.size) + given["fragmentation"].to(dtype) * free
    numerator = power(cost, given["cost_exp"]) * penalty.to(dtype)
    denominator = power(bytes_, given["size_exp"]) * power(staleness, given["staleness_exp"])
    quotient = numerator / denominator
    lost = (denominator <= 0) | quotient.isnan()
    scores = torch.where(lost, torch.inf, quotient)
    return torch.where(columns.evictable.bool()[None, :], scores, torch.nan)


def ranking(scores: Tensor, order: Tensor) -> Tensor:
    """The rows in which a score is a number, in the order in which they are evicted.

    The least score first, and of equal ones what became evictable last. Where scores are zero or
    below, the rule is the reference simulator's: it scans from what became evictable first, keeps
    the least, and stops at a score of zero. So a zero ends a segment, segments go one after the
    other, and what is above zero goes after all of them.

    Args:
        scores: float, of the shape (N,).
        order: int64, of the shape (N,); no two equal.

    Returns:
        int64 of the shape (candidates,).
    """
    by_order = torch.argsort(order)
    zero = (scores[by_order] == 0).long()
    segment = torch.empty_like(order)
    segment[by_order] = zero.cumsum(0) - zero
    segment = torch.where(scores > 0, len(order), segment)
    rows = by_order.flip(0)  # Sorting is stable: the last key sorted by counts most.
    rows = rows[torch.argsort(scores[rows], stable=True)]
    rows = rows[torch.argsort(segment[rows], stable=True)]
    return rows[~scores[rows].isnan()]


def select(scores: Tensor, size: Tensor, order: Tensor, request: int) -> Tensor:
    """The victims: in the order of their eviction, until they have `request` bytes.

    Args:
        scores: float, of the shape (N,): one row of `score`.
        size, order: the columns, of the shape (N,).
        request: bytes.

    Returns:
        Their rows, int64 of the shape (victims,): all candidates where even they are too few.
    """
    rows = ranking(scores, order)
    before = size[rows].cumsum(0) - size[rows]
    return rows[before < request]


def victims(columns: Columns, settings: Settings, clock: int, request: int) -> list[Tensor]:
    """What `select` takes under each setting, by scores in float64."""
    scores = score(columns, settings, clock)
    return [select(row, columns.size, columns.order, request) for row in scores]


class Window(NamedTuple):
    """Blocks [begin, end) of the list, and their score; an empty one, infinite, if there is
    none."""

    begin: int
    end: int
    score: float


def window(
    size: Tensor,
    free: Tensor,
    evictable: Tensor,
    cost: Tensor,
    last_access: Tensor,
    clock: int,
    request: int,
    lacking: int,
    cost_exp: float = 1.0,
    staleness_exp: float = 1.0,
    epsilon: int = 1,
) -> Window:
    """The least-cost run of free and evictable blocks that holds a request.

    For each block the shortest run that ends there is looked at. The score of a run is that of one
    value of its summed cost and of the staleness of its bytes in the mean; the first of equals is
    taken.

    Args:
        size: int64 bytes of the blocks in address order, of the shape (B,).
        free, evictable: bool, of the shape (B,): a block that is neither breaks runs.
        cost: float64 ns of recomputing each, penalties included.
        last_access: int64 ns.
        clock: the present.
        request: bytes that the run must have.
        lacking: bytes that must come from evictable blocks.
        cost_exp, staleness_exp, epsilon: of the score.
    """
    count = size.numel()
    nothing = Window(0, 0, float("inf"))
    if count == 0:
        return nothing

    def sums(column: Tensor) -> Tensor:
        return torch.cat([column.new_zeros(1), column.cumsum(0)])

    counted = evictable & ~free
    taken = torch.where(counted, size, 0)
    stale = taken.double() * (clock - last_access).double()
    bytes_, evicted = sums(size), sums(taken)
    costs, staleness = sums(torch.where(counted, cost.double(), 0.0)), sums(stale)
    ends = torch.arange(1, count + 1, device=size.device)
    barrier = torch.where(free | evictable, 0, ends).cummax(0).values  # No run begins before.
    # The last begin that leaves enough bytes of both kinds up to the end.
    begins = torch.minimum(
        torch.searchsorted(bytes_, bytes_[ends] - request, right=True),
        torch.searchsorted(evicted, evicted[ends] - lacking, right=True),
    )
    begins = begins - 1
    whole = begins >= barrier
    begins = begins.clamp(min=0)
    total = (costs[ends] - costs[begins]).clamp(min=0) + epsilon
    among = (evicted[ends] - evicted[begins]).double()
    mean = (staleness[ends] - staleness[begins]).clamp(min=0) / among + epsilon

    def power(base: Tensor, exponent: float) -> Tensor:
        if exponent in (0, 1):
            return base if exponent else torch.ones_like(base)
        return base.pow(exponent)

    scores = power(total, cost_exp) / power(mean, staleness_exp)
    scores = torch.where(whole & (among > 0), scores, torch.inf)
    best = int(torch.argmin(scores))
    if scores[best] == torch.inf:
        return nothing
    return Window(int(begins[best]), best + 1, float(scores[best]))
