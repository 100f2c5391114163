"""What do "orphans first" and an exact count of ancestors save on a log?

`orphans_first` evicts first what the program has let go and nothing wanted rests on. Counting
missing ancestors alone, with the root of the staleness, was better than the paper's h_DTR at most
budgets. What is let go is dropped at once (eager), or left until it is an orphan or its score is
least (ignore). A run is given up when it recomputes for as long as the program's own time, so
`least` is the smallest budget, by hundredths of the peak, from which on every larger one works in
twice the time.

    python perf/paper/orphans.py [--logs LOGS] [--jobs N] [--quick] [--out FOLDER]
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from study import Row, lowest, options, overhead_at, tell

from dtr_alloc import Heuristic, SimulationResult
from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.simulate.rules import Policy

ANCESTORS = Heuristic("ancestors", staleness_exp=0.5)
WITH_ORPHANS = Heuristic("ancestors", staleness_exp=0.5, orphans_first=True)
WAYS: dict[str, tuple[Heuristic, Policy]] = {
    "dtr": (Heuristic(), "eager"),
    "dtr, orphans first": (Heuristic(orphans_first=True), "eager"),
    "ancestors^0.5": (ANCESTORS, "eager"),
    "ancestors^0.5, orphans first": (WITH_ORPHANS, "eager"),
    "the same, ignore": (WITH_ORPHANS, "ignore"),
}
SHARES = (0.7, 0.5, 0.4, 0.3, 0.2)
HUNDREDTHS = tuple(percent / 100 for percent in range(60, 7, -1))


def row(trace: str, way: str, curve: Sequence[SimulationResult]) -> Row:
    """What was recomputed at each share, over the program's own time, and the least budget."""
    told: dict[str, object] = {"trace": trace, "by": way}
    for share in SHARES:
        found = overhead_at(curve, share)
        told[f"{share}"] = round(float(found) - 1, 3) if found[:1].isdigit() else found
    return told | {"least": lowest(curve)}


def mean_of(rows: Sequence[Row], way: str) -> str:
    """A sentence about the three larger budgets."""
    cells = [one[f"{share}"] for one in rows if one["by"] == way for share in SHARES[:3]]
    known = [cell for cell in cells if isinstance(cell, float)]
    mean = statistics.mean(known)
    return f"{way}: {mean:.4f} in the mean at 0.7, 0.5, 0.4; {len(known)} of {len(cells)} run"


def main() -> None:
    """Prints a table, and the means over all logs at 0.7, 0.5 and 0.4; writes both."""
    chosen = options(__doc__, logs=True)
    shares = SHARES[:3] if chosen.quick else tuple(dict.fromkeys((*SHARES, *HUNDREDTHS)))
    budgets = [Share(share, whole=True) for share in shares]
    rows: list[Row] = []
    for way, (heuristic, policy) in WAYS.items():
        results = chosen.sweep([heuristic], budgets, policy)
        for trace in dict.fromkeys(result.trace for result in results):
            rows.append(row(trace, way, [one for one in results if one.trace == trace]))
    rows.sort(key=lambda one: str(one["trace"]))
    means = [mean_of(rows, way) for way in WAYS]
    tell(chosen.file("orphans.txt"), chosen.begun, rows, *means)


if __name__ == "__main__":
    main()
