"""The slow proofs, one after the other, in one table: what the project claims, whether it held, the
last line that the proof printed, and how long it took.

`make test` is kept short, so what takes longer is proved here before a release, or before an issue
is called done. Each proof is a command that works by itself; its whole output is in build/proofs.
A failed proof does not end the run. Some hours on two cores, and 10 GB of disk for check-cuda. So
the table may be filled in several runs, also at one time: `--only` leaves the rows of other proofs
as they are, if they are of the same C++. A row names the commit that it is of.

    python perf/prove.py [--only exact,faults] [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from measurement import code, commit, origin

ROOT = Path(__file__).parent.parent
LOGS = ROOT / "build/proofs"
PYTHON = sys.executable
ROW = re.compile(r"^(?:ok|FAILED) +[\d.]+ min +\S+ +(\w+) .*\n.*\n", re.M)


class Proof(NamedTuple):
    """A claim, and the command that exits with 0 where it holds."""

    claim: str
    command: tuple[str, ...]


PYTEST = (str(Path(PYTHON).with_name("pytest")), "-q")
PROOFS = {
    "exact": Proof(
        "Every operator, module and optimizer of PyTorch's own tests has eager's bits",
        (*PYTEST, "-k", "test_every_case_is_exact"),
    ),
    "parity": Proof(
        "The simulator decides as the paper's simulator does",
        (*PYTEST, "tests/test_reference_parity.py"),
    ),
    "fidelity": Proof(
        "The live runtime decides as the simulator does", (PYTHON, "perf/fidelity.py")
    ),
    "scripts": Proof(
        "Every measurement runs", (*PYTEST, "-m", "slow", "tests/test_perf_scripts.py")
    ),
    "faults": Proof("A fault in any rule of DESIGN.md is noticed", ("make", "planted-faults")),
    "mutants": Proof(
        "Tests notice nine faults of ten that are drawn by lot",
        ("make", "mutants", "ARGS=--count 230"),
    ),
    "memory": Proof("Nothing touches freed memory, torch's included", ("make", "asan-torch")),
    "sanitizers": Proof(
        "Pool and engine are clean under threads and sanitizers", ("make", "asan", "tsan")
    ),
    "soak": Proof("Nothing grows over a long training", (PYTHON, "perf/soak.py")),
    "floors": Proof("Every budget above one that works does too", (PYTHON, "perf/budget_floor.py")),
    "cuda": Proof("Builds with CUDA pass all tests that need no GPU", ("make", "check-cuda")),
}


def prove(name: str) -> str:
    """Runs one proof; returns its row."""
    proof = PROOFS[name]
    LOGS.mkdir(parents=True, exist_ok=True)
    of, begin = commit(), time.monotonic()
    with (LOGS / f"{name}.log").open("w") as log:
        done = subprocess.run(proof.command, cwd=ROOT, stdout=log, stderr=log, check=False)
    minutes = (time.monotonic() - begin) / 60
    verdict = "ok" if done.returncode == 0 else "FAILED"
    head = f"{verdict:<6} {minutes:>5.1f} min  {of:<8}  {name:<10} "
    return f"{head}{proof.claim}\n{'':>{len(head)}}{last(name)}\n"


def kept(table: Path) -> dict[str, str]:
    """The rows of a table, by their proofs; none if it is of other C++ than today's."""
    text = table.read_text() if table.exists() else ""
    if f"code {code()}," not in text.partition("\n")[0]:
        return {}
    return {found[1]: found[0] for found in ROW.finditer(text)}


def last(name: str) -> str:
    """The last line that a proof printed, without the codes of colours."""
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", (LOGS / f"{name}.log").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was printed"


def main() -> int:
    """Runs what is asked for; returns 1 where a proof failed."""
    parser = argparse.ArgumentParser(description="The slow proofs in one table.")
    parser.add_argument("--only", help=f"of {', '.join(PROOFS)}; separated by commas")
    parser.add_argument("--quick", action="store_true", help="the parity alone")
    parser.add_argument("--out", type=Path, help="write proofs.txt here")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PROOFS)
    if unknown := [name for name in names if name not in PROOFS]:
        parser.error(f"no such proof: {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    names = ["parity"] if options.quick else names
    table = options.out / "proofs.txt" if options.out else None
    failed = False
    for name in names:
        row = prove(name)
        print(row, end="", flush=True)
        failed |= row.startswith("FAILED")
        if not table:
            continue
        rows = kept(table) | {name: row}  # Read anew: another run may have filled in some.
        table.parent.mkdir(parents=True, exist_ok=True)
        told = [rows[one] for one in PROOFS if one in rows]
        table.write_text("".join([f"{origin()}\n\n", *told]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
