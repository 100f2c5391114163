"""A simulation as people read it: each figure with what it means."""

from __future__ import annotations

from collections.abc import Iterator

from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.simulate.result import LINK_FIELDS, POOL_FIELDS, SimulationResult

_STATUS = {
    "ok": "the run came to its end",
    "oom": "nothing was left to evict; the figures are those up to there",
    "thrash": "recomputing took longer than all operators; the figures are those up to there",
}
_MEANS = {
    "base_compute": "ns of all operators, each once",
    "total_compute": "ns of all that ran, those run again included",
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
_OF_POOL = (*POOL_FIELDS, "search_ns", "move_ns")


def lines(result: SimulationResult) -> Iterator[str]:
    """A line for each figure that the mode has."""
    sizes = {
        "budget_bytes": f"the budget, {format_size(result.budget_bytes)}",
        "baseline_peak_bytes": f"most held without one, {format_size(result.baseline_peak_bytes)}",
        "peak_bytes": f"most held within it, {format_size(result.peak_bytes)}",
    }
    means = {**_MEANS, **sizes, "status": _STATUS[result.status]}
    figures = result.as_dict()
    rows = {name: str(value) for name, value in figures.items() if _has(result, name)}
    wide = max(len(value) for name, value in rows.items() if name != "trace")
    for name, value in rows.items():
        yield f"{name:<19}  {value:<{wide}}  {means.get(name, '')}".rstrip()


def _has(result: SimulationResult, name: str) -> bool:
    """Whether the figure means something in this mode."""
    if name in _OF_POOL:
        return result.mode == "pool"
    return name not in LINK_FIELDS or result.link != ""
