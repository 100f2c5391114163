"""Columns to score, drawn and extreme; settings to score them under; and the order of eviction that
follows from scores, in plain torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from dtr_alloc.runtime.heuristic import PRESETS, USER_PARAMETERS, Heuristic
from tests.engine_harness.harness import ScoreColumns
from tests.kernels.columns import Columns

_RANGES = {"exponent": (0, 1.5, 3), "weight": (0, 3, 3), "factor": (0.9, 1.5, 4)}


def _drawn_setting(generator: np.random.Generator) -> Heuristic:
    """Every number of the formula by its role: lowest, highest, digits."""
    numbers = {}
    for one in USER_PARAMETERS:
        if one.role in _RANGES:
            low, high, digits = _RANGES[one.role]
            numbers[one.name] = round(float(generator.uniform(low, high)), int(digits))
    return Heuristic(**cast(Any, numbers))


def _settings() -> list[Heuristic]:
    """The presets that have a score, and points between them."""
    generator = np.random.default_rng(0)
    named = [h for name, h in PRESETS.items() if name != "random"]
    tuned = [_drawn_setting(generator) for _ in range(32 - len(named))]
    return named + tuned


HEURISTICS = _settings()


def drawn(count: int, seed: int, clock: int) -> Columns:
    """Random rows over many orders of magnitude; a tenth may not go."""
    generator = np.random.default_rng(seed)

    def magnitudes(low: float, high: float) -> torch.Tensor:
        return torch.from_numpy(np.exp2(generator.uniform(low, high, count)).astype(np.int64))

    return Columns(
        size=magnitudes(9, 32) // 512 * 512,
        free_left=magnitudes(0, 30) * torch.from_numpy(generator.integers(0, 2, count)),
        free_right=magnitudes(0, 30) * torch.from_numpy(generator.integers(0, 2, count)),
        last_access=clock - magnitudes(0, 40),
        cost=magnitudes(8, 32),
        neighbourhood=magnitudes(0, 36) * torch.from_numpy(generator.integers(0, 2, count)),
        recomputes=torch.from_numpy(generator.integers(0, 20, count).astype(np.int32)),
        evictable=torch.from_numpy((generator.random(count) < 0.9).astype(np.uint8)),
        order=torch.from_numpy(generator.permutation(count).astype(np.int64)),
    )


def _all(column: torch.Tensor, value: int) -> torch.Tensor:
    return torch.full_like(column, value)


def _equal(columns: Columns) -> Columns:
    """One row again and again."""
    rows = {
        name: _all(column, int(column[0]))
        for name, column in vars(columns).items()
        if name not in ("order", "evictable")
    }
    return replace(columns, **rows, evictable=_all(columns.evictable, 1))


_CHANGES: dict[str, Callable[[Columns, int], Columns]] = {
    "zero size": lambda c, clock: replace(c, size=_all(c.size, 0)),
    "zero size and nothing free beside it": lambda c, clock: replace(
        c, size=_all(c.size, 0), free_left=_all(c.size, 0), free_right=_all(c.size, 0)
    ),
    "zero staleness": lambda c, clock: replace(c, last_access=_all(c.size, clock)),
    "zero costs": lambda c, clock: replace(c, cost=_all(c.size, 0), neighbourhood=_all(c.size, 0)),
    "some costs below zero": lambda c, clock: replace(
        c, neighbourhood=-c.cost + (torch.arange(len(c)) % 5 - 2) * 1000
    ),
    "huge costs": lambda c, clock: replace(
        c, cost=_all(c.size, 1 << 61), neighbourhood=(1 << 61) - c.neighbourhood
    ),
    "huge sizes": lambda c, clock: replace(c, size=(1 << 53) - c.size),
    "many recomputes": lambda c, clock: replace(c, recomputes=c.recomputes * 1000),
    "all equal": lambda c, clock: _equal(c),
    "all equal, not all evictable": lambda c, clock: replace(_equal(c), evictable=c.evictable),
    "none evictable": lambda c, clock: replace(c, evictable=_all(c.evictable, 0)),
}

EXTREMES: dict[str, Callable[[int, int], Columns]] = {
    name: lambda count, clock, change=change: change(drawn(count, 4, clock), clock)  # type: ignore[misc]
    for name, change in _CHANGES.items()
}
"""By name: a function of how many rows and the clock."""


def native_columns(columns: Columns) -> ScoreColumns:
    """The same for the C++ scorer."""
    return ScoreColumns(**{name: column.numpy() for name, column in vars(columns).items()})


def ranking(scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The rows in which a score is a number, in the order in which they are evicted.

    The least score first, and of equal ones what became evictable last. Where scores are zero or
    below, the rule is the reference simulator's: it scans from what became evictable first, keeps
    the least, and stops at a score of zero. So a zero ends a segment, segments go one after the
    other, and what is above zero goes after all of them.
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


def select(
    scores: torch.Tensor, size: torch.Tensor, order: torch.Tensor, request: int
) -> torch.Tensor:
    """The rows of the victims, in the order of their eviction, until they have `request` bytes: all
    candidates where even they are too few."""
    rows = ranking(scores, order)
    before = size[rows].cumsum(0) - size[rows]
    return rows[before < request]
