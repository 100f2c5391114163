"""Trains a job eagerly and under memory budgets, and compares bytes, time, and every bit.

What a budget means here is told in DESIGN.md.

Each training starts from scratch, on the same seed. One training per budget keeps a timeline and is
not timed. Then follow rounds that are: eager, eager in our pool, no budget, each budget, in turn,
so that a machine that slows down does so for all; each round begins with another of them. The first
step of each training warms up and does not count.

A slowdown is a ratio of processor times: the median over rounds of the round's median step over
that of eager in the same round. There are two. Our pool is faster than malloc at large blocks, so
what recomputation costs is seen against eager in the pool, and what a user gains or loses against
plain eager.
"""

import gc
import hashlib
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc.demo.models import Job

GRANULE_BYTES = 512  # The pool rounds each allocation up to this.

Timeline = npt.NDArray[np.int64]
_Way = str | float | None  # Of training: an eager one, or what share the budget is.


@dataclass(frozen=True)
class Plan:
    """What to run: budgets as shares of the activation peak, steps of a training, timed rounds."""

    budgets: tuple[float, ...] = (0.7, 0.5, 0.3)
    steps: int = 4
    rounds: int = 5
    seed: int = 0

    def trainings(self) -> int:
        """How many trainings `compare` makes of one model: what a progress bar counts."""
        return (1 + self.rounds) * (3 + len(self.budgets))


@dataclass(frozen=True)
class Training:
    """What one training left behind.

    `digests` has an entry per loss, gradient, parameter, buffer, and tensor of optimizer state.
    Byte counts are sums of tensors, each rounded up as the pool does. `stats` are the session's
    after each step, and once more after the scope. `timeline` holds the pool bytes live after each
    operator of the last step. `step_ns` is time on the wall, `processor_ns` that of all threads.
    """

    step_ns: list[int]
    processor_ns: list[int]
    digests: dict[str, str]
    gradient_bytes: int
    optimizer_bytes: int
    stats: list[Any]
    timeline: Timeline | None


@dataclass
class Row:
    """One budget of one model.

    `ratio` is None without a budget. An infeasible row has no measurements but the floor, and the
    runtime's error. Counts are of one training of `Plan.steps` steps. `slowdown` is over eager in
    the pool, `slowdown_plain` over plain eager, both in processor time; the same two on the wall
    follow. Shares are of the wall time of the timed steps.
    """

    ratio: float | None
    budget_bytes: int | None
    feasible: bool = True
    floor_bytes: int | None = None
    error: str = ""
    peak_bytes: int = 0
    evictions: int = 0
    rematerializations: int = 0
    step_ms: float = 0.0
    slowdown: float = 0.0
    slowdown_plain: float = 0.0
    slowdown_wall: float = 0.0
    slowdown_plain_wall: float = 0.0
    remat_share: float = 0.0
    search_share: float = 0.0
    move_share: float = 0.0
    bookkeeping_share: float = 0.0
    differences: list[str] = field(default_factory=list)
    timeline: Timeline | None = field(default=None, repr=False)

    @property
    def identical(self) -> bool:
        """Whether all that `Training.digests` covers equals eager's, to the bit."""
        return self.feasible and not self.differences

    def broken(self, eager_peak_bytes: int) -> Iterator[str]:
        """The promises that were not kept."""
        if not self.feasible:
            if self.ratio is not None and self.ratio >= 0.5:
                yield "below the floor, where half must be enough"
            return
        if self.differences:
            yield _differ(self.differences)
        if self.budget_bytes is None:
            return
        if self.peak_bytes > self.budget_bytes:
            over = self.peak_bytes - self.budget_bytes
            yield f"the pool's peak is {over} bytes above the budget"
        if self.budget_bytes < eager_peak_bytes and self.evictions == 0:
            yield "nothing was evicted, so nothing was shown"


@dataclass
class Comparison:
    """One model: what eager needs, and a row per budget. `pool_step_ms` is eager's in the pool."""

    model: str
    peak_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    steps: int
    step_ms: float = 0.0
    pool_step_ms: float = 0.0
    differences: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    timeline: Timeline | None = field(default=None, repr=False)

    @property
    def activation_bytes(self) -> int:
        """The activation peak: what budgets are shares of."""
        return self.peak_bytes - self.gradient_bytes - self.optimizer_bytes

    def budget_bytes(self, ratio: float) -> int:
        """The budget for a share of the activation peak."""
        return int(ratio * self.activation_bytes) + self.gradient_bytes + self.optimizer_bytes

    def failures(self) -> list[str]:
        """A sentence for each promise that was not kept; empty if all is well."""
        found = []
        if self.differences:
            found.append(f"{self.model} in the pool, nothing evicted: {_differ(self.differences)}")
        for row in self.rows:
            where = f"{self.model} {label(row.ratio)}"
            found += [f"{where}: {broken}" for broken in row.broken(self.peak_bytes)]
        return found


def label(ratio: float | None) -> str:
    """How a budget is called in tables and pictures."""
    return "no budget" if ratio is None else f"at {percent(ratio)}"


def percent(ratio: float) -> str:
    """A budget as it is written on the command line."""
    return f"{100 * ratio:g}%"


def train(
    make: Callable[[], Job], plan: Plan, scope: Callable[[], AbstractContextManager[Any]] | None
) -> Training:
    """Builds a job and trains it for `plan.steps` steps inside `scope()`, or in plain eager mode
    where it is None.

    Raises torch.OutOfMemoryError where the budget is below the floor.
    """
    gc.collect()
    torch.manual_seed(plan.seed)
    job = make()
    optimizer = job.optimizer(job.model.parameters())
    generator = torch.Generator().manual_seed(plan.seed)
    torch.manual_seed(plan.seed)
    losses, step_ns, processor_ns, stats = [], [], [], []
    with nullcontext() if scope is None else scope() as session:
        for _ in range(plan.steps):
            begin, processor_begin = time.perf_counter_ns(), time.process_time_ns()
            optimizer.zero_grad()
            loss = job.loss(job.model, job.batch(generator))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            step_ns.append(time.perf_counter_ns() - begin)
            processor_ns.append(time.process_time_ns() - processor_begin)
            if session is not None:
                stats.append(session.stats())
        timeline = None if session is None else session.timeline()
    if session is not None:
        stats.append(session.stats())
    if timeline is not None:
        timeline = timeline[stats[-3].operators if plan.steps > 1 else 0 :]

    left = _left_behind(job.model, optimizer)
    digests = {f"loss {step}": struct.pack("d", loss).hex() for step, loss in enumerate(losses)}
    for kind, tensors in left.items():
        digests |= {f"{kind} {name}": _digest(tensor) for name, tensor in tensors.items()}
    gradients, state = _pool_bytes(left["gradient"]), _pool_bytes(left["state"])
    return Training(step_ns, processor_ns, digests, gradients, state, stats, timeline)


def _left_behind(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, Tensor]]:
    """The tensors of each kind, by their names."""
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    return {
        "gradient": {name: p.grad for name, p in parameters.items() if p.grad is not None},
        "parameter": parameters,
        "buffer": dict(model.named_buffers()),
        "state": {
            f"{name} of {parameter}": value
            for parameter, p in parameters.items()
            for name, value in optimizer.state.get(p, {}).items()
            if isinstance(value, Tensor)
        },
    }


def compare(
    model: str,
    make: Callable[[], Job],
    plan: Plan,
    advance: Callable[[str], None] = lambda doing: None,
) -> Comparison:
    """Runs all of `plan` on one model. Before each training, `advance` is told what comes."""
    advance("eager")
    eager = train(make, plan, None)
    advance("eager, measured")
    measured = train(make, plan, lambda: dtr_alloc.measure(device="cpu", timeline=True))
    result = Comparison(
        model,
        measured.stats[-1].peak_bytes,
        measured.gradient_bytes,
        measured.optimizer_bytes,
        plan.steps,
        differences=_differences(eager, measured),
        timeline=measured.timeline,
    )
    for ratio in (None, *plan.budgets):
        advance(label(ratio))
        result.rows.append(_prove(make, plan, ratio, result, eager))

    _time(make, plan, result, eager, advance)
    return result


def _time(
    make: Callable[[], Job],
    plan: Plan,
    result: Comparison,
    eager: Training,
    advance: Callable[[str], None],
) -> None:
    """The rounds of `compare`: fills in all times, and leaves out what turns out infeasible."""
    ways: dict[_Way, Callable[[], AbstractContextManager[Any]] | None] = {
        "eager": None,
        "eager in the pool": lambda: dtr_alloc.measure(device="cpu"),
    }
    rows: dict[_Way, Row] = {row.ratio: row for row in result.rows}
    ways |= {ratio: _scope(row.budget_bytes, timeline=False) for ratio, row in rows.items()}
    timed: dict[_Way, list[Training]] = {way: [] for way in ways}
    for turn, way in _turns(plan.rounds, [*ways]):
        advance(f"round {turn}, {way if isinstance(way, str) else label(way)}")
        if way in rows and not rows[way].feasible:
            continue
        try:
            timed[way].append(train(make, plan, ways[way]))
        except torch.OutOfMemoryError as error:  # So near the floor that it is luck.
            row = rows[way]
            rows[way] = infeasible(row.ratio, row.budget_bytes, error)
    plain, pool = timed["eager"], timed["eager in the pool"]
    result.step_ms, result.pool_step_ms = _step_ms(plain), _step_ms(pool)
    result.rows = list(rows.values())
    for way, row in rows.items():
        if row.feasible:
            _add_rounds(row, timed[way], eager)
            _add_times(row, timed[way], pool, plain)


def _turns(rounds: int, ways: list[_Way]) -> Iterator[tuple[int, _Way]]:
    """Each round, from 1 on, with each way; the first of a round is the second of that before."""
    for turn in range(rounds):
        first = turn % len(ways)
        for way in ways[first:] + ways[:first]:
            yield turn + 1, way


def _add_rounds(row: Row, trainings: list[Training], eager: Training) -> None:
    """What may differ between trainings: the worst of them counts."""
    for training in trainings:
        row.differences = sorted({*row.differences, *_differences(eager, training)})
        row.peak_bytes = max(row.peak_bytes, training.stats[-1].peak_bytes)


def _scope(budget: int | None, *, timeline: bool) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: dtr_alloc.rematerialize(budget, device="cpu", timeline=timeline)


def _prove(
    make: Callable[[], Job], plan: Plan, ratio: float | None, result: Comparison, eager: Training
) -> Row:
    """Trains once at a budget, with a timeline: everything but the times."""
    budget = None if ratio is None else result.budget_bytes(ratio)
    try:
        training = train(make, plan, _scope(budget, timeline=True))
    except torch.OutOfMemoryError as error:
        return infeasible(ratio, budget, error)
    last = training.stats[-1]
    return Row(
        ratio,
        budget,
        peak_bytes=last.peak_bytes,
        evictions=last.evictions,
        rematerializations=last.rematerializations,
        differences=_differences(eager, training),
        timeline=training.timeline,
    )


def _step_ms(trainings: list[Training]) -> float:
    """The median step on the wall, each training's first left out."""
    steps = [ns for training in trainings for ns in training.step_ns[1:]]
    return statistics.median(steps) / 1e6 if steps else 0.0


def _slowdown(trainings: list[Training], base: list[Training], clock: str) -> float:
    def step(training: Training) -> float:
        steps: list[int] = getattr(training, clock)
        return statistics.median(steps[1:])

    return statistics.median(step(a) / step(b) for a, b in zip(trainings, base, strict=True))


def _add_times(
    row: Row, trainings: list[Training], pool: list[Training], plain: list[Training]
) -> None:
    """Fills in times and shares of time from one training per round; each training's first step is
    left out.
    """
    if not trainings:
        return
    row.step_ms = _step_ms(trainings)
    row.slowdown = _slowdown(trainings, pool, "processor_ns")
    row.slowdown_plain = _slowdown(trainings, plain, "processor_ns")
    row.slowdown_wall = _slowdown(trainings, pool, "step_ns")
    row.slowdown_plain_wall = _slowdown(trainings, plain, "step_ns")
    steps = [ns for training in trainings for ns in training.step_ns[1:]]

    def share(counter: str) -> float:
        spent = sum(
            getattr(training.stats[-2], counter) - getattr(training.stats[0], counter)
            for training in trainings
        )
        return float(spent / sum(steps))

    row.remat_share = share("remat_ns")
    row.search_share = share("search_ns")
    row.move_share = share("move_ns")
    row.bookkeeping_share = share("bookkeeping_ns")


def infeasible(ratio: float | None, budget: int | None, error: torch.OutOfMemoryError) -> Row:
    """The row of a budget that `error` refused."""
    floor = error.needed  # type: ignore[attr-defined]  # runtime/scope/out_of_memory.py
    return Row(ratio, budget, feasible=False, floor_bytes=floor, error=str(error))


def _pool_bytes(tensors: dict[str, Tensor]) -> int:
    return sum(-(-tensor.nbytes // GRANULE_BYTES) * GRANULE_BYTES for tensor in tensors.values())


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def _differences(eager: Training, other: Training) -> list[str]:
    return sorted({name for name, _ in eager.digests.items() ^ other.digests.items()})


def _differ(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"differs from eager in {', '.join(names[:3])}{more}"
