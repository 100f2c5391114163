"""MegEngine's score as published, by hand; test_engine_programs.py has a naive model of it."""

from dataclasses import replace
from typing import Any

from dtr_alloc import Trace, simulate
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from dtr_alloc.runtime.trace.format import Call, Instruction, Release, Result
from tests.engine_harness.harness import EngineHarness
from tests.support.engine_of_blocks import BLOCK, chain_of

PUBLISHED = replace(PRESETS["megengine_published"], selection="single")


def evicted(heuristic: Heuristic, *instructions: Instruction, blocks: int, **options: Any) -> Any:
    """Names of the results that went to make room, in order."""
    result = simulate(
        Trace(instructions),
        blocks * BLOCK,
        heuristic,
        mode="pool",
        remap=False,
        pin_outputs=False,
        log_events=True,
        **options,
    )
    assert result.status == "ok"
    names = [r.name for one in instructions if isinstance(one, Call) for r in one.results]
    return [names[tensor] for tensor, event in result.events.tolist() if event == 1]


def make(name: str, cost: int, *inputs: str, size: int = BLOCK) -> Call:
    return Call("make", inputs, (Result(name, size, -1),), cost)


def test_what_an_operator_costs_itself_does_not_count() -> None:
    program = (make("dear", 1000), make("cheap", 10), make("more", 10))
    assert evicted(replace(PRESETS["dtr"], selection="single"), *program, blocks=2) == ["cheap"]
    assert evicted(PUBLISHED, *program, blocks=2) == ["dear"]


def test_missing_inputs_count_and_what_was_made_from_it_does_not() -> None:
    """Both neighbours of the missing b would be dearer by the paper's score."""
    run = EngineHarness(4 * BLOCK, PUBLISHED._native())
    a = run.call(0, 10, [], [], [BLOCK])[0]
    b = run.call(1, 1000, [a], [], [BLOCK])[0]
    c = run.call(2, 10, [b], [], [BLOCK])[0]
    run.evict(b)
    run.call(3, 10, [], [], [BLOCK])
    run.take_evicted()
    run.call(4, 10, [], [], [2 * BLOCK])
    assert run.take_evicted()[0] == a
    assert run.resident(c)


def test_what_was_evicted_counts_with_the_missing_values_beside_it() -> None:
    """The last value of a chain rests on 20 + 40; another on one more or less than that."""
    for other, goes in ((61, "last"), (59, "probe")):
        run = EngineHarness(6 * BLOCK, replace(PUBLISHED, size_exp=0, staleness_exp=0)._native())
        first, second, last = chain_of(run, 20, 40, 5)
        (alone,) = run.call(3, other, [], [], [BLOCK])
        (probe,) = run.call(4, 5, [alone], [], [BLOCK])
        for value in (first, second, alone):
            run.evict(value)
        run.take_evicted()
        run.constant(4 * BLOCK, 8)
        assert run.take_evicted()[0] == {"last": last, "probe": probe}[goes]


def test_a_right_hole_is_seen_only_where_bytes_end_at_a_granule() -> None:
    """The older of two values has the hole at its right, the other at its left."""
    for size, goes in ((2 * BLOCK, "left"), (2 * BLOCK - 24, "right")):
        program = (
            make("left", 10, size=size),
            make("between", 10, size=size),
            make("right", 10, size=size),
            Release("between"),
            make("big", 10, size=4 * BLOCK),
        )
        staleness_gone = replace(PUBLISHED, staleness_exp=0.01)
        assert evicted(staleness_gone, *program, blocks=6) == [goes], size


def test_by_the_logical_clock_costs_are_bytes() -> None:
    """The last of three is made of a large one, so by bytes it is dear, by its time cheap."""
    program = (
        make("large", 1000, size=8 * BLOCK),
        make("slow", 1000),
        make("quick", 1, "large"),
        make("next", 1),
    )
    by_cost = Heuristic("none", size_exp=0, staleness_exp=0, selection="single")
    assert evicted(by_cost, *program, blocks=10) == ["quick"]
    assert evicted(by_cost, *program, blocks=10, clock="logical") == ["slow"]
