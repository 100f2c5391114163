"""How far is each heuristic from the optimum?

The paper's figure 3 compares DTR with the optimum that Checkmate's integer program finds. Here the
program is dtr_alloc's own bound (docs/bound.md), by the live runtime's rules: on small networks of
the figure's kinds, recorded when the script runs, and on our own traces or the logs given, where it
is a bound and seldom the optimum. Budgets of the networks lie evenly between the floor and what the
network takes without a budget; those of the logs are shares of the peak.

    python perf/paper/optimum.py [--logs LOGS] [--jobs N] [--quick] [--out perf/results]
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "support"))
sys.path.append(str(Path(__file__).parents[1] / "simulate"))

from measurement import origin
from models.figure_3 import NETWORKS, step
from record_traces import typical
from study import Row, options, table, write_rows

import dtr_alloc
from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.bounding.bound import Bound, Bounder
from dtr_alloc.runtime.bounding.report import panel
from dtr_alloc.runtime.simulate.plot import short_name
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Budget

ROUNDS = 5
BETWEEN = (0.8, 0.6, 0.4, 0.2, 0.0)
"""Budgets of the networks: 0 is the floor, 1 what is taken without a budget."""
SHARES = tuple(Share(tenth / 10, whole=True) for tenth in (9, 7, 5, 4, 3))
"""Budgets of the logs."""
PROOF, LOG_PROOF, QUICK = 10.0, 4.0, 0.5
"""Seconds for a proof: of a network, of a log, of any. A search takes as many at most."""
SHOWN = ("dtr", "foresight", "msps")


@dataclass(frozen=True)
class Task:
    """A trace, and the budgets to ask about."""

    name: str
    trace: dtr_alloc.Trace | str
    budgets: tuple[Budget, ...]
    seconds: float


def recorded(name: str, rounds: int) -> dtr_alloc.Trace:
    """The second step of a network's training, with the median time of each operator."""

    def once() -> dtr_alloc.Trace:
        run = step(name)
        run()
        with dtr_alloc.rematerialize(None), dtr_alloc.record_trace() as recording:
            run()
        assert recording.trace is not None
        return recording.trace

    return typical([once() for _ in range(rounds)])


def networks(quick: bool) -> Iterator[Task]:
    """The figure's."""
    for name in list(NETWORKS)[: 1 if quick else None]:
        trace = recorded(name, 1 if quick else ROUNDS)
        bounder = Bounder(trace)
        floor = bounder.needs.floor_bytes
        free = bounder.simulator.run(1 << 40, Rules("dtr", pin_outputs=False)).peak_bytes
        budgets = tuple(floor + int((free - floor) * share) for share in BETWEEN)
        yield Task(name, trace, budgets[:2] if quick else budgets, QUICK if quick else PROOF)


def bounds(task: Task) -> list[tuple[Bound, float]]:
    """Of each budget, with the seconds that it took."""
    torch.set_num_threads(1)
    bounder = Bounder(task.trace, task.name)
    found = []
    for budget in task.budgets:
        began = time.perf_counter()
        found.append((bounder.at(budget, seconds=task.seconds), time.perf_counter() - began))
    return found


def row(bound: Bound, seconds: float) -> Row:
    """A cell as the CSV has it; what failed, or was not found, is empty."""
    best = bound.best_found
    return {
        "trace": bound.trace,
        "share": round(bound.budget_bytes / bound.baseline_peak_bytes, 3),
        "budget_bytes": bound.budget_bytes,
        "floor_bytes": bound.floor_bytes,
        "quick": _rounded(bound.knapsack),
        "lower": _rounded(bound.lower),
        "solved": bound.solved,
        "best": _rounded(best.overhead if best else None),
        "gap": _rounded(bound.gap),
        "optimum": bound.optimal,
        **{name: _rounded(bound.by_policy[name]) for name in SHOWN},
        "method": bound.method,
        "setting": "" if best is None else str(best),
        "seconds": round(seconds, 1),
    }


def _rounded(number: float | None) -> float | str:
    return "" if number is None or math.isinf(number) else round(number, 4)


def draw(found: Sequence[Bound], path: Path) -> None:
    """A panel for each trace."""
    names = list(dict.fromkeys(bound.trace for bound in found))
    columns = min(len(names), 5 if len(names) % 5 == 0 else 4)
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.8 * rows + 0.5), layout="constrained", dpi=120)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes, name in zip(panels, names, strict=False):
        panel(axes, [bound for bound in found if bound.trace == name], name)
    drawn = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    handles = {label: handle for panel_of in drawn for handle, label in panel_of}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        fontsize=8,
        ncols=7,
        frameon=False,
    )
    figure.savefig(path)


def main() -> None:
    chosen = options(__doc__, logs=True)
    torch.set_num_threads(1)
    began, told = time.perf_counter(), origin()  # Files may change meanwhile.
    seconds = QUICK if chosen.quick else LOG_PROOF
    logs = [
        Task(short_name(str(log)), str(log), SHARES[1:2] if chosen.quick else SHARES, seconds)
        for log in chosen.logs
    ]
    groups = {"networks": list(networks(chosen.quick)), chosen.tag: logs}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1 if chosen.quick else chosen.jobs, spawn) as pool:
        running = {tag: pool.map(bounds, tasks) for tag, tasks in groups.items()}
        done = {tag: [cell for cells in each for cell in cells] for tag, each in running.items()}
    took = time.perf_counter() - began
    chosen.out.mkdir(parents=True, exist_ok=True)
    for tag, cells in done.items():
        rows = [row(*cell) for cell in cells]
        write_rows(chosen.out / f"optimum_{tag}.csv", rows)
        draw([bound for bound, _ in cells], chosen.out / f"optimum_{tag}.png")
        shown = [{key: value for key, value in one.items() if key != "setting"} for one in rows]
        table(shown)
        with (
            (chosen.out / f"optimum_{tag}.txt").open("w") as file,
            contextlib.redirect_stdout(file),
        ):
            print(f"{told}\n")
            table(shown)
            print(f"{took:.0f} seconds for all networks and logs")


if __name__ == "__main__":
    main()
