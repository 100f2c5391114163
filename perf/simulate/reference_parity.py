"""Does the simulator decide as the paper's own? Every run of its results, made again and compared.

`--expected` has a row for each run of the reference: status, budget, peak, time of the trace and of
the run, evictions, operators run again and results that came back with them. Each log is parsed
once. Random rows are left out: the reference draws without a seed. `--linear` has the linear
network's rows, without a thrash limit. Exits with 1 where a row differs, or none was compared.

    python perf/simulate/reference_parity.py --logs LOGS --expected CSV [--linear CSV]
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("paper", "support")]

from linear_network import linear_schedule

from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

NAMES = {
    "DTR-EqClass": "dtr",
    "DTR-Full": "dtr_full",
    "DTR-Local": "dtr_local",
    "LRU": "lru",
    "MSPS": "msps",
    "Size": "size",
    "e*/size(AbESize)": "e_star",
    "e*-nosize-nostale(AbE)": "full",
    "Eq-nosize-nostale(AbEq)": "eqclass",
}
"""The reference's names of heuristics, and ours."""

Row = dict[str, str]


def rows_of(path: Path) -> list[Row]:
    """The rows without luck in their heuristic, and those that the reference had time to finish."""
    with open(path, newline="") as file:
        rows = csv.DictReader(file)
        return [r for r in rows if r["heuristic"] != "Random" and r["status"] != "timeout"]


def differences(row: Row, found: SimulationResult) -> dict[str, tuple[str, str]]:
    """Of each figure that differs: what was expected and what was found."""
    figures = {
        "status": found.status,
        "budget_bytes": found.budget_bytes,
        "peak_bytes": found.peak_bytes,
        "base_compute": found.base_compute,
        "total_compute": found.total_compute,
        "num_evictions": found.evictions,
        "num_evictions_eager": found.eager_evictions,
        "num_remats": found.rematerializations,
        "num_remats_collateral": found.collateral,
    }
    return {name: (row[name], str(v)) for name, v in figures.items() if row[name] != str(v)}


def linear_differences(row: Row, found: SimulationResult) -> dict[str, tuple[str, str]]:
    figures = {
        "status": found.status,
        "base_ops": found.base_compute,
        "remat_ops": found.rematerializations,
        "num_evictions": found.evictions,
        "num_evictions_eager": found.eager_evictions,
    }
    return {name: (row[name], str(v)) for name, v in figures.items() if row[name] != str(v)}


class Tally:
    """Rows compared, and how long the runs took, by heuristic."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.equal: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def count(self, where: str, found: SimulationResult, wrong: dict[str, tuple[str, str]]) -> None:
        self.total[found.heuristic] += 1
        self.equal[found.heuristic] += not wrong
        self.seconds[found.heuristic].append(found.wall_seconds)
        if wrong:
            told = ", ".join(f"{name} {a} but found {b}" for name, (a, b) in wrong.items())
            print(f"{where}, {found.heuristic}: {told}")

    def report(self, what: str) -> bool:
        """Prints a table; true where there were rows and all were equal."""
        for name, total in self.total.items():
            times = self.seconds[name]
            mean, most = 1e3 * sum(times) / total, 1e3 * max(times)
            print(
                f"  {name:<10} {self.equal[name]:>3} of {total:>3} equal,"
                f" {mean:>8.1f} ms a run, at most {most:>8.1f}"
            )
        equal, total = self.equal.total(), self.total.total()
        print(f"{what}: {equal} of {total} rows equal")
        return equal == total > 0


def compare_logs(logs: Path, expected: Path) -> bool:
    """Runs every row of `expected` whose log is in the folder `logs`."""
    tally = Tally()
    began = time.perf_counter()
    simulators: dict[str, Simulator] = {}
    rows = rows_of(expected)
    for name in dict.fromkeys(row["log"] for row in rows):
        path = next(
            (p for p in (logs / f"{name}.log.gz", logs / f"{name}.log") if p.is_file()), None
        )
        if path is not None:
            simulators[name] = Simulator(str(path))
    parsed = time.perf_counter() - began
    for row in rows:
        if row["log"] in simulators:
            budget = Share(float(row["ratio"]), whole=True)
            found = simulators[row["log"]].run(budget, Rules(NAMES[row["heuristic"]], mode="bytes"))
            tally.count(f"{row['log']} at {row['ratio']}", found, differences(row, found))
    equal = tally.report(f"{len(simulators)} logs")
    whole = time.perf_counter() - began
    print(f"{whole:.1f} s in all, {parsed:.1f} s of it parsing each log once")
    return equal


def compare_linear(expected: Path, most_layers: int | None = None) -> bool:
    """Runs the rows of `expected` that let go of what is not needed, up to so many layers."""
    tally = Tally()
    simulators: dict[int, Simulator] = {}
    for row in rows_of(expected):
        if row["runtime"] != "RuntimeV2EagerOptimized":
            continue
        layers = int(row["N"])
        if most_layers is not None and layers > most_layers:
            continue
        if layers not in simulators:
            simulators[layers] = Simulator(linear_schedule(layers))
        found = simulators[layers].run(
            int(row["budget"]), Rules(NAMES[row["heuristic"]], mode="bytes", thrash=None)
        )
        tally.count(f"{layers} layers in {row['budget']}", found, linear_differences(row, found))
    return tally.report("linear network")


def main() -> int:
    """Compares; returns 1 on any difference."""
    parser = argparse.ArgumentParser(description="The simulator against the reference's results.")
    parser.add_argument("--logs", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--expected", type=Path, required=True, help="CSV of the reference's runs")
    parser.add_argument("--linear", type=Path, help="CSV of its runs of the linear network")
    options = parser.parse_args()
    equal = compare_logs(options.logs, options.expected)
    if options.linear is not None:
        equal = compare_linear(options.linear) and equal
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
