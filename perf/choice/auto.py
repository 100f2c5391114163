"""What do the default heuristic and heuristic="auto" save over the paper's, `dtr`?

The demo's five models, or the four of `--set sizes` whose batches are of many sizes, or the paper's
eight of `--set paper` (perf/models), on one thread, or the two of `--set real` (real_size.py) on
two, at shares of the activation peak. In each round eager in the pool comes first; `dtr`, the
default and "auto" follow in an order that is drawn. "auto" may simulate as long as it likes, and
the program waits for it before its seventh step, and again where a choice fails, so that the
figures are of what was chosen; its search is told beside them. The first thirteen steps of each
training do not count: a scope records twelve of them. Bits are compared with eager's.

`recomputing` is the time of operators run again over that of the program's own, `step` the
processor time of a step over eager's in the pool: the median over rounds of the round's median. A
second table has the parts of what a step by the default takes beyond eager's. Some fifteen minutes.

    python perf/choice/auto.py [--set sizes] [--rounds 3] [--model gpt] [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path += [
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[1] / "support"),
    str(Path(__file__).parents[1] / "cost"),
]

import models
import real_size
import torch
from fidelity import persistent_bytes
from measurement import origin, provenance, write_json
from models.workload import Workload, supervised
from real_size import job
from rich.console import Console
from rich.table import Table
from torch import Tensor

import dtr_alloc
from dtr_alloc.demo import MODELS, Job
from dtr_alloc.runtime.heuristic import DEFAULT, name_of
from dtr_alloc.runtime.scope import auto
from dtr_alloc.runtime.scope.session import Session

WARM = 13  # Steps.
PAPERS = "dtr"
WAYS = (PAPERS, DEFAULT, "auto")


@dataclass(frozen=True)
class Set:
    """Models that are measured alike; `suffix` is in the names of their results."""

    builders: dict[str, Callable[[], Workload]]
    budgets: tuple[float, ...]
    threads: int
    suffix: str


def of_many_sizes(make: Callable[[], Job]) -> Job:
    """The same with a part of each batch left out, up to a half, drawn anew each time."""
    whole = make()

    def batch(generator: torch.Generator) -> Any:
        made = whole.batch(generator)
        share = 1 - torch.rand((), generator=generator).item() / 2
        tensors = (made,) if isinstance(made, Tensor) else made
        cut = tuple(tensor[: int(share * len(tensor))].clone() for tensor in tensors)
        return cut[0] if isinstance(made, Tensor) else cut

    return replace(whole, batch=batch)


def trainings(jobs: dict[str, Callable[[], Job]]) -> dict[str, Callable[[], Workload]]:
    """Each trained from the same seed."""
    return {name: partial(supervised, make, seed=0) for name, make in jobs.items()}


SETS = {
    "demo": Set(trainings(dict(MODELS)), (0.7, 0.5, 0.4, 0.3), 1, ""),
    "sizes": Set(
        trainings({n: partial(of_many_sizes, m) for n, m in MODELS.items() if n != "treelstm"}),
        (0.7, 0.5, 0.4, 0.3),
        1,
        "_sizes",
    ),  # The trees of treelstm are of many sizes anyway.
    "paper": Set(dict(models.MODELS), (0.7, 0.5, 0.4, 0.3), 1, "_models"),
    "real": Set(
        trainings({name: partial(job, name, quick=False) for name in real_size.BUDGETS}),
        (0.5, 0.33, 0.25),
        real_size.THREADS,
        "_real_size",
    ),
}


@dataclass
class Cell:
    """One model at one budget in one way; an entry for each round. Of a step, over eager's in the
    pool: `step` all of it, `again` operators run again, `choosing` victims, `moves` of pages, and
    `system` what the kernel takes more than in the pool. `search` is choosing over the step itself,
    by the wall. `faults` counts pages that the kernel clears or maps, of a step."""

    recomputing: list[float] = field(default_factory=list)
    search: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    choosing: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    system: list[float] = field(default_factory=list)
    faults: list[float] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    simulating_s: list[float] = field(default_factory=list)
    refused: int = 0
    differences: int = 0


@dataclass(frozen=True)
class Run:
    """One training: a list has an entry for each step."""

    processor_ns: list[int]
    wall_ns: list[int]
    stats: list[dtr_alloc.SessionStats]
    usage: list[resource.struct_rusage]
    state: list[Tensor]
    session: Session | None

    def each(self, of: Callable[[resource.struct_rusage], float]) -> float:
        """Of a step that counts, in the mean."""
        return (of(self.usage[-1]) - of(self.usage[WARM - 1])) / (len(self.usage) - WARM)


def trained(
    build: Callable[[], Workload], steps: int, scope: Callable[[], AbstractContextManager[Session]]
) -> Run | None:
    """From scratch; waits, before each step in which a search is due, until it is over. None where
    the budget does not do."""
    gc.collect()
    workload = build()
    run = Run([], [], [], [], [], None)
    try:
        with scope() as session:
            for step in range(steps):
                while step >= auto._STEPS and session._chooser and not session._chooser.idle():
                    time.sleep(0.01)
                began, spent = time.perf_counter_ns(), time.process_time_ns()
                workload.step()
                run.processor_ns.append(time.process_time_ns() - spent)
                run.wall_ns.append(time.perf_counter_ns() - began)
                run.usage.append(resource.getrusage(resource.RUSAGE_SELF))
                run.stats.append(session.stats())
    except torch.OutOfMemoryError:
        return None
    return replace(run, state=[tensor.clone() for tensor in workload.state()], session=session)


def needs(build: Callable[[], Workload]) -> tuple[int, int]:
    """Bytes: the peak without a budget; of it gradients and optimizer state, which stay."""
    workload = build()
    with dtr_alloc.measure(device="cpu") as session:
        workload.step()
        workload.step()
    return session.stats().peak_bytes, persistent_bytes(workload)


def measure(
    build: Callable[[], Workload], budgets: tuple[float, ...], rounds: int
) -> tuple[dict[tuple[float, str], Cell], float]:
    """All of one model; and a step that is recorded without a budget, over eager's in the pool."""
    steps = WARM + 5
    eager = build()
    for _ in range(steps):
        eager.step()
    expected = list(eager.state())
    peak, fixed = needs(build)
    cells = {(budget, way): Cell() for budget in budgets for way in WAYS}
    recorded = []
    draw = random.Random(0)
    for _ in range(rounds):
        pool = trained(build, steps, lambda: dtr_alloc.measure(device="cpu"))
        assert pool is not None
        base = statistics.median(pool.processor_ns[WARM:])
        free = trained(build, steps, lambda: dtr_alloc.rematerialize(None, device="cpu"))
        assert free is not None
        recorded.append(statistics.median(free.processor_ns[WARM:]) / base)
        for (share, way), cell in draw.sample([*cells.items()], len(cells)):
            budget = int(share * (peak - fixed)) + fixed
            scope = partial(dtr_alloc.rematerialize, budget, heuristic=way)
            run = trained(build, steps, scope)
            if run is None or run.session is None:
                cell.refused += 1
                continue
            first, last = run.stats[WARM - 1], run.stats[-1]
            kernels = last.kernel_ns - first.kernel_ns
            cell.recomputing.append((last.remat_ns - first.remat_ns) / kernels)
            cell.search.append((last.search_ns - first.search_ns) / sum(run.wall_ns[WARM:]))
            cell.step.append(statistics.median(run.processor_ns[WARM:]) / base)
            all_steps = base * (steps - WARM)
            cell.again.append((last.remat_ns - first.remat_ns) / all_steps)
            cell.choosing.append((last.search_ns - first.search_ns) / all_steps)
            cell.moves.append((last.move_ns - first.move_ns) / all_steps)
            in_system, in_pool = (1e9 * it.each(lambda u: u.ru_stime) for it in (run, pool))
            cell.system.append((in_system - in_pool) / base)
            cell.faults.append(run.each(lambda u: u.ru_minflt) - pool.each(lambda u: u.ru_minflt))
            cell.chosen.append(name_of(run.session.heuristic))
            if run.session._chooser is not None:
                cell.simulating_s.append(run.session._chooser.spent_seconds)
            cell.differences += not same_bits(run.state, expected)
    return cells, statistics.median(recorded)


def same_bits(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether all are equal."""
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def middle(values: list[float]) -> float:
    """Their median; infinite where there are none."""
    return statistics.median(values) if values else math.inf


def rows_of(
    model: str, cells: dict[tuple[float, str], Cell], recorded: float
) -> list[dict[str, Any]]:
    """A row for each budget."""
    rows = []
    for share in dict.fromkeys(budget for budget, _ in cells):
        row: dict[str, Any] = {"model": model, "budget": share}
        for way in WAYS:
            cell = cells[share, way]
            row |= {
                f"{way}_recomputing": round(middle(cell.recomputing), 4),
                f"{way}_search": round(middle(cell.search), 4),
                f"{way}_step": round(middle(cell.step), 4),
                f"{way}_refused": cell.refused,
                f"{way}_differences": cell.differences,
            }
        ours, chosen = cells[share, DEFAULT], cells[share, "auto"]
        parts = {name: middle(getattr(ours, name)) for name in ("again", "choosing", "moves")}
        parts |= {"recorded": recorded - 1}
        parts |= {"beside": middle(ours.step) - 1 - sum(parts.values())}
        parts |= {"system": middle(ours.system)}
        row["parts"] = {name: round(part, 4) for name, part in parts.items()}
        row["faults"] = round(middle(ours.faults)) if ours.faults else None
        row["chosen"] = chosen.chosen
        row["simulating_s"] = [round(seconds, 3) for seconds in chosen.simulating_s]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """Times recomputing and steps side by side, and the means of their quotients."""
    named = [f"{what} {way}" for what in ("recomputing", "step", "search") for way in WAYS]
    made = Table("model", "budget", *named, "chosen last")
    for row in rows:
        made.add_row(
            row["model"],
            f"{row['budget']:.0%}",
            *(f"{row[f'{way}_recomputing']:.3f}" for way in WAYS),
            *(f"{row[f'{way}_step']:.2f}" for way in WAYS),
            *(f"{row[f'{way}_search']:.1%}" for way in WAYS),
            row["chosen"][-1] if row["chosen"] else "",
        )
    return made


def parts_of_a_step(rows: list[dict[str, Any]]) -> Table:
    """What a step by the default takes beyond eager's in the pool, over that."""
    headings = {
        "recorded": "recording",
        "again": "operators again",
        "choosing": "choosing",
        "moves": "moving pages",
        "beside": "beside these",
        "system": "of all, in the kernel",
    }
    made = Table("model", "budget", "step", *headings.values(), "page faults")
    for row in rows:
        made.add_row(
            row["model"],
            f"{row['budget']:.0%}",
            f"{row[f'{DEFAULT}_step']:.2f}",
            *(f"{row['parts'][name]:+.3f}" for name in headings),
            str(row["faults"]),
        )
    return made


def means(rows: list[dict[str, Any]], what: str, way: str) -> dict[float, tuple[float, float]]:
    """Of each budget, the geometric mean of a figure over that by the paper's heuristic, and the
    largest quotient."""
    found = {}
    for share in dict.fromkeys(row["budget"] for row in rows):
        quotients = [
            row[f"{way}_{what}"] / row[f"{PAPERS}_{what}"]
            for row in rows
            if row["budget"] == share and math.isfinite(row[f"{PAPERS}_{what}"])
        ]
        found[share] = (statistics.geometric_mean(quotients), max(quotients))
    return found


def main() -> int:
    """Measures all models; returns 1 where bits differ, or where a budget was refused in which the
    paper's heuristic ran."""
    parser = argparse.ArgumentParser(description="The default and auto beside the paper's.")
    parser.add_argument("--quick", action="store_true", help="one model, one budget, one round")
    parser.add_argument("--set", choices=SETS, default="demo", help="which models")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", action="append", help="this one; repeatable")
    parser.add_argument("--out", type=Path, help="write JSON and text here")
    options = parser.parse_args()
    asked = SETS[options.set]
    torch.set_num_threads(asked.threads)
    auto._SHARE = math.inf
    names = ["unet"] if options.quick else options.model or list(asked.builders)
    budgets = (0.5,) if options.quick else asked.budgets
    rows: list[dict[str, Any]] = []
    for name in names:
        rounds = 1 if options.quick else options.rounds
        rows += rows_of(name, *measure(asked.builders[name], budgets, rounds))
        print(f"{name} is measured", file=sys.stderr, flush=True)
    console = Console(width=200, record=True)
    console.print(origin(), soft_wrap=True)
    console.print(table(rows))
    console.print(parts_of_a_step(rows))
    told = {
        f"{way} {what}": means(rows, what, way)
        for way in WAYS
        for what in ("recomputing", "step")
        if way != PAPERS
    }
    for name, found in told.items():
        for share, (mean, most) in found.items():
            console.print(f"{name} at {share:.0%}: {mean:.3f} of dtr's, at most {most:.2f}")
    if options.out:
        document = provenance() | {"rows": rows, "over dtr": told}
        write_json(options.out / f"auto{asked.suffix}.json", document)
        (options.out / f"auto{asked.suffix}.txt").write_text(console.export_text(styles=False))
    failed = [row for row in rows if any(row[f"{way}_differences"] for way in WAYS)]
    refused = [row for row in rows for way in WAYS if row[f"{way}_refused"] > row["dtr_refused"]]
    return bool(failed or refused)


if __name__ == "__main__":
    sys.exit(main())
