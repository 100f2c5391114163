"""Images or tokens a second of one model, one way, in so much memory, at several batch sizes.

The mode is that in which people train: autocast to bfloat16, TF32, no deterministic algorithms, no
wait between steps. Steps are timed by events on the device after some that warm up, and the median
counts. What the runtime did meanwhile (evictions, pages moved, shares of time) comes with each
figure, so that a slow one can be explained. Without `--memory` the first batch runs in as much as
it likes; what the allocator held then is the memory of the larger ones. Batches are tried in the
order given, until one does not fit.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from facts import gpu_now
from large_models import LARGE_MODELS, Data, Model
from measurement import write_json
from torch import nn
from ways import WAYS, Memory, difference, how, shares, wrap


def train_as_people_do() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def to_device(data: Data, device: str) -> Data:
    inputs, labels = data
    return inputs.to(device), labels.to(device)


class Training:
    """A model on its way, and its optimizer."""

    def __init__(self, model: Model, way: str, device: str) -> None:
        self.model, self.device = model, device
        with torch.device(device):
            self.made: nn.Module = model.make()
        wrap(way, model, self.made)
        self.optimizer = model.optimizer(self.made.parameters())

    def step(self, data: Data) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model.loss(self.made, data)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def timed(step: Callable[[], None], count: int, cuda: bool) -> list[float]:
    """Seconds of each step."""
    if not cuda:
        marks = [time.perf_counter()]
        for _ in range(count):
            step()
            marks.append(time.perf_counter())
        return [end - begin for begin, end in itertools.pairwise(marks)]
    device: Any = torch.cuda  # Its functions have no types.
    events = [device.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def measure(
    training: Training, memory: Memory, batch: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Trains on one batch size.

    Raises:
        torch.OutOfMemoryError: It does not fit.
    """
    cuda = memory.cuda
    data = to_device(training.model.data(batch), arguments.device)
    for _ in range(arguments.warm):
        training.step(data)
        memory.check()
    if cuda:
        torch.cuda.synchronize()
    before = memory.counts()
    seconds = timed(lambda: training.step(data), arguments.steps, cuda)
    changed = difference(memory.counts(), before)
    memory.check()
    median = statistics.median(seconds)
    return {
        "batch": batch,
        "per_second": batch * training.model.items / median,
        "unit": training.model.unit,
        "parameters": sum(p.numel() for p in training.made.parameters()),
        "step_seconds": seconds,
        **memory.figures(),
        "during_timed_steps": changed,
        "shares": shares(changed),
        "gpu": gpu_now() if cuda else {},
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    train_as_people_do()
    model = LARGE_MODELS[arguments.model]
    memory = Memory(arguments.way, arguments.device, arguments.memory)
    batch = arguments.batch or model.batch
    found: dict[str, Any] = {"way": arguments.way, "model": arguments.model, "runs": {}}
    training: Training | None = None
    for times in arguments.times:
        name = f"{times}x"
        write_json(arguments.out, found | {"unfinished": f"at {name}"})
        try:
            training = training or Training(model, arguments.way, arguments.device)
            found["runs"][name] = measure(training, memory, times * batch, arguments)
        except torch.OutOfMemoryError as error:
            found["runs"][name] = {"batch": times * batch, how(error): str(error)[:2000]}
            break
        if memory.limit is None:
            memory.clear()
            memory.bound(found["runs"][name]["held_peak_bytes"])
        memory.clear()
    found["peak_counts"] = memory.counts()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(LARGE_MODELS), required=True)
    parser.add_argument("--way", choices=WAYS, default="stock")
    parser.add_argument("--batch", type=int, help="at 1x; the model's own if not given")
    parser.add_argument("--times", type=int, nargs="+", default=[1])
    parser.add_argument("--memory", type=int, help="bytes")
    parser.add_argument("--warm", type=int, default=4, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write_json(arguments.out, run(arguments))


if __name__ == "__main__":
    main()
