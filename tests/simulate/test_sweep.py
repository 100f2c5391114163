"""Sweeps: their order, processes, files and pictures, and the commands."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dtr_alloc import SimulationResult, Trace, simulate, sweep
from dtr_alloc.__main__ import main
from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.heuristic import Heuristic
from dtr_alloc.runtime.simulate.plot import plot, short_name
from dtr_alloc.runtime.simulate.result import LINK_FIELDS
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.simulate.sweep import BUDGETS, FIGURE_2, HEURISTICS, read_csv, write_csv
from tests.support.fences import ROOT
from tests.support.trace_lines import call, load, release

LSTM = ROOT / "perf/traces/lstm.log.gz"
PNG = b"\x89PNG\r\n"
LRU = ("--heuristic", "lru")


def timeless(results: list[SimulationResult]) -> list[SimulationResult]:
    return [replace(result, wall_seconds=0.0, search_ns=0) for result in results]


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """A chain that is read again at its end, and one result alone."""
    chain = [call("", "a"), call("a", "b"), call("b", "c"), release("b", "c"), call("a", "d")]
    load(tmp_path / "chain.log", *chain)
    load(tmp_path / "single.log", call("", "a", memory=100))
    return [tmp_path / "chain.log", tmp_path / "single.log"]


def test_results_are_those_of_simulations_by_trace_then_heuristic_then_budget(
    logs: list[Path],
) -> None:
    budgets: list[float | str] = [16, "100%"]
    results = sweep(logs, FIGURE_2, budgets, jobs=1, policy="ignore", mode="bytes", thrash=None)
    one_by_one = [
        simulate(log, budget, heuristic, "ignore", "bytes", thrash=None)
        for log in logs
        for heuristic in FIGURE_2
        for budget in budgets
    ]
    assert timeless(results) == timeless(one_by_one)
    assert {result.status for result in results} == {"ok", "oom"}


def test_processes_change_nothing(logs: list[Path], tmp_path: Path) -> None:
    chosen: list[str | Heuristic] = ["dtr", Heuristic(staleness_exp=0.5)]
    traces: list[Trace | Path] = [Trace.load(logs[0]), logs[1]]
    found = sweep(traces, chosen, jobs=2, csv=tmp_path / "runs.csv")
    assert timeless(found) == timeless(sweep(logs, chosen, jobs=1))
    assert read_csv(tmp_path / "runs.csv") == found


def test_ours_at_the_budgets_and_beside_the_heuristics_of_the_paper_is_the_default(
    logs: list[Path],
) -> None:
    results = sweep(logs[:1], jobs=1)
    assert [str(budget) for budget in BUDGETS] == [f"{tenth}0%" for tenth in range(10, 0, -1)]
    assert (HEURISTICS, {r.mode for r in results}) == (("foresight", *FIGURE_2), {"pool"})
    assert [r.heuristic for r in results] == [name for name in HEURISTICS for _ in BUDGETS]


def test_nothing_to_do_is_done(logs: list[Path]) -> None:
    assert sweep([]) == sweep(logs, []) == []


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"heuristics": ["dtr", "best"]}, ValueError, "heuristic 'best' is not known"),
        ({"jobs": 0}, ValueError, "jobs is 0"),
        ({"csv": Path("none/runs.csv")}, FileNotFoundError, "there is no folder for"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    more: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        sweep([tmp_path / "none.log"], **more)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("damaged log", r"bad\.log line 1: "),
        ("folder for a csv", "Is a directory"),
        ("next use in mode bytes", "next_use.* use mode 'pool', or another heuristic"),
        ("share of no byte", "less than a byte"),
    ],
)
def test_what_a_later_run_would_fail_by_is_told_before_the_first(
    logs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
    fault: str,
    message: str,
) -> None:
    bad, csv = tmp_path / "bad.log", tmp_path / "runs.csv"
    bad.write_text("{\n")
    csv.write_text("of an earlier sweep")
    arguments: dict[str, dict[str, Any]] = {
        "damaged log": {"traces": [*logs, bad]},
        "folder for a csv": {"csv": tmp_path},
        "next use in mode bytes": {"heuristics": ["lru", "foresight"], "mode": "bytes"},
        "share of no byte": {"budgets": ["100%", "0.1%"]},
    }
    monkeypatch.setattr(Simulator, "run", lambda *_: pytest.fail("ran"))
    monkeypatch.setattr(
        "dtr_alloc.runtime.simulate.sweep.ProcessPoolExecutor", lambda *_, **__: pytest.fail("ran")
    )
    usual: dict[str, Any] = {"traces": logs, "csv": csv, "jobs": jobs}
    with pytest.raises((ValueError, OSError), match=message):
        sweep(**usual | arguments[fault])
    assert csv.read_text() == "of an earlier sweep"


def test_a_sweep_that_is_interrupted_leaves_the_rows_that_it_had(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv, run, count = tmp_path / "runs.csv", Simulator.run, 0

    def run_thrice(simulator: Simulator, budget: float, rules: Rules) -> SimulationResult:
        nonlocal count
        count += 1
        if count > 3:
            assert len(read_csv(csv)) == 3
            raise KeyboardInterrupt
        return run(simulator, budget, rules)

    monkeypatch.setattr(Simulator, "run", run_thrice)
    with pytest.raises(KeyboardInterrupt):
        sweep(logs, ["lru"], jobs=1, csv=csv)
    assert [row.budget_bytes for row in read_csv(csv)] == [24, 21, 19]


@pytest.mark.parametrize(
    "one",
    [{"traces": "step.log"}, {"heuristics": "dtr"}, {"budgets": "0.5"}],
    ids=["a trace", "a heuristic", "a budget"],
)
def test_one_where_several_are_asked_for_is_refused(one: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="a sweep takes several: give a list"):
        sweep(**{"traces": [], **one})


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("none/runs.png", "there is no folder for"),
        ("runs.txt", "no picture that matplotlib can"),
        ("runs", "no picture that matplotlib can"),  # It would write runs.png.
        ("/proc/runs.png", "cannot be written: "),
    ],
)
def test_a_place_where_no_picture_can_go_is_refused_before_anything_runs(
    picture: str, message: str, tmp_path: Path
) -> None:
    log = tmp_path / "none.log"
    log.write_text("no log")
    done = command("sweep", log, "--plot", tmp_path / picture)
    assert done.exit_code == 1
    assert message in done.output


def test_a_csv_holds_all_but_the_events(logs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    results = sweep(logs, jobs=1, csv=path)
    assert read_csv(path) == results
    write_csv(path, [])
    assert read_csv(path) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("status", "state", "has no column 'status'"), (",24,", ",many,", "line 2: invalid literal")],
)
def test_a_csv_that_is_not_of_a_sweep_is_refused(
    logs: list[Path], tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "runs.csv"
    sweep(logs, ["dtr"], [24], jobs=1, csv=path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_csv(path)


def test_nothing_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results"):
        plot([], tmp_path / "runs.png")


def test_a_trace_is_called_by_its_file() -> None:
    assert short_name("a/b/unet.log.gz") == short_name("unet.log") == "unet"


# The commands.


def command(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.mark.parametrize(
    ("args", "rules"),
    [
        ([], Rules("foresight", mode="pool")),
        (["--paper"], Rules("dtr", mode="bytes")),
        (["--paper", *LRU], Rules("lru", mode="bytes")),
        (["--mode", "pool", "--paper"], Rules("dtr", mode="pool")),
    ],
)
def test_simulate_answers_for_a_scope_or_for_the_paper(args: list[str], rules: Rules) -> None:
    found = json.loads(command("simulate", LSTM, "--budget", "60%", *args, "--json").stdout)
    expected = Simulator(LSTM).run("60%", rules).figures()
    timing = {"wall_seconds": 0, "search_ns": 0}
    assert found | timing == expected | timing | {"trace": str(LSTM)}


def test_times_and_sizes_are_told_in_units_for_people() -> None:
    done = command("simulate", LSTM, "--budget", "60%")
    told = {line.split()[0]: re.split("  +", line)[1] for line in done.stdout.splitlines()}
    result = Simulator(LSTM).run("60%")
    assert told["budget_bytes"] == format_size(result.budget_bytes)
    assert told["base_compute"] == f"{result.base_compute / 1e6:.1f} ms"
    assert not [value for value in told.values() if re.fullmatch("[0-9]{5,}", value)]


def test_simulate_prints_a_line_for_each_figure(logs: list[Path]) -> None:
    done = command("simulate", logs[0], "--budget", "16", "--policy", "banish")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    figures = simulate(logs[0], 16, policy="banish").as_dict()
    figures = {name: value for name, value in figures.items() if name not in LINK_FIELDS}
    assert names == list(figures)
    told = [line for line in done.stdout.splitlines() if len(line.split()) > 2]
    assert len(told) == len(figures) - 4  # What was run needs no word.
    in_bytes = command("simulate", logs[0], "--budget", "16", "--paper").stdout
    assert "misses" not in in_bytes
    assert re.search("^policy +eager$", in_bytes, re.M)


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_simulate_exits_with_3_where_the_run_does_not_come_to_its_end(
    logs: list[Path], json: list[str]
) -> None:
    assert command("simulate", logs[0], "--budget", "16", "--paper", *json).exit_code == 0
    done = command("simulate", logs[1], "--budget", "5", "--paper", *json)
    assert (done.exit_code, "oom" in done.stdout) == (3, True)
    assert done.stderr == (
        "The largest operator alone reads and makes 100 B, more than the budget of 5 B.\n"
    )
    thrashing = command("simulate", LSTM, "--budget", "30%", "--paper", *json)
    assert (thrashing.exit_code, "thrash" in thrashing.stdout) == (3, True)
    assert thrashing.stderr == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--budget", "half"], 'budget "half" is not a size'),
        (["--budget", "50%", "--heuristic", "best"], "heuristic 'best' is not known"),
        (["--budget", "50%", "--mode", "blocks"], "Invalid value for '--mode'"),
        ([], "Missing option '--budget'"),
    ],
)
def test_simulate_explains_what_it_cannot_do(
    logs: list[Path], args: list[str], message: str
) -> None:
    done = command("simulate", logs[0], *args)
    assert done.exit_code != 0
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_log_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    log = tmp_path / "bad.log"
    log.write_text("{\n")
    done = command("simulate", log, "--budget", "50%")
    assert done.exit_code == 1
    assert f"{log} line 1: " in done.output


def test_a_sweep_writes_a_csv_and_a_picture_that_plot_draws_again(
    logs: list[Path], tmp_path: Path
) -> None:
    csv, png, again = tmp_path / "runs.csv", tmp_path / "runs.png", tmp_path / "again.png"
    options = ["--paper", "--budgets", "16, 100%", "--heuristics", "lru,size", "--jobs", "1"]
    done = command("sweep", *logs, "--csv", csv, "--plot", png, *options)
    assert done.exit_code == 0
    assert "8 runs, 2 of them out of memory" in done.output
    assert len(read_csv(csv)) == 8
    assert command("plot", csv, "-o", again).exit_code == 0
    assert png.read_bytes() == again.read_bytes()
    assert png.read_bytes().startswith(PNG)


def test_a_sweep_prints_json_and_nothing_else_to_stdout(logs: list[Path]) -> None:
    done = command("sweep", *logs, "--paper", "--budgets", "16,100%", "--jobs", "1", "--json")
    assert done.stderr.endswith("24 runs, 6 of them out of memory or thrashing.\n")
    found = json.loads(done.stdout)
    expected = sweep(logs, FIGURE_2, [16, "100%"], jobs=1, mode="bytes")
    assert [row | {"wall_seconds": 0} for row in found] == [
        one.figures() | {"wall_seconds": 0} for one in expected
    ]


def test_a_sweep_must_go_somewhere(logs: list[Path]) -> None:
    done = command("sweep", *logs)
    assert done.exit_code == 2
    assert "--csv, --plot or --json" in done.output
