"""How much more does a trace compute at a fraction of its memory, under each heuristic?

The paper's figure 2: budgets from the whole peak down to a tenth, six heuristics and a random one,
in the rules of the paper's simulator. The random one is the mean over seeds; at a budget where one
of them fails it has failed.

    python perf/paper/budget_slowdown.py [--logs LOGS] [--quick]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from study import BUDGETS, Options, lowest, options, overhead_at, tell

from dtr_alloc import Heuristic, SimulationResult
from dtr_alloc.runtime.simulate.plot import plot
from dtr_alloc.runtime.simulate.sweep import FIGURE_2, write_csv

SEEDS = 5


def merged(trials: Sequence[SimulationResult]) -> Iterator[SimulationResult]:
    """One result for all seeds of a trace and budget."""
    for key in dict.fromkeys((trial.trace, trial.budget_bytes) for trial in trials):
        same = [trial for trial in trials if (trial.trace, trial.budget_bytes) == key]
        failed = [trial for trial in same if trial.status != "ok"]
        mean = sum(trial.overhead for trial in same) / len(same)
        chosen = failed[0] if failed else replace(same[0], overhead=mean)
        yield replace(chosen, heuristic="random")


def study(chosen: Options) -> list[SimulationResult]:
    heuristics = FIGURE_2[::2] if chosen.quick else FIGURE_2
    budgets = BUDGETS[::3] if chosen.quick else BUDGETS
    random = [
        Heuristic("none", selection="random", seed=seed)
        for seed in range(1 if chosen.quick else SEEDS)
    ]
    results = chosen.sweep([*heuristics, *random], budgets)
    fixed = [result for result in results if result.heuristic in heuristics]
    return [*fixed, *merged([r for r in results if r.heuristic not in heuristics])]


def main() -> None:
    chosen = options(__doc__, logs=True)
    results = study(chosen)
    rows = []
    for trace, heuristic in dict.fromkeys((r.trace, r.heuristic) for r in results):
        curve = [r for r in results if (r.trace, r.heuristic) == (trace, heuristic)]
        rows.append(
            {
                "trace": trace,
                "heuristic": heuristic,
                "least budget": lowest(curve),
                "overhead at 0.7": overhead_at(curve, 0.7),
                "0.4": overhead_at(curve, 0.4),
                "0.1": overhead_at(curve, 0.1),
            }
        )
    tell(chosen.file("budget_slowdown.txt"), chosen.begun, rows)
    write_csv(chosen.file("budget_slowdown.csv"), results)
    plot(results, chosen.file("budget_slowdown.png"), title="Computation against memory")


if __name__ == "__main__":
    main()
