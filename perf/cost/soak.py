"""Does anything grow over a long training at a tight budget?

A small GPT trains for 2,000 steps at 40 % of its activation peak, in one scope. The process's
memory, its mappings, its open files and the time of a step after step 100 are compared with the
end's, and the records left after a commit with none.

    python perf/cost/soak.py --out perf/results/soak.json
"""

import argparse
import gc
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, report, rss_bytes

import dtr_alloc
from dtr_alloc.demo.models import gpt
from dtr_alloc.demo.train import Comparison, Plan, train

WARM_STEPS = 100
RATIO = 0.4
GROWTH_LIMIT_PERCENT = 1.0
MAPPINGS_LIMIT = 20
SLOWER_LIMIT = 1.1

small_gpt = partial(gpt, layers=3, width=64, heads=4, length=32, texts=8)


def open_files() -> int:
    """How many file descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    """In how many pieces the kernel keeps this process's addresses."""
    return len(Path("/proc/self/maps").read_text().splitlines())


def budget_bytes() -> int:
    """The budget: `RATIO` of the activation peak, plus gradients and optimizer state."""
    measured = train(small_gpt, Plan(), lambda: dtr_alloc.measure(device="cpu"))
    peak = measured.stats[-1].peak_bytes
    eager = Comparison("gpt", peak, measured.gradient_bytes, measured.optimizer_bytes, steps=0)
    return eager.budget_bytes(RATIO)


def soak(steps: int) -> list[Measurement]:
    """Trains for `steps` steps and tells what grew."""
    budget = budget_bytes()
    job = small_gpt()
    optimizer = job.optimizer(job.model.parameters())
    generator = torch.Generator().manual_seed(0)
    warm_bytes = warm_files = warm_mappings = 0
    took: list[int] = []
    begin = time.perf_counter()
    with dtr_alloc.rematerialize(budget, device="cpu") as session:
        for step in range(steps):
            step_begin = time.process_time_ns()
            optimizer.zero_grad()
            loss = job.loss(job.model, job.batch(generator))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            took.append(time.process_time_ns() - step_begin)
            if step + 1 == WARM_STEPS:
                gc.collect()
                warm_bytes, warm_files, warm_mappings = rss_bytes(), open_files(), mappings()
        seconds = time.perf_counter() - begin
        gc.collect()
        grown, split = rss_bytes() - warm_bytes, mappings() - warm_mappings
        session.commit()
        stats = session.stats()
    if stats.evictions == 0:
        raise RuntimeError("nothing was evicted: the soak showed nothing")
    early, late = took[WARM_STEPS : 2 * WARM_STEPS], took[-WARM_STEPS:]
    slower = statistics.median(late) / statistics.median(early)
    return [
        Measurement("steps", steps, ""),
        Measurement("evictions", stats.evictions, ""),
        Measurement("time per step", seconds / steps * 1e3, "ms"),
        Measurement("the last steps, over those after step 100", slower, "x", SLOWER_LIMIT),
        Measurement("process after step 100", warm_bytes / (1 << 20), "MiB"),
        Measurement("growth since", 100 * grown / warm_bytes, "%", GROWTH_LIMIT_PERCENT),
        Measurement("mappings, growth", split, "", MAPPINGS_LIMIT),
        Measurement("pool peak above the budget", max(0, stats.peak_bytes - budget), "bytes", 0),
        Measurement("records after commit", stats.records, "", 0),
        Measurement("open files, growth", open_files() - warm_files, "", 0),
    ]


def main() -> int:
    """Runs the soak; returns 1 if a limit was passed."""
    parser = argparse.ArgumentParser(description="Growth over a long training.")
    parser.add_argument("--quick", action="store_true", help="300 steps instead of 2,000")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    return report(soak(300 if options.quick else 2_000), options.out)


if __name__ == "__main__":
    sys.exit(main())
