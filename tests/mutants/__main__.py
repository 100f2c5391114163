"""Which of some hundred faults, made by rule and drawn by lot, does no test notice?

First each test file runs without a fault: it must pass, and it tells which faults it reaches and
how long it takes. Then each fault runs on the files that reach it, for at most seven minutes, until
a test fails that passes without the fault. First goes the test that noticed the fault in an earlier
run, then files that noticed most faults of the same source in their time, then short files that
reach little else. What nothing notices is printed with its file and line: a test is missing there,
or the fault changes no result, which equivalent.txt then says with the reason. Faults that an audit
once found to pass all tests are tried with the others: once_missed.txt has them, and what each
breaks.

Verdicts are kept in the folder of `--out`, so that a run may be stopped, and goes on where it was.
A verdict holds while the C++ is as it was, and the test file that noticed. Where it does not hold,
who noticed the fault before is asked first. Where nothing noticed, files that have let the fault
pass are not asked again as they are. A first run takes hours. A new test may stand behind others
that take the seven minutes: --tests asks its file alone.

    make mutants ARGS="[--count 300] [--seed 1] [--only pool.cpp] [--tests test_pool]"
"""

import argparse
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.faults import Fault, faults, once_missed
from tests.mutants.tree import MOST, ROOT, TREE, build

sys.path.insert(0, str(ROOT / "perf/support"))

from measurement import code, origin, provenance, write_json

FOLDER = ROOT / "build/mutants"
EQUIVALENT = Path(__file__).parent / "equivalent.txt"
NO_CODE = {  # Of the sources' texts, of documents and results; of builds; of other processes alone.
    *("test_rooms.py", "test_locks.py", "test_troubleshooting.py", "test_docs.py", "report.py"),
    *("test_figures.py", "test_package.py", "test_perf_scripts.py", "result_files.py"),
    *("test_examples.py", "test_gpu_script.py", "test_plan_scripts.py", "test_mutants.py"),
    *("test_cuda_compiles.py", "test_reference_data.py", "test_prove.py"),
}
LONGEST = 180.0  # Seconds of a test file, to be of use here.
ENOUGH = 420.0  # Seconds of tests that let a fault pass.
NO_TESTS = 5  # The exit code of pytest where all tests of a file are slow.
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)  # A name may have spaces.


@dataclass(frozen=True)
class Tests:
    """A test file: its seconds, and the numbers of the faults that it reaches."""

    name: str
    seconds: float
    reaches: frozenset[int]


@dataclass(frozen=True)
class Run:
    """A run of pytest: its exit code, None where it did not end in time, and what failed first."""

    code: int | None
    failed: str


def pytest(name: str, timeout: float, **variables: str) -> Run:
    """Runs one file, or one test, in the tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", "--hypothesis-seed=0", name]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "out").open("w+") as out:
        environment = {
            **os.environ,
            "PYTHONPATH": str(TREE),
            "PYTHONSAFEPATH": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": folder,  # One fault's examples are not for the next.
            **variables,
        }
        with subprocess.Popen(
            command,
            cwd=TREE, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        ) as running:  # fmt: skip
            try:
                ended: int | None = running.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, 9)
                ended = None
        out.seek(0)
        found = FAILED.search(out.read())
    return Run(ended, found[1] if found else "")


def reached(name: str) -> Tests | None:
    """What a test file reaches; None if it fails without a fault, or is too long to be used."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        done = pytest(name, LONGEST, DTR_MUTANTS_REACHED=folder)
        seconds = time.monotonic() - began
        if done.code == NO_TESTS:
            return None
        if done.code != 0:
            why = "takes too long" if done.code is None else f"fails without a fault {done.failed}"
            print(f"{name} {why}: left out", flush=True)
            return None
        numbers = {int(n) for file in Path(folder).iterdir() for n in file.read_text().split()}
    return Tests(name, seconds, frozenset(numbers))


def reached_by_all(pool: ThreadPoolExecutor, names: list[str], numbering: str) -> list[Tests]:
    """What the test files reach, each for itself; kept, since it takes some ten minutes."""
    kept = FOLDER / "reached.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    states = {name: f"{state(name)} {numbering}" for name in names}
    new = [name for name in names if known.get(name, {}).get("state") != states[name]]
    for name, found in zip(new, pool.map(reached, new), strict=True):
        if found:
            reaches = sorted(found.reaches)
            known[name] = {"state": states[name], "seconds": found.seconds, "reaches": reaches}
            write_json(kept, known)
    return [
        Tests(name, it["seconds"], frozenset(it["reaches"]))
        for name, it in known.items()
        if it["state"] == states.get(name)
    ]


def noticed(number: int, name: str, seconds: float) -> str:
    """The test, of a file or by itself, that notices a fault; empty if none does."""
    timeout = 60 + 5 * seconds
    done = pytest(name, timeout, DTR_MUTANT=str(number))
    if done.code == 0:
        return ""
    found = done.failed or name
    return found if pytest(found, timeout).code == 0 else ""  # Else it is not the fault's doing.


def verdict(
    number: int, tests: list[Tests], before: str, passed: str, of_source: Counter[str]
) -> tuple[str, str]:
    """By which test, or file of tests, a fault is noticed, and the state of that; empty if by none,
    and the states of all that let it pass. `before`: who noticed it in an earlier run, `passed`:
    the states of those that did not. `of_source` counts by file who noticed faults of the same
    source so far."""
    meeting = [one for one in tests if number in one.reaches]
    for one in meeting:
        if one.name == before.partition("::")[0] and noticed(number, before, one.seconds):
            return before, state(one.name)
    spent, states = 0.0, []
    meeting.sort(key=lambda one: (-of_source[one.name], one.seconds * len(one.reaches)))
    for one in meeting:
        if spent and spent + one.seconds > ENOUGH:
            continue
        spent += one.seconds
        states.append(state(one.name))
        if states[-1] in passed.split():
            continue
        if found := noticed(number, one.name, one.seconds):
            of_source[one.name] += 1
            return found, state(one.name)
    return "", " ".join(states)


def equivalents() -> set[str]:
    """The keys of faults that change no result; the line below each says why."""
    return set(EQUIVALENT.read_text().splitlines()[::2])


@functools.cache
def state(name: str) -> str:
    """Stands for the C++ and a test file, with what test files share."""
    digest = hashlib.sha256(code().encode())
    files = imported(ROOT / name)
    for file in sorted((ROOT / "tests").rglob("*.*")):
        inside = file.relative_to(ROOT / "tests").parts
        read = not file.name.startswith("test_") or file in files
        read = read and file.name not in NO_CODE and inside[0] not in ("mutants", "planted")
        if read and file.suffix in {".py", ".h", ".cpp"}:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def imported(file: Path) -> set[Path]:
    """A test file and those that it imports, directly or not."""
    names = re.findall(r"^ *from (tests\.(?:\w+\.)*test_\w+) import", file.read_text(), re.M)
    of = (ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names)
    return {file}.union(*map(imported, of))


def judged_of(planted: dict[int, Fault], verdicts: dict[str, str]) -> dict[int, bool]:
    """Of each fault that changes a result: whether it was noticed."""
    same = equivalents()
    return {n: bool(verdicts.get(f.key)) for n, f in planted.items() if f.key not in same}


def table(planted: dict[int, Fault], verdicts: dict[str, str], tests: list[Tests]) -> str:
    judged = judged_of(planted, verdicts)
    met = frozenset().union(*(one.reaches for one in tests))
    lines = [origin(), ""]
    for path in sorted({fault.path for fault in planted.values()}):
        of_file = [n for n in judged if planted[n].path == path]
        lines.append(f"{path:<48} {sum(judged[n] for n in of_file):>3} of {len(of_file):>3}")
        for n in of_file:
            fault = planted[n]
            if not judged[n]:
                why = "" if n in met else ", reached by no test that was run"
                lines.append(f"  line {fault.line}, {fault.rule}{why}")
                lines += [f"    {fault.old}", f"    {fault.new}"]
    noticed, same = sum(judged.values()), len(planted) - len(judged)
    share = f"{noticed / max(len(judged), 1):.1%}"
    lines.append("")
    if same:
        lines.append(f"{same} more change no result, as tests/mutants/equivalent.txt explains")
    return "\n".join([*lines, f"{noticed} of {len(judged)} faults are noticed, {share}"])


def files_of_tests(root: Path) -> list[str]:
    """Those that run the product here: not those of a GPU, nor those in NO_CODE."""
    return sorted(
        file.relative_to(root).as_posix()
        for file in root.glob("tests/*/test_*.py")
        if file.parent.name != "gpu" and file.name not in NO_CODE
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help=f"faults to draw, at most {MOST}")
    parser.add_argument("--seed", type=int, default=1, help="of the lot")
    parser.add_argument("--only", default="", help="faults whose path has this text")
    parser.add_argument(
        "--tests",
        default="",
        help="only test files whose names match this pattern; what they notice is kept",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for mutants.json and .txt")
    options = parser.parse_args()
    if not 0 < options.count <= MOST:
        parser.error(f"--count {options.count} is not between 1 and {MOST}")
    numbered = dict(enumerate([*faults(ROOT, options.count, options.seed), *once_missed(ROOT)]))
    if len(numbered) > MOST:
        parser.error(f"--count {options.count} and those once missed are more than {MOST}")
    last = {(fault.path, fault.line): number for number, fault in numbered.items()}
    drawn = build({number: numbered[number] for number in last.values()})
    print(f"{len(drawn)} of {len(last)} faults compile", flush=True)
    planted = {n: fault for n, fault in drawn.items() if options.only in fault.path}
    if not planted:
        parser.error(f"none of them is in a path with {options.only}")

    files = files_of_tests(TREE)
    names = [name for name in files if re.search(options.tests, Path(name).name)]
    kept = options.out / "mutants.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    told: dict[str, list[str]] = {  # Each with the state that it is of.
        key: [by if by.partition("::")[0] in files else "", of]
        for key, (by, of) in known.get("verdicts", {}).items()
        if (TREE / key.partition(": ")[0].partition(" (")[0]).exists()
    }
    same = equivalents()
    holds = {key for key, (by, of) in told.items() if by and of == state(by.partition("::")[0])}
    waiting = {n: fault for n, fault in planted.items() if fault.key not in same | holds}
    with ThreadPoolExecutor(options.jobs) as pool:
        numbering = hashlib.sha256(str([(n, f.key) for n, f in drawn.items()]).encode())
        tests = reached_by_all(pool, names, numbering.hexdigest()[:12])
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        writing = threading.Lock()

        def judge(number: int) -> None:
            fault = planted[number]
            before, passed = told.get(fault.key, ["", ""])
            by, of = verdict(number, tests, before, passed, counts[fault.path])
            with writing:
                if by or not options.tests:
                    told[fault.key] = [by, of]
                write_json(kept, provenance() | {"verdicts": told})
                print(f"{by or 'NOT NOTICED'}: {fault.key}", flush=True)

        for _ in pool.map(judge, waiting):  # Which raises what one of them raised.
            pass
    verdicts = {key: by for key, (by, _) in told.items()}
    text = table(planted, verdicts, tests)
    print(text)
    if not options.only and not options.tests:
        (options.out / "mutants.txt").write_text(text + "\n")
    judged = judged_of(planted, verdicts)
    return 0 if sum(judged.values()) >= 0.9 * len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
