"""The proven bound: never above what trying everything finds, nor above what any policy takes."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import dtr_alloc
from dtr_alloc.__main__ import main
from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.bounding import bound as bounding
from dtr_alloc.runtime.bounding import knapsack, search, stages
from dtr_alloc.runtime.bounding.bound import Bounder
from dtr_alloc.runtime.bounding.needs import Needs, needs_of
from dtr_alloc.runtime.bounding.report import panel
from dtr_alloc.runtime.heuristic import PRESETS, resolve
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Call, Release, Result
from tests.models.bound_model import GRANULE, Operator, Program, Search, random_program

LONG = 60.0
"""Seconds for a proof: more than any of these small programs takes."""


@st.composite
def programs(draw: st.DrawFn) -> Program:
    seed = draw(st.integers(0, 2**32))
    return random_program(draw(st.integers(1, 12)), random.Random(seed).randrange)


def quick(needs: Needs, budget: int) -> int:
    return knapsack.least_again_ns(needs, budget)


def thorough(needs: Needs, budget: int) -> int:
    proof = stages.prove(needs, budget, LONG)
    assert proof is not None
    return proof.again_ns


# ---- Against trying everything


@settings(max_examples=200, deadline=None)
@given(program=programs(), share=st.integers(0, 4))
def test_no_bound_is_above_what_trying_everything_finds(program: Program, share: int) -> None:
    needs = needs_of(program.trace().schedule())
    budget = needs.floor_bytes // GRANULE + share
    least = Search(program, budget).least()
    if least is not None:
        assert quick(needs, budget * GRANULE) <= least
        assert thorough(needs, budget * GRANULE) <= least


@settings(max_examples=100, deadline=None)
@given(program=programs())
def test_below_the_floor_trying_everything_finds_nothing(program: Program) -> None:
    floor = needs_of(program.trace().schedule()).floor_bytes
    assert Search(program, floor // GRANULE - 1).least() is None


@cache
def costs_something() -> tuple[tuple[Needs, int, int], ...]:
    """What programs need, budgets in bytes that make them recompute, and how much at the least."""
    found = []
    for seed in range(150):
        program = random_program(10, random.Random(seed).randrange)
        needs = needs_of(program.trace().schedule())
        for more in (0, 1, 3):
            budget = needs.floor_bytes // GRANULE + more
            least = Search(program, budget).least()
            if least:
                found.append((needs, budget * GRANULE, least))
    return tuple(found)


def test_of_most_small_programs_the_bound_is_the_optimum() -> None:
    cases = costs_something()
    assert len(cases) > 80
    optima = [thorough(needs, budget) == least for needs, budget, least in cases]
    assert sum(optima) >= 0.9 * len(cases)


def with_a_granule_less(
    program: Any, stage: Any, memory: Callable[..., None] = stages._Program._memory
) -> None:
    program._budget -= GRANULE
    memory(program, stage)
    program._budget += GRANULE


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "an operator's cost counts for each of its results": (
        knapsack,
        "_shares",
        lambda needs: needs.cost[needs.made].astype(float),
    ),
    "a value is kept whole or not at all": (
        knapsack,
        "_left_out",
        lambda inside, size, share, room: (
            inside * share * (np.cumsum(inside * size, axis=1) > room)
        ).sum(axis=1),
    ),
    "windows overlap by a moment": (
        knapsack,
        "_wanted_next",
        lambda needs, moments, following=knapsack._wanted_next: following(needs, moments) - 1,
    ),
    "what is made in a stage was not there in it": (
        stages._Program,
        "_open",
        lambda program, values, moment: {
            value for value in values if program._needs.made[value] <= moment
        },
    ),
    "memory has a granule less": (stages._Program, "_memory", with_a_granule_less),
    "recomputing has no other source than memory": (
        stages._Program,
        "_sources",
        lambda program, stage, value: [stage.held[value]],
    ),
}


@pytest.mark.parametrize(("where", "what", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_bound_is_noticed(
    where: Any, what: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = costs_something()
    monkeypatch.setattr(where, what, fault)

    def too_high(needs: Needs, budget: int, least: int) -> bool:
        try:
            return quick(needs, budget) > least or thorough(needs, budget) > least
        except (AssertionError, KeyError):
            return True  # No point keeps the rules: noticed as well.

    assert any(too_high(*case) for case in cases)


# ---- Against policies


@settings(max_examples=100, deadline=None)
@given(program=programs(), share=st.integers(0, 6), policy=st.sampled_from(["eager", "ignore"]))
def test_no_policy_takes_less_than_its_bound(program: Program, share: int, policy: Any) -> None:
    simulator = Simulator(program.trace())
    needs = needs_of(simulator.schedule)
    budget = needs.floor_bytes + share * GRANULE
    if budget < GRANULE:
        return
    least = max(quick(needs, budget), thorough(needs, budget))
    for name in PRESETS:
        rules = Rules(name, policy, mode="pool", thrash=None, pin_outputs=False)
        result = simulator.run(budget, rules)
        if result.status == "ok":
            assert result.total_compute - result.base_compute >= least
        below = (
            simulator.run(budget - (1 + share) * GRANULE, rules) if budget > 8 * GRANULE else None
        )
        assert below is None or below.status != "ok"


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """A training of a small network, with writes in place, views and an optimizer."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(5):
        layers += [
            torch.nn.Conv2d(8, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(inplace=True),
        ]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with dtr_alloc.rematerialize(None), dtr_alloc.record_trace() as recording:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 3, 16, 16)).flatten(1).square().mean().backward()
            optimizer.step()
    assert recording.trace is not None
    return recording.trace


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.4, 0.3])
def test_a_training_is_bounded_at_every_budget(recorded: Trace, share: float) -> None:
    found = Bounder(recorded).at(Share(share, whole=True), seconds=0.5)
    overheads = [overhead for overhead in found.by_policy.values() if overhead is not None]
    assert 1 <= found.knapsack <= found.lower <= min(overheads, default=math.inf)
    if found.best_found is not None:
        assert found.best_found.overhead is not None
        assert found.lower <= found.best_found.overhead <= min(overheads, default=math.inf)
    assert (found.budget_bytes < found.floor_bytes) == math.isinf(found.lower)


def test_what_fits_takes_no_recomputation(recorded: Trace) -> None:
    found = dtr_alloc.bound(recorded, "400%", seconds=1)
    assert (found.lower, found.solved, found.gap, found.optimal) == (1, True, 0, True)


def test_the_floor_is_what_no_preset_runs_below(recorded: Trace) -> None:
    found = dtr_alloc.bound(recorded, "50%", floor=True, seconds=0)
    assert found.smallest_found_bytes is not None
    assert found.floor_bytes <= found.smallest_found_bytes
    simulator = Simulator(recorded)
    for name in PRESETS:
        assert search.run(simulator, found.floor_bytes - 1, name, "eager").overhead is None


def test_below_the_floor_nothing_runs_and_nothing_is_searched(recorded: Trace) -> None:
    found = dtr_alloc.bound(recorded, "1KiB", seconds=LONG)
    assert math.isinf(found.lower)
    assert (found.method, found.best_found, found.gap, found.optimal) == (
        "floor", None, None, False,
    )  # fmt: skip


# ---- Against optima that are known


def chain(layers: int) -> Program:
    """Each layer reads the one before, and backward reads them in the opposite order. All take 1
    ns and a granule."""
    made = [
        Operator((layer - 1,) if layer else (), (layer,), frozenset(), 1) for layer in range(layers)
    ]
    for layer in reversed(range(layers)):
        gradient = 2 * layers - 1 - layer
        before = (gradient - 1,) if gradient > layers else ()
        made.append(
            Operator((layer, *before), (gradient,), frozenset({gradient}), 1,
                     dropped=(layer, *before))
        )  # fmt: skip
    return Program(tuple(made), (1,) * (2 * layers))


@pytest.mark.parametrize(("layers", "room"), [(6, 8), (6, 6), (6, 4), (10, 5), (10, 4)])
def test_the_optimum_of_a_chain_is_proven(layers: int, room: int) -> None:
    least = Search(chain(layers), room).least()
    needs = needs_of(chain(layers).trace().schedule())
    proof = stages.prove(needs, room * GRANULE, LONG)
    assert proof is not None
    assert (proof.again_ns, proof.solved) == (least, True)
    assert (least == 0) == (room > layers + 1)


def test_the_certificate_of_a_linear_program_holds_for_any_weights() -> None:
    """What the solver says is not trusted: weights that are off give less, not more."""
    needs = needs_of(chain(8).trace().schedule())
    program = stages._Program(needs, 4 * GRANULE, [8, 10], 0)
    weights = program.weights(LONG)
    assert weights is not None
    exact = program.certified(weights)
    generator = np.random.default_rng(0)
    for _ in range(20):
        off = weights * generator.uniform(0, 2, weights.shape)
        assert program.certified(off) <= exact
    assert exact > 0


# ---- Asking


def test_bad_questions_are_refused_before_anything(
    recorded: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> None:
        raise AssertionError("something ran")

    monkeypatch.setattr(bounding, "presets", nothing)
    for budget, error in ((0.0, ValueError), ("none", ValueError), (None, TypeError)):
        with pytest.raises(error):
            dtr_alloc.bound(recorded, budget)  # type: ignore[arg-type]
    for seconds in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="a bound takes 0 or more"):
            dtr_alloc.bound(recorded, "50%", seconds=seconds)
    with pytest.raises(TypeError, match="neither a Trace nor the path"):
        dtr_alloc.bound(5, "50%")  # type: ignore[arg-type]


def test_without_scipy_the_error_says_what_to_install_and_what_works(
    recorded: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'dtr-alloc\[bound\]'"):
        dtr_alloc.bound(recorded, "50%")
    assert dtr_alloc.bound(recorded, "50%", seconds=0).lower >= 1


def test_a_log_that_reads_what_it_released_is_refused() -> None:
    made = (Result("x", GRANULE, -1),)
    trace = Trace((Call("f", (), made, 1), Release("x"), Call("g", ("x",), (), 1)))
    with pytest.raises(ValueError, match="reads a tensor that was released"):
        dtr_alloc.bound(trace, "50%", seconds=0)


def test_the_search_finds_what_no_preset_has_and_is_the_same_each_time(recorded: Trace) -> None:
    simulator = Simulator(recorded)
    budget = simulator.budget_bytes(Share(0.6, whole=True))
    begin = search.presets(simulator, budget)
    best = search.best_of(begin)
    found = search.anneal(simulator, budget, begin, 1.0, 0.5)
    assert best is not None
    assert found is not None
    assert (found.overhead or 0) <= (best.overhead or 0)
    again = search.run(simulator, budget, found.heuristic, found.policy)
    assert again == found


def test_the_search_tries_the_tape_orphans_and_stepping_stones() -> None:
    begin, draw = search.Setting("dtr", "eager", 1.0), random.Random(0)
    tried = [resolve(search._changed(begin, draw, set()).heuristic) for _ in range(200)]
    for switch in ("next_use", "orphans_first", "stepping_stones"):
        assert any(getattr(one, switch) for one in tried), switch


def test_a_log_whose_operators_take_no_time_is_bounded_at_once() -> None:
    made = [Call("f", (), (Result(name, GRANULE, -1),), 0) for name in "abc"]
    trace = Trace((*made, Call("g", tuple("abc"), (Result("d", 0, -1),), 0)))
    found = dtr_alloc.bound(trace, 3 * GRANULE, seconds=LONG)
    assert (found.lower, found.gap) == (1.0, 0.0)


@pytest.mark.parametrize("programs", [0, 3, 10])  # Ten moments are short of room.
def test_no_program_is_written_down_when_the_time_is_over(
    programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long trace one takes seconds."""
    needs = needs_of(chain(8).trace().schedule())
    written: list[object] = []
    assert len(knapsack.pressing(needs, 4 * GRANULE, stages.SINGLE_MOMENTS)) == 10
    program = stages._program
    asked: list[int] = []

    def clock() -> float:
        asked.append(len(written))
        return 0.0 if len(asked) == 1 or len(written) < programs else 100.0

    def count(*given: Any) -> Any:
        written.append(given)
        return program(*given)

    monkeypatch.setattr(stages, "_program", count)
    monkeypatch.setattr("time.monotonic", clock)
    proof = stages.prove(needs, 4 * GRANULE, LONG)
    assert (len(written), proof is None) == (programs, programs == 0)


def test_a_setting_says_its_heuristic_and_policy() -> None:
    found = search.Setting("dtr", "eager", 1.0)
    assert (str(found), str(replace(found, policy="ignore"))) == ("dtr", "dtr, policy ignore")


# ---- The command


def say(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["bound", *words])
    return result.exit_code, result.output


@pytest.fixture
def step(recorded: Trace, tmp_path: Path) -> str:
    recorded.save(tmp_path / "step.log.gz")
    return str(tmp_path / "step.log.gz")


def test_the_command_shows_bounds_policies_and_the_floor(step: str, tmp_path: Path) -> None:
    picture = tmp_path / "bound.png"
    words = ["--budget", "80%", "--budget", "60%", "--floor", "--seconds", "0.2"]
    code, said = say(step, *words, "--out", str(picture))
    assert code == 0, said
    for text in (
        "no policy below",
        "best found",
        "dtr_full",
        "Floor: ",
        "Smallest budget",
        "proven",
    ):
        assert text in said
    assert picture.stat().st_size > 10_000


def test_the_command_prints_json_in_which_an_infinite_bound_is_none(step: str) -> None:
    code, said = say(step, "--budget", "60%", "--budget", "1KiB", "--seconds", "0", "--json")
    found, below = json.loads(said)
    expected = dtr_alloc.bound(step, "60%", seconds=0)
    assert (code, found["lower"], found["gap"]) == (3, expected.lower, expected.gap)
    assert found["by_policy"] == expected.by_policy
    assert found["best_found"]["heuristic"] in PRESETS
    assert (below["budget_bytes"], below["lower"], below["best_found"]) == (1024, None, None)


@pytest.mark.parametrize("shares", [["60%"], ["80%", "60%"]])
def test_a_picture_shows_each_line_that_its_legend_names_in_a_colour_of_its_own(
    step: str, shares: list[str]
) -> None:
    """Also of a single budget, whose lines are points. A star that is nowhere is not named."""
    bounds = [dtr_alloc.bound(step, share, seconds=0) for share in shares]
    axes = Figure().subplots()
    panel(axes, [replace(one, by_policy={**one.by_policy, "lru": None}) for one in bounds])
    shown = axes.get_legend_handles_labels()[1]
    named = {label: line for line in axes.lines if (label := str(line.get_label())) in shown}
    assert {"best found", "no policy below: proven"} < set(named)
    assert "lru" not in named
    assert ("the optimum" in named) == any(one.optimal for one in bounds)
    assert all(line.get_marker() not in ("None", "") for line in named.values())
    assert len({to_hex(line.get_color()) for line in named.values()}) == len(named)


def test_the_command_ends_with_3_where_a_budget_is_below_the_floor(step: str) -> None:
    code, said = say(step, "--budget", "60%", "--budget", "1KiB", "--seconds", "0")
    assert code == 3
    assert "nothing runs" in said
    assert "1 KiB is below the floor" in said


def test_the_command_refuses_a_budget_that_is_none(step: str) -> None:
    code, said = say(step, "--budget", "50%", "--budget", "much")
    assert code == 1
    assert "much" in said
    assert "Floor" not in said
