"""A plan: what is measured, and what is made of it."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dtr_alloc
from dtr_alloc import Heuristic
from dtr_alloc.pool.size import Share, short_size
from dtr_alloc.runtime.heuristic import ABLATIONS
from dtr_alloc.runtime.planning import plan as plan_module
from dtr_alloc.runtime.planning import report
from dtr_alloc.runtime.planning.forecast import Forecast
from dtr_alloc.runtime.planning.plan import plan_of
from dtr_alloc.runtime.planning.profile import (
    Profile,
    Recorded,
    budgeted_steps,
    eager_steps,
    recorded_steps,
)
from dtr_alloc.runtime.planning.report import suggestion
from dtr_alloc.runtime.scope import swapping
from dtr_alloc.runtime.simulate.link import Link
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Call, Instruction, Release, Result
from tests.support.plan_profiles import KIB, PEAK, SECOND, STEP, profile_of


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rematerialization takes beyond its operator is 0 here."""
    monkeypatch.setattr(plan_module, "rematerialization_ns", lambda: 0.0)


def make_perceptron() -> Callable[[], None]:
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(512, 64)).square().mean().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize(
    ("eager_s", "scope_s", "slowdown", "noisy"),
    [
        (4.0, 7.9, 1.2, True),
        (4.0, 4.9, 1.2, True),
        (4.0, 4.7, 1.2, False),
        (4.0, 3.3, 1.2, False),  # Faster, as some programs are.
        (4.0, 3.1, 1.2, True),
        (4.0, 7.9, 2.0, False),
        (4.0, 2.1, 2.0, False),
    ],
)
def test_a_plan_on_times_that_disagree_by_more_than_the_slowdown_is_none(
    eager_s: float, scope_s: float, slowdown: float, noisy: bool
) -> None:
    made = plan_of(profile_of(3, eager_s, scope_s), [KIB * 3], slowdown)
    assert made.too_noisy == noisy
    text = suggestion(made, slowdown)
    if noisy:
        assert made.smallest is None
        assert text.startswith("too noisy to tell: without a budget, ")
        assert f"took {scope_s / eager_s:.2f} times plain torch's" in text
        assert "--rounds" in text
    else:
        assert made.smallest is not None
        assert "noisy" not in text


# ---- What is made of a profile


def test_a_step_takes_what_it_takes_without_a_budget_and_what_is_run_again() -> None:
    forecast = Forecast(profile_of(3))
    free, tight = forecast.predict(None), forecast.predict(2 * KIB)
    assert (free.status, free.peak_bytes, free.rematerializations) == ("ok", PEAK, 0)
    assert free.slowdown == 5 / 4
    assert (tight.status, tight.rematerializations, tight.evictions) == ("ok", 1, 3)
    assert tight.peak_bytes <= 2 * KIB
    assert tight.slowdown == pytest.approx((5 + 1) / 4, rel=1e-3)  # The search takes us.


@pytest.mark.parametrize(("pace", "around_s", "again_s"), [(2.0, 0, 2), (1.0, 0.5, 1.5)])
def test_what_is_run_again_takes_the_programs_pace_and_what_is_around_it(
    pace: float, around_s: float, again_s: float
) -> None:
    profile = replace(profile_of(3), kernel_ratio=pace)
    found = Forecast(profile, around_ns=around_s * SECOND).predict(2 * KIB)
    assert found.slowdown == pytest.approx((5 + again_s) / 4, rel=1e-3)


def test_decisions_follow_what_a_round_measured_and_times_the_least_of_all() -> None:
    profile = profile_of(3)
    (trace,) = profile.traces
    slow = [
        replace(item, time=7 * SECOND) if isinstance(item, Call) else item
        for item in trace.instructions
    ]
    disturbed = replace(profile, traces=(Trace(tuple(slow)), trace))
    found = Forecast(disturbed).predict(2 * KIB)
    assert found.slowdown == pytest.approx((5 + 1) / 4, rel=1e-3)


def test_an_operator_that_brings_several_results_back_counts_once() -> None:
    size = 2 * KIB
    both = Call("split", (), (Result("a", size // 2, -1), Result("b", size // 2, -1)), SECOND)
    calls = [both, *(Call("f", (), (Result(x, size, -1),), SECOND) for x in "cd")]
    last = Call("g", ("a", "b"), (Result("e", KIB, -1),), SECOND)
    trace = Trace((*calls, last, *map(Release, "abcde"), STEP))
    costs = trace.schedule().op_cost
    profile = Profile((trace,), 0, 1, costs, (4 * SECOND,), (4 * SECOND,), 1.0, 7 * KIB)
    found = Forecast(profile).predict(int(2.2 * size))
    assert found.rematerializations == 1
    assert found.slowdown == pytest.approx((4 + 1) / 4, rel=1e-3)


def test_over_a_link_a_step_waits_for_transfers_instead() -> None:
    size = 64 * KIB
    calls = [Call("f", (), (Result(x, size, -1),), SECOND) for x in "abc"]
    last = Call("g", ("a",), (Result("d", KIB, -1),), SECOND)
    trace = Trace((*calls, Release("b"), Release("c"), last, Release("a"), Release("d"), STEP))
    costs = trace.schedule().op_cost
    profile = Profile((trace,), 0, 1, costs, (4 * SECOND,), (4 * SECOND,), 1.0, 3 * size)
    link = Link(16 * size)  # In a second.
    made = plan_of(profile, [int(2.2 * size)], 1.2, "lru", link=link)
    tight = made.predictions[1]
    assert (tight.rematerializations, tight.moved_bytes) == (0, 2 * size)
    assert tight.slowdown == pytest.approx((4 + 2 / 16) / 4, rel=1e-3)
    assert f", swap=\"{short_size(3 * size)}\", heuristic='lru')" in suggestion(made, 1.2)
    table = report.table([made])
    assert "moved /step" in [column.header for column in table.columns]


def test_a_link_is_measured_where_that_is_asked_for(folder: Path) -> None:
    checked = plan_module.check((), 1.2, 4, 3, "dtr", None, "measured")
    assert checked is not None
    assert 1e6 < checked.bytes_per_second < 1e14
    assert plan_module.check((), 1.2, 4, 3, "dtr", None, None) is None


@pytest.fixture
def in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files lies in memory. A folder `disk` below it does not."""
    (folder / "disk").mkdir()
    mounts = folder / "mounts"
    mounts.write_text(f"memory {folder} tmpfs rw 0 0\ndisk {folder}/disk ext4 rw 0 0\n")
    monkeypatch.setattr(swapping, "_MOUNTS", mounts)
    monkeypatch.setattr(swapping, "_IN_MEMORY", {"tmpfs"})
    return folder


def test_a_link_is_measured_where_the_swap_would_be(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []

    def measure(folder: Path) -> Link:
        measured.append(folder)
        return Link(10**9)

    monkeypatch.setattr(Link, "measured", measure)
    with pytest.raises(
        ValueError, match=r"lies in memory \(tmpfs\): give a folder of a local disk"
    ):
        plan_module.check((), 1.2, 4, 3, "dtr", None, "measured")
    assert measured == []
    plan_module.check((), 1.2, 4, 3, "dtr", None, "measured", in_memory / "disk")
    assert measured == [in_memory / "disk"]


@pytest.mark.parametrize(
    ("given", "needed"), [(None, "a folder of a local disk"), ("disk", "{folder}/disk")]
)
def test_the_suggestion_names_the_folder_that_a_swap_needs(
    in_memory: Path, given: str | None, needed: str
) -> None:
    given = given and str(in_memory / given)
    link = plan_module.check((), 1.2, 4, 3, "dtr", None, "2GB/s", given)
    made = plan_of(profile_of(3), ["90%"], 1.3, link=link, swap_dir=given)
    assert (
        f', swap="{short_size(PEAK)}", swap_dir={needed.format(folder=in_memory)!r})'
        in suggestion(made, 1.3)
    )


def test_a_swap_where_temporary_files_lie_needs_no_name(folder: Path) -> None:
    made = plan_of(profile_of(3), ["90%"], 1.3, link=Link(10**9))
    assert f', swap="{short_size(PEAK)}")' in suggestion(made, 1.3)


def test_without_plain_torch_a_slowdown_is_against_no_budget() -> None:
    profile = replace(profile_of(3), eager_ns=())
    assert Forecast(profile).predict(None).slowdown == 1
    made = plan_of(profile, [2 * KIB], 1.2)
    assert not made.relative_to_eager
    assert made.predictions[1].slowdown == pytest.approx(6 / 5, rel=1e-3)


def test_a_budget_below_an_operator_does_not_fit() -> None:
    found = Forecast(profile_of(3)).predict(KIB)
    assert (found.status, found.slowdown, found.budget_bytes) == ("oom", 0, KIB)


def test_a_share_is_of_the_pools_peak_without_a_budget() -> None:
    forecast = Forecast(profile_of(3))
    assert forecast.budget_bytes("50%") == PEAK // 2
    assert forecast.budget_bytes("2KiB") == 2 * KIB


def test_the_smallest_budget_is_the_last_that_is_enough_or_quick_enough() -> None:
    forecast = Forecast(profile_of(3))
    enough, quick = forecast.smallest(), forecast.smallest(1.3)
    assert enough is not None
    assert quick is not None
    assert enough.budget_bytes is not None
    assert 2 * KIB <= enough.budget_bytes <= 2 * KIB + PEAK // 100  # The third reads the second.
    assert enough.slowdown > 1.3 >= quick.slowdown
    assert forecast.smallest(1.1) is None  # It is 1.25 without any.
    spread = forecast.spread(2)
    assert spread[-1] == enough.budget_bytes
    assert forecast.peak_bytes > spread[0] > spread[1]


def test_where_nothing_less_will_do_the_peak_is_the_smallest_budget() -> None:
    """As of an inference whose memory is one operator's."""
    trace = Trace((Call("f", (), (Result("a", 100 * KIB, -1),), 10), STEP))
    only = Forecast(replace(profile_of(2), traces=(trace,), warm_marks=0, traced_steps=1))
    found = only.smallest()
    assert found is not None
    assert found.budget_bytes == 100 * KIB


@pytest.mark.parametrize(
    "heuristic", ["foresight", "lru", Heuristic(size_exp=0.5), ABLATIONS["full"]]
)
def test_the_suggestion_names_the_heuristic_that_it_was_made_by(heuristic: str | Heuristic) -> None:
    made = plan_of(profile_of(3), ["90%"], 1.3, heuristic)
    told = suggestion(made, 1.3)
    call = told[told.index("dtr_alloc.rematerialize(") :]
    assert made.smallest is not None
    asked: list[str | Heuristic] = []

    def rematerialize(budget: str, heuristic: str | Heuristic = "foresight") -> None:
        asked.append(heuristic)

    eval(call, {"dtr_alloc": SimpleNamespace(rematerialize=rematerialize, Heuristic=Heuristic)})
    assert asked == [heuristic]


# ---- What is measured


def test_of_several_rounds_the_least_of_each_time_counts() -> None:
    def run(times: tuple[int, ...], step_ns: tuple[int, ...]) -> Recorded:
        calls = [Call("f", (), (Result(f"x{i}", KIB, -1),), t) for i, t in enumerate(times)]
        return Recorded(
            Trace((calls[0], STEP, *calls[1:], STEP, Release("x0"))), 1, 2, step_ns, 0.55, 3
        )

    runs = [run((9, 5, 7), (30, 40)), run((8, 6, 6), (35, 20))]
    profile = Profile.of([(3, 9), (4, 8)], runs)
    assert profile.least_ns.tolist() == [8, 5, 6]
    assert [trace.instructions[-1] for trace in profile.traces] == [STEP, STEP]
    assert (profile.eager_ns, profile.scope_ns) == ((3, 8), (30, 20))
    assert profile.kernel_ratio == pytest.approx(50 * 0.55 / (5 + 6))


def test_of_rounds_that_differ_the_quickest_counts() -> None:
    def run(size: int, *more: Instruction, step_ns: tuple[int, int]) -> Recorded:
        step = Call("f", (), (Result("x", size, -1),), 5)
        return Recorded(Trace((step, *more, STEP)), 0, 1, step_ns, 0.5, size)

    first = run(KIB, step_ns=(50, 50))
    for other in (
        run(KIB, Call("g", ("x",), (), 1), step_ns=(9, 50)),
        run(2 * KIB, step_ns=(50, 9)),
    ):
        profile = Profile.of([], [first, other])
        assert profile.traces == (other.trace,)
        assert profile.scope_ns == other.step_ns


@pytest.mark.parametrize("eager", [[], [(4, 4)]])
def test_what_saves_less_is_compared_with_what_the_program_takes_as_it_is(
    eager: list[tuple[int, ...]],
) -> None:
    runs = [
        Recorded(profile_of(3).traces[0], 1, 2, (ns, ns), 0.5, PEAK) for ns in (5 * SECOND, SECOND)
    ]
    made = Profile.of(eager, runs[:1], runs[1:])
    base = (4, 4) if eager else (5 * SECOND, 5 * SECOND)
    assert made.saving_less is not None
    assert (made.saving_less.base_ns, made.base_ns) == (base, ())
    free = Forecast(made.saving_less).predict(None)
    assert free.slowdown == pytest.approx(SECOND / base[0])


def test_a_plan_has_the_peak_of_the_program_to_the_byte() -> None:
    made = dtr_alloc.plan(
        make_perceptron, [Share(0.9, whole=True), Share(0.7, whole=True)], steps=3, rounds=2
    )
    step = make_perceptron()
    with dtr_alloc.rematerialize(None) as session:
        for _ in range(3):
            step()
    peak = session.stats().peak_bytes
    free, wide, tight = made.predictions
    assert made.measured_peak_bytes == free.peak_bytes == peak
    assert (free.evictions, free.rematerializations) == (0, 0)
    assert 0 < wide.rematerializations < tight.rematerializations
    assert free.step_ns < wide.step_ns < tight.step_ns
    for found in (wide, tight):
        assert found.budget_bytes is not None
        assert found.peak_bytes <= found.budget_bytes
    assert made.as_json() == json.dumps(json.loads(made.as_json()), indent=1)


def test_a_live_run_keeps_to_the_budget_that_a_plan_suggests() -> None:
    made = dtr_alloc.plan(make_perceptron, ["90%"], slowdown=20, steps=3, rounds=1)
    assert made.smallest is not None
    budget = made.smallest.budget_bytes
    assert budget is not None
    step = make_perceptron()
    with dtr_alloc.rematerialize(budget) as session:
        for _ in range(3):
            step()
    assert session.stats().peak_bytes <= budget < made.measured_peak_bytes
    assert session.stats().rematerializations > 0


def test_a_training_that_does_not_fit_is_profiled_within_a_budget() -> None:
    free = dtr_alloc.plan(make_perceptron, ["80%"], steps=2, rounds=1)
    budget = int(free.measured_peak_bytes * 0.8)
    tight = dtr_alloc.plan(make_perceptron, ["80%"], steps=2, rounds=1, within=budget)
    assert tight.measured_peak_bytes <= budget
    assert tight.predictions[0].peak_bytes == free.measured_peak_bytes
    assert not tight.relative_to_eager
    assert tight.predictions[0].slowdown == 1


def test_a_program_without_an_optimizer_has_no_warm_up_to_leave_out() -> None:
    def make() -> Callable[[], None]:
        seed = torch.ones(KIB)

        def step() -> None:
            kept = [seed.exp() for _ in range(4)]
            kept[0].sin()

        return step

    recorded = recorded_steps(make, 4)
    assert (recorded.warm_marks, recorded.traced_steps, len(recorded.step_ns)) == (0, 4, 3)
    forecast = Forecast(Profile.of([eager_steps(make, 4)], [recorded]))
    found = forecast.predict(int(0.6 * forecast.peak_bytes))
    assert found.status == "ok"
    assert 4 * found.rematerializations in range(1, 5)  # Of four steps.


def test_trainings_are_as_long_as_was_asked() -> None:
    steps = 0

    def make() -> Callable[[], None]:
        def step() -> None:
            nonlocal steps
            steps += 1

        return step

    assert len(eager_steps(make, 4)) == len(budgeted_steps(make, 4, None)) == 3
    assert len(recorded_steps(make, 4).step_ns) == 3
    assert steps == 12


@pytest.mark.parametrize(
    "opened", [lambda: dtr_alloc.rematerialize("64MiB"), dtr_alloc.measure], ids=["budget", "none"]
)
def test_in_an_open_scope_a_plan_is_refused_before_anything_runs(
    opened: Callable[[], AbstractContextManager[Any]],
) -> None:
    def make() -> Callable[[], None]:
        raise AssertionError("ran")

    with opened(), pytest.raises(RuntimeError, match="scopes do not nest: call plan"):
        dtr_alloc.plan(make)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"steps": 1}, ValueError, "steps is 1: the first warms up"),
        ({"rounds": 0}, ValueError, "rounds is 0"),
        ({"slowdown": 0.5}, ValueError, "slowdown is 0.5"),
        ({"budgets": [-1.0]}, ValueError, "budget -1.0 is not above zero"),
        ({"heuristic": "best"}, ValueError, "'best'"),
        ({"heuristic": "full"}, ValueError, "heuristic 'full' is for simulations only"),
        ({"within": "4"}, ValueError, 'within "4" is not a size'),
        ({"swap_dir": "."}, ValueError, "swap_dir without link: say how fast"),
        ({"swap_dir": "/no/such/folder", "link": "2GB/s"}, ValueError, "is no folder"),
        ({"steps": "4"}, TypeError, "steps is '4'; it must be a whole number"),
        ({"steps": 4.0}, TypeError, "steps is 4.0; it must be a whole number"),
        ({"rounds": 2.0}, TypeError, "rounds is 2.0; it must be a whole number"),
        ({"slowdown": "1.2"}, TypeError, "slowdown is '1.2'; it must be a number"),
        ({"budgets": 0.6}, TypeError, "budgets is 0.6, and a plan takes several: give a list"),
        ({"budgets": 0}, TypeError, "budgets is 0, and a plan takes several: give a list"),
        ({"budgets": "60%"}, TypeError, "budgets is '60%', and a plan takes several: give a list"),
        ({"budgets": b"60%"}, TypeError, "a plan takes several: give a list"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(
    wrong: dict[str, object], error: type[Exception], message: str
) -> None:
    def make() -> Callable[[], None]:
        raise AssertionError("ran")

    with pytest.raises(error, match=message):
        dtr_alloc.plan(make, **wrong)  # type: ignore[arg-type]
