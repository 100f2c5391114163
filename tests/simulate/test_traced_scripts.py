"""Scripts that `dtr-alloc trace` records run as by python, and leave a log of what they did."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import dtr_alloc
from dtr_alloc.__main__ import main
from dtr_alloc.commands import options
from dtr_alloc.runtime.scope.record import trace_script
from dtr_alloc.runtime.trace.format import Call


def script(folder: Path, text: str) -> tuple[str, Path]:
    """The path of a script of this text, and one for its log."""
    (folder / "script.py").write_text(text)
    return str(folder / "script.py"), folder / "script.log"


def called_in(log: Path) -> list[str]:
    traced = dtr_alloc.Trace.load(log).instructions
    return [item.name for item in traced if isinstance(item, Call)]


def command(path: str, log: Path, *args: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "dtr_alloc", "trace", "-o", str(log), path, *args]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_script_is_traced_with_its_arguments_and_exit_code(tmp_path: Path) -> None:
    path, log = script(
        tmp_path,
        "import sys, torch\n"
        "assert __name__ == '__main__' and sys.argv[1:] == ['--rows', '3']\n"
        "torch.ones(1000).exp()\n"
        "sys.exit(3)\n",
    )
    done = command(path, log, "--rows", "3")
    assert (done.returncode, done.stderr) == (3, f"{log}: 2 operators\n")
    assert called_in(log) == ["aten::ones", "aten::exp"]


@pytest.mark.parametrize("away", ["sys.stderr.close()", "del sys.stderr", "os.close(2)"])
def test_a_script_that_closes_stderr_keeps_its_exit_code(tmp_path: Path, away: str) -> None:
    path, log = script(
        tmp_path, f"import os, sys, torch\ntorch.ones(1000).exp()\n{away}\nsys.exit(3)\n"
    )
    done = command(path, log)
    assert (done.returncode, done.stderr) == (3, "")
    assert called_in(log) == ["aten::ones", "aten::exp"]


def test_a_script_that_fails_leaves_a_log_of_what_it_did(tmp_path: Path) -> None:
    text = "import torch\nx = torch.ones(1000).exp()\nraise ValueError('no more')\n"
    path, log = script(tmp_path, text)
    done = command(path, log)
    assert done.returncode == 1
    assert "ValueError: no more" in done.stderr
    assert called_in(log) == ["aten::ones", "aten::exp"]


def test_a_script_with_a_scope_of_its_own_is_traced_whole(tmp_path: Path) -> None:
    path, log = script(
        tmp_path,
        "import dtr_alloc, torch\n"
        "with dtr_alloc.rematerialize('1MiB') as session:\n"
        "    x = torch.ones(1000).exp()\n"
        "    session.resize(budget='2MiB')\n"
        "    with session.lend('1KiB'):\n"
        "        session.release()\n",
    )
    assert trace_script(path, [], log) == (0, 2, "")
    assert called_in(log) == ["aten::ones", "aten::exp"]
    with dtr_alloc.rematerialize("2MiB") as session:
        session.resize("1MiB")
    assert session.stats().budget_bytes == 1 << 20


def test_a_script_that_decorates_draws_and_exports_is_traced(tmp_path: Path) -> None:
    events = tmp_path / "events.json"
    path, log = script(
        tmp_path,
        "import dtr_alloc, torch\n"
        "@dtr_alloc.rematerialize('1MiB')\n"
        "def work():\n"
        "    torch.ones(1000).exp()\n"
        "work()\n"
        "with dtr_alloc.rematerialize('1MiB', events=True) as session:\n"
        "    torch.ones(1000).sin()\n"
        "session.plot('no/where.png')\n"
        "session.dump_snapshot('no/where.pickle')\n"
        "assert session.held().size_bytes == 0\n"
        f"session.export_chrome_trace({str(events)!r})\n",
    )
    assert trace_script(path, [], log) == (0, 4, "")
    assert called_in(log) == ["aten::ones", "aten::exp", "aten::ones", "aten::sin"]
    assert not events.exists()  # A trace keeps no events.


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("none/x.log", r"there is no folder for .*x\.log"),
        ("folder", "folder cannot be written: Is a directory; name another file"),
        ("/proc/x.log", r"/proc/x\.log cannot be written: .*; name another file"),
    ],
)
def test_a_log_that_could_not_be_written_is_refused_before_the_script_runs(
    tmp_path: Path, log: str, message: str
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "folder").mkdir()
    path, _ = script(tmp_path, f"open({str(ran)!r}, 'w').close()\n")
    done = CliRunner().invoke(main, ["trace", "-o", str(tmp_path / log), path])
    assert done.exit_code == 1
    assert re.search(f"Error: .*{message}\n", done.output)
    assert not ran.exists()


def test_the_look_whether_a_log_can_be_written_leaves_things_as_they_are(tmp_path: Path) -> None:
    names = ("old", "new", "link", "pipe", "to nothing")
    old, new, link, pipe, to_nothing = (tmp_path / name for name in names)
    old.write_text("of an earlier run")
    link.symlink_to(old)
    to_nothing.symlink_to(new)
    os.mkfifo(pipe)  # To open it would wait for a reader.
    for path in (old, new, link, pipe, to_nothing):
        options.needs_place_for(path)
    assert old.read_text() == "of an earlier run"
    assert sorted(tmp_path.iterdir()) == [link, old, pipe, to_nothing]


def test_a_script_that_closes_the_session_or_changes_the_folder_is_recorded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "cells.py"
    script.write_text(
        "import os, torch, dtr_alloc\n"
        "os.chdir('elsewhere')\n"
        "if session := dtr_alloc.current_session():\n"
        "    session.close()\n"
        "session = dtr_alloc.rematerialize('64MiB').__enter__()\n"
        "x = torch.ones(1000).exp().sin()\n"
        "session.close()\n"
    )
    assert trace_script(str(script), [], "run.log") == (0, 3, "")
    assert (tmp_path / "run.log").exists()
