"""What a simulated run came to, and the names under which scripts and logs read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

POOL_FIELDS = (
    *("misses", "fragmentation", "free_after", "evicted_bytes", "wasted_bytes"),
    *("search_ns", "move_ns"),
)
LINK_FIELDS = ("link", "leave_by", "swapped_out_bytes", "swapped_in_bytes", "reloads", "waited_ns")
"""What means something in mode ``pool`` alone, and with a link alone."""


@dataclass(frozen=True)
class SimulationResult:
    """What a run under a budget came to.

    Attributes:
        link, leave_by: as given to `simulate`; "" and "drop" without a link.
        status: ``ok``; ``oom``, nothing was left to evict; ``thrash``, recomputation passed the
            limit. Figures of a run that failed are those at its end.
        budget_bytes, baseline_peak_bytes, peak_bytes: the budget, and the most bytes held without
            and with it.
        base_compute: nanoseconds of all operators of the trace, each once.
        total_compute: of those that ran, with those run again and `waited_ns`; a run that failed
            stops early.
        overhead: their quotient, total by base.
        evictions: storages that lost their content, `eager_evictions` of them because the program
            let them go.
        rematerializations: operators run again; `collateral`: other results they brought back.
        evaluations, accesses: scores computed, and those plus the records visited for them.
        misses: in mode ``pool``, as all up to `search_ns`: requests that the pool could not serve
            at once.
        fragmentation, free_after: means over misses: 1 - largest hole / free bytes before, and free
            bytes / budget after.
        evicted_bytes, wasted_bytes: evicted to make room, and of them beyond what was asked for.
        search_ns: time spent on finding room; `move_ns`: what moving pages would take.
        swapped_out_bytes, swapped_in_bytes: over the link; `reloads`: storages that came back;
            `waited_ns`: how long the program waited for all that.
        wall_seconds: what the simulation took.
        events: rows (tensor, event) in order, event 0 for computed, 1 evicted, 2 let go; what comes
            back over a link is none; empty unless asked for.
        layouts: rows (picture, offset, bytes, kind) in order; kind 0 for bytes that pages back, 1
            for a block that may be evicted, 2 for one that may not; empty unless asked for.
    """

    trace: str
    heuristic: str
    mode: str
    policy: str
    link: str
    leave_by: str
    status: str
    budget_bytes: int
    baseline_peak_bytes: int
    base_compute: int
    total_compute: int
    overhead: float
    evictions: int
    eager_evictions: int
    rematerializations: int
    collateral: int
    peak_bytes: int
    evaluations: int
    accesses: int
    misses: int
    fragmentation: float
    free_after: float
    evicted_bytes: int
    wasted_bytes: int
    search_ns: int
    move_ns: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    reloads: int
    waited_ns: int
    wall_seconds: float
    events: npt.NDArray[np.int64] = field(repr=False, compare=False)
    layouts: npt.NDArray[np.int64] = field(repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """All but the events and the layouts, for CSV."""
        row = asdict(self)
        del row["events"], row["layouts"]
        return row

    def figures(self) -> dict[str, Any]:
        """Those that mean something here: without `POOL_FIELDS` in mode ``bytes``, and without
        `LINK_FIELDS` where there is no link."""
        without = (() if self.mode == "pool" else POOL_FIELDS) + (() if self.link else LINK_FIELDS)
        return {name: value for name, value in self.as_dict().items() if name not in without}

    def as_json(self) -> str:
        """One object, of the figures."""
        return json.dumps(self.figures(), indent=1)
