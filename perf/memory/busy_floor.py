"""Does a budget that runs on a quiet machine run on a busy one?

What is evicted hangs on measured times, and near the smallest budget another choice can be one that
does not fit. So whether a budget runs could hang on the moment. For the demo's models and the
paper's eight, the smallest budget is found by halving, to a hundredth of the peak, and raised by as
much until it runs ten times; for manual SGD, a program that writes its parameters by hand, 0.8 of
the peak is taken. Then four processes that only compute run beside this one, and each program runs
20 times at 1.05 of that budget (manual SGD: at 0.8). A run is three steps (manual SGD: 120) on
one thread.

    python perf/memory/busy_floor.py [--quick] [--only NAME,...] [--out perf/results]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from idioms import PROGRAMS
from measurement import provenance, write_json
from models import MODELS
from models.workload import supervised

import dtr_alloc
from dtr_alloc import demo

Step = Callable[[], Any]
HAND, HAND_STEPS, HAND_SHARE = "manual sgd", 120, 0.8
MARGIN, QUIET_RUNS, BUSY_RUNS, STEPS = 1.05, 10, 20, 3


def by_hand() -> Step:
    torch.manual_seed(0)
    return PROGRAMS[HAND]()[0]


def cases() -> dict[str, Callable[[], Step]]:
    """How each program's step is made."""
    demos = {f"demo {name}": partial(supervised, make, 0) for name, make in demo.MODELS.items()}
    made = demos | {f"paper {name}": build for name, build in MODELS.items()}
    return {name: lambda make=make: make().step for name, make in made.items()} | {HAND: by_hand}


def runs(make: Callable[[], Step], budget: int, steps: int) -> bool:
    step = make()
    try:
        with dtr_alloc.rematerialize(budget):
            for _ in range(steps):
                step()
    except torch.OutOfMemoryError:
        return False
    return True


def peak_of(make: Callable[[], Step], steps: int) -> int:
    step = make()
    with dtr_alloc.measure() as session:
        for _ in range(steps):
            step()
        return session.stats().peak_bytes


def floor(make: Callable[[], Step], peak: int) -> int:
    """Bytes of the smallest budget found that runs ten times in turn."""
    low, high, grain = 0, peak, max(1, peak // 100)
    while high - low > grain:
        middle = (low + high) // 2
        low, high = (low, middle) if runs(make, middle, STEPS) else (middle, high)
    while not all(runs(make, high, STEPS) for _ in range(QUIET_RUNS)):
        high += grain
    return high


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Four processes that only compute."""
    spin = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            process = stack.enter_context(subprocess.Popen(spin))
            stack.callback(process.kill)
        yield


def quiet(name: str, make: Callable[[], Step]) -> dict[str, Any]:
    """A program's row, but for what a busy machine shows."""
    peak = peak_of(make, HAND_STEPS if name == HAND else STEPS)
    smallest = None if name == HAND else floor(make, peak)
    budget = int(HAND_SHARE * peak if smallest is None else MARGIN * smallest)
    return {
        "program": name,
        "peak_bytes": peak,
        "floor_bytes": smallest,
        "budget_bytes": budget,
        "runs": BUSY_RUNS,
    }


def main() -> int:
    """Measures, prints and writes; 1 where a run was refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{HAND} alone")
    parser.add_argument("--only", default="", help="names of programs, with commas")
    parser.add_argument("--out", type=Path, help="JSON file to write, or its folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    only = [HAND] if options.quick else [name for name in options.only.split(",") if name]
    programs = {name: make for name, make in cases().items() if not only or name in only}
    rows = [quiet(name, make) for name, make in programs.items()]
    with busy():
        for row, (name, make) in zip(rows, programs.items(), strict=True):
            steps = HAND_STEPS if name == HAND else STEPS
            row["refused"] = sum(
                not runs(make, row["budget_bytes"], steps) for _ in range(BUSY_RUNS)
            )
            sizes = " ".join(
                f"{(row[key] or 0) / 2**20:8.2f}"
                for key in ("peak_bytes", "floor_bytes", "budget_bytes")
            )
            print(f"{name:<20} {sizes} MiB, refused {row['refused']} of {row['runs']}", flush=True)
    if options.out:
        write_json(options.out, provenance() | {"rows": rows})
    return int(any(row["refused"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
