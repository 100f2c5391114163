"""How much of what is recomputed could no policy avoid?

A step that takes 1.2 times eager's says little by itself: at the same budget the best policy may
take 1.19. So the demo's models, or those of real size (real_size.py), are asked of the bound
(docs/bound.md), which holds for any policy, and of the default heuristic in the simulator, by the
same times of the same operators.

Six steps of a training are recorded without a budget. The default is judged by the last three: the
tape foretells them, and each operator costs what it usually takes (usual_times.h). A byte
more or less changes what it does by a tenth, so the mean is taken over three budgets that are
nearly the same, none of them larger. The bound is that of the last step, cut out. What lies in
memory from earlier steps, the optimizer's state, is taken off its budget: no policy can recompute
it. Nothing is lost to colder caches here, to choosing, or to recording. Three minutes.

    python perf/choice/unavoidable.py [--set real] [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

sys.path += [
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[1] / "support"),
    str(Path(__file__).parents[1] / "cost"),
]

import real_size
from fidelity import persistent_bytes
from measurement import origin, provenance, write_json
from models.workload import Workload, supervised
from rich.console import Console
from rich.table import Table

import dtr_alloc
from dtr_alloc.demo import MODELS, Job
from dtr_alloc.runtime.bounding.bound import Bounder
from dtr_alloc.runtime.bounding.knapsack import least_again_ns
from dtr_alloc.runtime.bounding.stages import prove
from dtr_alloc.runtime.heuristic import DEFAULT, Heuristic
from dtr_alloc.runtime.simulate.rules import live
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.format import (
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Mutate,
    Release,
)

STEPS, FORETOLD = 6, 3
"""Of a recording; and the last of them, by which the default is judged."""
NEARLY = (1.0, 0.99, 0.98)
"""Budgets for the default, of the one that is asked about."""
SECONDS, PROCESSES = 10.0, 2
_END = Annotate("STEP")


@dataclass(frozen=True)
class Set:
    """Models that are asked alike; `suffix` is in the names of their results."""

    builders: dict[str, Callable[[], Workload]]
    budgets: tuple[float, ...]
    threads: int
    suffix: str


def trainings(jobs: dict[str, Callable[[], Job]]) -> dict[str, Callable[[], Workload]]:
    """Each trained from the same seed."""
    return {name: partial(supervised, make, seed=0) for name, make in jobs.items()}


SETS = {
    "demo": Set(trainings(dict(MODELS)), (0.7, 0.5, 0.4, 0.3), 1, ""),
    "real": Set(
        trainings({name: partial(real_size.job, name, quick=False) for name in real_size.BUDGETS}),
        (0.5, 0.33, 0.25),
        real_size.THREADS,
        "_real_size",
    ),
}


@dataclass(frozen=True)
class Cell:
    """What is recomputed in a step at a budget, over the time of all its operators, each once: by
    any policy at least, and by the default; None where the default failed."""

    model: str
    share: float
    budget_bytes: int
    least: float
    default: float | None


@dataclass(frozen=True)
class Task:
    """A model's recorded steps; its activation peak, and what lies in memory beside it."""

    model: str
    trace: dtr_alloc.Trace
    activation_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


def needs(build: Callable[[], Workload]) -> tuple[int, int]:
    """Bytes: the peak without a budget; of it gradients and optimizer state, which stay."""
    workload = build()
    with dtr_alloc.measure(device="cpu") as session:
        workload.step()
        workload.step()
    return session.stats().peak_bytes, persistent_bytes(workload)


def task(model: str, build: Callable[[], Workload]) -> Task:
    """Records a training, from its first step on."""
    peak, fixed = needs(build)
    workload = build()
    with dtr_alloc.rematerialize(None), dtr_alloc.record_trace() as recording:
        for _ in range(STEPS):
            workload.step()
    assert recording.trace is not None
    gradients = persistent_bytes(replace(workload, optimizers=()))
    return Task(model, recording.trace, peak - fixed, gradients, fixed - gradients)


def ends(trace: dtr_alloc.Trace) -> list[int]:
    """Where each step is over."""
    return [at for at, one in enumerate(trace.instructions) if one == _END]


def last_step(trace: dtr_alloc.Trace) -> dtr_alloc.Trace:
    """That alone. What earlier steps made takes no memory in it."""
    own = trace.instructions[ends(trace)[-2] + 1 : ends(trace)[-1]]
    made: set[str] = set()
    earlier: list[Instruction] = []
    for one in own:
        for name in read(one):
            if name not in made:
                earlier.append(Constant(name, 0))
                made.add(name)
        made.update(named(one))
    return dtr_alloc.Trace((*earlier, *own))


def read(one: Instruction) -> tuple[str, ...]:
    """The names that an instruction needs."""
    if isinstance(one, (Call, Mutate)):
        return one.args
    if isinstance(one, (Copy, CopyFrom)):
        return (one.source,)
    return (one.name,) if isinstance(one, Release) else ()


def named(one: Instruction) -> tuple[str, ...]:
    """Those that it gives."""
    if isinstance(one, Call):
        return tuple(result.name for result in one.results)
    if isinstance(one, (Copy, CopyFrom)):
        return (one.destination,)
    return (one.name,) if isinstance(one, Constant) else ()


def cells(task: Task, shares: tuple[float, ...], seconds: float) -> list[Cell]:
    """Of one model, at each share."""
    torch.set_num_threads(1)
    bounder = Bounder(last_step(task.trace), task.model)
    base = bounder.simulator.baseline.compute
    steps = Simulator(task.trace)
    earlier = before_foretold(task.trace)
    found = []
    for share in shares:
        room = int(share * task.activation_bytes) + task.gradient_bytes
        budget = room + task.optimizer_bytes
        proof = prove(bounder.needs, room, seconds)
        least = max(least_again_ns(bounder.needs, room), proof.again_ns if proof else 0)
        each = (in_foretold_steps(steps, earlier, int(near * budget)) for near in NEARLY)
        again = [one for one in each if one is not None]
        default = statistics.mean(again) if len(again) == len(NEARLY) else None
        found.append(Cell(task.model, share, budget, least / base, default))
    return found


def before_foretold(trace: dtr_alloc.Trace) -> Simulator:
    """Of the steps before those by which a heuristic is judged."""
    return Simulator(dtr_alloc.Trace(trace.instructions[: ends(trace)[-1 - FORETOLD] + 1]))


def in_foretold_steps(
    steps: Simulator, earlier: Simulator, budget: int, heuristic: str | Heuristic = DEFAULT
) -> float | None:
    """What is recomputed in the steps that are not among the earlier ones."""
    rules = live(heuristic)
    all_steps, first = steps.run(budget, rules), earlier.run(budget, rules)
    if not all_steps.status == first.status == "ok":
        return None
    own = all_steps.base_compute - first.base_compute
    return (all_steps.total_compute - first.total_compute) / own - 1


def table(found: list[Cell]) -> Table:
    """A row for each cell."""
    made = Table("model", "budget", "no policy below", DEFAULT)
    for cell in found:
        default = "failed" if cell.default is None else f"{cell.default:.3f}"
        made.add_row(cell.model, f"{cell.share:.0%}", f"{cell.least:.3f}", default)
    return made


def main() -> int:
    """Asks all; returns 1 where the default failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", choices=SETS, default="demo", help="which models")
    parser.add_argument("--quick", action="store_true", help="one model, one budget")
    parser.add_argument("--out", type=Path, help="write JSON and text here")
    options = parser.parse_args()
    asked = SETS[options.set]
    torch.set_num_threads(asked.threads)
    told = origin()
    names = list(asked.builders)[-1 if options.quick else 0 :]
    tasks = [task(name, asked.builders[name]) for name in names]
    answer = partial(
        cells,
        shares=(0.5,) if options.quick else asked.budgets,
        seconds=1.0 if options.quick else SECONDS,
    )
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1 if options.quick else PROCESSES, spawn) as pool:
        found = [cell for of_model in pool.map(answer, tasks) for cell in of_model]
    console = Console(width=100, record=True)
    console.print(told, soft_wrap=True)
    console.print(table(found))
    if options.out:
        document = provenance() | {"rows": [asdict(cell) for cell in found]}
        name = f"unavoidable{asked.suffix}"
        write_json(options.out / f"{name}.json", document)
        (options.out / f"{name}.txt").write_text(console.export_text(styles=False))
    return int(any(cell.default is None for cell in found))


if __name__ == "__main__":
    sys.exit(main())
