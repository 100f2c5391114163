"""Does a test notice? Plants one fault in a copy of the sources and runs the test named for it,
which must fail. A copy without a fault comes first, on which all those tests must pass. `make
planted-faults`; minutes, since each fault is compiled.

The faults are in faults.txt. A source is changed by its text, so that a fault that no longer fits
is an error and not a pass. Only the unit that includes that file is compiled (setup.py), by the
command that built the extension; the rest is linked from there. Tests of the engine harness get one
with the fault. The repository itself is not touched. Each core has a fault of its own.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tests.engine_harness.build import build_with, sources
from tests.planted.fault import Fault, faults

ROOT = Path(__file__).parents[2]
HARNESS = "_engine_harness.so"
FAULTS = faults()

sys.path.insert(0, str(ROOT / "perf/support"))

from measurement import origin  # noqa: E402


def compile_commands() -> dict[str, list[str]]:
    """The command that compiles each unit of the extension, by its path."""
    (ninja,) = ROOT.glob("build/temp.*/build.ninja")
    listed = subprocess.run(
        [sys.executable, "-m", "ninja", "-C", str(ninja.parent), "-t", "commands"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    commands = {}
    for line in listed.splitlines():
        words = shlex.split(line)
        if "-o" in words:
            commands[next(word for word in words if word.endswith(".cpp"))] = words
    return commands


def plant(fault: Fault | None, folder: Path) -> None:
    """Makes a copy of the package, with the fault, in `folder`."""
    shutil.copytree(ROOT / "dtr_alloc", folder / "dtr_alloc", ignore=shutil.ignore_patterns("csrc"))
    changed: dict[str, str] = {}
    for edit in fault.edits if fault else ():
        text = changed.get(edit.source, (ROOT / edit.source).read_text())
        if text.count(edit.old) != 1:
            raise SystemExit(f"{edit.source} has not one {edit.old!r} to plant a fault in")
        changed[edit.source] = text.replace(edit.old, edit.new)

    commands = compile_commands()
    objects = {unit: words[words.index("-o") + 1] for unit, words in commands.items()}
    for source, text in changed.items():
        (folder / Path(source).name).write_text(text)
    for unit, good in objects.items():
        text = whole = Path(unit).read_text()
        for source in changed:
            text = text.replace(f'"{source}"', f'"{folder / Path(source).name}"')
        if text == whole:
            continue
        copy, made = folder / Path(unit).name, str(folder / f"{Path(unit).stem}.o")
        copy.write_text(text)
        swap = {unit: str(copy), good: made, f"{good}.d": f"{made}.d"}
        subprocess.run([swap.get(word, word) for word in commands[unit]], check=True)
        objects[unit] = made
    (library,) = (folder / "dtr_alloc").glob("_core.*.so")
    library.unlink()
    libraries = [f"-l{name}" for name in ("c10", "torch", "torch_cpu", "torch_python")]
    search = f"-L{Path(torch.__file__).parent / 'lib'}"
    command = ["c++", "-shared", *objects.values(), search, *libraries, "-o", str(library)]
    subprocess.run(command, check=True)
    if fault and "engine_harness" in (ROOT / fault.test.partition("::")[0]).read_text():
        instead = {ROOT / source: folder / Path(source).name for source in changed}
        build_with({one: instead[one] for one in sources() if one in instead}, folder / HARNESS)


def run(tests: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The tests, on the copy."""
    # Safe path: a test's own process would else import the package of the working directory.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    if (folder / HARNESS).exists():
        environment["DTR_ALLOC_ENGINE_HARNESS"] = str(folder / HARNESS)
    where = "import dtr_alloc; print(dtr_alloc.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where],
        env=environment, cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.startswith(str(folder)), f"tested {found.stdout}"
    pytest = str(Path(sys.executable).with_name("pytest"))
    return subprocess.run(
        [pytest, "-q", "-p", "no:cacheprovider", *tests],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip


def run_with(fault: Fault | None, tests: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as name:
        plant(fault, Path(name))
        for _ in range(fault.tries if fault else 1):
            done = run(tests, Path(name))
            if done.returncode:
                break
        return done


def main() -> int:
    tests = [fault.test for fault in FAULTS]
    print(origin(), flush=True)
    control = run_with(None, tests)
    print(f"without a fault: {control.stdout.splitlines()[-1]}", flush=True)
    if control.returncode:
        print(control.stdout[-2000:], control.stderr[-2000:])
        return 1
    missed = 0
    pool = ThreadPoolExecutor(os.cpu_count())
    outcomes = pool.map(lambda fault: run_with(fault, [fault.test]), FAULTS)
    for fault, done in zip(FAULTS, outcomes, strict=True):
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)  # Fixtures err.
        crashed = done.returncode < 0
        caught = crashed or bool(failed)
        missed += not caught
        print(f"{fault.name} ({', '.join(sorted({edit.source for edit in fault.edits}))})")
        print(f"  {'caught' if caught else 'NOT CAUGHT'} by {fault.test}", flush=True)
        for line in failed[:8]:
            print(f"    failed: {line}")
        if not caught:
            print(done.stdout[-2000:], done.stderr[-2000:])
    print(f"{len(FAULTS) - missed} of {len(FAULTS)} planted faults are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
