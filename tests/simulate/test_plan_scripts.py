"""A script is planned for: how its first steps are run, and what the command line says."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dtr_alloc.__main__ import main
from dtr_alloc.pool.size import parse_size, short_size
from dtr_alloc.runtime.planning import plan as planning
from dtr_alloc.runtime.planning import script as profiling
from dtr_alloc.runtime.planning.forecast import Forecast, Prediction
from dtr_alloc.runtime.planning.profile import Profile, Recorded
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Call
from tests.support.plan_profiles import KIB, PEAK, STEP, profile_of

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
    monkeypatch.setattr(planning, "rematerialization_ns", lambda: 0.0)


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What is asked of a profile, which is then the known program's."""
    asked: list[tuple[object, ...]] = []

    def profile(path: str, args: list[str], *rest: object, module: bool) -> Profile:
        asked.append((path, args, *rest[:3]))
        return profile_of(3, eager_s=5.0 if args == ["--batch=512"] else 4.0)

    monkeypatch.setattr(profiling, "profile_script", profile)
    return asked


def run_in_this_process(
    script: Path, log: Path | None, own_scope: bool, steps: int = 3
) -> dict[str, object] | None:
    path = None if log is None else str(log)
    options = {"steps": steps, "log": path, "within": None, "own_scope": own_scope}
    ends = None if log else [*range(1, steps + 1)]
    return profiling._train(str(script), [], options | {"ends": ends})


def test_a_script_is_left_after_its_first_steps(script: Path, log: Path) -> None:
    eager = run_in_this_process(script, None, own_scope=False)
    assert eager is not None
    assert len(eager["step_ns"]) == 2  # type: ignore[arg-type]
    recorded = run_in_this_process(script, log, own_scope=False)
    assert recorded is not None
    assert recorded["warm_marks"] == 1
    assert Trace.load(log).instructions.count(STEP) == 3
    parameters = 6 * (32 * 32 + 32) * 4
    peak = recorded["peak_bytes"]
    assert isinstance(peak, int)
    assert peak > 3 * parameters  # Theirs, gradients, momenta.


def test_a_script_with_a_scope_is_profiled_in_it_without_its_budget(
    script_with_scope: Path, log: Path
) -> None:
    for path in (None, log):
        asked = run_in_this_process(script_with_scope, path, own_scope=False)
        assert asked == {"opens_scope": True}
    eager = run_in_this_process(script_with_scope, None, own_scope=True)
    assert eager is not None
    assert len(eager["step_ns"]) == 2  # type: ignore[arg-type]
    recorded = run_in_this_process(script_with_scope, log, own_scope=True)
    assert recorded is not None
    forecast = Forecast(
        Profile.of([], [Recorded(Trace.load(log), 1, 2, (1, 1), 0.5, 0)])  # Parameters lie outside.
    )
    assert forecast.predict(None).peak_bytes == recorded["peak_bytes"]


def test_a_script_without_an_optimizer_is_a_single_step(tmp_path: Path, log: Path) -> None:
    path = tmp_path / "infer.py"
    path.write_text("import torch\nx = torch.ones(1024).exp()\n")
    made = run_in_this_process(path, log, own_scope=False)
    assert made is not None
    assert len(made["step_ns"]) == 1  # type: ignore[arg-type]
    assert (made["warm_marks"], made["peak_bytes"]) == (0, 2 * 4096)


MANY = """
import torch
torch.manual_seed(0)
layers = [m for _ in range(6) for m in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers)
parameters = list(model.parameters())
optimizers = [torch.optim.AdamW([p]) for p in parameters]
def step(parameter):
    optimizer = optimizers[[p is parameter for p in parameters].index(True)]
    optimizer.step()
    optimizer.zero_grad()
if {in_backward}:
    for p in parameters:
        p.register_post_accumulate_grad_hook(step)
for _ in range(100):
    model(torch.ones(64, 64)).square().mean().backward()
    if not {in_backward}:
        for p in parameters:
            step(p)
"""


@pytest.mark.parametrize("in_backward", [False, True])
def test_several_optimizers_of_a_program_make_one_step_of_it(
    tmp_path: Path, in_backward: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(MANY.format(in_backward=in_backward))
    made = profiling.profile_script(str(path), [], 3, 1)
    (trace,) = made.traces
    assert trace.instructions.count(STEP) == 3
    tanh = [one for one in trace.instructions if isinstance(one, Call) and "tanh" in one.name]
    assert len([one for one in tanh if one.name == "aten::tanh"]) == 3 * 6
    assert len(made.eager_ns) == len(made.scope_ns) == 2


def test_a_script_is_left_where_it_opens_a_second_scope(tmp_path: Path, log: Path) -> None:
    path, done = tmp_path / "train.py", tmp_path / "done"
    path.write_text(
        "import dtr_alloc, torch\n"
        "from pathlib import Path\n"
        f"done = Path({str(done)!r})\n"
        "@dtr_alloc.rematerialize('1MiB')\n"
        "def step():\n"
        "    done.write_text('again' * done.exists() or 'once')\n"
        "    torch.ones(1024).exp()\n"
        "while True:\n"
        "    step()\n"
    )
    made = run_in_this_process(path, log, own_scope=True)
    assert made is not None
    assert done.read_text() == "once"


def test_a_script_that_leaves_its_scope_before_a_step_is_a_single_step(
    tmp_path: Path, log: Path
) -> None:
    path = tmp_path / "infer.py"
    path.write_text(
        "import dtr_alloc, sys, torch\n"
        "with dtr_alloc.rematerialize('1MiB') as session:\n"
        "    session.resize('512KiB')\n"
        "    torch.ones(1024).exp()\n"
        "    sys.exit(0)\n"
    )
    made = run_in_this_process(path, log, own_scope=True)
    assert made is not None
    assert len(made["step_ns"]) == 1  # type: ignore[arg-type]


def test_operators_that_a_script_vouches_for_are_recorded_in_its_profile(
    tmp_path: Path, log: Path
) -> None:
    path = tmp_path / "infer.py"
    path.write_text(
        "import dtr_alloc, torch\n"
        "library = torch.library.Library('plan_scripts', 'DEF')\n"
        "library.define('twice(Tensor x) -> Tensor')\n"
        "library.impl('twice', lambda x: x * 2, 'CPU')\n"
        "with dtr_alloc.rematerialize('1MiB', recordable=['plan_scripts::*']):\n"
        "    torch.ops.plan_scripts.twice(torch.ones(1024))\n"
    )
    assert run_in_this_process(path, log, own_scope=True) is not None
    (twice,) = (
        item
        for item in Trace.load(log).instructions
        if isinstance(item, Call) and item.name == "plan_scripts::twice"
    )
    assert twice.extra["tracked"] == [1]


def test_the_command_profiles_each_batch_and_names_the_budget_to_take(
    asked: list[Any], script: Path
) -> None:
    words = ["--batches", "64,512", "--slowdown", "1.3", "--rounds", "2"]
    done = CliRunner().invoke(main, ["plan", *words, str(script), "--batch={batch}"])
    assert done.exit_code == 0, done.output
    assert asked == [(str(script), [f"--batch={n}"], 4, 2, None) for n in (64, 512)]
    header, *lines = done.stdout.splitlines()
    assert header.split()[:3] == ["batch", "budget", "peak"]
    assert lines[0].split() == ["64", "none", "3.5", "KiB", "1.25", "5,000.0", "0", "0", "13"]
    assert [line.split()[0] for line in lines[:-2]] == ["64"] * 7 + ["512"] * 7
    budgets = [parse_size(line.split('rematerialize("')[1].rstrip('")')) for line in lines[-2:]]
    assert lines[-2].startswith("batch 64: the smallest budget under a slowdown of 1.3 is ")
    assert budgets[0] > 3 * KIB  # Without any recomputation.
    assert 2 * KIB <= budgets[1] <= 2 * KIB + PEAK // 100 + 11  # Two decimals.


def test_the_command_has_rows_for_compiled_code_that_saves_less(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    """It takes a third of the time, which is no noise where the first took plain torch's."""
    profile = replace(profile_of(3, 6.0, 6.0), saving_less=profile_of(3, 6.0, 2.0))
    monkeypatch.setattr(profiling, "profile_script", lambda *_, **__: profile)
    done = CliRunner().invoke(main, ["plan", "--budgets", "90%", "--slowdown", "1.01", str(script)])
    assert done.exit_code == 0, done.output
    header, *rows, first, second = done.stdout.splitlines()
    assert header.split()[:2] == ["saved", "budget"]
    assert [row.split()[:2] for row in rows] == [
        [share, of] for share in ("all", "0.5") for of in ("none", "3.15")
    ]
    assert first.startswith("the smallest budget")
    option = 'with options={"activation_memory_budget": 0.5} in torch.compile, the smallest budget'
    assert second.startswith(option)


def test_the_command_ends_with_0_where_only_less_saved_has_a_budget_to_name(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    profile = replace(profile_of(3, 5.0, 5.0), saving_less=profile_of(3, 5.0, 2.0))
    monkeypatch.setattr(profiling, "profile_script", lambda *_, **__: profile)
    least = Forecast.smallest

    def smallest(self: Forecast, slowdown: float) -> Prediction | None:
        return least(self, slowdown) if self.profile is profile.saving_less else None

    monkeypatch.setattr(Forecast, "smallest", smallest)
    done = CliRunner().invoke(main, ["plan", "--json", "--budgets", "90%", str(script)])
    assert done.exit_code == 0, done.output
    (made,) = json.loads(done.stdout)
    assert made["smallest"] is None
    assert made["saving_less"]["activation_memory_budget"] == 0.5
    assert made["saving_less"]["smallest"]["status"] == "ok"


def test_the_command_names_the_folder_for_the_swap(
    asked: list[Any], script: Path, folder: Path
) -> None:
    words = ["--link", "2GB/s", "--swap-dir", str(folder), "--slowdown", "1.3"]
    done = CliRunner().invoke(main, ["plan", *words, str(script)])
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f', swap="{short_size(PEAK)}", swap_dir={str(folder)!r})\n')


def test_the_command_runs_the_script(script: Path) -> None:
    words = ["--rounds", "1", "--steps", "2", "--json", "--budgets", "90%,1KiB"]
    done = CliRunner().invoke(main, ["plan", *words, str(script)])
    (made,) = json.loads(done.stdout)
    assert done.exit_code == int(made["smallest"] is None)  # On a busy machine it is noisy.
    free, wide, tight = made["predictions"]
    assert made["relative_to_eager"]
    assert (free["peak_bytes"], free["budget_bytes"]) == (made["measured_peak_bytes"], None)
    assert int(0.9 * free["peak_bytes"]) < wide["budget_bytes"] < free["peak_bytes"]
    assert (made["batch"], made["link"], made["swap_dir"]) == (None, None, None)
    assert done.stderr == "round 1 of 1\nsimulating\n"
    assert (tight["budget_bytes"], tight["status"]) == (KIB, "oom")


def test_the_command_says_what_a_script_died_of(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no data')")
    failed = CliRunner().invoke(main, ["plan", str(broken)])
    assert failed.exit_code == 1
    assert "broken.py exited with 1 in its first steps" in failed.stderr
    assert "ValueError: no data" in failed.stderr


@pytest.mark.parametrize("compiles", [False, True])
def test_a_script_turns_out_to_have_a_scope_or_to_compile_and_is_run_again(
    monkeypatch: pytest.MonkeyPatch, script: Path, log: Path, compiles: bool
) -> None:
    asked = []

    def run(path: str, args: list[str], options: dict[str, object], out: Path) -> dict[str, object]:
        asked.append((options["log"] is not None, options["own_scope"], options["share"]))
        if not options["own_scope"]:
            return {"opens_scope": True}
        if isinstance(options["log"], str):
            profile_of(3).traces[0].save(options["log"])
        return {
            "opens_scope": False,
            "saves_all": compiles,
            "step_ns": [5, 6],
            "warm_marks": 1,
            "kernel_share": 0.5,
            "peak_bytes": PEAK if options["share"] is None else PEAK - KIB,
            "ends": [1, 2],
        }

    monkeypatch.setattr(profiling, "_run", run)
    doing: list[str] = []
    made = profiling.profile_script(str(script), [], 3, 2, advance=doing.append)
    turn = [(True, True, None), (False, True, None), (True, True, 0.5)][: 2 + compiles]
    assert asked == [(True, False, None), *turn, *turn]
    assert (made.eager_ns, made.scope_ns, made.peak_bytes) == ((5, 6), (5, 6), PEAK)
    assert (made.saving_less is not None) == compiles
    if made.saving_less is not None:
        assert (made.saving_less.eager_ns, made.saving_less.peak_bytes) == ((5, 6), PEAK - KIB)
    assert doing[:2] == ["round 1, recorded", "round 1, plain torch"]
    assert doing[-1] == "round 2, recorded, compiled code saving less" if compiles else doing[1]


def test_a_trial_that_fails_leaves_the_rest_of_the_plan(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    def run(path: str, args: list[str], options: dict[str, Any], out: Path) -> dict[str, object]:
        if options["share"] is not None:
            raise profiling.ScriptError("no memory")
        if options["log"]:
            profile_of(3).traces[0].save(options["log"])
        figures = {"warm_marks": 1, "kernel_share": 0.5, "peak_bytes": PEAK, "ends": [1, 2]}
        return {"opens_scope": False, "saves_all": True, "step_ns": [5, 6], **figures}

    monkeypatch.setattr(profiling, "_run", run)
    with pytest.warns(UserWarning, match=r"activation_memory_budget=0.5: no memory") as told:
        made = profiling.profile_script(str(script), [], 3, 2)
    assert (made.scope_ns, made.saving_less, len(told)) == ((5, 6), None, 1)


PLAIN = """
import os, threading, torch, torch.multiprocessing as mp
def train(rank=0):
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.randn(256, 64)).square().mean().backward()
        optimizer.step()
def in_a_thread():
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
if __name__ == "__main__":
    assert os.environ["DTR_ALLOC_PLANNING"] == "1"
"""


@pytest.mark.parametrize(
    ("options", "end", "message"),
    [
        ([], "in_a_thread()", "trains in another thread, and a plan follows the script's first"),
        (
            [],
            "mp.spawn(train, nprocs=1)",
            "computes nothing in its first process, .* no other \\(1",
        ),
        (
            ["--within", "100KiB"],
            "train()",
            r"does not fit within 100KiB: give --within [\d.]+KiB, say; [\d.]+KiB do until there\n",
        ),
    ],
)
def test_what_no_plan_can_follow_is_told_in_a_sentence(
    tmp_path: Path, options: list[str], end: str, message: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{PLAIN}    {end}\n")
    done = CliRunner().invoke(main, ["plan", "--rounds", "1", *options, str(path)])
    assert done.exit_code == 1
    assert re.search(f"Error: .*train.py {message}", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_what_stands_behind_the_script_is_the_scripts_and_a_line_says_so(
    asked: list[Any], script: Path
) -> None:
    words = ["plan", "--slowdown", "1.3", str(script), "--rounds=1", "--hidden", "7", "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0
    assert asked == [(str(script), ["--rounds=1", "--hidden", "7", "--json"], 4, 3, None)]
    assert done.stderr.splitlines()[0] == (
        f"--rounds, --json behind {script} is {script}'s; ours stands before it"
    )


@pytest.mark.parametrize(("eager_s", "why"), [(1.0, "if it stays above"), (20.0, "what slowed")])
def test_without_a_budget_to_name_the_command_says_why_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, script: Path, eager_s: float, why: str
) -> None:
    monkeypatch.setattr(profiling, "profile_script", lambda *_, **__: profile_of(3, eager_s))
    done = CliRunner().invoke(main, ["plan", str(script)])
    assert done.exit_code == 1
    assert f"give more --rounds; {why}" in done.stdout


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
    done = CliRunner().invoke(main, ["plan", *words, str(script)])
    assert done.exit_code != 0
    assert message in done.stderr
