"""Records one training step of each of the paper's eight workloads into perf/traces/.

The first step is left out: optimizers make their state in it. Costs are times on the machine that
ran this, the median of five recordings operator by operator, so that a hiccup of one run is no fact
of the trace.

    python perf/simulate/record_traces.py
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from models import MODELS

import dtr_alloc
from dtr_alloc.runtime.trace.format import Call, Mutate

FOLDER = Path(__file__).parents[1] / "traces"
ROUNDS = 5


def step(name: str) -> dtr_alloc.Trace:
    """The second step of a training from scratch."""
    workload = MODELS[name]()
    with dtr_alloc.rematerialize(None):
        workload.step()
        with dtr_alloc.record_trace() as recording:
            workload.step()
    assert recording.trace is not None
    return recording.trace


def typical(traces: list[dtr_alloc.Trace]) -> dtr_alloc.Trace:
    """The instructions, which all have in common, with the median time of each."""
    instructions = []
    for items in zip(*(trace.instructions for trace in traces), strict=True):
        first = items[0]
        if isinstance(first, (Call, Mutate)):
            times = [item.time for item in items if isinstance(item, (Call, Mutate))]
            first = replace(first, time=round(statistics.median(times)))
        instructions.append(first)
    return dtr_alloc.Trace(tuple(instructions))


def main() -> None:
    """Records all workloads, and prints what became of each."""
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        path = FOLDER / f"{name}.log.gz"
        trace = typical([step(name) for _ in range(ROUNDS)])
        trace.save(path)
        made = sum(isinstance(item, (Call, Mutate)) for item in trace.instructions)
        print(f"{name:<13} {made:>6,} operators {path.stat().st_size:>9,} bytes", flush=True)


if __name__ == "__main__":
    main()
