"""A simulation as people read it: each figure with what it means."""

from __future__ import annotations

from collections.abc import Iterator

from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.simulate.result import SimulationResult

_STATUS = {
    "ok": "the run came to its end",
    "oom": "nothing was left to evict; the figures are those up to there",
    "thrash": "recomputing took longer than all operators; the figures are those up to there",
}
_MEANS = {
    "base_compute": "time of all operators, each once",
    "total_compute": "time of all that ran, those run again included",
    "budget_bytes": "the budget",
    "baseline_peak_bytes": "most held without one",
    "peak_bytes": "most held within it",
    "overhead": "total_compute / base_compute",
    "evictions": "storages that lost their content",
    "eager_evictions": "of them because the program let them go",
    "rematerializations": "operators run again",
    "collateral": "other results that came back with those asked for",
    "evaluations": "scores computed",
    "accesses": "those, and records visited for them",
    "misses": "requests that the pool could not serve at once",
    "fragmentation": "1 - largest hole / free bytes, before a miss, mean",
    "free_after": "free bytes / budget, after a miss, mean",
    "evicted_bytes": "evicted to make room",
    "wasted_bytes": "of them beyond what was asked for",
    "search_ns": "spent on finding room",
    "move_ns": "what moving pages would take",
    "swapped_out_bytes": "written over the link",
    "swapped_in_bytes": "read back",
    "reloads": "storages that came back over the link",
    "waited_ns": "of total_compute, for the link",
    "wall_seconds": "of the simulation",
}
_TIMES = ("base_compute", "total_compute", "search_ns", "move_ns", "waited_ns")
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def lines(result: SimulationResult) -> Iterator[str]:
    """A line for each figure that the mode has, in units for people."""
    means = {**_MEANS, "status": _STATUS[result.status]}
    rows = {name: _shown(name, value) for name, value in result.figures().items()}
    wide = max(len(value) for name, value in rows.items() if name != "trace")
    for name, value in rows.items():
        yield f"{name:<19}  {value:<{wide}}  {means.get(name, '')}".rstrip()


def _shown(name: str, value: object) -> str:
    if isinstance(value, int):
        if name.endswith("_bytes"):
            return format_size(value)
        return format_time(value) if name in _TIMES else f"{value:,}"
    if isinstance(value, float):
        return format_time(value * 1e9) if name == "wall_seconds" else f"{value:.4f}"
    return str(value)


def format_time(ns: float) -> str:
    """In the largest unit that it fills.

    Example:
        >>> format_time(746_336_661), format_time(999_999), format_time(12)
        ('746.3 ms', '1.0 ms', '12 ns')
    """
    for factor, unit in _UNITS:
        if round(ns / factor, 1) >= 1:
            return f"{ns / factor:,.1f} {unit}"
    return f"{ns:.0f} ns"
