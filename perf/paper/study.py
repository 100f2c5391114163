"""What the scripts of this folder share: their options, where logs come from, tables and files.

Each script answers one question of the paper and writes a picture, the numbers behind it and a text
to results/. The text has the table, and in its first line where all three come from. Logs are those
of `--logs`, or else our own in perf/traces. The name of a result tells which: published logs give
figures, but are not ours to keep here.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin

from dtr_alloc import Heuristic, SimulationResult, sweep
from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.simulate.plot import short_name
from dtr_alloc.runtime.simulate.rules import Policy

OWN = Path(__file__).parent.parent / "traces"
RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, object]


@dataclass(frozen=True)
class Options:
    """What a script was asked for."""

    quick: bool
    logs: tuple[Path, ...]
    out: Path
    jobs: int | None
    tag: str
    begun: str
    """Where results come from; files may change while a script runs."""

    def file(self, name: str, part: str = "") -> Path:
        """Where a result goes, or a part of one."""
        stem, suffix = name.rsplit(".", 1)
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{'_'.join(filter(None, (stem, self.tag, part)))}.{suffix}"

    def sweep(
        self,
        heuristics: Iterable[str | Heuristic],
        budgets: Iterable[Share],
        policy: Policy = "eager",
    ) -> list[SimulationResult]:
        """Its logs by the paper's rules; traces are called by their file's name alone."""
        results = sweep(
            self.logs,
            heuristics,
            budgets,
            policy=policy,
            mode="bytes",
            jobs=self.jobs,
            progress=True,
        )
        return [replace(result, trace=short_name(result.trace)) for result in results]


def options(description: str | None, *, logs: bool = False) -> Options:
    """Reads the command line; of a script that wants logs, ends it where there are none."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small version, in seconds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results go")
    if logs:
        parser.add_argument("--logs", type=Path, help="folder of logs (default: our own traces)")
        parser.add_argument("--jobs", type=int, help="processes (default: one a core)")
    given = parser.parse_args()
    if not logs:
        return Options(given.quick, (), given.out, 1, "", origin())
    folder: Path = given.logs or OWN
    found = sorted([*folder.glob("*.log"), *folder.glob("*.log.gz")])
    if not found:
        sys.exit(f"{folder} holds no *.log or *.log.gz: name a folder of logs with --logs")
    tag = "own" if given.logs is None else folder.resolve().name
    kept = found[:2] if given.quick else found
    return Options(given.quick, tuple(kept), given.out, given.jobs, tag, origin())


BUDGETS = tuple(Share(tenth / 10, whole=True) for tenth in range(10, 0, -1))
"""Those of the paper: 1.0 to 0.1 of the peak."""


def ratio(result: SimulationResult) -> float:
    """The budget as a share of the peak without one."""
    return round(result.budget_bytes / result.baseline_peak_bytes, 4)


def lowest(results: Sequence[SimulationResult]) -> float:
    """The least share of the peak from which on every larger one that was tried works, or nan."""
    least = float("nan")
    for result in sorted(results, key=ratio, reverse=True):
        if result.status != "ok":
            break
        least = ratio(result)
    return least


def overhead_at(results: Sequence[SimulationResult], share: float) -> str:
    """The overhead at that share of the peak, or how the run failed."""
    for result in results:
        if abs(ratio(result) - share) < 0.005:
            return f"{result.overhead:.3f}" if result.status == "ok" else result.status
    return ""


def table(rows: Sequence[Row]) -> None:
    """Prints rows of the same keys in columns."""
    if not rows:
        return
    lines = [[str(key) for key in rows[0]], *([_shown(v) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *rest = zip(line, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)]).rstrip())
    print()


def tell(path: Path, begun: str, rows: Sequence[Row], *lines: str) -> None:
    """Prints the table and the lines, and writes them to a text under where they come from."""
    with path.open("w") as file:
        for out in (sys.stdout, file):
            with contextlib.redirect_stdout(out):
                print(begun, end="\n\n")
                table(rows)
                print("\n".join(lines), end="\n" if lines else "")


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """A CSV of rows of the same keys."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"Wrote {path}")
