"""How much of what a swap copies would be hidden on a device? On the fake driver with a clock.

The demo's models train as in device_time.py, whose figures are the same on every machine and were
measured on none, on a device that computes slowly enough for the host to be ahead. The swap is the
host's memory, over a bus of 25 GB/s each way. It tells for how much of a step the program's stream
stood and waited for a copy, out or in. The optimizer is AdamW, one operator at
a time, because the fake device has no time for the pieces of a list (live/intercept/itemwise.cpp).

    python perf/cost/swap_overlap.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from device_time import SPEEDS, WARM, budget_of
from fake_device import driver, instrumented, operator_work
from measurement import Measurement, origin, report

import dtr_alloc
from dtr_alloc.demo import MODELS, Job

if TYPE_CHECKING:
    from tests.fake_cuda.driver import FakeCuda

MODELS_TOLD = ("gpt", "unet", "resnet")
RATIOS = (0.5, 0.3)
STOOD_LIMIT = 5.0  # Per cent of a step.
STEPS = 10


@dataclass(frozen=True)
class Overlap:
    """Sums over the steady steps. Times are nanoseconds of the fake clocks."""

    step: int
    worked: int
    """The device, on all operators."""
    copied: int
    """The bus, both ways together."""
    waited: int
    """Of the program's stream, for copies."""
    host_waited: int
    """The host, for the device."""
    bytes_out: int
    bytes_in: int
    ahead: int
    """Bytes that were on their way before they were touched."""
    replayed: int
    steps: int = STEPS - WARM


def overlap(cuda: FakeCuda, library: str, make: Callable[[], Job], budget: int) -> Overlap:
    """Of a training in a scope on the fake device, with a swap."""
    cuda.timed()
    cuda.call("cuInit", 0)
    torch.manual_seed(0)
    job = make()
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-3, foreach=False, fused=False)
    generator = torch.Generator().manual_seed(0)
    scope = dtr_alloc.rematerialize(budget, swap="512MiB", swap_anywhere=True)
    with (
        instrumented(on_cuda=True),
        scope as session,
        operator_work.operators_work(cuda, library, SPEEDS["compute"]) as work,
    ):

        def now() -> list[int]:
            stats = session.stats()
            return [
                cuda.time("host"),
                work.count("worked"),
                stats.swap_ns,
                cuda.time("stalled"),
                cuda.time("waited"),
                stats.swapped_out_bytes,
                stats.swapped_in_bytes,
                stats.swapped_ahead_bytes,
                work.count("replayed"),
            ]

        sums = [0] * len(now())
        for step in range(STEPS):
            before = now()
            optimizer.zero_grad()
            loss = job.loss(job.model, job.batch(generator))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            waited = cuda.time("waited")
            cuda.call("cuStreamSynchronize", 0)  # As loss.item() does.
            after = now()
            after[4] = waited  # Not for our own cuStreamSynchronize.
            if step >= WARM:
                sums = [s + a - b for s, a, b in zip(sums, after, before, strict=True)]
            loss.item()
    return Overlap(*sums)


def figures(name: str, found: Overlap) -> list[Measurement]:
    """What is said of a training."""
    moved = found.bytes_in + found.bytes_out
    ahead = 100 * found.ahead / max(found.bytes_in, 1)
    return [
        Measurement(f"{name}: copied", moved / 2**20 / found.steps, "MiB a step"),
        Measurement(f"{name}: came back ahead of its use", ahead, "%"),
        Measurement(f"{name}: time on the bus to work", found.copied / found.worked, "x"),
        Measurement(f"{name}: stood for copies", 100 * found.waited / found.step, "%", STOOD_LIMIT),
        Measurement(f"{name}: step", found.step / 1e3 / found.steps, "us"),
        Measurement(f"{name}: host waited", found.host_waited / 1e3 / found.steps, "us a step"),
        Measurement(f"{name}: recomputed", found.replayed / found.steps, "ops a step"),
    ]


def main() -> int:
    """Prints the figures; returns 1 where a limit is passed."""
    parser = argparse.ArgumentParser(description="Hidden copies of a swap, on the fake driver.")
    parser.add_argument("--quick", action="store_true", help="gpt at 0.5 alone")
    parser.add_argument("--out", type=Path, help="folder for swap_overlap.json and .txt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = driver.build(Path(folder))
        library = operator_work.build(Path(folder))
        os.environ["DTR_ALLOC_LIBCUDA"] = path
        for model in MODELS_TOLD[:1] if options.quick else MODELS_TOLD:
            for ratio in RATIOS[:1] if options.quick else RATIOS:
                budget = budget_of(MODELS[model], ratio)
                taken = overlap(driver.FakeCuda(path), library, MODELS[model], budget)
                found += figures(f"{model} at {ratio}", taken)
        code = report(found, options.out / "swap_overlap.json" if options.out else None)
    if options.out:
        lines = [origin(), ""]
        lines += [f"{m.name:<50} {m.value:12,.3f} {m.unit}".rstrip() for m in found]
        (options.out / "swap_overlap.txt").write_text("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
