"""By how much does it raise the smallest budget that some results must stay on a device?

On a device atomics add in any order. Results of operators that give other bits in each run are kept
in memory there (runtime/csrc/live/operators/unordered.h). What that costs can be told without one:
each model makes two steps on the CPU, once as it is and once on the tests' fake driver, where the
runtime follows a device's rules. Both are recorded. The traces differ in what can be recomputed
later, and in no operator or size. For both the simulator finds the smallest budget, by halving, to
a thousandth of the peak, by a scope's rules and the logical clock: no time is measured.

Parameters lie outside the scope. The backward pass is not recorded, so what it makes stays anyway.
A model that asks for its device does what it does on the CPU: Mixtral counts the tokens of each
expert in float32, and on a device in int32, which repeats itself.

    python perf/cost/unordered_floors.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "gpu"))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from fake_device import driver, instrumented
from large_models import LARGE_MODELS
from measurement import provenance, write_json
from models import MODELS, Workload
from models.hugging_face import HUGGING_FACE
from models.workload import supervised

import dtr_alloc
from dtr_alloc import demo
from dtr_alloc.runtime.heuristic import DEFAULT
from dtr_alloc.runtime.simulate.rules import live
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.schedule import Schedule

STEPS = 2
RULES = live(DEFAULT, "logical")
QUICK = ("anchor gpt-tiny", "transformers mixtral, index_add")


def anchor(name: str) -> demo.Job:
    """A small model of perf/gpu with the operators of the large one, on one batch."""
    model = LARGE_MODELS[name]
    data = model.data(model.batch)
    return demo.Job(name, model.make(), lambda _: data, model.loss, model.optimizer)


def mixtral_by_index_add() -> demo.Job:
    """With the experts of the model's own code, instead of the library's grouped products."""
    job = HUGGING_FACE["mixtral"].job("mixtral")
    job.model.set_experts_implementation("eager")  # type: ignore[operator]
    return job


def cases() -> dict[str, Callable[[], Workload]]:
    """How each model's training is made."""
    jobs: dict[str, Callable[[], demo.Job]] = {
        **{f"anchor {name}": partial(anchor, name) for name in LARGE_MODELS if "tiny" in name},
        **{f"demo {name}": make for name, make in demo.MODELS.items()},
        **{f"transformers {name}": partial(one.job, name) for name, one in HUGGING_FACE.items()},
        "transformers mixtral, index_add": mixtral_by_index_add,
    }
    paper: dict[str, Callable[[], Workload]] = {f"paper {k}": build for k, build in MODELS.items()}
    return {name: partial(supervised, make, 0) for name, make in jobs.items()} | paper


def recorded(make: Callable[[], Workload], on_device: bool) -> Schedule:
    """Some steps, without a budget."""
    workload = make()
    with (
        instrumented(on_cuda=on_device),
        dtr_alloc.rematerialize(None, clock="logical"),
        dtr_alloc.record_trace() as recording,
    ):
        for _ in range(STEPS):
            workload.step()
    assert recording.trace is not None
    return recording.trace.schedule()


def smallest(simulator: Simulator) -> int:
    """The smallest budget in which the steps run."""

    def runs(budget: int) -> bool:
        return simulator.run(budget, RULES).status == "ok"

    low, high = 0, simulator.baseline.peak_bytes
    least = high // 1000
    while not runs(high):  # The pool's peak has temporaries, too.
        low, high = high, 2 * high
    while high - low > least:
        middle = (low + high) // 2
        low, high = (low, middle) if runs(middle) else (middle, high)
    return high


def results(schedule: Schedule) -> tuple[Any, Any, Any]:
    """Of each result of an operator the operator, its bytes, and whether it can be evicted."""
    made = ~schedule.op_constant[schedule.tensor_op]
    names = np.array(schedule.op_name)[schedule.tensor_op]
    return names[made], schedule.tensor_size[made], schedule.tensor_tracked[made]


def measured(name: str, make: Callable[[], Workload]) -> dict[str, Any]:
    """A model's row: bytes, and the results a step that only a device keeps, by operator.

    Raises:
        RuntimeError: the traces differ in more than what can be recomputed.
    """
    host, device = recorded(make, False), recorded(make, True)
    (names, sizes, tracked), (same_names, same_sizes, on_device) = results(host), results(device)
    if not (np.array_equal(names, same_names) and np.array_equal(sizes, same_sizes)):
        raise RuntimeError(f"{name} did not do the same on the fake driver as on the host")
    stays = (tracked == 1) & (on_device == 0)
    memory = np.arange(len(device.tensor_size))  # Several writes in place are in the same.
    for tensor in np.flatnonzero(device.tensor_in_place >= 0):
        memory[tensor] = memory[device.tensor_in_place[tensor]]
    kept = np.unique(memory[~device.op_constant[device.tensor_op]][stays])
    simulator = Simulator(host)
    budget = smallest(simulator)
    larger = smallest(Simulator(device)) if stays.any() else budget
    return {
        "model": name,
        "stays": {one: count / STEPS for one, count in Counter(names[stays].tolist()).items()},
        "stays_bytes": int(device.tensor_size[kept].sum()) / STEPS,
        "peak_bytes": simulator.baseline.peak_bytes,
        "budget_bytes": budget,
        "on_device_bytes": larger,
        "rise": larger / budget - 1,
    }


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two models alone")
    parser.add_argument("--out", type=Path, help="JSON file to write, or its folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DTR_ALLOC_LIBCUDA"] = path = driver.build(Path(folder))
        driver.FakeCuda(path)
        for name, make in cases().items():
            if name in QUICK or not options.quick:
                rows.append(row := measured(name, make))
                sizes = (row["peak_bytes"], row["budget_bytes"], row["on_device_bytes"])
                mib = " ".join(f"{size / 2**20:7.2f}" for size in sizes)
                print(f"{name:<32} {mib} MiB {row['rise']:+6.1%} {row['stays'] or ''}", flush=True)
    if options.out:
        write_json(options.out, provenance() | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
