"""What should become of a tensor that the program lets go?

The paper's figure 10, with e*: evicted at once and kept as a recipe (eager), gone for good as soon
as nothing missing was made from it, which then can't be evicted (banish), or left until its score
is least (ignore). Banishing follows the live runtime: views share their storage and cost nothing,
and so does the baseline here; the paper's simulator recomputes views under all three.

    python perf/paper/banishing.py [--logs LOGS] [--quick]
"""

from __future__ import annotations

from study import BUDGETS, lowest, options, overhead_at, tell

from dtr_alloc import SimulationResult
from dtr_alloc.runtime.simulate.plot import plot
from dtr_alloc.runtime.simulate.rules import Policy
from dtr_alloc.runtime.simulate.sweep import write_csv

POLICIES: tuple[Policy, ...] = ("eager", "banish", "ignore")


def main() -> None:
    chosen = options(__doc__, logs=True)
    heuristic = "dtr" if chosen.quick else "dtr_full"
    budgets = BUDGETS[::3] if chosen.quick else BUDGETS
    results: list[SimulationResult] = []
    for policy in POLICIES:
        results += chosen.sweep([heuristic], budgets, policy)
    rows = []
    for trace, kept in dict.fromkeys((r.trace, r.policy) for r in results):
        curve = [r for r in results if (r.trace, r.policy) == (trace, kept)]
        rows.append(
            {
                "trace": trace,
                "policy": kept,
                "least budget": lowest(curve),
                "overhead at 0.7": overhead_at(curve, 0.7),
                "0.4": overhead_at(curve, 0.4),
            }
        )
    rows.sort(key=lambda row: str(row["trace"]))
    tell(chosen.file("banishing.txt"), chosen.begun, rows)
    write_csv(chosen.file("banishing.csv"), results)
    plot(results, chosen.file("banishing.png"), title="What becomes of what is let go")


if __name__ == "__main__":
    main()
