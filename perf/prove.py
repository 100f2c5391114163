"""The slow proofs, one after the other, in one table: what the project claims, of which rules of
DESIGN.md, whether it held, the figure that the proof came to, and how long it took.

`make test` is kept short, so what takes longer is proved here before a release, or before an issue
is called done. Each proof is a command that works by itself; its whole output is in build/proofs.
A failed proof does not end the run. Some hours on two cores, and 10 GB of disk for check-cuda. So
the table may be filled in several runs, also at one time: `--only` leaves the rows of other proofs
as they are, if they are of the same C++. A row names the commit that it is of. With `--out` a proof
that has a result of its own writes it there too; two of them write theirs to perf/results always.

    python perf/prove.py [--only exact,faults] [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent / "support"))

from measurement import code, commit, origin

ROOT = Path(__file__).parent.parent
LOGS = ROOT / "build/proofs"
PYTHON = sys.executable
ROW = re.compile(r"^(?:ok|FAILED) +[\d.]+ min +\S+ +(\w+) .*\n.*\n", re.M)
FILE, FOLDER, PRINTED, ITSELF = "--out FILE", "--out FOLDER", "what it prints", "by itself"


class Proof(NamedTuple):
    """A claim, the command that exits with 0 where it holds, the rules of DESIGN.md that it stands
    for, and where it has one: the name of its result, and how that is written."""

    claim: str
    command: tuple[str, ...]
    rules: str
    result: str = ""
    written: str = ""

    def into(self, out: Path | None) -> tuple[str, ...]:
        """The command that writes the result into this folder."""
        if out is None or self.written not in (FILE, FOLDER):
            return self.command
        return (*self.command, "--out", str(out / self.result if self.written == FILE else out))


PYTEST = (str(Path(PYTHON).with_name("pytest")), "-q")
MAKE = ("make", "-s")  # Silent: what is printed is the proof's.
PROOFS = {
    "exact": Proof(
        "Every operator, module and optimizer of PyTorch's own tests has eager's bits",
        (*PYTEST, "-k", "test_every_case_is_exact"),
        "rules 3 to 5", "conformance.json", ITSELF,
    ),
    "switches": Proof(
        "So have 500 random programs that change switches, threads, addresses and layouts, "
        "in five ways to evict",
        (*PYTEST, "-m", "slow", "tests/live/test_switch_programs.py"),
        "rule 3",
    ),
    "parity": Proof(
        "The simulator decides as the paper's simulator does",
        (*PYTEST, "tests/simulate/test_reference_parity.py"),
        "rule 2",
    ),
    "fidelity": Proof(
        "The live runtime decides as the simulator does",
        (PYTHON, "perf/choice/fidelity.py"),
        "rules 2, 7", "fidelity.json", FILE,
    ),
    "scripts": Proof(
        "Every measurement runs",
        (*PYTEST, "-m", "slow", "tests/measuring/test_perf_scripts.py"),
        "no rule",
    ),
    "faults": Proof(
        "Faults planted in rules of DESIGN.md are noticed",
        (*MAKE, "planted-faults"),
        "rules 1 to 10", "planted_faults.txt", PRINTED,
    ),
    "mutants": Proof(
        "Tests notice nine faults of ten that are drawn by lot",
        (*MAKE, "mutants", "ARGS=--count 230"),
        "rules 1 to 10", "mutants.txt", ITSELF,
    ),
    "memory": Proof(
        "Nothing touches freed memory, torch's included", (*MAKE, "asan-torch"), "rules 9, 10"
    ),
    "sanitizers": Proof(
        "Pool and engine are clean under threads and sanitizers",
        (*MAKE, "asan", "tsan"),
        "rules 9, 10", "sanitizers.txt", PRINTED,
    ),
    "resizes": Proof(
        "A budget that changes at any time holds, and no bit changes",
        (*PYTEST, "-m", "slow", "tests/live/test_resize.py",
         "tests/torch_memory/test_guest_suites.py", "tests/programs/test_examples.py",
         "-k", "another_thread or thousand"),
        "rules 8, 9",
    ),
    "guests": Proof(
        "The demo's models train exactly where memory is torch's",
        (*PYTEST, "-m", "slow", "tests/torch_memory/test_guest_memory.py"),
        "rules 3, 8",
    ),
    "soak": Proof(
        "Nothing grows over a long training", (PYTHON, "perf/cost/soak.py"),
        "rules 7, 8, 10", "soak.json", FILE,
    ),
    "floors": Proof(
        "Every budget above one that works does too",
        (PYTHON, "perf/memory/budget_floor.py"),
        "rule 8", "budget_floor.txt", FOLDER,
    ),
    "figures": Proof(
        "The figures of the documents are of today's C++",
        (PYTHON, "perf/figures_of_today.py"),
        "no rule",
    ),
    "cuda": Proof(
        "Builds with CUDA pass all tests that need no GPU", (*MAKE, "check-cuda"), "rules 1 to 10"
    ),
}  # fmt: skip


def prove(name: str, out: Path | None) -> str:
    """Runs one proof, and writes its result into the folder `out` if given; returns its row."""
    proof = PROOFS[name]
    LOGS.mkdir(parents=True, exist_ok=True)
    of, begin = commit(), time.monotonic()
    told = origin(shlex.join(proof.command))
    with (LOGS / f"{name}.log").open("w") as log:
        done = subprocess.run(proof.into(out), cwd=ROOT, stdout=log, stderr=log, check=False)
    minutes = (time.monotonic() - begin) / 60
    text = printed((LOGS / f"{name}.log").read_text())
    verdict = "ok" if done.returncode == 0 and not nothing_ran(text) else "FAILED"
    if out and proof.written == PRINTED and verdict == "ok":
        (ROOT / out / proof.result).write_text(f"{result(told, text)}\n")
    head = f"{verdict:<6} {minutes:>5.1f} min  {of:<8}  {name:<10} "
    return f"{head}{proof.claim}\n{'':>{len(head)}}{proof.rules}: {figure(text)}\n"


def printed(log: str) -> str:
    """What a proof printed, without the codes of colours and what make says of itself."""
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", log)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not re.match(r"make(\[\d+\])?: ", line)).strip()


def result(told: str, text: str) -> str:
    """A result's text: from the proof's own first line on if it has one, else under `told`."""
    own = re.search(r"^\$ .*  # ", text, re.M)
    return text[own.start() :] if own else f"{told}\n{text}"


def nothing_ran(text: str) -> bool:
    """Whether the last line is pytest's, and all tests were skipped."""
    line = text.rpartition("\n")[2]
    return re.match(r"\d+ skipped\b.* in [\d.]+s", line) is not None


def figure(text: str) -> str:
    """What a proof came to: how many parts are clean, each sum of pytest, or the last line."""
    if parts := re.findall(r"^-fsanitize=\S+ \w+: (clean|FAILED),", text, re.M):
        return f"{parts.count('clean')} of {len(parts)} clean"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing was printed"]
    sums = [line for line in lines if re.match(r"\d+ (passed|failed)\b.* in [\d.]+s", line)]
    return "; ".join(sums) if lines[-1] in sums else lines[-1]


def kept(table: Path) -> dict[str, str]:
    """The rows of a table, by their proofs; none if it is of other C++ than today's."""
    text = table.read_text() if table.exists() else ""
    if f"code {code()}," not in text.partition("\n")[0]:
        return {}
    return {found[1]: found[0] for found in ROW.finditer(text)}


def main() -> int:
    """Runs what is asked for; returns 1 where a proof failed."""
    parser = argparse.ArgumentParser(description="The slow proofs in one table.")
    parser.add_argument("--only", help=f"of {', '.join(PROOFS)}; separated by commas")
    parser.add_argument("--quick", action="store_true", help="the parity alone")
    parser.add_argument("--out", type=Path, help="write proofs.txt and results here")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PROOFS)
    if unknown := [name for name in names if name not in PROOFS]:
        parser.error(f"no such proof: {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    names = ["parity"] if options.quick else names
    out = options.out.resolve() if options.out else None
    if out:
        out.mkdir(parents=True, exist_ok=True)
        out = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out  # As commands name it.
    failed = False
    for name in names:
        row = prove(name, out)
        print(row, end="", flush=True)
        failed |= row.startswith("FAILED")
        if not out:
            continue
        table = ROOT / out / "proofs.txt"
        rows = kept(table) | {name: row}  # Read anew: another run may have filled in some.
        told = [rows[one] for one in PROOFS if one in rows]
        table.write_text("".join([f"{origin()}\n\n", *told]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
