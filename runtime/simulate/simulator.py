"""What the engine would have done: a trace replayed at any budget, without tensors.

The decisions are those of the live runtime's own engine; only the executor differs. Mode ``bytes``
is the paper's simulator, decision by decision: memory is a number, every record is kept, views are
operators of their own, and the score has no epsilon. Mode ``pool`` is the live runtime: blocks of
an address range, so that fragmentation shows; views are free; records go when nothing can ask for
them. A score costs about 0.1 us; a run of 10,000 operators takes milliseconds.

Source: Kirisame et al., ICLR 2021, section 4.2 and appendices C and D.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ParamSpec, Protocol, TypeAlias

import numpy as np

from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET, Share, parse_size
from dtr_alloc.pool.size import parse_budget as share_or_bytes
from dtr_alloc.runtime.heuristic import Heuristic, name_of, resolve
from dtr_alloc.runtime.simulate.link import Link
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import DEFAULTS, Rules, native_policy
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.schedule import COMPUTE, FREEZE, GET, PIN, RELEASE, STEP, Schedule

Traced: TypeAlias = Trace | Schedule | str | os.PathLike[str]
Budget: TypeAlias = float | str | Share

_Named = ParamSpec("_Named")
_Replay: TypeAlias = "Callable[[Traced, Budget, Rules], SimulationResult]"


@dataclass(frozen=True)
class Baseline:
    """A trace without a budget.

    Attributes:
        peak_bytes: the most that was held at once, what is released going at once.
        compute: nanoseconds of all operators.
        constant_bytes: of everything that was not computed.
        largest_operator_bytes: the most that one operator reads and makes.
    """

    peak_bytes: int
    compute: int
    constant_bytes: int
    largest_operator_bytes: int


class Simulator:
    """A trace made ready: its columns and its baseline are computed once for many runs."""

    def __init__(self, trace: Traced, name: str = "") -> None:
        """`name` is what results call the trace: else its path.

        Raises:
            TypeError: `trace` is neither a trace nor a path.
            TraceError, OSError: the log cannot be read (`Trace.load`).
        """
        if isinstance(trace, (str, os.PathLike)):
            trace = Trace.load(trace)
        if not isinstance(trace, (Trace, Schedule)):
            raise TypeError(f"{trace!r} is neither a Trace nor the path of a log")
        self.name = name or getattr(trace, "path", "")
        self.schedule = trace.schedule() if isinstance(trace, Trace) else trace
        columns = {one: getattr(self.schedule, one) for one in _core.SCHEDULE_COLUMNS}
        columns = {one: np.asarray(column, np.int64) for one, column in columns.items()}
        self._schedule = _core.Schedule(**columns)
        self.baseline = Baseline(*self._schedule.baseline())

    def budget_bytes(self, budget: Budget) -> int:
        """What a budget of `simulate` is for this trace. Raises TypeError or ValueError as
        `parse_budget` does, and where it is less than a byte."""
        parsed = parse_budget(budget)
        if not isinstance(parsed, Share):
            return parsed
        size = parsed.of(self.baseline.peak_bytes, 0 if parsed.whole else self.stays_bytes)
        if size == 0:
            raise ValueError(
                f"budget {budget} of a peak of {self.baseline.peak_bytes} bytes is less than a "
                "byte: give a larger share"
            )
        return size

    @functools.cached_property
    def stays_bytes(self) -> int:
        """What the program holds at the end of its last step, of an optimizer if it has one, and a
        scope could not recompute: constants, and what was not recorded or is one from then on."""
        schedule = self.schedule
        roots, sizes = schedule.storages(), schedule.tensor_size.tolist()
        held, begins = [0] * len(roots), schedule.op_results_begin.tolist()
        stuck = (schedule.tensor_tracked == 0) | schedule.op_constant[schedule.tensor_op]
        stays = set(np.flatnonzero(stuck).tolist())
        steps = list(zip(schedule.kind.tolist(), schedule.operand.tolist(), strict=True))
        ends = [place for place, (kind, _) in enumerate(steps) if kind == STEP]
        for kind, operand in steps[: ends[-1] if ends else None]:
            if kind == COMPUTE:
                for tensor in range(begins[operand], begins[operand + 1]):
                    held[roots[tensor]] += 1
            elif kind in (GET, RELEASE):
                held[roots[operand]] += 1 if kind == GET else -1
            elif kind == FREEZE:
                stays.add(operand)
        return sum(sizes[root] for root in {roots[tensor] for tensor in stays} if held[root] > 0)

    @functools.cached_property
    def _first_read_of_released(self) -> int:
        """The first step that needs a tensor to whose storage nobody has a reference, or -1."""
        schedule = self.schedule
        roots = schedule.storages()
        held = [0] * len(roots)
        args, args_begin = schedule.op_args.tolist(), schedule.op_args_begin.tolist()
        results_begin = schedule.op_results_begin.tolist()
        steps = zip(schedule.kind.tolist(), schedule.operand.tolist(), strict=True)
        for step, (kind, operand) in enumerate(steps):
            read: Iterable[int] = (operand,) if kind == PIN else ()
            taken: Iterable[int] = (operand,) if kind == GET else ()
            if kind == COMPUTE:
                read = args[args_begin[operand] : args_begin[operand + 1]]
                taken = range(results_begin[operand], results_begin[operand + 1])
            elif kind == RELEASE:
                held[roots[operand]] -= 1
            if any(held[roots[tensor]] < 1 for tensor in read):
                return step
            for tensor in taken:
                held[roots[tensor]] += 1
        return -1

    def check(self, budget: Budget, rules: Rules = DEFAULTS) -> tuple[int, Heuristic]:
        """Whether `run` takes them: the bytes of the budget, and the heuristic that it follows.
        Raises TypeError or ValueError as `simulate` does."""
        chosen = resolve(rules.heuristic)
        paper = rules.mode == "bytes"
        if paper:
            chosen = _papers(chosen)
        if not paper or rules.policy == "banish":
            self._refuse_reading_released(rules)
        size = self.budget_bytes(budget)
        if not paper:
            parse_size(size, most=LARGEST_BUDGET)
        return size, chosen

    def run(self, budget: Budget, rules: Rules = DEFAULTS) -> SimulationResult:
        """Replays the trace under a budget. Raises TypeError or ValueError as `simulate` does."""
        size, chosen = self.check(budget, rules)
        paper = rules.mode == "bytes"
        link = None if rules.link is None else Link.parse(rules.link)
        base = self.baseline.compute
        limit = 0 if rules.thrash is None else min(max(1, base * (rules.thrash - 1)), 2**62)
        began = time.perf_counter()
        counts = _core.simulate(
            schedule=self._schedule,
            budget=size,
            pool=not paper,
            heuristic=chosen._native(epsilon=0 if paper else 1),
            policy=native_policy(rules.policy),
            remat_limit=int(limit),
            remap=rules.remap,
            move_ns=None if rules.move_ns == "measured" else rules.move_ns,
            measured_prices=rules.move_ns == "measured",
            placement=getattr(_core.Placement, rules.placement),
            layouts=rules.layouts,
            logical_clock=rules.clock == "logical",
            pin_outputs=rules.pin_outputs,
            log_events=rules.log_events,
            link=None if link is None else (1e9 / link.bytes_per_second, link.latency_ns),
            leaving=getattr(_core.Leaving, rules.leave_by),
        )
        wall = time.perf_counter() - began
        total = counts.pop("base_compute") + counts.pop("remat_compute") + counts["waited_ns"]
        for mean in ("fragmentation", "free_after"):
            counts[mean] /= max(counts["misses"], 1)
        return SimulationResult(
            trace=self.name,
            heuristic=name_of(rules.heuristic),
            mode=rules.mode,
            policy=rules.policy,
            link="" if link is None else str(link),
            leave_by="drop" if link is None else rules.leave_by,
            budget_bytes=size,
            baseline_peak_bytes=self.baseline.peak_bytes,
            base_compute=base,
            total_compute=total,
            overhead=total / base if base else 1.0,
            wall_seconds=wall,
            events=counts.pop("events").reshape(-1, 2),
            layouts=counts.pop("layouts").reshape(-1, 4),
            **counts,
        )

    def _refuse_reading_released(self, rules: Rules) -> None:
        """The paper's rules keep every record; elsewhere a tensor that was let go may have none."""
        step = self._first_read_of_released
        if step >= 0:
            raise ValueError(
                f"step {step} of {self.name or 'the trace'} reads a tensor that was "
                f"released; mode {rules.mode!r} with policy {rules.policy!r} cannot bring it back: "
                "use mode 'bytes' and policy 'eager' or 'ignore'"
            )


class _ReplayByName(Protocol[_Named]):
    def __call__(
        self, trace: Traced, budget: Budget, *args: _Named.args, **rules: _Named.kwargs
    ) -> SimulationResult: ...


def _by_name(make: Callable[_Named, Rules]) -> Callable[[_Replay], _ReplayByName[_Named]]:
    """Gives a function that takes rules their names, order, types and defaults as parameters."""

    def change(replay: _Replay) -> _ReplayByName[_Named]:
        first, second, _ = inspect.signature(replay).parameters.values()
        named = inspect.signature(make).parameters
        shown = inspect.signature(replay).replace(parameters=[first, second, *named.values()])

        @functools.wraps(replay)
        def call(
            trace: Traced, budget: Budget, *args: _Named.args, **rules: _Named.kwargs
        ) -> SimulationResult:
            try:
                shown.bind(trace, budget, *args, **rules)
            except TypeError as error:
                raise TypeError(
                    f"{replay.__name__}() {error}; beside trace and budget it takes "
                    f"{', '.join(named)}"
                ) from None
            return replay(trace, budget, make(*args, **rules))

        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return change


@_by_name(Rules)
def simulate(trace: Traced, budget: Budget, rules: Rules) -> SimulationResult:
    """Replays a trace under a budget. For many runs of one trace see `Simulator` and `sweep`.

    Args:
        trace: a trace, or the path of a log.
        budget: a number is bytes, a text either a size ("8GiB", "4096") or a share ("60%"): of the
            most bytes that the trace holds without a budget, less what must stay at its end, and
            then what must stay (`Simulator.stays_bytes`).
        heuristic: a preset's name, or a `Heuristic`. Mode ``bytes`` scores every candidate, also
            where the heuristic would sample.
        policy: what becomes of a tensor that the program lets go. ``"eager"``: it is evicted at
            once; ``"banish"``: it goes for good as soon as all that was made from it is there, and
            that can then not be evicted; ``"ignore"``: nothing, it goes when its score is least.
        mode: ``"pool"``, as a scope; ``"bytes"``, as the paper's simulator, whose heuristic is
            ``"dtr"``.
        thrash: the run is stopped when recomputation takes longer than this multiple, less one, of
            the time of all operators; None for no limit.
        log_events: fills `SimulationResult.events`.
        remap: in mode ``pool``, whether the pool may move pages to make a hole; without, blocks lie
            where they lie, as on a device that can't.
        move_ns: in mode ``pool``, what moving a page costs, in ns; None: what it does on an
            ordinary host; ``"measured"``: what it does on this one.
        placement: in mode ``pool``, ``"two_ended"`` keeps cheap blocks apart from expensive ones.
        layouts: in mode ``pool``, how many pictures of the pool `SimulationResult.layouts` has.
        pin_outputs: what the program still holds at the end must be brought back and fit together.
        clock: in mode ``pool``, by what victims are chosen: ``"wall"``, the operators' times, or
            ``"logical"``, the bytes they touch. The result counts times all the same.
        link: in mode ``pool``, the way to a second tier of memory, as large as need be: a `Link`,
            or "50GB/s". What no operator can make again may go there, too. None: there is none.
        leave_by: how evicted tensors leave where there is a link. ``"drop"``: they are recomputed,
            as without it; ``"swap"``: by the link; ``"both"``: whichever takes less time.

    Raises:
        ValueError: a name that is not known, a number out of its range, or a log that reads what
            it released, which only mode ``bytes`` without banishing can do; nothing has run then.
        TypeError: `trace` or `budget` is of no kind named above.
        TraceError, OSError: the log cannot be read (`Trace.load`).

    Example:
        Four results of 4 bytes, of which no more than two fit. The first goes when the third is
        made, and comes back for the last; the other two go when they are released:

        >>> from dtr_alloc.runtime.trace.format import Call, Release, Result
        >>> trace = Trace((
        ...     Call("f", (), (Result("a", 4, -1),), 10),
        ...     Call("g", ("a",), (Result("b", 4, -1),), 10),
        ...     Call("h", ("b",), (Result("c", 4, -1),), 10),
        ...     Release("b"),
        ...     Release("c"),
        ...     Call("k", ("a",), (Result("d", 4, -1),), 10),
        ... ))
        >>> result = simulate(trace, 8, "dtr", mode="bytes")
        >>> result.status, result.evictions, result.rematerializations, result.overhead
        ('ok', 3, 1, 1.25)
    """
    return Simulator(trace).run(budget, rules)


def _papers(heuristic: Heuristic) -> Heuristic:
    """As the paper's simulator follows it."""
    if heuristic.next_use:
        raise ValueError(
            f"{heuristic!r} follows the steps of a program, and mode 'bytes', the paper's, has "
            "none: use mode 'pool', or another heuristic, such as 'dtr'"
        )
    return replace(heuristic, selection="single") if heuristic.selection == "sample" else heuristic


def parse_budget(budget: Budget) -> Share | int:
    """A share, or bytes. A text of digits alone is bytes here, since traces may be small. Raises
    TypeError or ValueError where it is neither (`dtr_alloc.pool.size.parse_budget`)."""
    if isinstance(budget, str) and budget.strip().removeprefix("-").isdecimal():
        return share_or_bytes(int(budget))
    return share_or_bytes(budget)
