"""What `make gpu` promises: a part that fails, hangs or is killed loses nothing but itself.

The parts here are small functions and scripts that crash, sleep or write half of what they should;
no model is trained and no GPU is asked. The probe of the driver's calls runs on the fake driver.
"""

import json
import re
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import driver_calls
import largest
import parts_speed
import parts_tests
import prepare
import processes
import pytest
import work
from measurement import write_json
from processes import run_script
from report import Report
from work import Work, trouble_of

from tests.fake_cuda.driver import FakeCuda
from tests.support.fences import ROOT
from tests.support.gpu_parts import ENV, SLOW, call, finds, part, script
from tests.support.own_process import own_process


def crashes(given: Work) -> None:
    given.add("first", {"value": 1}, "1 us")
    raise RuntimeError("the second figure cannot be had")


# Reports.


def test_a_call_with_an_empty_folder_goes_on_from_the_results_it_is_given(tmp_path: Path) -> None:
    call(tmp_path / "kept", [part("one", finds(1))])
    _, document = call(
        tmp_path / "empty", [part("two", finds(2))], before=tmp_path / "kept/gpu.json"
    )
    assert list(document["parts"]) == ["one", "two"]


def test_a_later_call_keeps_what_earlier_ones_found_and_replaces_what_runs_again(
    tmp_path: Path,
) -> None:
    call(tmp_path, [part("one", finds(1)), part("two", finds(2))])
    code, document = call(tmp_path, [part("one", finds(7))])
    assert (code, document["calls"].keys()) == (0, {"1", "2"})
    again, other = document["parts"]["one"], document["parts"]["two"]
    assert (again["results"]["figure"]["value"], again["call"]) == (7, "2")
    assert (other["results"]["figure"]["value"], other["call"]) == (2, "1")
    assert again["date"] >= other["date"]
    assert [(old["part"], old["results"]["figure"]["value"]) for old in document["replaced"]] == [
        ("one", 1)
    ]
    text = (tmp_path / "gpu.txt").read_text()
    assert re.search(r"^one: done, .*, commit 0123456789ab$", text, re.M)
    assert "2 us" in text


def test_a_part_that_crashes_leaves_the_others_whole(tmp_path: Path) -> None:
    code, document = call(tmp_path, [part("bad", crashes), part("good", finds(3))])
    assert code == 1
    bad, good = document["parts"]["bad"], document["parts"]["good"]
    assert bad["state"] == "failed"
    assert "the second figure cannot be had" in bad["failed"]
    assert bad["results"]["first"]["value"] == 1
    assert good["state"] == "done"


# Scripts.


def test_a_script_that_is_killed_keeps_its_results_and_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "LEAST_SECONDS", 0)
    slow = script(tmp_path, SLOW)

    def body(given: Work) -> None:
        found = given.script("slow", slow, limit=8)
        given.add("slow", found, f"{len(found['steps'])} steps")

    code, document = call(tmp_path, [part("slow", body), part("good", finds(3))])
    assert code == 1
    assert document["parts"]["slow"]["state"] == "unfinished"
    result = document["parts"]["slow"]["results"]["slow"]
    assert result["steps"] == [1, 2]
    assert result["unfinished"] == "killed after 8 s: in step 2 of 9"
    assert result["line"] == "unfinished: killed after 8 s: in step 2 of 9; 2 steps"
    assert document["parts"]["good"]["state"] == "done"


def test_what_a_killed_script_had_started_is_killed_too(tmp_path: Path) -> None:
    text = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path(sys.argv[-1]).with_name("out.json").write_text('{"child": %d}' % child.pid)
time.sleep(60)
"""
    child = run_script(script(tmp_path, text), [], 2, ENV)["child"]
    for _ in range(50):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the child lives on")


def test_a_script_that_fails_at_its_end_keeps_its_results(tmp_path: Path) -> None:
    text = """
import sys
from pathlib import Path
from measurement import write_json
write_json(Path(sys.argv[-1]), {"figure": 4})
sys.exit("it broke as it ended")
"""
    found = run_script(script(tmp_path, text), [], 60, ENV)
    assert found == {"figure": 4, "failed": "it broke as it ended"}
    assert trouble_of(found) == "FAILED: it broke as it ended"


def test_a_file_is_the_old_one_or_the_new_one_and_never_half_of_one(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    write_json(file, {"rows": []})
    stop = threading.Event()

    def write() -> None:
        for count in range(300):
            write_json(file, {"rows": ["x" * 1000] * count})
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not stop.is_set():
        json.loads(file.read_text())
    writer.join()
    with pytest.raises(TypeError):
        write_json(file, {"rows": object()})
    assert len(json.loads(file.read_text())["rows"]) == 299
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


# Tests that run on a GPU.

SIDE_BY_SIDE = """
tests/gpu/test_a.py::test_one
tests/gpu/test_a.py::test_two[zero size and nothing free]
[gw0] [ 33%] PASSED tests/gpu/test_a.py::test_one
tests/gpu/test_b.py::test_three
[gw1] [ 66%] FAILED tests/gpu/test_a.py::test_two[zero size and nothing free]
"""
ONE_BY_ONE = """
tests/gpu/test_a.py::test_one PASSED                                     [ 33%]
tests/gpu/test_a.py::test_two[zero size] SKIPPED (needs a GPU)           [ 66%]
tests/gpu/test_b.py::test_three """


def test_outcomes_are_read_from_a_run_that_was_killed() -> None:
    assert parts_tests.outcomes(SIDE_BY_SIDE) == {
        "tests/gpu/test_a.py::test_one": "PASSED",
        "tests/gpu/test_a.py::test_two[zero size and nothing free]": "FAILED",
        "tests/gpu/test_b.py::test_three": "running",
    }
    assert list(parts_tests.outcomes(ONE_BY_ONE).values()) == ["PASSED", "SKIPPED", "running"]


def test_a_killed_run_of_tests_says_which_test_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = tmp_path / "tests.txt"

    def clock() -> float:
        """The time is up once the last test runs, however long the machine takes to come there."""
        up = printed.exists() and "::test_endless" in printed.read_text()
        return time.monotonic() + 1000 * up

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=clock))
    file = tmp_path / "test_slow.py"
    file.write_text(
        "import time\n"
        "def test_quick():\n    pass\n"
        "def test_wrong():\n    assert 1 == 2, 'one is not two'\n"
        "def test_endless():\n    time.sleep(900)\n"
    )
    report = Report(tmp_path, {})
    report.begin("tests")
    env = dict(ENV, PYTHONUNBUFFERED="1")
    parts_tests.tests(Work(report, "tests", "cpu", time.monotonic() + 500, env, named=(str(file),)))
    found = report.results("tests")["tests/gpu"]
    ends = {name.rpartition("::")[2]: end for name, end in found["not_passed"].items()}
    assert ends == {"test_wrong": "FAILED", "test_endless": "running"}
    assert found["counts"]["PASSED"] == 1
    assert found["unfinished"] == "killed: time was up"
    assert "test_endless" in printed.read_text()


# What is built, and the driver's calls.


def test_what_was_built_of_other_sources_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*prepare.COMPILED, prepare.HARNESS):
        (tmp_path / name).write_text("")
    assert not prepare.is_current(tmp_path)
    write_json(tmp_path / "built.json", prepare.key())
    assert prepare.is_current(tmp_path)
    monkeypatch.setattr(prepare, "version", lambda name: "2.99.0")
    assert not prepare.is_current(tmp_path)


def test_the_folder_that_is_imported_offers_the_package_and_nothing_else(tmp_path: Path) -> None:
    compiled = ROOT / "dtr_alloc" / prepare.COMPILED[0]
    if not compiled.exists():
        pytest.skip("the extension is not built in place")
    for name in prepare.COMPILED:
        shutil.copy(compiled.with_name(name), tmp_path)
    path = prepare.link(tmp_path)
    program = (
        "import dtr_alloc, dtr_alloc.runtime, importlib.util as u; "
        "print(dtr_alloc._core.__file__, u.find_spec('kernels'), u.find_spec('runtime'))"
    )
    done = own_process(program, cwd=tmp_path, PYTHONPATH=str(path), PYTHONSAFEPATH="1")
    assert done.stdout.split() == [str(path / "dtr_alloc" / compiled.name), "None", "None"]


def test_the_probe_times_every_call_of_the_driver_and_gives_all_back(cuda: FakeCuda) -> None:
    told: list[list[str]] = []
    found = driver_calls.measure((1, 4), 2, 3, lambda so_far: told.append([*so_far]))
    assert set(found) == {
        "calls",
        "a page",
        "idle, 1 pages",
        "idle, 4 pages",
        "one allocation of 1 pages",
        "one allocation of 4 pages",
    }
    assert all(value >= 0 for group in found.values() for value in group.values())
    assert {"create", "release"} == set(found["a page"])
    assert "unmap, one call" in found["idle, 4 pages"]
    assert told[0] == ["calls"]
    assert cuda.calls("cuMemCreate") == 4 + 2 * 2
    assert cuda.held() == {}
    assert cuda.faults() == []


# The search for the largest batch that fits.


def searched(fits: int, late_after: int = 100, most: int = 4096) -> tuple[Any, list[int]]:
    tried: list[int] = []

    def attempt(batch: int) -> str:
        tried.append(batch)
        return "fits" if batch <= fits else "out of memory"

    return largest.search(attempt, 4, most, lambda: len(tried) >= late_after), tried


@pytest.mark.parametrize("fits", [0, 1, 3, 4, 5, 31, 32, 33, 100, 1000])
def test_the_largest_batch_is_found_to_a_sixteenth(fits: int) -> None:
    found, tried = searched(fits)
    assert found["ended"] == "found"
    assert found["largest"] <= fits <= found["largest"] + max(1, found["largest"] // 16)
    assert len(tried) == len(set(tried)) <= 16


def test_a_search_whose_time_is_up_names_no_largest_batch() -> None:
    found, _ = searched(100, late_after=3)
    assert found == {"largest": None, "at_least": 16, "ended": "time was up"}
    found["attempts"] = [{"batch": 16, "ended": "fits", "per_second": 9.0, "unit": "tokens"}]
    assert parts_speed.largest(found) == "at least 16 (time was up), 9 tokens/s"


def test_a_search_that_reaches_its_own_limit_says_so() -> None:
    assert searched(10**6, most=64)[0] == {
        "largest": None,
        "at_least": 64,
        "ended": "limit of the search",
    }


def test_the_line_of_a_largest_batch_says_what_stopped_the_next() -> None:
    rows = [
        {"batch": 8, "ended": "fits", "per_second": 10.0, "unit": "tokens"},
        {"batch": 9, "ended": "thrash", "error": "..."},
    ]
    found = {"largest": 8, "at_least": 8, "ended": "found", "attempts": rows}
    assert parts_speed.largest(found) == "     8, 10 tokens/s; at 9: thrash"
