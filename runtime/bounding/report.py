"""Bounds as people read them: a row for each policy and a column for each budget; a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.bounding.bound import Bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def table(bounds: Sequence[Bound]) -> Table:
    """Of one trace, at some budgets: overheads."""
    out = Table(title="Overhead")
    out.add_column("budget")
    for bound in bounds:
        out.add_column(format_size(bound.budget_bytes), justify="right")

    def row(name: str, cell: Callable[[Bound], str], end: bool = False) -> None:
        out.add_row(name, *map(cell, bounds), end_section=end)

    row("share of the peak", lambda bound: f"{_share(bound):.2f}")
    row("no policy below", lambda bound: _lower(bound.lower))
    row("the quick bound", lambda bound: _lower(bound.knapsack))
    row("best found", lambda bound: _overhead(_best(bound)))
    row("above the bound by", _gap, end=True)
    for name in bounds[0].by_policy:
        out.add_row(name, *(_overhead(bound.by_policy[name]) for bound in bounds))
    return out


def lines(bounds: Sequence[Bound]) -> Iterator[str]:
    """What the table has no room for."""
    first = bounds[0]
    yield f"Floor: {format_size(first.floor_bytes)}. No policy can run the program in less."
    if first.smallest_found_bytes is not None:
        more = first.smallest_found_bytes / max(first.floor_bytes, 1)
        size = format_size(first.smallest_found_bytes)
        yield f"Smallest budget in which a preset runs: {size}, {more:.3f} of the floor."
    for bound in bounds:
        if math.isinf(bound.lower):
            yield f"{format_size(bound.budget_bytes)} is below the floor."
            continue
        formulation = ", the optimum of its formulation" if bound.solved else ""
        yield f"At {format_size(bound.budget_bytes)}: proven by {bound.method}{formulation}."
        if bound.best_found is not None:
            optimum = "the optimum" if bound.optimal else "best found"
            yield f"  {optimum}: {bound.best_found}"


def draw(bounds: Iterable[Bound], path: str | os.PathLike[str]) -> None:
    """Overhead against budget: what is impossible is shaded. Raises ValueError where matplotlib
    does not write files of this suffix, or OSError where the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.0), layout="constrained", dpi=130)
    panel(figure.subplots(), list(bounds))
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    figure.savefig(path)


def panel(axes: Axes, bounds: Sequence[Bound], title: str = "") -> None:
    """Draws one trace's bounds."""
    from matplotlib import colormaps

    bounds = sorted(bounds, key=lambda bound: bound.budget_bytes)
    possible = [bound for bound in bounds if math.isfinite(bound.lower)]

    def curve(overheads: Iterable[float | None]) -> list[float]:
        return [math.nan if one is None else one for one in overheads]

    shares, lower = list(map(_share, possible)), [bound.lower for bound in possible]
    best = curve(map(_best, possible))
    top = min(max([2.0, *lower]), 1.05 * max([1.2, *filter(math.isfinite, best)]))

    def line(overheads: list[float], label: str, form: str, **look: Any) -> None:
        if any(overhead <= top for overhead in overheads):  # The legend tells what is to be seen.
            axes.plot(shares, overheads, form, label=label, **look)

    axes.fill_between(shares, lower, 1.0, color="#d9d9d9")
    line(lower, "no policy below: proven", "_-", color="#666666", markersize=12, linewidth=0.8)
    for index, name in enumerate(bounds[0].by_policy if possible else ()):
        color = colormaps["tab20"](index * 2 % 20 + index // 10)  # The ten strong ones first.
        found = curve(bound.by_policy[name] for bound in possible)
        line(found, name, "o-", color=color, markersize=3, linewidth=0.8)
    line(best, "best found", "o-", color="black", mfc="none", markersize=7, linewidth=1.3)
    optima = curve(bound.lower if bound.optimal else None for bound in possible)
    line(optima, "the optimum", "*", color="#b2182b", markersize=8)
    axes.axvline(bounds[0].floor_bytes / _peak(bounds[0]), color="#b2182b", linestyle=":")
    axes.set_ylim(0.99, top)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("budget, share of the peak (dotted: the floor)", fontsize=7)
    axes.set_ylabel("computed, multiple of the trace", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _peak(bound: Bound) -> int:
    return max(bound.baseline_peak_bytes, 1)


def _share(bound: Bound) -> float:
    return bound.budget_bytes / _peak(bound)


def _best(bound: Bound) -> float | None:
    return bound.best_found.overhead if bound.best_found else None


def _lower(overhead: float) -> str:
    """Rounded down, so that it stays a bound."""
    return "nothing runs" if math.isinf(overhead) else f"{math.floor(overhead * 1e4) / 1e4:.4f}"


def _overhead(overhead: float | None) -> str:
    return "failed" if overhead is None else f"{overhead:.4f}"


def _gap(bound: Bound) -> str:
    if bound.gap is None:
        return ""
    return "0, the optimum" if bound.optimal else f"{bound.gap:.2%}"
