"""What a call on a GPU does first, that it ends when it should, and what the next one goes on from.

The parts here are small functions; where their length matters a clock of the test's tells it.
"""

import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import parts
import parts_exact
import parts_memory
import parts_speed
import parts_tests
import pytest
import report
import run
import work
from report import Report, earlier
from work import Part, Work

from tests.support import gpu_parts
from tests.support.fences import ROOT
from tests.support.gpu_parts import ENV, SLOW, call, finds, part, script

OF_WORTH = [  # What no GPU has shown yet, in the order of its worth.
    *("tests", "over-torch", "unet", "anchors", "batches", "allocators", "scoring", "floor"),
    *("segments", "guest"),
]
CALLS = ((9.5, False, None), (3, True, None))  # In minutes; whether for what is missing; of which.


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "perf/gpu/run.py"), *arguments]
    return subprocess.run(words, capture_output=True, text=True)


# The order.


def test_a_part_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    done = command("--only", "tests,dmeo", "--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip().startswith("run.py: no part is named dmeo; there are tests, over-t")
    assert list(tmp_path.iterdir()) == []


def test_parts_run_in_the_order_of_their_worth_however_they_are_named() -> None:
    assert [p.name for p in parts.chosen("scoring,probe,unet")] == ["unet", "scoring", "probe"]
    assert [p.name for p in parts.chosen(None)][: len(OF_WORTH)] == OF_WORTH


def test_what_had_all_of_its_time_and_did_not_end_comes_last_among_what_is_missing() -> None:
    before = {"tests": {"state": "unfinished", "seconds": 88}, "unet": {"seconds": 20}}
    late = [p.name for p in parts.chosen("tests,unet,remap", before, missing=True)]
    assert late == ["unet", "remap", "tests"]
    assert parts.chosen(None, before, missing=False) == list(parts.PARTS)


def test_the_list_says_what_a_call_has_time_for_and_why_not_for_the_rest(tmp_path: Path) -> None:
    rows = [
        re.split(r"  +", line)
        for line in command(
            "--list", "--minutes", "2.2", "--device", "cpu", "--out", str(tmp_path)
        ).stdout.splitlines()
    ]
    assert [(name, time) for name, time, _ in rows] == [
        (p.name, f"{p.limit:.0f} s") for p in parts.PARTS
    ]
    said = {name: what for name, _, what in rows}
    assert said["unet"] == "Is the U-Net at 30 % exact, or refused?"
    assert said["anchors"] == "skipped: no time: it takes 210 s, and 42 are left"
    assert said["full-card"] == "skipped: it needs a GPU"


def test_the_calls_in_the_documents_are_two_and_so_is_their_rehearsal() -> None:
    page = (ROOT / "perf/README.md").read_text()
    given = [
        run.arguments_of(line.split())
        for line in re.findall(r"^python perf/gpu/run\.py (.*)$", page, re.M)
    ]
    assert [(a.device, a.minutes, a.missing, a.only) for a in given] == [
        (device, *of_call) for device in ("cuda", "cpu") for of_call in CALLS
    ]


def test_every_script_that_a_part_starts_is_there() -> None:
    for file in (ROOT / "perf/gpu").glob("parts_*.py"):
        for name in re.findall(r'"([\w./]+\.py)"', file.read_text()):
            assert (file.parent / name).exists() or (ROOT / name).exists(), name


# The time.


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_two_calls_of_the_planned_length_run_what_is_worth_most_and_name_the_rest(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part takes a share of its limit; those beside one another run at once."""
    times = [0.0]
    clock = SimpleNamespace(monotonic=lambda: max(times))
    for module in (run, report, work, gpu_parts):
        monkeypatch.setattr(module, "time", clock)
    ran: list[str] = []

    def lasting(one: Part) -> Part:
        def body(given: Work) -> None:
            ran.append(one.name)
            times.append(given.deadline - (1 - share) * one.limit)
            given.add("figure", {}, "")

        return replace(one, run=body)

    begun, before, skipped = 0.0, set[str](), {}
    for minutes, missing, _ in CALLS:
        code, document = call(
            tmp_path, [lasting(p) for p in parts.PARTS], 60 * minutes, missing=missing
        )
        assert code == 0
        assert clock.monotonic() - begun <= 60 * minutes
        skipped = next(reversed(document["calls"].values()))["skipped"]
        assert {*skipped, *ran} == {p.name for p in parts.PARTS}
        assert {name for name, why in skipped.items() if why == "already measured"} == before
        assert skipped["full-card"] == "it needs a GPU"
        begun, before = clock.monotonic(), set(ran)
    assert len(ran) == len(set(ran))
    assert {*OF_WORTH} <= {*ran}
    left = [name for name in skipped if skipped[name].startswith("no time: it takes ")]
    assert left == [p.name for p in parts.PARTS if p.name not in {*ran, "full-card"}]


@pytest.mark.parametrize(
    ("state", "missing", "needs"),
    [("done", False, 36), ("unfinished", False, 100), ("unfinished", True, 70)],
)
def test_a_part_is_planned_by_what_it_took_where_it_was_whole(
    state: str, missing: bool, needs: float
) -> None:
    before = {"one": {"state": state, "seconds": 30}}
    one = part("one", finds(1), 100)
    assert parts.seconds(one, before, missing) == pytest.approx(needs)
    assert parts.why_not(one, before, missing, "cuda", needs + 1) == ""
    assert "no time" in parts.why_not(one, before, missing, "cuda", needs - 1)


def test_a_part_for_which_no_time_is_left_keeps_what_it_found_before(tmp_path: Path) -> None:
    call(tmp_path, [part("one", finds(1))])
    code, document = call(tmp_path, [part("one", finds(2)), part("two", finds(2))], seconds=5)
    assert code == 0
    assert document["parts"]["one"]["results"]["figure"]["value"] == 1
    assert list(document["parts"]) == ["one"]
    assert re.search(r"^two: skipped in the last call: no time", _table(tmp_path), re.M)


def _table(out: Path) -> str:
    return (out / "gpu.txt").read_text()


def test_a_part_has_its_own_limit_and_no_more_than_what_is_left(tmp_path: Path) -> None:
    left: list[float] = []
    note = lambda given: left.append(given.left())  # noqa: E731
    for limit in (20, 90):
        call(tmp_path, [part("one", note, limit)], seconds=100)
    _, document = call(tmp_path, [part("one", note, 400)], seconds=100)
    assert left == [pytest.approx(20, abs=1), pytest.approx(90, abs=1), pytest.approx(100, abs=2)]
    assert document["parts"]["one"]["state"] == "done"


def test_parts_without_a_clock_run_side_by_side(tmp_path: Path) -> None:
    order: list[str] = []
    both = threading.Barrier(2, timeout=20)

    def untimed(given: Work) -> None:
        order.append("untimed")
        both.wait()

    parts_ = [
        part("first", lambda given: order.append("first")),
        Part("one", untimed, 30, "?", timed=False),
        Part("two", untimed, 30, "?", timed=False),
        part("last", lambda given: order.append("last")),
    ]
    code, document = call(tmp_path, parts_)
    assert code == 0
    assert {part["state"] for part in document["parts"].values()} == {"done"}
    assert order == ["first", "untimed", "untimed", "last"]


# What the next call goes on from.

WHOLE = "import sys; from pathlib import Path; Path(sys.argv[-1]).write_text('{\"a\": 1}')"


def test_where_all_is_killed_nothing_is_lost_and_the_next_call_runs_what_is_missing(
    tmp_path: Path,
) -> None:
    slow = script(tmp_path, SLOW)
    whole = tmp_path / "whole.py"
    whole.write_text(WHOLE)
    program = f"""
from pathlib import Path
from tests.support.gpu_parts import call, finds, part
def body(given):
    given.add("first", given.script("first", {str(whole)!r}, limit=50), "")
    given.script("slow", {slow!r}, limit=50)
call(Path({str(tmp_path)!r}), [part("done", finds(3)), part("killed", body, 60)], 70)
"""
    env = ENV | {"PYTHONPATH": f"{ENV['PYTHONPATH']}:{ROOT}"}
    with subprocess.Popen([sys.executable, "-c", program], env=env, start_new_session=True) as all_:
        for _ in range(300):
            time.sleep(0.1)
            file = tmp_path / "gpu.json"
            if file.exists() and "in step 2 of 9" in file.read_text():
                break
        all_.send_signal(signal.SIGKILL)
    killed = earlier(tmp_path / "gpu.json")["parts"]["killed"]
    assert killed["state"] == "unfinished"
    assert killed["results"]["slow"]["steps"] == [1, 2]
    assert killed["seconds"] > 0.5
    ran: list[str] = []

    def again(given: Work) -> None:
        for name in ("first", "slow"):
            found = given.script(name, str(whole), limit=30)
            ran.extend([name] if "call" not in found else [])
            given.add(name, found, "")

    code, document = call(
        tmp_path, [part("done", finds(4)), part("killed", again, 60)], 70, missing=True
    )
    assert code == 0
    assert ran == ["slow"]
    assert document["parts"]["done"]["results"]["figure"]["value"] == 3
    assert document["parts"]["killed"]["results"]["first"]["call"] == "1"
    assert document["parts"]["killed"]["seconds"] >= killed["seconds"]
    assert document["calls"]["2"]["skipped"] == {"done": "already measured"}
    assert document["replaced"] == []


def test_where_a_budget_is_missing_it_is_compared_with_eager_run_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def trained(script: str, arguments: list[str], *_: object) -> dict[str, Any]:
        ran.append(" ".join(arguments[4:]))
        found = {"checksums": {"loss": "1"}, "persistent_bytes": 1, "held_peak_bytes": 9}
        whole = "--memory" not in arguments or len(ran) > 4 or "torch" in arguments
        return found if whole else {"unfinished": "killed"}

    monkeypatch.setattr(work, "run_script", trained)
    budgets = (("torch", 0.5), ("dtr_alloc", 0.5))
    exact = part("exact", lambda given: parts_exact.compare(given, "gpt", [], budgets))
    assert call(tmp_path, [exact])[0] == 1
    code, document = call(tmp_path, [exact], missing=True)
    assert code == 0
    assert [line.partition(" --memory")[0] for line in ran[4:]] == ["", "", "--way dtr_alloc"]
    lines = {name: found["line"] for name, found in document["parts"]["exact"]["results"].items()}
    for way, ratio in budgets:
        assert lines[f"gpt {way} {ratio}"].startswith("bit for bit, 1")


def test_a_test_that_has_passed_once_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_tests, "ROOT", tmp_path)
    file = tmp_path / "test_two.py"

    def counts(second: str) -> Any:
        file.write_text(f"def test_quick():\n    pass\ndef test_wrong():\n    {second}\n")
        given = Report(tmp_path, {})
        given.begin("tests", missing=True)
        deadline = time.monotonic() + 100
        parts_tests.tests(Work(given, "tests", "cpu", deadline, ENV, named=(file.name,)))
        given.end("tests", "done")
        return given.results("tests")["tests/gpu"]

    first = counts("assert False")
    assert first["counts"] == {"PASSED": 1, "FAILED": 1}
    assert first["failed"] == "1 of 2 tests did not pass"  # So the part is not whole.
    assert counts("pass")["counts"] == {"PASSED": 1}
    assert counts("pass")["line"] == "none: all have passed in earlier calls"


def test_an_allocator_that_is_not_installed_is_named_as_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(Work, "script", lambda *given, **named: {"nanoseconds": 9.0})
    given = Report(tmp_path, {})
    given.begin("allocators")
    parts_memory.allocators(Work(given, "allocators", "cuda", time.monotonic() + 99, ENV))
    lines = {name: found["line"] for name, found in given.results("allocators").items()}
    assert lines["throughput cupy"] == "skipped: CuPy is not installed"
    assert lines["throughput dtr_alloc"].strip() == "9 ns to allocate and free"


def test_below_the_floor_stock_does_not_run_where_the_anchors_told_how_large_a_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def told(_: Work, name: str, *arguments: object, **more: object) -> dict[str, Any]:
        ran.append(name)
        return {}

    monkeypatch.setattr(Work, "script", told)
    given = Report(tmp_path, {})
    given.begin("anchors")
    given.begin("floor")
    floor = Work(given, "floor", "cuda", time.monotonic() + 99, ENV)
    parts_speed.floor(floor)
    given.put("anchors", "gpt1b stock", {"runs": {"1x": {"parameters": 1 << 30}}}, "")
    parts_speed.floor(floor)
    assert ran == ["gpt1b speed stock", "gpt1b swap half of what cannot be recomputed"]
