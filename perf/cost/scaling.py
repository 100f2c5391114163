"""Does an operator cost more in a long step, or an eviction among many candidates?

Operators: a step of N additions of 1 KiB tensors, of which the last hundred are kept, in a scope
without a budget and in plain eager, in turns; the difference of their thread-CPU times, each the
least of all rounds, is what the runtime adds to an operator. Evictions: a budget that holds C
tensors of 4 KiB is full, and each further addition evicts one: what the session spent searching,
for each eviction, under the default heuristic. The rest of an eviction knows nothing of the
candidates; eviction.py has it.

What it costs at N is fitted by c N^p: p is 0 where the cost is flat.

    python perf/cost/scaling.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin, provenance
from rich.console import Console
from rich.table import Table

import dtr_alloc

TENSOR_BYTES = 4096
Curve = dict[int, float]


def step_ns(count: int) -> float:
    """Thread-CPU ns for each of `count` additions."""
    base = torch.ones(256) * 1
    kept: deque[torch.Tensor] = deque(maxlen=100)
    begin = time.thread_time_ns()
    for _ in range(count):
        kept.append(torch.add(base, base))
    return (time.thread_time_ns() - begin) / count


def operators(counts: list[int], rounds: int) -> Curve:
    """Nanoseconds that the runtime adds to an operator, by the operators of a step."""
    added: Curve = {}
    for count in counts:
        eager = recorded = math.inf
        for _ in range(max(rounds, 20_000 // count)):
            eager = min(eager, step_ns(count))
            with dtr_alloc.rematerialize(None, device="cpu"):
                recorded = min(recorded, step_ns(count))
        added[count] = recorded - eager
    return added


def searches(candidates: list[int], rounds: int) -> Curve:
    """Nanoseconds of search for an eviction, by candidates."""
    search: Curve = {}
    base = torch.ones(TENSOR_BYTES // 4)
    for count in candidates:
        search[count] = math.inf
        more = min(count, 20_000)
        for _ in range(rounds):
            with dtr_alloc.rematerialize(count * TENSOR_BYTES, device="cpu") as session:
                kept = [base + number for number in range(count)]
                before = session.stats()
                kept += [base + number for number in range(more)]
                after = session.stats()
                del kept  # Leaving the scope would bring all of them back.
            evicted = after.evictions - before.evictions
            if evicted < more:
                raise RuntimeError(f"{more} tensors beyond the budget made {evicted} evictions")
            search[count] = min(search[count], (after.search_ns - before.search_ns) / evicted)
    return search


def exponent(curve: Curve) -> float:
    """p of the fit c N^p."""
    return float(np.polyfit(np.log(list(curve)), np.log(list(curve.values())), 1)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="to 10^4, fewer rounds")
    parser.add_argument("--out", type=Path, help="folder for scaling.json, .txt and .png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 2 if options.quick else 5
    top = 4 if options.quick else 6
    curves = {
        "an operator, by operators of a step": operators(
            [10**k for k in range(2, top + 1)], rounds
        ),
        "search of an eviction, by candidates": searches(
            [10**k for k in range(2, min(top, 5) + 1)], rounds
        ),
    }
    sizes = [10**k for k in range(2, top + 1)]
    table = Table(title="Nanoseconds that the runtime adds")
    table.add_column("cost of")
    for heading in (*(f"{size:,}" for size in sizes), "exponent"):
        table.add_column(heading, justify="right")
    for name, curve in curves.items():
        cells = (f"{curve[size]:,.0f}" if size in curve else "" for size in sizes)
        table.add_row(name, *cells, f"{exponent(curve):.2f}")
    Console(width=120).print(table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        head = provenance()
        found = {n: {"ns": curve, "exponent": exponent(curve)} for n, curve in curves.items()}
        (options.out / "scaling.json").write_text(json.dumps(head | found, indent=1) + "\n")
        with (options.out / "scaling.txt").open("w") as file:
            file.write(f"{origin()}\n\n")
            Console(file=file, width=120).print(table)
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for name, curve in curves.items():
            axes.plot(list(curve), list(curve.values()), marker="o", label=name)
        axes.set(xscale="log", yscale="log", ylabel="ns")
        axes.legend(fontsize=8)
        figure.savefig(options.out / "scaling.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(main())
