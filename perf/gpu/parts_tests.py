"""tests/gpu, side by side where pytest-xdist is there, every line of it in tests.txt as it comes.

A run that is killed must still say what failed, and which tests ran when it was killed. So pytest
is verbose, and the file is read line by line afterwards, whether or not it has a summary. Tests
marked `alone` fill the card; they come last, one by one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections import Counter
from pathlib import Path

from processes import ended
from work import Work

ROOT = Path(__file__).parents[2]
OUTCOMES = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS"
DONE_BESIDE = re.compile(rf"^\[gw\d+\] (?:\[ *\d+%\] )?({OUTCOMES}) (.+?::.+?) *$")
DONE = re.compile(rf"^(\S+?::.+?) ({OUTCOMES})(?: .*)?$")
NONE_LEFT = 5  # Pytest's exit code where nothing was collected, or all deselected.
BEGUN = re.compile(r"^(\S+\.py::.+?) *$")


def outcomes(text: str) -> dict[str, str]:
    """Of every test that pytest's verbose output names; `running` where it names no end."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if match := DONE_BESIDE.match(line):
            found[match[2]] = match[1]
        elif match := DONE.match(line):
            found[match[1]] = match[2]
        elif match := BEGUN.match(line):
            found.setdefault(match[1], "running")
    return found


def tests(work: Work) -> None:
    """Those that never passed, but for those that need the whole card."""
    passed = [f"--deselect={name}" for name in work.report.passed()]
    pytest(work, "tests.txt", "not alone", [*side_by_side(work), *passed])


def all_tests(work: Work) -> None:
    pytest(work, "all_tests.txt", "not alone", side_by_side(work))


def full_card(work: Work) -> None:
    pytest(work, "full_card.txt", "alone", [])


def side_by_side(work: Work) -> list[str]:
    return ["-n", str(os.cpu_count())] if importlib.util.find_spec("xdist") and work.cuda else []


def pytest(work: Work, file: str, marked: str, extra: list[str]) -> None:
    output = work.report.out / file
    output.write_text("")
    # A warning of another package's there must not fail all of them.
    command = [sys.executable, "-m", "pytest", "-v", "-rA", "--tb=short", "-W", "default"]
    command += ["-p", "no:cacheprovider", *extra]
    command += ["-m", f"{'gpu' if work.cuda else 'not gpu'} and {marked}"]
    command += work.named or ("tests/gpu",)
    env = work.env | {"COLUMNS": "200", "PYTHONSAFEPATH": "1"}

    def look() -> None:
        tell(work, output, "unfinished")

    code = ended(command, max(work.left() - 2, 1), output, env=env, cwd=ROOT, look=look)
    if code == NONE_LEFT:
        work.add("tests/gpu", {}, "none: all have passed in earlier calls")
        return
    tell(work, output, "killed" if code is None else "ended")


def tell(work: Work, output: Path, state: str) -> None:
    """Counts, and the names of those that did not pass."""
    seen = outcomes(output.read_text(errors="replace"))
    counts = dict(Counter(seen.values()))
    work.report.passed(*(name for name, end in seen.items() if end == "PASSED"))
    bad = {name: end for name, end in seen.items() if end not in ("PASSED", "SKIPPED")}
    found = {"state": state, "counts": counts, "not_passed": bad}
    if state != "ended":
        found["unfinished"] = "killed: time was up" if state == "killed" else "was running"
    elif not counts:
        found["failed"] = output.read_text(errors="replace")[-2000:] or "pytest said nothing"
    elif bad:
        found["failed"] = f"{len(bad)} of {len(seen)} tests did not pass"
    line = ", ".join(f"{count} {end.lower()}" for end, count in sorted(counts.items()))
    if state == "unfinished":
        work.report.put(work.part, "tests/gpu", found, line)
        return
    work.add("tests/gpu", found, line)
    for name, end in bad.items():
        print(f"  {end} {name}")
