"""Parts as perf/gpu/run.py runs them, made of small functions and scripts instead of models."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import run
from report import Report
from work import Part, Work

from tests.support.fences import ROOT

ENV = os.environ | {"PYTHONPATH": f"{ROOT / 'perf/gpu'}{os.pathsep}{ROOT / 'perf/support'}"}
SLOW = """
import json, sys, time
from pathlib import Path
found = {"steps": [1, 2], "unfinished": "in step 2 of 9"}
Path(sys.argv[-1]).write_text(json.dumps(found))  # Without torch, which takes seconds to import.
time.sleep(60)
"""


def call(
    out: Path,
    chosen: list[Part],
    seconds: float = 60,
    before: Path | None = None,
    missing: bool = False,
) -> Any:
    """Runs parts as one call does; returns the exit code and what gpu.json says then."""
    report = Report(out, {"commit": "0123456789abcdef", "dirty": False}, before)
    deadline = time.monotonic() + seconds
    code = run.run(chosen, Work(report, "", "cpu", deadline, ENV, missing=missing))
    return code, json.loads((out / "gpu.json").read_text())


def part(name: str, body: Callable[[Work], None], limit: float = 30) -> Part:
    return Part(name, body, limit, "?")


def finds(value: int) -> Callable[[Work], None]:
    return lambda given: given.add("figure", {"value": value}, f"{value} us")


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)
