"""Tuning: its search, shared and resumed studies, the report, and the command."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean

import filelock
import optuna
import pytest
from click.testing import CliRunner

from dtr_alloc import Heuristic
from dtr_alloc.__main__ import main
from dtr_alloc.runtime.heuristic import PRESETS
from dtr_alloc.runtime.tuning import tune as tuning
from dtr_alloc.runtime.tuning.report import compare, draw, table
from dtr_alloc.runtime.tuning.tune import (
    FAILED,
    cases,
    heuristic_of,
    line_to_paste,
    overhead_of,
    tune,
)
from tests.support.trace_lines import call, load, release

PNG = b"\x89PNG\r\n"
BUDGET = "50%"
States = optuna.trial.TrialState


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Two networks: results of many sizes and costs, and a backward pass that reads them all."""
    for name, length in (("short", 8), ("long", 24)):
        forward = [
            call(f"t{i}" if i else "", f"t{i + 1}", 10 + 7 * i % 50, 512 * (1 + i % 3))
            for i in range(length)
        ]
        backward = [
            line
            for i in reversed(range(1, length + 1))
            for line in (
                call(f"t{i} g{i + 1}" if i < length else f"t{i}", f"g{i}", 9, 512),
                release(f"t{i}"),
                release(f"g{i + 1}") if i < length else [],
            )
        ]
        load(tmp_path / f"{name}.log", *forward, *backward)
    return [str(tmp_path / "short.log"), str(tmp_path / "long.log")]


def finished(storage: str | Path) -> list[optuna.trial.FrozenTrial]:
    study = optuna.load_study(study_name="dtr_alloc", storage=tuning._storage(storage))
    return study.get_trials(states=(States.COMPLETE,))


def start(logs: list[str], storage: Path) -> subprocess.Popen[bytes]:
    """A process that works on the study until it is killed."""
    command = ["tune", *logs, "--budget", BUDGET, "--trials", "1000000"]
    return subprocess.Popen(
        [sys.executable, "-m", "dtr_alloc", *command, "--storage", str(storage)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=storage.parent,
    )


def wait_until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_study_is_never_worse_than_the_presets_it_begins_with(logs: list[str]) -> None:
    study = tune(logs, BUDGET, trials=len(tuning.FIRST), seed=0)
    given = cases(logs, [BUDGET])
    worth = {
        name: math.log(geometric_mean([overhead_of(case.runs(PRESETS[name])) for case in given]))
        for name in tuning.FIRST
        if name != "megengine"  # Its penalty is no step of the search.
    }
    assert study.best_value <= min(worth.values())
    tried = [trial.value for trial in study.trials]
    assert [tried[tuning.FIRST.index(name)] for name in worth] == pytest.approx(
        list(worth.values())
    )


def test_the_value_of_a_trial_is_that_of_its_setting(logs: list[str]) -> None:
    study = tune(logs, [BUDGET, "70%"], trials=12, seed=1)
    given = cases(logs, [BUDGET, "70%"])
    for trial in study.trials:
        heuristic = heuristic_of(trial.params)
        overheads = [overhead_of(case.runs(heuristic)) for case in given]
        assert trial.user_attrs["overheads"] == overheads
        assert trial.value == pytest.approx(sum(map(math.log, overheads)) / 4)
    assert len(study.trials) == 12


def test_a_search_finds_what_the_presets_miss(logs: list[str]) -> None:
    first = tune(logs, BUDGET, trials=len(tuning.FIRST), seed=0)
    longer = tune(logs, BUDGET, trials=40, seed=0)
    assert longer.best_value < first.best_value


def test_a_failed_run_counts_as_eight_fold(logs: list[str]) -> None:
    (case,) = cases(logs[:1], [512])  # One block: nothing can be computed from anything.
    runs = case.runs(Heuristic(selection="single"))
    assert [run.status for run in runs] == ["oom"]
    assert overhead_of(runs) == pytest.approx(FAILED) == 8


def test_what_draws_is_run_with_three_seeds_and_the_rest_once(logs: list[str]) -> None:
    (case,) = cases(logs[1:], [BUDGET])
    assert len(case.runs(Heuristic())) == 3
    assert len(case.runs(Heuristic(selection="single"))) == 1


@pytest.mark.parametrize("kind", ["journal", "url"])
def test_a_stored_study_goes_on_where_it_was(kind: str, logs: list[str], tmp_path: Path) -> None:
    storage = str(tmp_path / "study") if kind == "journal" else f"sqlite:///{tmp_path}/study.db"
    first = tune(logs, BUDGET, 6, storage, seed=0)
    counted: list[int] = []
    tune(logs, BUDGET, 9, storage, seed=1, progress=lambda study, done: counted.append(done))
    assert counted == [7, 8, 9]
    again = tune(logs, BUDGET, 9, storage)
    assert [trial.params for trial in again.trials[:6]] == [t.params for t in first.trials[:6]]
    assert len(finished(storage)) == 9


def test_two_processes_share_a_study_and_killing_them_loses_nothing(
    logs: list[str], tmp_path: Path
) -> None:
    storage = tmp_path / "study"
    both = [start(logs, storage) for _ in range(2)]

    def shared() -> bool:
        try:
            trials = finished(storage)
        except KeyError:  # There is no study yet.
            return False
        workers = {trial.user_attrs["process"][1] for trial in trials}
        return workers == {process.pid for process in both}

    wait_until(shared)
    for process in both:
        process.kill()
        process.wait()
    before = finished(storage)
    study = tune(logs, BUDGET, len(before) + 3, storage)
    after = {trial.number: trial.params for trial in finished(storage)}
    assert len(after) == len(before) + 3
    assert all(after[trial.number] == trial.params for trial in before)
    # One that was killed before it had drawn parameters has lost none.
    assert not any(trial.params for trial in study.get_trials(states=(States.RUNNING,)))


def test_what_a_killed_process_was_trying_is_tried_again(logs: list[str], tmp_path: Path) -> None:
    storage = tmp_path / "study"
    study = tune(logs, BUDGET, 6, storage, seed=0)
    died = subprocess.Popen(["true"])
    started = tuning._started(died.pid)
    died.wait()
    lost = study.ask()
    tuning._space(lost)
    host = tuning._me()[0]
    lost.set_user_attr("process", [host, died.pid, started])
    study = tune(logs, BUDGET, 7, storage)
    assert study.trials[lost.number].state == States.FAIL
    assert study.trials[-1].params == lost.params
    assert study.trials[-1].state == States.COMPLETE


def test_what_a_living_process_or_another_host_is_trying_is_left_to_it(
    logs: list[str], tmp_path: Path
) -> None:
    storage = tmp_path / "study"
    study = tune(logs, BUDGET, 6, storage, seed=0)
    mine, theirs = study.ask(), study.ask()
    mine.set_user_attr("process", tuning._me())
    theirs.set_user_attr("process", ["another", 1, 1])
    study = tune(logs, BUDGET, 7, storage)
    assert [trial.number for trial in study.get_trials(states=(States.RUNNING,))] == [
        mine.number,
        theirs.number,
    ]


def test_the_lock_of_a_killed_process_is_free_at_once(logs: list[str], tmp_path: Path) -> None:
    storage = tmp_path / "study"
    holds = (
        "import sys, time, filelock\n"
        "with filelock.FileLock(sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(1000)"
    )
    command = [sys.executable, "-c", holds, f"{storage}.lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(filelock.Timeout):
            filelock.FileLock(f"{storage}.lock", timeout=0).acquire()
        process.kill()
    before = time.monotonic()
    tune(logs, BUDGET, 1, storage)
    assert time.monotonic() - before < 10  # Optuna's own locks wait for 30 s.


def test_a_line_that_was_never_finished_is_dropped(logs: list[str], tmp_path: Path) -> None:
    storage = tmp_path / "study"
    tune(logs, BUDGET, 6, storage, seed=0)
    with open(storage, "a") as file:
        file.write('{"op_code":4,"worker')
    tune(logs, BUDGET, 7, storage)
    assert len(finished(storage)) == 7


@pytest.mark.parametrize(
    "text",
    [
        b"precious, with no newline",
        b'{"op_codes":1}\n{"op',
        b"SQLite format 3\0\n\0",
        b"\x1f\x8b\n8",
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(
    text: bytes, logs: list[str], tmp_path: Path
) -> None:
    storage = tmp_path / "mine"
    storage.write_bytes(text)
    files = {*tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"no journal of Optuna.* sqlite:///{storage}$"):
        tune(logs, BUDGET, 1, storage)
    assert storage.read_bytes() == text
    assert {*tmp_path.iterdir()} == files


@pytest.mark.parametrize("text", [b"", b'{"op', b'{"op_code":', b'{"op_code":0,"wor'])
def test_a_journal_that_was_hardly_begun_is_gone_on_with(
    text: bytes, logs: list[str], tmp_path: Path
) -> None:
    storage = tmp_path / "study"
    storage.write_bytes(text)
    tune(logs, BUDGET, 1, storage)
    assert len(finished(storage)) == 1


def test_a_process_id_that_was_given_anew_is_another_process() -> None:
    assert tuning._started(os.getpid()) == tuning._started(os.getpid()) > 0
    assert tuning._started(2**22 + 1) == 0  # Beyond the greatest id.


def test_a_study_of_other_traces_is_refused(logs: list[str], tmp_path: Path) -> None:
    storage = tmp_path / "study"
    tune(logs[:1], BUDGET, 1, storage)
    with pytest.raises(ValueError, match=r"was made for short\.log at 50%; give these traces"):
        tune(logs, BUDGET, 1, storage)


def test_bad_arguments_are_refused_before_anything_runs(logs: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trials is 0; a study takes at least 1"):
        tune(logs, BUDGET, 0)
    with pytest.raises(ValueError, match="there is nothing to tune on"):
        tune([], BUDGET)
    with pytest.raises(ValueError, match="is not above zero"):
        tune(logs, [-1.0])
    with pytest.raises(FileNotFoundError, match="there is no folder for"):
        tune(logs, BUDGET, 1, tmp_path / "absent" / "study")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////none/t.db", "sqlite:////none/t.db cannot be used: unable to open database"),
        ("foo://me:mine@host/db", r"foo://me:\*\*\*@host/db cannot be used: Can't load plugin"),
        ("sqlite://", "sqlite:// cannot be used: An exception is raised"),
        ("me:mine@host://db", 'storage is no URL: write it as "sqlite:///tune.db"'),
        ("foo://me:mine@host:port/db", 'storage is no URL: write it as "sqlite:///tune.db"'),
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    url: str, message: str, logs: list[str]
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        tune(logs, BUDGET, 1, url)
    assert "mine" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_trace_to_hold_out_that_cannot_be_replayed_is_refused_before_the_search(
    logs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: pytest.fail("searched"))
    log = tmp_path / "released.log"
    load(log, call("", "t1", 10, 512), release("t1"), call("t1", "t2", 10, 512))
    arguments = ["tune", logs[0], "--budget", BUDGET, "--trials", "2", "--holdout", str(log)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "released.log reads a tensor that was released" in done.stderr


def test_without_optuna_the_error_says_what_to_install(
    logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match="tuning is done by Optuna: pip install optuna"):
        tune(logs, BUDGET)


def test_optunas_log_level_is_left_as_it_was(logs: list[str]) -> None:
    before = optuna.logging.get_verbosity()
    tune(logs, BUDGET, trials=1)
    assert optuna.logging.get_verbosity() == before


def test_the_line_to_paste_makes_the_setting() -> None:
    chosen = Heuristic("none", size_exp=0.35, fragmentation=0.5, selection="window")
    line = line_to_paste(chosen)
    assert line == (
        "heuristic=dtr_alloc.Heuristic(neighbourhood='none', size_exp=0.35, fragmentation=0.5, "
        "selection='window')"
    )
    assert eval(line.removeprefix("heuristic=dtr_alloc.")) == chosen
    assert line_to_paste(Heuristic()) == "heuristic=dtr_alloc.Heuristic()"


def test_the_report_has_each_case_and_the_means(logs: list[str]) -> None:
    chosen = Heuristic(size_exp=0.5, selection="single")
    given = compare(cases(logs, [BUDGET]), chosen)
    held = compare(cases(logs[:1], [512]), chosen)
    lines = table(given, held).splitlines()
    assert lines[1].split() == ["tuned", "on"]
    for line, one in zip(lines[2:4], given, strict=True):
        preset, after = overhead_of(one.preset), overhead_of(one.tuned)
        numbers = [f"{preset:.3f}", f"{after:.3f}", f"{after / preset:.3f}"]
        assert line.split() == [*one.case.split(), *numbers]
    ratio = math.sqrt(given[0].ratio * given[1].ratio)
    assert lines[4].split()[0] == "mean"
    assert lines[4].split()[-1] == f"{ratio:.3f}"
    assert lines[5].split() == ["held", "out"]
    assert lines[6].split() == ["short.log", "at", "512", "failed", "failed", "1.000"]
    assert lines[7] == "A run that failed counts as an overhead of 8 in ratios and means."


def test_a_picture_of_a_study_is_drawn(logs: list[str], tmp_path: Path) -> None:
    study = tune(logs, BUDGET, trials=12, seed=0)
    draw(study, tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match="a picture needs two finished trials; the study has 1"):
        draw(tune(logs, BUDGET, trials=1), tmp_path / "one.png")


def test_the_command_prints_a_table_and_the_line(logs: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "study.png"
    arguments = [logs[0], "--budget", "50%", "--budget", "70%", "--trials", "8", "--seed", "0"]
    done = CliRunner().invoke(
        main, ["tune", *arguments, "--holdout", logs[1], "--plot", str(picture)]
    )
    assert done.exit_code == 0, done.output
    study = tune(logs[:1], ["50%", "70%"], trials=8, seed=0)
    best = heuristic_of(study.best_params)
    expected = table(
        compare(cases(logs[:1], ["50%", "70%"]), best),
        compare(cases(logs[1:], ["50%", "70%"]), best),
    )
    assert f"{expected}\n\n{line_to_paste(best)}\n" in done.output
    assert picture.read_bytes().startswith(PNG)


def test_the_command_prints_json(logs: list[str]) -> None:
    arguments = [logs[0], "--budget", "50%", "--trials", "7", "--seed", "0"]
    done = CliRunner().invoke(main, ["tune", *arguments, "--holdout", logs[1], "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    best = heuristic_of(tune(logs[:1], "50%", trials=7, seed=0).best_params)
    assert Heuristic(**found["heuristic"]) == best
    (expected,) = compare(cases(logs[:1], ["50%"]), best)
    (given,) = found["tuned_on"]
    assert (given["case"], given["ratio"]) == (expected.case, expected.ratio)
    assert [run["overhead"] for run in given["tuned"]] == [run.overhead for run in expected.tuned]
    assert found["held_out"][0]["case"] == "long.log at 50%"


def test_a_picture_that_cannot_be_drawn_does_not_cost_the_result(
    logs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("dtr_alloc.runtime.tuning.report.draw", draw)
    arguments = ["tune", logs[0], "--budget", "50%", "--trials", "2"]
    done = CliRunner().invoke(main, [*arguments, "--plot", str(tmp_path / "two.png")])
    assert done.exit_code == 1
    assert "heuristic=dtr_alloc.Heuristic(" in done.stdout
    assert "the disk is full" in done.stderr


def test_a_picture_of_one_trial_is_refused_before_the_search(
    logs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: pytest.fail("searched"))
    arguments = ["tune", logs[0], "--budget", "50%", "--trials", "1"]
    done = CliRunner().invoke(main, [*arguments, "--plot", str(tmp_path / "one.png")])
    assert done.exit_code == 2
    assert "--plot with --trials 1: " in done.stderr


def test_the_command_explains_what_is_wrong(logs: list[str]) -> None:
    done = CliRunner().invoke(main, ["tune", logs[0], "--budget", "-3"])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
