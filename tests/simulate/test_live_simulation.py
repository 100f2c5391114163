"""The simulation of a live run: what recipes hold is no argument of theirs, and its clocks are a
scope's."""

import itertools

import pytest
import torch

import dtr_alloc
from dtr_alloc import SimulationResult, Trace
from dtr_alloc.runtime.trace.format import (
    Annotate,
    Call,
    Constant,
    Instruction,
    Mutate,
    Release,
    Result,
)

KIB = 1 << 10
TRACKED, CONSTANT = {"tracked": [1]}, {"tracked": [0]}


def simulated(trace: Trace, budget: int, heuristic: str, clock: str = "wall") -> SimulationResult:
    return dtr_alloc.simulate(
        trace,
        budget,
        heuristic,
        clock=clock,  # type: ignore[arg-type]
        pin_outputs=False,
        log_events=True,
        thrash=None,
    )


def writes_beside(size: int) -> Trace:
    """Writes a value and a constant of `size` bytes in place, and reads what came of the value when
    seven others have taken its memory."""

    def computes(name: str, made: str, of: str, time: int) -> Call:
        return Call(name, (of,), (Result(made, 4 * KIB, -1),), time, TRACKED)

    both = Mutate("m", ("x0", "x1", "c"), (1, 2), 1000, {"tracked": [1, 0]})
    others: list[Instruction] = [computes("g", f"y{i}", "x0", 100_000) for i in range(6)]
    begin: list[Instruction] = [Annotate("START"), Constant("x0", 4 * KIB), Constant("c", size)]
    written: list[Instruction] = [
        computes("f", "x1", "x0", 1000),
        both,
        computes("h", "z", "x1", 1000),
    ]
    return Trace((*begin, *written, Release("x1"), *others, computes("k", "w", "z", 1000)))


@pytest.mark.parametrize("size", [0, 1, 16])
def test_a_write_of_a_constant_that_recipes_hold_is_recomputed_as_of_any(size: int) -> None:
    budget = 6 * 4 * KIB + 1024
    beside = simulated(writes_beside(size), budget, "dtr_local")
    assert beside.rematerializations > 0
    assert beside.events.tolist() == (
        simulated(writes_beside(17), budget, "dtr_local").events.tolist()
    )


def test_bytes_are_counted_as_time_as_in_a_scope() -> None:
    def program() -> list[torch.Tensor]:
        a, b, c = (torch.ones(32, 32) * x for x in (0.5, 0.25, 0.125))
        d = a + b
        e = d @ a
        a.mul_(1.01)
        w = torch.ones(32, 32, requires_grad=True)
        torch.autograd.backward((w * d).sum())
        assert w.grad is not None
        return [a, b, c, d, e, b @ d, w.grad]

    scope = dtr_alloc.rematerialize(None, clock="logical", heuristic="dtr_local")
    with scope as session, dtr_alloc.record_trace() as recording:
        program()
        peak = session.stats().peak_bytes
    assert recording.trace is not None
    by_times, by_bytes = (
        simulated(recording.trace, int(0.8 * peak), "dtr_local", clock)
        for clock in ("wall", "logical")  # Its times are the scope's: bytes.
    )
    assert by_bytes.evictions > 0
    assert by_bytes.events.tolist() == by_times.events.tolist()


def steps_of(size: int) -> Trace:
    """Four steps that make forty tensors of `size` bytes, and read them in the reverse order."""
    made: list[Instruction] = [Annotate("START"), Constant("w", 0)]
    for step in range(4):
        names = [f"s{step}_{i}" for i in range(41)]
        made.append(Call("in", ("w",), (Result(names[0], size, -1),), 1, CONSTANT))
        for of, name in itertools.pairwise(names):
            made.append(Call("f", (of,), (Result(name, size, -1),), 1000, TRACKED))
        for name in reversed(names):
            made.append(Call("b", (name,), (Result(f"g{name}", 1, -1),), 1000, CONSTANT))
            made += [Release(f"g{name}"), Release(name)]
        made.append(Annotate("STEP"))
    return Trace(tuple(made))


def test_a_step_may_take_as_long_as_a_log_can_say() -> None:
    size = 1 << 40  # A step touches 160 TiB: by the logical clock, 49 hours.
    small, large = (
        simulated(steps_of(one), 8 * one, "foresight", "logical") for one in (size >> 20, size)
    )
    assert small.rematerializations > 0
    assert large.rematerializations == small.rematerializations
