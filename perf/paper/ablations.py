"""Which of cost, size and staleness does the score need?

The paper's figures 6 to 9: a cost is fixed (e*, evicted classes, the operator's own, none) and
divided by size and staleness, one of them, or neither. A picture for each cost.

    python perf/paper/ablations.py [--logs LOGS] [--quick]
"""

from __future__ import annotations

from study import BUDGETS, lowest, options, overhead_at, tell

from dtr_alloc.runtime.heuristic import ABLATIONS
from dtr_alloc.runtime.simulate.plot import plot
from dtr_alloc.runtime.simulate.sweep import write_csv

COSTS = {
    "full": "exact e*",
    "eqclass": "evicted classes",
    "local": "own cost",
    "none": "no cost",
}


def main() -> None:
    chosen = options(__doc__, logs=True)
    names = [name for name in ABLATIONS if not chosen.quick or name.startswith("eqclass")]
    budgets = BUDGETS[::3] if chosen.quick else BUDGETS
    results = chosen.sweep(names, budgets)
    traces = list(dict.fromkeys(result.trace for result in results))
    rows: list[dict[str, object]] = []
    for name in names:
        row: dict[str, object] = {"terms": name}
        for trace in traces:
            curve = [r for r in results if (r.trace, r.heuristic) == (trace, name)]
            row[trace] = f"{lowest(curve):.1f}  {overhead_at(curve, 0.7):>6}"
        rows.append(row)
    told = "A cell: the least budget, and the overhead at 0.7"
    tell(chosen.file("ablations.txt"), chosen.begun, rows, told)
    write_csv(chosen.file("ablations.csv"), results)
    for cost, what in COSTS.items():
        of_cost = [r for r in results if r.heuristic.split("_")[0] == cost]
        if of_cost:
            plot(of_cost, chosen.file("ablations.png", cost), title=f"Score with {what}")


if __name__ == "__main__":
    main()
