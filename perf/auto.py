"""What does heuristic="auto" save over the default?

The demo's five models, one thread, at shares of the activation peak. Eager in the pool, the default
and "auto" take turns. "auto" may simulate as long as it likes, and the program waits for it before
its fifth step, so that the figures are of what was chosen; its search is told beside them. The
first thirteen steps of each training do not count: a scope records twelve of them. Bits are
compared with eager's.

`recomputing` is the time of operators run again over that of the program's own, `step` the
processor time of a step over eager's in the pool: the median over rounds of the round's median.
Some fifteen minutes.

    python perf/auto.py [--quick] [--model gpt] [--out perf/results]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from measurement import origin, provenance, write_json
from rich.console import Console
from rich.table import Table

import dtr_alloc
from dtr_alloc.demo import MODELS, Plan
from dtr_alloc.demo.models import Job
from dtr_alloc.demo.train import Training, train
from dtr_alloc.runtime import auto
from dtr_alloc.runtime.heuristic import name_of
from dtr_alloc.runtime.session import Session

BUDGETS = (0.7, 0.5, 0.4, 0.3)
SEARCH_AFTER, WARM = 4, 13  # Steps.
WAYS = ("dtr", "auto")


@dataclass
class Cell:
    """One model at one budget in one way; an entry for each round."""

    recomputing: list[float] = field(default_factory=list)
    search: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    simulating_s: list[float] = field(default_factory=list)
    refused: int = 0
    differences: int = 0


def waiting_for(sessions: list[Session], make: Callable[[], Job]) -> Callable[[], Job]:
    """Jobs that wait, before the step in which a search is due, until it is over."""

    def job() -> Job:
        made, batches = make(), 0

        def batch(generator: torch.Generator) -> Any:
            nonlocal batches
            batches += 1
            chooser = sessions[-1]._chooser if sessions else None
            if chooser is not None and batches == SEARCH_AFTER + 1:
                while not chooser.idle():
                    time.sleep(0.01)
            return made.batch(generator)

        return replace(made, batch=batch)

    return job


def trained(
    make: Callable[[], Job], plan: Plan, budget: int, way: str
) -> tuple[Training, Session] | None:
    """None where the budget does not do."""
    sessions: list[Session] = []

    def scope() -> AbstractContextManager[Session]:
        opened = dtr_alloc.rematerialize(budget, heuristic=way)

        class Kept(AbstractContextManager[Session]):
            def __enter__(self) -> Session:
                sessions.append(opened.__enter__())
                return sessions[-1]

            def __exit__(self, *error: Any) -> bool | None:
                return opened.__exit__(*error)

        return Kept()

    try:
        return train(waiting_for(sessions, make), plan, scope), sessions[-1]
    except torch.OutOfMemoryError:
        return None


def measure(model: str, plan: Plan, budgets: tuple[float, ...]) -> dict[tuple[float, str], Cell]:
    """All of one model."""
    make = MODELS[model]
    eager = train(make, plan, None)
    held = train(make, replace(plan, steps=2), lambda: dtr_alloc.measure(device="cpu"))
    fixed = held.gradient_bytes + held.optimizer_bytes
    cells = {(budget, way): Cell() for budget in budgets for way in WAYS}
    for _ in range(plan.rounds):
        pool = train(make, plan, lambda: dtr_alloc.measure(device="cpu"))
        base = statistics.median(pool.processor_ns[WARM:])
        for (share, way), cell in cells.items():
            budget = int(share * (held.stats[-1].peak_bytes - fixed)) + fixed
            done = trained(make, plan, budget, way)
            if done is None:
                cell.refused += 1
                continue
            training, session = done
            first, last = training.stats[WARM - 1], training.stats[plan.steps - 1]
            kernels = last.kernel_ns - first.kernel_ns
            whole = sum(training.step_ns[WARM:])
            cell.recomputing.append((last.remat_ns - first.remat_ns) / kernels)
            cell.search.append((last.search_ns - first.search_ns) / whole)
            cell.step.append(statistics.median(training.processor_ns[WARM:]) / base)
            cell.chosen.append(name_of(session.heuristic))
            if session._chooser is not None:
                cell.simulating_s.append(session._chooser.spent_seconds)
            cell.differences += training.digests != eager.digests
    return cells


def middle(values: list[float]) -> float:
    """Their median; infinite where there are none."""
    return statistics.median(values) if values else math.inf


def rows_of(model: str, cells: dict[tuple[float, str], Cell]) -> list[dict[str, Any]]:
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
        chosen = cells[share, "auto"]
        row["chosen"] = chosen.chosen
        row["simulating_s"] = [round(seconds, 3) for seconds in chosen.simulating_s]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """Times recomputing and steps side by side, and the means of their quotients."""
    made = Table("model", "budget", "recomputing", "", "", "step", "", "search", "", "chosen last")
    for row in rows:
        before, after = row["dtr_recomputing"], row["auto_recomputing"]
        made.add_row(
            row["model"],
            f"{row['budget']:.0%}",
            f"{before:.3f}",
            f"{after:.3f}",
            f"{after / before:.2f}",
            f"{row['dtr_step']:.2f}",
            f"{row['auto_step']:.2f}",
            f"{row['dtr_search']:.1%}",
            f"{row['auto_search']:.1%}",
            row["chosen"][-1] if row["chosen"] else "",
        )
    return made


def means(rows: list[dict[str, Any]]) -> dict[float, float]:
    """Of each budget, the geometric mean of auto's time recomputing over the default's."""
    found = {}
    for share in dict.fromkeys(row["budget"] for row in rows):
        quotients = [
            row["auto_recomputing"] / row["dtr_recomputing"]
            for row in rows
            if row["budget"] == share and math.isfinite(row["dtr_recomputing"])
        ]
        found[share] = statistics.geometric_mean(quotients)
    return found


def main() -> int:
    """Measures all models; returns 1 where bits differ or "auto" was refused."""
    parser = argparse.ArgumentParser(description='heuristic="auto" beside the default.')
    parser.add_argument("--quick", action="store_true", help="one model, one budget, one round")
    parser.add_argument("--model", action="append", choices=MODELS, help="this one; repeatable")
    parser.add_argument("--out", type=Path, help="write auto.json and auto.txt here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    auto._SHARE = math.inf
    names = ["unet"] if options.quick else options.model or list(MODELS)
    budgets = (0.5,) if options.quick else BUDGETS
    plan = Plan(budgets, steps=WARM + 5, rounds=1 if options.quick else 3)
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += rows_of(name, measure(name, plan, budgets))
        print(f"{name} is measured", file=sys.stderr, flush=True)
    console = Console(width=150, record=True)
    console.print(origin(), soft_wrap=True)
    console.print(table(rows))
    for share, mean in means(rows).items():
        console.print(f"at {share:.0%} auto recomputes {mean:.2f} of the default's time")
    if options.out:
        document = provenance() | {"rows": rows, "means": means(rows)}
        write_json(options.out / "auto.json", document)
        (options.out / "auto.txt").write_text(console.export_text(styles=False))
    failed = [row for row in rows if row["auto_differences"] or row["dtr_differences"]]
    refused = [row for row in rows if row["auto_refused"] > row["dtr_refused"]]
    return bool(failed or refused)


if __name__ == "__main__":
    sys.exit(main())
