"""The simulator on small logs, where each decision can be worked out by hand: what its model
(test_simulate_model.py) does not know, and orders that figures alone would not show.

Tensors are numbered in the order in which they are made; a run is told as "+3" where tensor 3 was
computed, "-3" where it was evicted to make room, and "x3" where it went because the program let it
go. Unless said otherwise all results have 8 bytes and all operators take 1 ns.
"""

from pathlib import Path
from typing import Any

import pytest

import dtr_alloc
from dtr_alloc import SimulationResult
from dtr_alloc.runtime.simulate.rules import Policy
from tests.support.trace_lines import Line, call, constant, load, release


def run(
    log: Path, budget: int, heuristic: str, *parts: list[Line], **more: Any
) -> SimulationResult:
    return dtr_alloc.simulate(
        load(log, *parts), budget, heuristic, log_events=True, **{"mode": "bytes"} | more
    )


def story(result: SimulationResult) -> str:
    return " ".join(f"{'+-x'[event]}{tensor}" for tensor, event in result.events.tolist())


# Which one goes.


def test_of_several_results_the_first_becomes_evictable_last(log: Path) -> None:
    result = run(log, 24, "size", call("", "a b c"), call("", "d"), release("a", "b", "c", "d"))
    assert story(result) == "+0 +1 +2 -0 +3 x1 x2 x3"


def test_the_first_that_costs_nothing_goes_not_the_last(log: Path) -> None:
    made = [call("", "a", time=0), call("", "b", time=0), call("", "c", time=1)]
    result = run(log, 24, "dtr_local", *made, call("", "d"), release("a", "b", "c", "d"))
    assert story(result) == "+0 +1 +2 -0 +3 x1 x2 x3"


def test_what_was_touched_just_now_goes_last_even_if_it_costs_nothing(log: Path) -> None:
    made = [call("", "a", time=3), call("", "b", time=0)]  # b is as old as the clock: no quotient.
    result = run(log, 16, "dtr_local", *made, call("", "c", time=2), release("a", "b", "c"))
    assert story(result) == "+0 +1 -1 +2 x0 x2"  # So is a: both are infinite, and b came last.
    made.append(call("a", "n", time=1, memory=0))
    result = run(log, 16, "dtr_local", *made, call("", "c"), release("a", "b", "c", "n"))
    assert story(result) == "+0 +1 +2 -1 +3 x0 x3 x2"  # After 1 ns b is free.


# How it comes back.


def test_what_a_missing_argument_rests_on_comes_back_first(log: Path) -> None:
    chain = [call("", "a"), call("a", "b"), call("b", "c"), call("c", "d")]
    result = run(log, 16, "lru", *chain, call("b", "e"), release("a", "b", "c", "d"))
    # For e, c goes so that a can come back, d for b, and a for e itself.
    assert story(result) == "+0 +1 -0 +2 -1 +3 -2 +0 -3 +1 -0 +4 x1"
    assert (result.rematerializations, result.collateral) == (2, 0)
    assert (result.total_compute, result.base_compute, result.peak_bytes) == (7, 5, 16)


# What the program does.


def test_where_tensors_are_banished_a_constant_goes_with_its_last_reader(log: Path) -> None:
    parts = [constant("k"), release("k"), call("", "a"), release("a")]
    result = run(log, 8, "size", *parts, policy="banish")
    assert (result.status, result.peak_bytes) == ("ok", 8)
    parts = [constant("k"), call("k", "a"), release("k"), call("", "b"), release("a")]
    result = run(log, 16, "size", *parts, call("", "c"), release("b", "c"), policy="banish")
    assert story(result) == "+1 -1 +2 +3 x2 x3"


def test_what_is_held_at_the_end_comes_back_and_stays(log: Path) -> None:
    made = [call("", "a"), call("", "b"), call("", "c")]
    result = run(log, 16, "size", *made, release("c"))
    assert story(result) == "+0 +1 -1 +2 x2 +1"
    assert (result.status, result.rematerializations) == ("ok", 1)
    result = run(log, 16, "size", *made)  # Three do not fit.
    assert (result.status, story(result)) == ("oom", "+0 +1 -1 +2 -2 +1")
    result = run(log, 16, "size", *made, pin_outputs=False)
    assert (result.status, story(result)) == ("ok", "+0 +1 -1 +2")


# How a run fails.


def test_arguments_and_results_must_fit_together(log: Path) -> None:
    parts = [call("", "a"), call("a", "b")]
    result = run(log, 15, "size", *parts)
    assert (result.status, result.evictions, result.peak_bytes) == ("oom", 0, 8)
    assert (result.total_compute, result.base_compute, result.overhead) == (1, 2, 0.5)
    assert run(log, 16, "size", *parts).status == "ok"


def test_thrashing_is_noticed_after_the_operator_that_passed_the_limit(log: Path) -> None:
    def use(name: str, result: str) -> list[Line]:
        return call(name, result, time=0, memory=0)

    parts = [call("", "a", time=3), call("", "b", time=1), use("a", "u"), use("b", "v")]
    result = run(log, 8, "size", *parts, release("a", "b"))
    assert (result.status, result.total_compute) == ("ok", 4 + 4)  # As much again is allowed.
    parts.append(use("a", "w"))
    result = run(log, 8, "size", *parts, release("a", "b"))
    assert (result.status, result.total_compute) == ("thrash", 4 + 7)
    assert story(result) == "+0 -0 +1 -1 +0 +2 -0 +1 +3 -1 +0"
    for thrash in (None, 2.75, float("inf")):
        result = run(log, 8, "size", *parts, release("a", "b"), thrash=thrash)
        assert (result.status, result.total_compute) == ("ok", 4 + 7)


# Policies.


def test_what_was_made_from_a_banished_tensor_cannot_go(log: Path) -> None:
    parts = [call("", "a"), call("a", "b"), release("a"), call("", "c"), call("c", "d")]
    statuses: dict[Policy, str] = {"eager": "ok", "ignore": "ok", "banish": "oom"}
    for policy, status in statuses.items():
        ends = release("b", "c", "d")
        assert run(log, 16, "size", *parts, ends, policy=policy).status == status, policy


def test_a_tensor_is_not_banished_while_something_made_from_it_is_missing(log: Path) -> None:
    parts = [call("", "a", time=9), call("a", "b", time=1), call("", "c", time=5), release("a")]
    parts += [call("b", "d"), release("b", "c", "d")]
    result = run(log, 16, "local", *parts, policy="banish")
    assert (result.status, result.rematerializations) == ("ok", 1)  # b, from a.
    assert story(result).split()[:8] == ["+0", "+1", "-1", "+2", "-2", "+1", "x0", "+3"]
    result = run(log, 16, "local", *parts)
    assert result.rematerializations == 2  # a went when it was released.


@pytest.mark.parametrize("more", [{"policy": "banish"}, {"mode": "pool"}])
def test_reading_what_was_released_is_for_the_rules_of_the_paper_alone(
    log: Path, more: dict[str, Any]
) -> None:
    parts = [call("", "a"), release("a"), call("a", "b")]
    assert run(log, 16, "size", *parts).status == "ok"
    with pytest.raises(ValueError, match=r"step 2 of .* reads a tensor that was released"):
        run(log, 16, "size", *parts, **more)


# Mode pool.


def test_the_pool_counts_in_granules_and_lets_constants_go(log: Path) -> None:
    parts = [constant("k", 513), release("k"), call("", "a", memory=1000)]
    result = run(log, 1024, "size", *parts, mode="pool")
    assert (result.status, result.peak_bytes, result.baseline_peak_bytes) == ("ok", 1024, 1000)
    assert run(log, 512, "size", *parts, mode="pool").status == "oom"


def test_views_are_free_in_the_pool(log: Path) -> None:
    made = [call("", "a", time=5, memory=512), call("a", "v", time=2, alias=0)]
    parts = [*made, call("", "b", memory=512), release("b"), call("v", "c", memory=512)]
    result = run(log, 1024, "size", *parts, mode="pool")
    assert (result.status, result.evictions - result.eager_evictions) == ("ok", 0)
    made = [*made, call("", "b", memory=1024), release("b"), call("v", "c", memory=512)]
    result = run(log, 1024, "size", *made, mode="pool")
    assert (result.status, result.rematerializations, result.total_compute) == ("ok", 1, 9 + 5)


def test_in_the_pool_too_collateral_is_what_nobody_asked_for(log: Path) -> None:
    made = [call("", "a b", time=3, memory=512), call("", "c", memory=1024), release("c")]
    parts = [*made, call("a", "d", memory=0), release("a", "b", "d")]
    result = run(log, 1024, "size", *parts, mode="pool")
    assert (result.status, result.rematerializations, result.collateral) == ("ok", 1, 1)
    made = [call("", "a", time=3, memory=512), call("", "c", memory=1024), release("c")]
    result = run(log, 1024, "size", *made, call("a", "d", memory=0), release("a"), mode="pool")
    assert (result.status, result.rematerializations, result.collateral) == ("ok", 1, 0)
