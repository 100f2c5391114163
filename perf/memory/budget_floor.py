"""How small can a budget be, and does every larger one do?

The demo's five models train three steps. Each is recorded once on either clock, and its trace
simulated at every percent of the activation peak (DESIGN.md, "What a budget means in the demo")
from 100 to 3. Mode pool decides as the live runtime does (fidelity.py); on the logical clock
that is checked here by training at the smallest budget that works within ten times the time, at one
percent below the smallest that works at all, at every budget that fails above one that works, and
at one percent above such a one. On the wall clock an operator costs the time that it took, so
another recording comes to other decisions.

A budget fails where nothing is left to evict. Recomputation has no limit here: what it comes to is
the overhead.

    python perf/memory/budget_floor.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin
from rich.console import Console
from rich.table import Table

import dtr_alloc
from dtr_alloc.demo import MODELS, Comparison, Job, Plan
from dtr_alloc.demo.train import train
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

PLAN = Plan((), steps=3)
HEURISTIC = "dtr"
PERCENTS = range(100, 2, -1)
BEARABLE = 10.0
CLOCKS = ("logical", "wall")


@dataclass(frozen=True)
class Cell:
    """One simulated budget: `status` is ok or oom, `overhead` the time by that without a
    budget, up to where the run ended."""

    model: str
    clock: str
    percent: int
    budget_bytes: int
    status: str
    overhead: float
    evictions: int
    rematerializations: int
    peak_bytes: int


@dataclass(frozen=True)
class Floor:
    """What the cells of one model and clock say.

    `least` is the smallest percentage that works, `gaps` are those above it that do not. `live` has
    what training said, and whether that is what the simulator had said: status, peak and
    operators run again.
    """

    model: str
    clock: str
    least: int
    gaps: list[int]
    live: dict[int, tuple[str, bool]]

    @property
    def kept(self) -> bool:
        """No budget fails above one that works, and training says the same."""
        return not self.gaps and all(same for _, same in self.live.values())


def record(make: Callable[[], Job], clock: str) -> tuple[dtr_alloc.Trace, Comparison]:
    """A training without a budget, and what it needs."""
    recordings: list[dtr_alloc.Recording] = []

    @contextmanager
    def scope() -> Iterator[Any]:
        with (
            dtr_alloc.rematerialize(None, clock=clock) as session,
            dtr_alloc.record_trace() as recording,
        ):
            recordings.append(recording)
            yield session

    training = train(make, PLAN, scope)
    trace = recordings[0].trace
    assert trace is not None
    peak = training.stats[-1].peak_bytes
    return trace, Comparison(
        "", peak, training.gradient_bytes, training.optimizer_bytes, PLAN.steps
    )


def simulate(
    name: str, clock: str, trace: dtr_alloc.Trace, needs: Comparison, percents: range = PERCENTS
) -> list[Cell]:
    """A cell for each percentage, from the largest."""
    simulator = Simulator(trace)
    cells = []
    for percent in percents:
        budget = needs.budget_bytes(percent / 100)
        rules = Rules(HEURISTIC, mode="pool", thrash=None, pin_outputs=False)
        result = simulator.run(budget, rules)
        evictions = result.evictions - result.eager_evictions
        cells.append(
            Cell(
                name, clock, percent, budget, result.status, result.overhead, evictions,
                result.rematerializations, result.peak_bytes,
            )
        )  # fmt: skip
    return cells


def live(make: Callable[[], Job], cell: Cell) -> tuple[str, bool]:
    """Trains at the cell's budget: the status, or the runtime's error; and whether all is as
    simulated.
    """
    try:
        stats = train(
            make,
            PLAN,
            lambda: dtr_alloc.rematerialize(
                cell.budget_bytes, clock=cell.clock, heuristic=HEURISTIC, thrash_limit=0
            ),
        ).stats[-1]
    except torch.OutOfMemoryError as error:
        return str(error), cell.status != "ok"
    same = (
        cell.status == "ok"
        and stats.peak_bytes == cell.peak_bytes
        and stats.rematerializations == cell.rematerializations
    )
    return "ok", same


def floor(make: Callable[[], Job], cells: list[Cell], *, check: bool) -> Floor:
    """Judges the cells of one model and clock; with `check`, trains where they are remarkable."""
    by_percent = {cell.percent: cell for cell in cells}
    least = min(cell.percent for cell in cells if cell.status == "ok")
    gaps = [cell.percent for cell in cells if cell.percent > least and cell.status != "ok"]
    bearable = min(c.percent for c in cells if c.status == "ok" and c.overhead <= BEARABLE)
    remarkable = {bearable, least - 1} | set(gaps) | {gap + 1 for gap in gaps}
    tried = sorted(remarkable & by_percent.keys(), reverse=True) if check else []
    trained = {percent: live(make, by_percent[percent]) for percent in tried}
    return Floor(cells[0].model, cells[0].clock, least, gaps, trained)


def table(floors: list[Floor], cells: list[Cell]) -> Table:
    """A row for each model and clock."""
    out = Table(title="Smallest budget, as a share of the activation peak")
    for heading in ("model", "clock", "smallest", "its overhead", "failing above it", "trained at"):
        out.add_column(heading)
    overheads = {(cell.model, cell.clock, cell.percent): cell.overhead for cell in cells}
    for floor in floors:
        trained = ", ".join(
            f"{percent} %: {'ok' if status == 'ok' else 'refused'}{'' if same else ' (NOT SO)'}"
            for percent, (status, same) in floor.live.items()
        )
        out.add_row(
            floor.model,
            floor.clock,
            f"{floor.least} %",
            f"{overheads[floor.model, floor.clock, floor.least]:.2f}",
            ", ".join(f"{gap} %" for gap in floor.gaps) or "none",
            trained,
        )
    return out


def draw(path: Path, cells: list[Cell]) -> None:
    """Overhead against budget for each model, and a mark for each budget that fails."""
    names = list(dict.fromkeys(cell.model for cell in cells))
    figure = Figure(figsize=(3.1 * len(names), 3.2), layout="constrained", dpi=150)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for clock, colour in zip(CLOCKS, ("#2166ac", "#e08214"), strict=True):
            mine = [cell for cell in cells if (cell.model, cell.clock) == (name, clock)]
            works = [cell for cell in mine if cell.status == "ok"]
            fails = [cell.percent for cell in mine if cell.status != "ok"]
            axes.plot(
                [cell.percent for cell in works],
                [cell.overhead for cell in works],
                color=colour,
                label=f"{clock} clock",
            )
            height = 0.97 if clock == "logical" else 0.96
            axes.plot(fails, [height] * len(fails), "x", color=colour, markersize=3)
        axes.set_title(name, loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("budget, % of the activation peak", fontsize=8)
        axes.set_ylim(0.94, 3)
        axes.set_xlim(0, 100)
        axes.spines[["top", "right"]].set_visible(False)
    first = figure.axes[0]
    first.set_ylabel("time, recomputed too, by time")
    first.plot([], [], "x", color="#444444", markersize=3, label="fails")
    first.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def main() -> int:
    """Runs all; returns 1 where a budget fails above one that works, or training disagrees."""
    parser = argparse.ArgumentParser(description="The smallest budgets of the demo's models.")
    parser.add_argument("--quick", action="store_true", help="resnet and unet, logical clock")
    parser.add_argument("--out", type=Path, help="folder for budget_floor.csv, .txt and .png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[Cell] = []
    floors: list[Floor] = []
    for name in ("resnet", "unet") if options.quick else MODELS:
        for clock in CLOCKS[:1] if options.quick else CLOCKS:
            mine = simulate(name, clock, *record(MODELS[name], clock))
            cells += mine
            floors.append(floor(MODELS[name], mine, check=clock == "logical"))
    console = Console()
    console.print(table(floors, cells))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "budget_floor.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(cells[0])))
            writer.writeheader()
            writer.writerows(asdict(cell) | {"overhead": f"{cell.overhead:.4f}"} for cell in cells)
        with (options.out / "budget_floor.txt").open("w") as file:
            print(f"{origin()}\n", file=file)
            report = Console(file=file, width=110)
            report.print(table(floors, cells))
            for found in floors:
                for percent, (status, _) in found.live.items():
                    if status != "ok":
                        report.print(f"{found.model} at {percent} %: {status}\n")
        draw(options.out / "budget_floor.png", cells)
    kept = sum(found.kept for found in floors)
    print(f"{kept} of {len(floors)}: no budget fails above one that works, and training agrees")
    return 0 if all(found.kept for found in floors) else 1


if __name__ == "__main__":
    sys.exit(main())
