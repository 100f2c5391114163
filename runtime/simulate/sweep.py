"""Many simulations: every trace with every heuristic at every budget, spread over processes.

A run is single-threaded and shares nothing with another, so processes are enough; a trace is parsed
once in each process that needs it, because arrays are cheaper to make again than to send, and once
in this one before anything runs: a damaged log must not cost the results of the others. Processes
are spawned, not forked: torch has threads. A script that calls `sweep` with more than one job must
therefore do so under ``if __name__ == "__main__":``.

Source: Kirisame et al., ICLR 2021, section 4.2 (its figure 2 is such a sweep).
"""

from __future__ import annotations

import csv
import functools
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.heuristic import DEFAULT, Heuristic
from dtr_alloc.runtime.simulate.link import LeaveBy, Linked
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import THRASH, Mode, Policy, Rules
from dtr_alloc.runtime.simulate.simulator import Budget, Simulator, Traced, parse_budget

BUDGETS = tuple(Share(tenth / 10) for tenth in range(10, 0, -1))
"""From all of the activation peak to a tenth of it."""

FIGURE_2 = ("dtr", "dtr_full", "dtr_local", "lru", "msps", "size")
"""Those of the paper's figure 2, but for the random one."""

HEURISTICS = (DEFAULT, *FIGURE_2)


_Run: TypeAlias = tuple[int, Rules, Budget]
"""One simulation, of the trace of that number."""


def sweep(
    traces: Iterable[Traced],
    heuristics: Iterable[str | Heuristic] = HEURISTICS,
    budgets: Iterable[Budget] = BUDGETS,
    *,
    policy: Policy = "eager",
    mode: Mode = "pool",
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
        csv: where to write the results as well, as `write_csv` does, each when those before it are
            there: a sweep that is interrupted leaves them.
        progress: shows a bar on stderr.

    Raises:
        ValueError, TypeError: a combination is none that `simulate` takes, or one is given alone
            instead of several, or `jobs` is below 1; nothing has run then.
        TraceError, OSError: a log cannot be read, or `csv` cannot be written; nothing has run
            then, unless it is a disk that has become full.
    """
    for name, given in (("traces", traces), ("heuristics", heuristics), ("budgets", budgets)):
        if isinstance(given, (str, os.PathLike)):
            raise TypeError(f"{name} is {given!r}, and a sweep takes several: give a list")
    traces, budgets = list(traces), list(budgets)
    rules = Rules(policy=policy, mode=mode, thrash=thrash, link=link, leave_by=leave_by)
    each = [replace(rules, heuristic=heuristic) for heuristic in heuristics]
    for budget in budgets:
        parse_budget(budget)
    _check_place(csv, jobs)
    runs = list(itertools.product(range(len(traces)), each, budgets))
    jobs = min(jobs or len(os.sched_getaffinity(0)), max(len(runs), 1))
    ready = functools.cache(lambda trace: Simulator(traces[trace]))  # Once, when first asked for.
    for trace, of_a_trace in itertools.groupby(runs, key=lambda run: run[0]):
        for _, one, budget in of_a_trace:
            ready(trace).check(budget, one)
        if jobs > 1:  # Other processes have their own.
            ready.cache_clear()
    results = []
    here = (ready(trace).run(budget, one) for trace, one, budget in runs)
    with _bar(len(runs), progress) as advance, _rows(csv) as write:
        for result in here if jobs == 1 else _spread(runs, traces, jobs):
            results.append(result)
            write(result)
            advance()
    return results


def _check_place(csv: str | os.PathLike[str] | None, jobs: int | None) -> None:
    if csv is not None and not Path(csv).parent.is_dir():
        raise FileNotFoundError(f"there is no folder for {Path(csv)}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; a sweep takes at least 1 process")


_ready: Callable[[int], Simulator]


def _start(traces: Sequence[Traced]) -> None:
    global _ready
    _ready = functools.cache(lambda trace: Simulator(traces[trace]))


def _run(run: _Run) -> SimulationResult:
    trace, rules, budget = run
    return _ready(trace).run(budget, rules)


def _spread(
    runs: Sequence[_Run], traces: Sequence[Traced], jobs: int
) -> Iterator[SimulationResult]:
    """The results of other processes, in the order of the runs."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=_start, initargs=(traces,)) as pool:
        yield from pool.map(_run, runs)


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


_TYPES: dict[str, type] = {"int": int, "float": float, "str": str}
_COLUMNS = {
    field.name: _TYPES[str(field.type)]
    for field in fields(SimulationResult)
    if field.name not in ("events", "layouts")
}


def write_csv(path: str | os.PathLike[str], results: Iterable[SimulationResult]) -> None:
    """A line for each result, with a column for each attribute but the arrays."""
    with _rows(path) as write:
        for result in results:
            write(result)


@contextmanager
def _rows(path: str | os.PathLike[str] | None) -> Iterator[Callable[[SimulationResult], object]]:
    """Makes the CSV, and gives what writes a line of it at once; nothing where there is no path."""
    if path is None:
        yield lambda result: None
        return
    with open(path, "w", newline="", buffering=1) as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        yield lambda result: writer.writerow(result.as_dict())


def read_csv(path: str | os.PathLike[str]) -> list[SimulationResult]:
    """What `write_csv` wrote. Raises ValueError where a column is missing, or holds no number where
    there should be one, or OSError where the file cannot be read."""
    results = []
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        for name in _COLUMNS:
            if name not in (reader.fieldnames or ()):
                raise ValueError(f"{Path(path)} has no column {name!r}: it is not of a sweep")
        for row in reader:
            try:
                values = {name: kind(row[name]) for name, kind in _COLUMNS.items()}
            except (TypeError, ValueError) as error:
                raise ValueError(f"{Path(path)} line {reader.line_num}: {error}") from None
            nothing = np.empty((0, 0), np.int64)
            results.append(SimulationResult(**values, events=nothing, layouts=nothing))
    return results
