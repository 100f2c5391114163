"""What does a scope add to a step of AdamW over many small parameters?

One step of torch.optim.AdamW, fused and foreach, over 250, 500 and 1,000 parameters of 8 elements,
so that computing takes next to nothing. In plain eager; in `measure()`, where the pool makes the
memory and nothing is recorded; in a `rematerialize` scope without a budget. Parameters are made
before the scope, gradients and state in it. The operators of the first steps are recorded for
errors to tell of (advice.py), so the steps before that ends do not count.

Thread-CPU time of a step: the median of a run, and of that the least of all rounds. The three ways
take turns. Some two minutes.

    python perf/cost/optimizers.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin, provenance
from rich.console import Console
from rich.table import Table
from torch import nn

import dtr_alloc

ELEMENTS = 8
WARM = 15  # Steps; a scope records its first twelve.
WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "eager": nullcontext,
    "pool": dtr_alloc.measure,
    "scope": lambda: dtr_alloc.rematerialize(None, device="cpu"),
}
Times = dict[tuple[str, int, str], float]  # Microseconds of a step.


def step_us(fused: bool, count: int, steps: int, way: str) -> float:
    """Thread-CPU us of a step over `count` parameters: the median of `steps`."""
    parameters = [nn.Parameter(torch.ones(ELEMENTS)) for _ in range(count)]
    times = []
    with WAYS[way]():
        optimizer = torch.optim.AdamW(parameters, fused=fused, foreach=not fused)
        for parameter in parameters:
            parameter.grad = torch.ones(ELEMENTS)
        for _ in range(WARM + steps):
            begin = time.thread_time_ns()
            optimizer.step()
            times.append((time.thread_time_ns() - begin) / 1e3)
        for parameter in parameters:
            parameter.grad = None
        del optimizer
    return statistics.median(times[WARM:])


def measured(counts: list[int], rounds: int, steps: int) -> Times:
    """Of all rounds the least."""
    times: dict[tuple[str, int, str], list[float]] = {}
    for _ in range(rounds):
        for name, fused in (("fused", True), ("foreach", False)):
            for count in counts:
                for way in WAYS:
                    found = step_us(fused, count, steps, way)
                    times.setdefault((name, count, way), []).append(found)
    return {key: min(found) for key, found in times.items()}


def main() -> int:
    """Measures, prints the table and writes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and steps")
    parser.add_argument("--out", type=Path, help="folder for optimizers.json and .txt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, steps = (2, 10) if options.quick else (9, 20)
    times = measured([250, 500, 1000], rounds, steps)

    table = Table(title=f"A step of AdamW over parameters of {ELEMENTS} elements")
    for heading in (
        "AdamW",
        "parameters",
        "eager, us",
        "in the pool",
        "in a scope",
        "us added to one",
    ):
        table.add_column(heading, justify="left" if heading == "AdamW" else "right")
    rows = []
    for name, count in dict.fromkeys((name, count) for name, count, _ in times):
        eager, pool, scope = (times[name, count, way] for way in WAYS)
        added = (scope - eager) / count
        table.add_row(
            name, f"{count:,}", f"{eager:,.0f}", *(f"{t / eager:.2f} x" for t in (pool, scope)),
            f"{added:.3f}",
        )  # fmt: skip
        rows.append({
            "adamw": name, "parameters": count, "eager_us": eager, "pool_us": pool,
            "scope_us": scope,
        })  # fmt: skip
    Console(width=100).print(table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        head = provenance()
        document = json.dumps(head | {"rows": rows}, indent=1)
        (options.out / "optimizers.json").write_text(document + "\n")
        with (options.out / "optimizers.txt").open("w") as file:
            file.write(f"{origin()}\n\n")
            Console(file=file, width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
