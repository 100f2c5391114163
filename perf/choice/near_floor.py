"""How steady is the choice near a program's floor? ResNet-50 at a quarter of its activations.

At 25 % the first stage's backward pass has little room beside its gradients. Then small differences
of times or of the budget change which blocks' inputs stay, and so how often the layers before them
run again. Five trainings are recorded, each in a
process of its own, so that nothing but measured times differs between them. Each is simulated at
budgets half a percent apart, by the default and with the square root of the size in the score. The
share is that of unavoidable.py: in the last three of six steps, over the operators' own time.

    python perf/choice/near_floor.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

import unavoidable
from measurement import origin, provenance, write_json

from dtr_alloc.runtime.heuristic import DEFAULT, Heuristic, resolve_live
from dtr_alloc.runtime.simulate.simulator import Simulator

TRACES, SHARE = 5, 0.25
NEARLY = (1.0, 0.995, 0.99, 0.985, 0.98)
HEURISTICS: dict[str, Heuristic] = {
    DEFAULT: resolve_live(DEFAULT),
    "size_exp=0.5": replace(resolve_live(DEFAULT), size_exp=0.5),
}


def record(model: str) -> unavoidable.Task:
    """In this process."""
    asked = unavoidable.SETS["real" if model == "resnet50" else "demo"]
    torch.set_num_threads(asked.threads)
    return unavoidable.task(model, asked.builders[model])


def again(task: unavoidable.Task, heuristic: Heuristic) -> list[float | None]:
    """What is recomputed at each budget; None where it is refused."""
    steps, earlier = Simulator(task.trace), unavoidable.before_foretold(task.trace)
    budget = SHARE * task.activation_bytes + task.gradient_bytes + task.optimizer_bytes
    return [
        unavoidable.in_foretold_steps(steps, earlier, int(near * budget), heuristic)
        for near in NEARLY
    ]


def line(trace: int, name: str, shares: list[float | None]) -> str:
    """A row of the table."""
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return f"{trace:5d}  {name:12s}  refused at {len(shares) - len(known)} budgets"
    return (
        f"{trace:5d}  {name:12s}  {statistics.mean(known):.3f}  {min(known):.3f}  {max(known):.3f}"
    )


def main() -> int:
    """Records and simulates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two recordings of a small model")
    parser.add_argument("--out", type=Path, help="write JSON and text here")
    options = parser.parse_args()
    told = origin()
    model, traces = ("gpt", 2) if options.quick else ("resnet50", TRACES)
    tasks = []
    for _ in range(traces):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            tasks.append(process.submit(record, model).result())
    lines = [told, "", f"{model} at {SHARE:.0%}", "trace  heuristic     mean   least  most"]
    rows: list[dict[str, Any]] = []
    for trace, task in enumerate(tasks, 1):
        for name, heuristic in HEURISTICS.items():
            shares = again(task, heuristic)
            rows.append({"trace": trace, "heuristic": name, "shares": shares})
            lines.append(line(trace, name, shares))
    print("\n".join(lines))
    if options.out:
        write_json(options.out / "near_floor.json", provenance() | {"rows": rows})
        (options.out / "near_floor.txt").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
