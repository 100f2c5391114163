"""Every script that measures runs: the short version of each, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fences import ROOT

NOT_HERE = {
    "study.py": "no script",
    "record_traces.py": "records the committed traces anew",
    "reference_parity.py": "needs the published logs; test_reference_parity.py runs it",
}
FOLDERS = ("choice", "cost", "memory", "paper", "peers", "simulate", "swap")
# `make test-all` runs the rest.
IN_SECONDS = {"adversary.py", "eviction.py", "memory_map.py", "page_moves.py"}


def scripts() -> list[object]:
    found = [path for folder in FOLDERS for path in ROOT.glob(f"perf/{folder}/*.py")]
    return [
        pytest.param(path, id=path.stem, marks=() if path.name in IN_SECONDS else pytest.mark.slow)
        for path in sorted(found)
        if path.name not in NOT_HERE
    ]


@pytest.mark.parametrize("script", scripts())
def test_a_script_runs_in_its_short_version(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.png" if script.name == "memory_map.py" else tmp_path
    command = [sys.executable, str(script), "--quick", "--out", str(out)]
    env = os.environ | {"PYTHONSAFEPATH": ""}  # A script finds the others beside it.
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode in (0, 1), done.stderr  # 1: a limit of speed was passed, say.
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) or out.exists(), "it wrote nothing"
