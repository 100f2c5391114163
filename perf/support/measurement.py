"""What the measurements in this folder share: a table with limits, and where a result comes from.

A measurement is a name, a figure, its unit, and the limit it has to keep, if any. A JSON file holds
them with the command that made them, so that a number in results/ can be made again, and with the
state of the C++ that was measured, so that a test can tell which numbers are of today. A file is
replaced whole, so that a script may write what it has so far and be killed at any time.
"""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

LOAD = os.getloadavg()[0]
"""Of the machine in the minute before the script began."""


@dataclass(frozen=True)
class Measurement:
    """One figure. `limit` is the largest that is acceptable; None where the figure only informs."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the figure is within its limit."""
        return self.limit is None or self.value <= self.limit


def end_first_steps() -> None:
    """Runs twelve steps of an optimizer in the scope that is open. So far a scope writes down all
    that its program does, for what an error would advise (docs/room.md), and operators cost more.
    """
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(12):
        optimizer.step()


def rss_bytes() -> int:
    """Bytes of this process's memory that are in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def commit() -> str:
    """The commit of this checkout, with a "+" where files but for results differ from it; "unknown"
    without git."""
    results = ("perf/results", "perf/paper/results", "docs/demo.png")
    but_results = [":(top)", *(f":(top,exclude){one}" for one in results)]
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, check=True
        )
        difference = [*git, "diff", "--quiet", "HEAD", "--", *but_results]
        changed = subprocess.run(difference, check=False).returncode != 0
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.decode().strip() + "+" * changed


def code() -> str:
    """Twelve digits that stand for the product's C++, its comments and its spaces left out."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for folder in ("dtr_alloc/pool/csrc", "runtime/csrc"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".cpp", ".h"}:
                text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
                digest.update(f"{path.relative_to(root)} {' '.join(text.split())}".encode())
    return digest.hexdigest()[:12]


def program() -> list[str]:
    """What was given to python: a script, or a module by its name."""
    module = sys.modules["__main__"].__spec__
    return ["-m", module.name.removesuffix(".__main__")] if module else sys.argv[:1]


def processor() -> str:
    """The processor's model, as Linux or else Python names it; empty where neither does."""
    about = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:(.*)$", about.read_text() if about.exists() else "", re.M)
    return " ".join((found[1] if found else platform.processor()).split())


def provenance() -> dict[str, str]:
    """The command that is running, what it measures, and what it runs on."""
    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} used"
    return {
        "command": shlex.join(["python", *program(), *sys.argv[1:]]),
        "commit": commit(),
        "code": code(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "machine": ", ".join(filter(None, (platform.machine(), processor(), threads))),
        "load": f"{LOAD:.1f}",
    }


def origin(command: str = "") -> str:
    """The same in one line, the first of a text; of another command than this, if it is given."""
    about = provenance()
    return (
        f"$ {command or about['command']}   # {about['commit']}, code {about['code']}, "
        f"torch {about['torch']}, {about['machine']}, load {about['load']}"
    )


def write_json(path: Path, document: Any) -> None:
    """Writes `path` in one go: a reader sees the old file or the new one, never half of one. In a
    folder the file has the script's name."""
    if path.is_dir():
        path = path / f"{Path(sys.argv[0]).stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(path)


def save(measurements: Sequence[Measurement], out: Path | None, unfinished: str = "") -> None:
    """Writes measurements to `out` if given; `unfinished` says what they still lack."""
    if out is None:
        return
    found = {"measurements": [asdict(m) | {"kept": m.kept} for m in measurements]}
    state = {"unfinished": unfinished} if unfinished else {}
    write_json(out, provenance() | state | found)


def report(measurements: list[Measurement], out: Path | None) -> int:
    """Prints a table, writes JSON to `out` if given, and returns the exit code: 1 if a limit was
    passed.
    """
    width = max(len(m.name) for m in measurements)
    for m in measurements:
        limit = "" if m.limit is None else f"limit {m.limit:g}{'' if m.kept else '  PASSED OVER'}"
        print(f"{m.name:<{width}}  {m.value:>12,.3f} {m.unit:<8} {limit}".rstrip())
    limited = [m.kept for m in measurements if m.limit is not None]
    if limited:
        print(f"{sum(limited)} of {len(limited)} limits are kept")
    save(measurements, out)
    return 0 if all(m.kept for m in measurements) else 1
