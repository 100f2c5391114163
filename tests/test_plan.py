"""A plan: what is measured, what is made of it, and what the command line says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import dtr_alloc
from dtr_alloc.__main__ import main
from dtr_alloc.runtime.planning import cost
from dtr_alloc.runtime.planning import script as profiling
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
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Annotate, Call, Instruction, Release, Result

KIB = 1 << 10
SECOND = 10**9
STEP = Annotate("STEP")

SCRIPT = """
import argparse, torch, dtr_alloc
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=128)
batch = parser.parse_args().batch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
print("training")
for step in range(1000):
    optimizer.zero_grad()
    model(torch.randn(batch, 32)).tanh().square().mean().backward()
    optimizer.step()
raise AssertionError("a plan leaves earlier")
"""


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rematerialization takes beyond its operator is 0 here."""
    monkeypatch.setattr(cost, "_measured", [0.0])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def script_with_scope(tmp_path: Path) -> Path:
    body, loop = SCRIPT.split('print("training")\n')
    loop = "".join(f"    {line}\n" for line in loop.splitlines())
    path = tmp_path / "train.py"
    path.write_text(f"{body}with dtr_alloc.rematerialize('1KiB') as session:\n{loop}")
    return path


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


PEAK = 3 * KIB + 512


def first_needed_again(number: int) -> list[Instruction]:
    """A step whose first result is needed again after two more of its size. With room for two of
    them it is recomputed. Each operator takes a second."""
    a, b, c, d = (f"{letter}{number}" for letter in "abcd")

    def call(result: str, *args: str, size: int = KIB) -> Call:
        return Call("f", args, (Result(result, size, -1),), SECOND)

    made = [call(a), call(b), call(c, b), call(d, a, size=512)]
    return [*made, *map(Release, (a, b, c, d)), STEP]


def profile_of(steps: int, eager_s: float = 4.0, scope_s: float = 5.0) -> Profile:
    trace = Trace(tuple(item for step in range(steps) for item in first_needed_again(step)))
    timed = steps - 1
    return Profile(
        (trace,),
        warm_marks=1,
        traced_steps=timed,
        least_ns=trace.schedule().op_cost,
        eager_ns=(int(eager_s * SECOND),) * timed,
        scope_ns=(int(scope_s * SECOND),) * timed,
        kernel_ratio=1.0,
        peak_bytes=PEAK,
    )


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


def test_operators_count_at_the_pace_that_the_program_had() -> None:
    profile = profile_of(3)
    slower = replace(profile, kernel_ratio=2.0)
    found = Forecast(slower).predict(2 * KIB)
    assert found.slowdown == pytest.approx((5 + 2) / 4, rel=1e-3)


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


def test_what_a_rematerialization_takes_beyond_its_operator_is_added() -> None:
    found = Forecast(profile_of(3), around_ns=SECOND / 2).predict(2 * KIB)
    assert found.slowdown == pytest.approx((5 + 1 + 0.5) / 4, rel=1e-3)


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
    assert forecast.budget_bytes(0.5) == PEAK // 2
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
    other = Recorded(Trace((*first_needed_again(0), STEP)), 1, 2, (9, 9), 0.5, 4)
    (quickest,) = Profile.of([], [runs[0], other]).traces
    assert quickest.instructions == (*first_needed_again(0), STEP)


def test_a_plan_has_the_peak_of_the_program_to_the_byte() -> None:
    made = dtr_alloc.plan(make_perceptron, [0.9, 0.7], steps=3, rounds=2)
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
    made = dtr_alloc.plan(make_perceptron, [0.9], slowdown=20, steps=3, rounds=1)
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
    free = dtr_alloc.plan(make_perceptron, [0.8], steps=2, rounds=1)
    budget = int(free.measured_peak_bytes * 0.8)
    tight = dtr_alloc.plan(make_perceptron, [0.8], steps=2, rounds=1, within=budget)
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


def test_what_a_rematerialization_takes_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_measured", [])
    monkeypatch.setattr(cost, "_CELLS", 12)
    before = torch.get_num_threads(), torch.get_rng_state()
    first = cost.rematerialization_ns()
    assert first >= 0
    assert cost.rematerialization_ns() == first
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 1}, "steps is 1: the first warms up"),
        ({"rounds": 0}, "rounds is 0"),
        ({"slowdown": 0.5}, "slowdown is 0.5"),
        ({"budgets": [-1.0]}, "budget -1.0 is not a share"),
        ({"heuristic": "best"}, "'best'"),
        ({"within": "4"}, 'within "4" is not a size'),
    ],
)
def test_a_number_out_of_its_range_is_refused_before_anything_runs(
    wrong: dict[str, object], message: str
) -> None:
    def make() -> Callable[[], None]:
        raise AssertionError("ran")

    with pytest.raises(ValueError, match=message):
        dtr_alloc.plan(make, **wrong)  # type: ignore[arg-type]


# ---- Scripts


def run_in_this_process(
    monkeypatch: pytest.MonkeyPatch, script: Path, log: Path | None, own_scope: bool, steps: int = 3
) -> dict[str, object] | None:
    for name in ("rematerialize", "measure"):
        monkeypatch.setattr(dtr_alloc, name, getattr(dtr_alloc, name))
    path = None if log is None else str(log)
    options = {"steps": steps, "log": path, "within": None, "own_scope": own_scope}
    return profiling._train(str(script), [], options)


def test_a_script_is_left_after_its_first_steps(
    monkeypatch: pytest.MonkeyPatch, script: Path, log: Path
) -> None:
    eager = run_in_this_process(monkeypatch, script, None, own_scope=False)
    assert eager is not None
    assert len(eager["step_ns"]) == 2  # type: ignore[arg-type]
    recorded = run_in_this_process(monkeypatch, script, log, own_scope=False)
    assert recorded is not None
    assert recorded["warm_marks"] == 1
    assert Trace.load(log).instructions.count(STEP) == 3
    parameters = 6 * (32 * 32 + 32) * 4
    peak = recorded["peak_bytes"]
    assert isinstance(peak, int)
    assert peak > 3 * parameters  # Theirs, gradients, momenta.


def test_a_script_with_a_scope_is_profiled_in_it_without_its_budget(
    monkeypatch: pytest.MonkeyPatch, script_with_scope: Path, log: Path
) -> None:
    for path in (None, log):
        asked = run_in_this_process(monkeypatch, script_with_scope, path, own_scope=False)
        assert asked == {"opens_scope": True}
    eager = run_in_this_process(monkeypatch, script_with_scope, None, own_scope=True)
    assert eager is not None
    assert len(eager["step_ns"]) == 2  # type: ignore[arg-type]
    recorded = run_in_this_process(monkeypatch, script_with_scope, log, own_scope=True)
    assert recorded is not None
    forecast = Forecast(
        Profile.of([], [Recorded(Trace.load(log), 1, 2, (1, 1), 0.5, 0)])  # Parameters lie outside.
    )
    assert forecast.predict(None).peak_bytes == recorded["peak_bytes"]


def test_a_script_without_an_optimizer_is_a_single_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Path
) -> None:
    path = tmp_path / "infer.py"
    path.write_text("import torch\nx = torch.ones(1024).exp()\n")
    made = run_in_this_process(monkeypatch, path, log, own_scope=False)
    assert made is not None
    assert len(made["step_ns"]) == 1  # type: ignore[arg-type]
    assert (made["warm_marks"], made["peak_bytes"]) == (0, 2 * 4096)


def test_the_command_profiles_each_batch_and_names_the_budget_to_take(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    asked = []

    def profile(path: str, args: list[str], *rest: object) -> Profile:
        asked.append((path, args, rest[:3]))
        return profile_of(3, eager_s=4.0 if args == ["--batch=64"] else 5.0)

    monkeypatch.setattr(profiling, "profile_script", profile)
    words = ["--batches", "64,512", "--slowdown", "1.3", "--rounds", "2", "--", "--batch={batch}"]
    done = CliRunner().invoke(main, ["plan", str(script), *words])
    assert done.exit_code == 0, done.output
    rest = (4, 2, None)
    assert asked == [(str(script), [f"--batch={n}"], rest) for n in (64, 512)]
    header, *lines = done.stdout.splitlines()
    assert header.split()[:3] == ["batch", "budget", "peak"]
    assert lines[0].split() == ["64", "none", "3.5", "KiB", "1.25", "5,000.0", "0", "0", "13"]
    assert [line.split()[0] for line in lines[:-2]] == ["64"] * 7 + ["512"] * 7
    budgets = [int(line.split("rematerialize(")[1].rstrip(")")) for line in lines[-2:]]
    assert lines[-2].startswith("batch 64: the smallest budget under a slowdown of 1.3 is ")
    assert budgets[0] > 3 * KIB  # Without any recomputation.
    assert 2 * KIB <= budgets[1] <= 2 * KIB + PEAK // 100


def test_the_command_runs_the_script(script: Path) -> None:
    words = ["--rounds", "1", "--steps", "2", "--json", "--budgets", "0.9,1KiB"]
    done = CliRunner().invoke(main, ["plan", str(script), *words])
    assert done.exit_code == 0, done.output
    (made,) = json.loads(done.stdout)
    free, wide, tight = made["predictions"]
    assert made["relative_to_eager"]
    assert (free["peak_bytes"], free["budget_bytes"]) == (made["measured_peak_bytes"], None)
    assert wide["budget_bytes"] == int(0.9 * free["peak_bytes"])
    assert (tight["budget_bytes"], tight["status"]) == (KIB, "oom")


def test_the_command_says_what_a_script_died_of(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no data')")
    failed = CliRunner().invoke(main, ["plan", str(broken)])
    assert failed.exit_code == 1
    assert "broken.py exited with 1 in its first steps" in failed.stderr
    assert "ValueError: no data" in failed.stderr


def test_a_script_turns_out_to_have_a_scope_and_is_run_again(
    monkeypatch: pytest.MonkeyPatch, script: Path, log: Path
) -> None:
    asked = []

    def run(path: str, args: list[str], options: dict[str, object], out: Path) -> dict[str, object]:
        asked.append((options["log"] is not None, options["own_scope"]))
        if not options["own_scope"]:
            return {"opens_scope": True}
        if isinstance(options["log"], str):
            profile_of(3).traces[0].save(options["log"])
        return {
            "opens_scope": False,
            "step_ns": [5, 6],
            "warm_marks": 1,
            "kernel_share": 0.5,
            "peak_bytes": PEAK,
        }

    monkeypatch.setattr(profiling, "_run", run)
    doing: list[str] = []
    made = profiling.profile_script(str(script), [], 3, 2, advance=doing.append)
    assert asked == [(False, False), (False, True), (True, True), (False, True), (True, True)]
    assert (made.eager_ns, made.scope_ns, made.peak_bytes) == ((5, 6), (5, 6), PEAK)
    assert doing[0] == "round 1, plain torch"
    assert doing[-1] == "round 2, recorded"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batches", "8"], "--batches needs {batch} in ARGS"),
        (["--steps", "1"], "steps is 1"),
        (["--budgets", "half"], "half"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    script: Path, words: list[str], message: str
) -> None:
    done = CliRunner().invoke(main, ["plan", str(script), *words])
    assert done.exit_code != 0
    assert message in done.stderr
