"""Many simulations: every trace with every heuristic at every budget, spread over processes.

A run is single-threaded and shares nothing with another, so processes are enough; a trace is parsed
once in each process that needs it, because arrays are cheaper to make again than to send. Processes
are spawned, not forked: torch has threads. A script that calls `sweep` with more than one job must
therefore do so under ``if __name__ == "__main__":``.

Source: Kirisame et al., ICLR 2021, section 4.2 (its figure 2 is such a sweep).
"""

from __future__ import annotations

import csv
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dtr_alloc.runtime.heuristic import Heuristic, Policy
from dtr_alloc.runtime.link import LeaveBy, Linked
from dtr_alloc.runtime.simulate import (
    Budget,
    SimulationResult,
    Simulator,
    Traced,
    parse_budget,
)
from dtr_alloc.runtime.simulation_rules import THRASH, Mode, Rules

BUDGETS = tuple(tenth / 10 for tenth in range(10, 0, -1))
"""Those of the paper: 1.0 to 0.1 of the peak."""

HEURISTICS = ("dtr", "dtr_full", "dtr_local", "lru", "msps", "size")
"""Those of the paper's figure 2, but for the random one."""


@dataclass(frozen=True)
class _Run:
    """One simulation; `trace` is an index."""

    trace: int
    budget: Budget
    rules: Rules


class _Worker:
    """The traces of this process, each made ready when it is first asked for."""

    def __init__(self, traces: Sequence[Traced]) -> None:
        self.traces = traces
        self.ready: dict[int, Simulator] = {}

    def run(self, run: _Run) -> SimulationResult:
        if run.trace not in self.ready:
            self.ready[run.trace] = Simulator(self.traces[run.trace])
        return self.ready[run.trace].run(run.budget, run.rules)


_worker: _Worker


def _start(traces: Sequence[Traced]) -> None:
    global _worker
    _worker = _Worker(traces)


def _run(run: _Run) -> SimulationResult:
    return _worker.run(run)


def sweep(
    traces: Iterable[Traced],
    heuristics: Iterable[str | Heuristic] = HEURISTICS,
    budgets: Iterable[Budget] = BUDGETS,
    *,
    policy: Policy = "eager",
    mode: Mode = "bytes",
    thrash: float | None = THRASH,
    link: Linked = None,
    leave_by: LeaveBy = "both",
    jobs: int | None = None,
    csv: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> list[SimulationResult]:
    """Simulates every trace with every heuristic at every budget, in this order.

    Args:
        traces: as for `simulate`.
        heuristics, budgets, policy, mode, thrash, link, leave_by: as for `simulate`.
        jobs: processes; 1 for this one, None for as many as there are cores.
        csv: where to write the results as well, with `write_csv`.
        progress: shows a bar on stderr.

    Raises:
        ValueError, TypeError: one of these is nothing that `simulate` takes, or one alone instead
            of several, or `jobs` is below 1; nothing has run then.
        FileNotFoundError: the folder of `csv` is absent; nothing has run then.
        TraceError, OSError, ValueError: of the traces, as `simulate` raises them.
    """
    for name, given in (("traces", traces), ("heuristics", heuristics), ("budgets", budgets)):
        if isinstance(given, (str, os.PathLike)):
            raise TypeError(f"{name} is {given!r}, and a sweep takes several: give a list")
    traces, budgets = list(traces), list(budgets)
    rules = Rules(policy=policy, mode=mode, thrash=thrash, link=link, leave_by=leave_by)
    each = [replace(rules, heuristic=heuristic) for heuristic in heuristics]
    for budget in budgets:
        parse_budget(budget)
    if csv is not None and not Path(csv).parent.is_dir():
        raise FileNotFoundError(f"there is no folder for {Path(csv)}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; a sweep takes at least 1 process")
    runs = [
        _Run(trace, budget, one)
        for trace, one, budget in itertools.product(range(len(traces)), each, budgets)
    ]
    jobs = min(jobs or len(os.sched_getaffinity(0)), max(len(runs), 1))
    results: list[SimulationResult | None] = [None] * len(runs)
    with _bar(len(runs), progress) as advance:
        for index, result in _in_turn(runs, traces, jobs):
            results[index] = result
            advance()
    found = [result for result in results if result is not None]
    if csv is not None:
        write_csv(csv, found)
    return found


def _in_turn(
    runs: Sequence[_Run], traces: Sequence[Traced], jobs: int
) -> Iterator[tuple[int, SimulationResult]]:
    """The results as they come, with their places."""
    if jobs == 1:
        worker = _Worker(traces)
        yield from ((index, worker.run(run)) for index, run in enumerate(runs))
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=_start, initargs=(traces,)) as pool:
        places = {pool.submit(_run, run): index for index, run in enumerate(runs)}
        try:
            for future in as_completed(places):
                yield places[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Any]:
    """A function that moves the bar by one run."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda: bar.advance(task)


_COLUMNS = [
    field.name for field in fields(SimulationResult) if field.name not in ("events", "layouts")
]
_TYPES: dict[str, type] = {"int": int, "float": float, "str": str}


def write_csv(path: str | os.PathLike[str], results: Iterable[SimulationResult]) -> None:
    """A line for each result, with a column for each attribute but the arrays."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(result.as_dict() for result in results)


def read_csv(path: str | os.PathLike[str]) -> list[SimulationResult]:
    """What `write_csv` wrote.

    Raises:
        ValueError: a column is missing, or holds no number where there should be one.
        OSError: the file cannot be read.
    """
    types = {
        field.name: _TYPES[str(field.type)]
        for field in fields(SimulationResult)
        if field.name in _COLUMNS
    }
    results = []
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{Path(path)} has no column {missing[0]!r}: it is not of a sweep")
        for row in reader:
            try:
                values = {name: types[name](row[name]) for name in _COLUMNS}
            except (TypeError, ValueError) as error:
                raise ValueError(f"{Path(path)} line {reader.line_num}: {error}") from None
            nothing = np.empty((0, 0), np.int64)
            results.append(SimulationResult(**values, events=nothing, layouts=nothing))
    return results
