"""The first steps of a training, run to learn what they take: the ground that a plan stands on.

A round trains twice from scratch: in plain torch, for the time that a slowdown is a multiple of,
and in a scope without a budget that is recorded as a trace. A training does the same in each
round, step by step and operator by operator, so of several rounds the least time of each counts: on
a shared machine the rest is other programs'. The first step warms up (memory is touched for the
first time, the optimizer makes its state): it is in the trace, and its time does not count.

A step ends where a step of an optimizer does. A program without one is a single step.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dtr_alloc.runtime.scope.record import record_trace
from dtr_alloc.runtime.scope.scope import rematerialize
from dtr_alloc.runtime.scope.session_stats import SessionStats
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Annotate, Call, Constant, Instruction, Mutate

Make = Callable[[], Callable[[], Any]]
"""Makes a model and its optimizer anew, and returns what trains it by one step."""

Clock = Callable[[], int]
"""Nanoseconds. Of a program with one thread on a machine that others use too, its processor time
(`time.process_time_ns`) says more than the time of day."""

STEP = Annotate("STEP")

TRIED_SHARE = 0.5
"""Of a compiled block's activations, what torch saves where a plan tries it."""


@dataclass(frozen=True)
class Recorded:
    """A training in a scope that was recorded. Times of steps are those after the first.

    Attributes:
        trace: what it did; `warm_marks`: how many optimizer steps its first step is;
            `traced_steps`: how many steps it has after those.
        step_ns: of each step, without what evicting and recomputing took (`within` a budget).
        kernel_share: of the time of those steps, what was spent in operators.
        peak_bytes: most bytes in the pool.
    """

    trace: Trace
    warm_marks: int
    traced_steps: int
    step_ns: tuple[int, ...]
    kernel_share: float
    peak_bytes: int


@dataclass(frozen=True)
class Profile:
    """What the rounds came to: the least of each time.

    Attributes:
        traces: of each round, a training's first steps, up to the end of the last one. They differ
            in times only.
        warm_marks: optimizer steps in them that are the warm-up; `traced_steps`: steps after those.
        least_ns: of each operator (of the traces' schedules).
        eager_ns: of each step in plain torch; empty where that was not run.
        scope_ns: of each step in a scope that evicts nothing.
        kernel_ratio: time in operators after the warm-up, by the sum of each one's least time.
        peak_bytes: most bytes in the pool without a budget, or within the one that was given.
        base_ns: of each step that slowdowns divide by, where that is the program as it was written
            (`saving_less`); empty: `eager_ns`, or else `scope_ns`.
        saving_less: the same with torch's activation_memory_budget at `TRIED_SHARE` in what
            `backend="dtr_alloc"` compiled; None where it compiled nothing, or with that option.
    """

    traces: tuple[Trace, ...]
    warm_marks: int
    traced_steps: int
    least_ns: npt.NDArray[np.int64]
    eager_ns: tuple[int, ...]
    scope_ns: tuple[int, ...]
    kernel_ratio: float
    peak_bytes: int
    base_ns: tuple[int, ...] = ()
    saving_less: Profile | None = None

    @classmethod
    def of(
        cls,
        eager: Sequence[Sequence[int]],
        recorded: Sequence[Recorded],
        saving_less: Sequence[Recorded] = (),
    ) -> Profile:
        """Of rounds; `eager` has the times of the steps of each."""
        cut = [_until_last_mark(run.trace) for run in recorded]
        # Without a seed, or with threads, rounds may differ: then the quickest stands for all.
        if any(_shape(one) != _shape(cut[0]) for one in cut[1:]):
            quickest = min(range(len(cut)), key=lambda i: sum(recorded[i].step_ns))
            recorded, cut = [recorded[quickest]], [cut[quickest]]
        first = recorded[0]
        traces = tuple(map(Trace, cut))
        least_ns = np.minimum.reduce([trace.schedule().op_cost for trace in traces])
        warm = cut[0][: after_mark(cut[0], first.warm_marks)]
        warm_operators = sum(isinstance(item, (Call, Mutate, Constant)) for item in warm)
        steady_ns = least_ns[warm_operators:].sum()
        scope_ns = _least_of_each([run.step_ns for run in recorded])
        # What operators take together is more than the sum of what each took at its best.
        kernel_ns = statistics.mean(scope_ns) * first.traced_steps
        kernel_ns *= statistics.median(run.kernel_share for run in recorded)
        return cls(
            traces,
            first.warm_marks,
            first.traced_steps,
            least_ns,
            _least_of_each(eager),
            scope_ns,
            kernel_ns / max(int(steady_ns), 1),
            first.peak_bytes,
            saving_less=(
                replace(cls.of(eager, saving_less), base_ns=_least_of_each(eager) or scope_ns)
                if saving_less
                else None
            ),
        )


def eager_steps(make: Make, steps: int, clock: Clock = time.perf_counter_ns) -> tuple[int, ...]:
    """Trains `steps` steps in plain torch; nanoseconds of each after the first."""
    step = make()
    step()
    return timed(step, steps - 1, clock)


def recorded_steps(
    make: Make, steps: int, within: int | str | None = None, clock: Clock = time.perf_counter_ns
) -> Recorded:
    """The same in a scope, without a budget or within one, recorded. Raises torch.OutOfMemoryError
    where `within` is too small."""
    step = make()
    with rematerialize(within) as session, record_trace() as recording:
        step()
        warm = session.steps
        before, begin = session.stats(), time.perf_counter_ns()
        step_ns = timed(step, steps - 1, clock)
        passed, after = time.perf_counter_ns() - begin, session.stats()
        del step
    assert recording.trace is not None
    kept, kernels = shares(before, after, passed)
    step_ns = tuple(int(ns * kept) for ns in step_ns)
    traced = steps - 1 if warm else steps
    return Recorded(recording.trace, warm, traced, step_ns, kernels, after.peak_bytes)


def budgeted_steps(
    make: Make, steps: int, budget: int | None, clock: Clock = time.perf_counter_ns
) -> tuple[int, ...]:
    """The same in a scope with a budget, or without one, and not recorded. Raises
    torch.OutOfMemoryError where the budget is too small."""
    step = make()
    with rematerialize(budget):
        step()
        times = timed(step, steps - 1, clock)
        del step
    return times


def timed(step: Callable[[], Any], steps: int, clock: Clock) -> tuple[int, ...]:
    """Nanoseconds of each of `steps` calls."""
    times = []
    for _ in range(steps):
        begin = clock()
        step()
        times.append(clock() - begin)
    return tuple(times)


def shares(before: SessionStats, after: SessionStats, passed_ns: int) -> tuple[float, float]:
    """Of the time that passed: what is left without recomputing and finding memory for it, and
    what of that was spent in operators."""
    spent = after.remat_ns - before.remat_ns
    if after.evictions > before.evictions:
        spent += after.search_ns - before.search_ns + after.move_ns - before.move_ns
    left = max(passed_ns - spent, 1)
    return left / max(passed_ns, 1), (after.kernel_ns - before.kernel_ns) / left


def after_mark(items: Sequence[Instruction], count: int) -> int:
    """Where what follows the `count`-th step of an optimizer begins."""
    marks = [place + 1 for place, item in enumerate(items) if item == STEP]
    return marks[count - 1] if count else 0


def warn_of_trial(error: Exception) -> None:
    """Tells that a plan has nothing of compiled code that saves less."""
    option = f"activation_memory_budget={TRIED_SHARE:g}"
    warnings.warn(f"nothing is planned with {option}: {error}", stacklevel=3)


def _until_last_mark(trace: Trace) -> tuple[Instruction, ...]:
    items = trace.instructions
    return items[: after_mark(items, items.count(STEP)) or None]


def _shape(items: tuple[Instruction, ...]) -> list[Any]:
    def of(item: Instruction) -> object:
        made = item.results if isinstance(item, Call) else ()
        return (item.name, item.args, made) if isinstance(item, (Call, Mutate)) else item

    return [*map(of, items)]


def _least_of_each(rounds: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(min(times) for times in zip(*rounds, strict=False))
