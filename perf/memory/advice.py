"""Is a budget of the measured peak always enough, and does the error's advice work when followed?

Thirty-odd small trainings in the idioms of public code, three steps each, on one thread. For each:

- eager's peak by `measure()`, and whether a budget of exactly that runs, to the bit;
- the advice of the OutOfMemoryError at a quarter of the peak, after `measure()` has seen two steps
  (and after it has seen one), and whether that budget runs, to the bit;
- how many refusals it takes until it runs, if each one's advice is followed;
- the smallest budget that runs, by halving with live runs to half a percent of the peak.

    python perf/memory/advice.py [--only NAME,...] [--out perf/results]
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from idioms import PROGRAMS, STEPS, Make
from measurement import origin, provenance, write_json
from rich.console import Console
from rich.table import Table

import dtr_alloc
from dtr_alloc.pool.size import parse_size

ADVISED = re.compile(r"([\d.]+ [KM]iB) do$")


@dataclass(frozen=True)
class Row:
    """What was found of a program. Budgets are bytes; None where there is none."""

    program: str
    peak_bytes: int
    peak_runs: str
    advised_bytes: int | None
    advised_runs: str
    refusals: int
    floor_bytes: int
    ratio: float | None
    advised_after_one_step_bytes: int | None
    ratio_after_one_step: float | None

    def passes(self) -> bool:
        return (
            self.peak_runs == self.advised_runs == "yes"
            and self.ratio is not None
            and self.ratio <= 1.05
        )


def run(make: Make, scope: AbstractContextManager[Any], steps: int = STEPS) -> bytes:
    """The bits of the losses, and of the parameters at the end."""
    torch.manual_seed(0)
    step, model = make()
    with scope, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = [step() for _ in range(steps)]
        kept += model.state_dict().values()
        bits = b"".join(bytes(t.detach().reshape(-1).view(torch.uint8).tolist()) for t in kept)
        del step, kept
    return bits


def attempt(make: Make, budget: int, wanted: bytes) -> str:
    try:
        return "yes" if run(make, dtr_alloc.rematerialize(budget)) == wanted else "differs"
    except torch.OutOfMemoryError as error:
        return str(error)


def advice(make: Make, peak: int, steps: int) -> int | None:
    """What the error says at a quarter of the peak once `steps` steps were measured."""
    run(make, dtr_alloc.measure(), steps)
    budget = peak // 4
    while (said := attempt(make, budget, b"")) == "differs":
        budget //= 2
    found = ADVISED.search(said)
    if found is None:
        print("   ", said, file=sys.stderr)
    return parse_size(found[1]) if found else None


def refusals(make: Make, budget: int, wanted: bytes) -> int:
    """Until it runs, each next budget being the last error's figure."""
    count = 0
    while (said := attempt(make, budget, wanted)) != "yes":
        count += 1
        found = ADVISED.search(said) or re.search(r"at least ([\d.]+ [KM]iB)", said)
        assert found is not None, said
        budget = max(parse_size(found[1]), budget + 512)
    return count


def row_of(name: str, make: Make) -> Row:
    wanted = run(make, nullcontext())
    torch.manual_seed(0)
    step, model = make()
    with dtr_alloc.measure() as session:
        kept = [step() for _ in range(STEPS)]  # As `run` keeps the losses.
        peak = session.stats().peak_bytes
    del step, model, kept
    peak_runs = attempt(make, peak, wanted)
    early = advice(make, peak, 1)
    advised = advice(make, peak, 2)
    low, high = 0, peak
    while attempt(make, high, wanted) != "yes":
        low, high = high, high + peak // 20
    while high - low > peak // 200:
        middle = (low + high) // 2
        if attempt(make, middle, wanted) == "yes":
            high = middle
        else:
            low = middle
    return Row(
        name,
        peak,
        peak_runs,
        advised,
        attempt(make, advised, wanted) if advised else "none",
        refusals(make, peak // 4, wanted),
        high,
        advised / high if advised else None,
        early,
        early / high if early else None,
    )


def shown(size: int | None) -> str:
    return "-" if size is None else f"{size / (1 << 20):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The advice of OutOfMemoryError, followed.")
    parser.add_argument("--only", default="", help="names of programs, with commas")
    parser.add_argument("--quick", action="store_true", help="the first program")
    parser.add_argument("--out", type=Path, help="folder for advice.json and advice.txt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    only = [name for name in arguments.only.split(",") if name]
    if arguments.quick:
        only = [next(iter(PROGRAMS))]
    rows = []
    for name, make in PROGRAMS.items():
        if only and name not in only:
            continue
        rows.append(row_of(name, make))
        print(rows[-1], flush=True, file=sys.stderr)

    head = (
        "program",
        "eager MiB",
        "runs",
        "advice MiB",
        "runs",
        "refusals",
        "floor MiB",
        "ratio",
        "after 1 step",
    )
    table = Table(*head, title="budgets: the measured peak, the advice, the floor")
    for row in rows:
        ratios = [f"{r:.3f}" if r else "-" for r in (row.ratio, row.ratio_after_one_step)]
        table.add_row(
            row.program,
            shown(row.peak_bytes),
            "yes" if row.peak_runs == "yes" else "no",
            shown(row.advised_bytes),
            "yes" if row.advised_runs == "yes" else "no",
            str(row.refusals),
            shown(row.floor_bytes),
            *ratios,
        )
    passed = sum(row.passes() for row in rows)
    last = f"{passed} of {len(rows)}: peak runs, advice runs, advice at most 1.05 of the floor"
    console = Console(width=110, record=True)
    console.print(table, last)
    if arguments.out:
        results = [asdict(row) | {"passes": row.passes()} for row in rows]
        write_json(arguments.out / "advice.json", provenance() | {"rows": results})
        (arguments.out / "advice.txt").write_text(f"{origin()}\n\n{console.export_text()}")


if __name__ == "__main__":
    main()
