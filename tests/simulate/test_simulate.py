"""The simulator on small logs, where each decision can be worked out by hand: what its model
(test_simulate_model.py) does not know, and orders that figures alone would not show.

Tensors are numbered in the order in which they are made; a run is told as "+3" where tensor 3 was
computed, "-3" where it was evicted to make room, and "x3" where it went because the program let it
go. Unless said otherwise all results have 8 bytes and all operators take 1 ns.
"""

import inspect
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from linear_network import linear_schedule

import dtr_alloc
from dtr_alloc import SimulationResult, Trace, TraceError
from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from dtr_alloc.runtime.simulate.result import LINK_FIELDS, POOL_FIELDS
from dtr_alloc.runtime.simulate.rules import DEFAULTS, Policy, Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.format import Call, Mutate, Result
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


# How it comes back.


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
    for thrash in (None, 2.75, 1e30, float("inf")):  # What is beyond all time is no limit.
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


# What is asked, what is refused, and what is told: budgets, rules, JSON, pictures, counts.


def test_a_picture_has_every_block_and_the_pages_that_back_it(log: Path) -> None:
    parts = [call("", "a", memory=4096), call("a", "b", memory=4096), call("b", "c", memory=4096)]
    result = Simulator(load(log, *parts)).run(8192, Rules(mode="pool", layouts=3))
    rows = result.layouts.tolist()
    blocks = [(picture, at, at + size) for picture, at, size, kind in rows if kind > 0]
    backed = [(picture, at, at + size) for picture, at, size, kind in rows if kind == 0]
    assert len(blocks) >= 2
    for picture, begin, end in blocks:
        pages = [(first, last) for other, first, last in backed if other == picture]
        assert any(first <= begin and end <= last for first, last in pages)


# What goes in and what comes out.


def test_a_budget_is_a_share_or_bytes_or_a_text(log: Path) -> None:
    simulator = Simulator(load(log, call("", "a", memory=1000)))
    shares: dict[float | str | Share, int] = {
        "50%": 500,
        "100 %": 1000,
        Share(0.5, whole=True): 500,
        7: 7,
        7.9: 7,
        "7": 7,
        "7B": 7,
        "1.5KiB": 1536,
        "2 KiB": 2048,
    }
    assert {budget: simulator.budget_bytes(budget) for budget in shares} == shares


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (0.5, 'budget 0.5 is a byte at most: a share is written "50%"'),
        ("0.5", 'budget "0.5" is not a size: .*, or a share as "50%"'),
        (float("nan"), "budget nan is not a size"),
        ("-0.5", 'budget "-0.5" is not a size'),
        ("0%", 'budget "0%" is not above zero'),
        (0, "budget 0 is not above zero"),
        ("half", 'budget "half" is not a size'),
        ("0.01%", r"budget 0\.01% of a peak of 1000 bytes is less than"),
    ],
)
def test_a_budget_that_is_none_is_refused(log: Path, budget: float | str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Simulator(load(log, call("", "a", memory=1000))).run(budget)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"heuristic": "best"}, "heuristic 'best' is not known"),
        ({"policy": "lazy"}, "policy 'lazy' is not one of"),
        ({"mode": "blocks"}, "mode 'blocks' is not"),
        ({"placement": "high"}, "placement 'high' is not"),
        ({"clock": "sun"}, "clock 'sun' is not"),
        (
            {"mode": "bytes", "clock": "logical"},
            "mode 'bytes' has the clock of the paper's simulator",
        ),
        ({"thrash": 1.0}, "thrash is 1.0; it is a multiple"),
        ({"thrash": float("nan")}, "thrash is nan"),
        ({"thrash": "2"}, "thrash is '2'; it is a multiple"),
        ({"move_ns": "measure"}, "move_ns 'measure' is not \"measured\" or a number of ns"),
        ({"move_ns": -1}, r"move_ns is -1; it must be from 0 to 10\^9"),
        ({"move_ns": 10**10}, "move_ns is 10000000000; it must be from"),
        ({"layouts": -1}, r"layouts is -1; it must be from 0 to 10\^9"),
    ],
)
def test_what_is_not_known_is_refused(log: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dtr_alloc.simulate(load(log, call("", "a")), 8, **more)
    with pytest.raises(ValueError, match=message):
        Rules(**more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        *(
            ({name: "no"}, f"{name} is 'no'; it must be True or False")
            for name in ("remap", "log_events", "pin_outputs")
        ),
        ({"layouts": 1.5}, "layouts is 1.5; it must be a whole number"),
        ({"layouts": True}, "layouts is True; it must be a whole number"),
        ({"move_ns": 1.5}, "move_ns is 1.5; it must be a whole number"),
        ({"heuristic": None}, "heuristic None is neither a name nor a Heuristic"),
    ],
)
def test_rules_of_a_wrong_type_are_refused_when_they_are_made(
    more: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as error:
        Rules(**more)
    assert str(error.value) == message


def test_a_keyword_that_simulate_does_not_have_is_answered_with_those_that_it_has() -> None:
    with pytest.raises(TypeError) as error:
        dtr_alloc.simulate(linear_schedule(4), 8, heuristics="dtr")  # type: ignore[call-arg]
    assert str(error.value) == (
        "simulate() got an unexpected keyword argument 'heuristics'; beside trace and budget it "
        "takes heuristic, policy, mode, thrash, log_events, pin_outputs, remap, move_ns, "
        "placement, layouts, clock, link, leave_by"
    )


def test_the_rules_are_parameters_of_simulate() -> None:
    shown = inspect.signature(dtr_alloc.simulate)
    assert list(shown.parameters) == ["trace", "budget", *(one.name for one in fields(Rules))]
    assert {name: shown.parameters[name].default for name in vars(DEFAULTS)} == vars(DEFAULTS)


def test_a_trace_is_a_trace_or_a_path(log: Path, tmp_path: Path) -> None:
    trace = load(log, call("", "a", memory=512))
    assert dtr_alloc.simulate(str(log), 512).trace == str(log)
    of_log, of_trace = dtr_alloc.simulate(log, 512), dtr_alloc.simulate(trace, 512)
    assert of_log.peak_bytes == of_trace.peak_bytes == 512
    assert Simulator(linear_schedule(4), "linear").run(4).trace == "linear"
    with pytest.raises(TypeError, match="is neither a Trace nor the path of a log"):
        dtr_alloc.simulate(None, 8)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        dtr_alloc.simulate(tmp_path / "none.log", 8)
    log.write_text("{}\n")
    with pytest.raises(TraceError):
        dtr_alloc.simulate(log, 8)


def test_a_result_says_which_heuristic_it_was(log: Path) -> None:
    simulator = Simulator(load(log, call("", "a")))
    assert simulator.run(8, Rules(PRESETS["msps"])).heuristic == "msps"
    assert simulator.run(8, Rules("full_stale")).heuristic == "full_stale"
    mine = Heuristic(staleness_exp=0.5)
    assert simulator.run(8, Rules(mine)).heuristic == repr(mine)


def test_json_has_all_figures(log: Path) -> None:
    result = run(log, 8, "lru", call("", "a", time=7))
    found = json.loads(result.as_json())
    assert found.pop("wall_seconds") > 0
    assert found == {
        "trace": str(log),
        "heuristic": "lru",
        "mode": "bytes",
        "policy": "eager",
        "budget_bytes": 8,
        "baseline_peak_bytes": 8,
        "status": "ok",
        "base_compute": 7,
        "total_compute": 7,
        "overhead": 1.0,
        "evictions": 0,
        "eager_evictions": 0,
        "rematerializations": 0,
        "collateral": 0,
        "peak_bytes": 8,
        "evaluations": 0,
        "accesses": 0,
    }


def test_json_tells_of_holes_where_there_is_a_pool(log: Path) -> None:
    parts = [call("", "a", memory=512), call("", "b", memory=512), release("a", "b")]
    result = run(log, 512, "size", *parts, mode="pool")
    found = json.loads(result.as_json())
    assert list(found) == [name for name in result.as_dict() if name not in LINK_FIELDS]
    assert found.pop("search_ns") > 0
    assert {name: found.get(name) for name in POOL_FIELDS if name != "search_ns"} == {
        "misses": 1,  # For b; a goes, and nothing else is free.
        "fragmentation": 0.0,
        "free_after": 0.0,
        "evicted_bytes": 512,
        "wasted_bytes": 0,
        "move_ns": 0,
    }


def test_scores_and_what_was_visited_for_them_are_counted(log: Path) -> None:
    parts = [call("", "a"), call("a", "b"), call("b", "c"), release("a", "b", "c")]
    result = run(log, 16, "dtr_local", *parts)
    assert (result.evaluations, result.accesses) == (1, 1)  # a; b is locked.
    result = run(log, 16, "dtr", *parts)
    assert (result.evaluations, result.accesses) == (1, 2)  # And its edge to b.


def test_the_scores_of_a_sample_are_counted(log: Path) -> None:
    """32 are drawn of 40."""
    made = [call("", f"a{number}", memory=512) for number in range(41)]
    heuristic = replace(PRESETS["size"], selection="sample")
    result = dtr_alloc.simulate(
        load(log, *made), 40 * 512, heuristic, mode="pool", remap=False, pin_outputs=False
    )
    assert (result.evictions, result.evaluations) == (1, 32)


@pytest.mark.parametrize(("neighbourhood", "visited"), [("lineage", 4), ("full", 5)])
def test_what_is_visited_for_a_neighbourhood_is_counted_once(
    log: Path, neighbourhood: Literal["lineage", "full"], visited: int
) -> None:
    """A lineage: the inputs of b and c, b as it forgets, and its input again. A region: both ends
    of two edges, and a as b absorbs it."""
    made = [call("", "a"), call("a", "b", time=9), call("b", "c", time=9)]
    more = [call("", "d", time=2), call("", "e", time=3), call("", "f")]
    heuristic = Heuristic(neighbourhood, size_exp=0, staleness_exp=0, selection="single")
    result = dtr_alloc.simulate(
        load(log, *made, *more), 32, heuristic, mode="bytes", pin_outputs=False
    )
    assert (result.evictions, result.evaluations) == (2, 2 * 4)  # a and d.
    assert result.accesses - result.evaluations == visited


def test_an_empty_budgetless_run_of_a_trace_without_time_has_an_overhead(log: Path) -> None:
    result = Simulator(Trace(load(log, constant("a")).instructions)).run(512)
    assert (result.base_compute, result.overhead, result.status) == (0, 1.0, "ok")


def test_a_log_that_reads_a_view_of_a_storage_that_was_written_in_place_is_refused() -> None:
    view = Call("view", ("a",), (Result("v", 0, 0),), 1)
    trace = Trace(
        (
            Call("f", (), (Result("a", 4096, -1),), 1),
            view,
            Mutate("write", ("a",), (0,), 1, {"tracked": [1]}),
            Call("g", ("v",), (Result("b", 4096, -1),), 1),
        )
    )
    with pytest.raises(ValueError, match="the log reads a tensor that is gone"):
        dtr_alloc.simulate(trace, "1MiB", mode="pool")
