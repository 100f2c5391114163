"""Trains one model under one allocator in a process of its own, and tells time, peak and checksums.

The allocator of a CUDA process can be chosen once, so every configuration is a process; run.py
starts them and compares. Checksums cover the losses, parameters and gradients, bit for bit, and are
computed on the device. `--device cpu` runs the same code without a GPU (allocators `native` and
`dtr` only), which is how it is tested.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dtr_alloc
from dtr_alloc.demo.models import MODELS, Job, Transformer, gpt

ALLOCATORS = ("native", "expandable", "async", "pool", "dtr")
SIZES: dict[str, dict[str, int]] = {  # Of a GPT; the first has 1.0 billion parameters.
    "gpt1b": {"layers": 19, "width": 2048, "heads": 16, "length": 512, "vocabulary": 16384},
    "gpt100m": {"layers": 12, "width": 768, "heads": 12, "length": 512, "vocabulary": 16384},
    "gpt-tiny": {"layers": 2, "width": 32, "heads": 2, "length": 16, "vocabulary": 64},
}


class Checkpointed(nn.Module):
    """A block that keeps its input only and runs again in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return out


def make_job(name: str, batch: int, checkpointed: bool) -> Job:
    if name in MODELS:
        return MODELS[name]()
    job = gpt(**SIZES[name], texts=batch, dropout=0.1)
    if checkpointed:
        assert isinstance(job.model, Transformer)
        job.model.blocks = nn.Sequential(*(Checkpointed(block) for block in job.model.blocks))
    return job


def to_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(item, device) for item in batch)
    return batch


@torch.no_grad()
def checksum(tensor: Tensor) -> int:
    """Depends on every bit and its place; a million elements at a time, so that it needs little
    memory itself."""
    bits = tensor.detach().contiguous().reshape(-1)
    bits = bits.view(torch.int32) if bits.element_size() == 4 else bits.view(torch.uint8)
    total = 0
    for start in range(0, bits.numel(), 1 << 20):
        part = bits[start : start + (1 << 20)].to(torch.int64)
        places = torch.arange(1, part.numel() + 1, device=part.device)
        total = (total * 31 + int((part * places).sum())) & (2**63 - 1)
    return total


def install(allocator: str, budget: int | None) -> None:
    """Puts a CUDA allocator in place, before CUDA is used. Torch's own are chosen by a variable of
    the process (run.py)."""
    if allocator in ("pool", "dtr"):
        made = dtr_alloc.allocator(budget or "60GiB", rematerialize=allocator == "dtr")
        torch.cuda.memory.change_current_allocator(made)


def scope_of(device: str, allocator: str, budget: int | None) -> AbstractContextManager[Any]:
    if device == "cuda" or allocator == "native":
        return nullcontext()
    return dtr_alloc.rematerialize(budget)


def steps(
    job: Job, count: int, device: torch.device, seed: int
) -> tuple[list[float], list[float], torch.optim.Optimizer]:
    """Trains; losses, and seconds of each step, the device's work included."""
    optimizer = job.optimizer(job.model.parameters())
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    seconds: list[float] = []
    for _ in range(count):
        batch = to_device(job.batch(generator), device)
        begin = time.perf_counter()
        with torch.device(device):
            optimizer.zero_grad(set_to_none=False)
            loss = job.loss(job.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return losses, seconds, optimizer


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    # Where it only warns, attention's backward adds in any order. Unet has operators that have no
    # other way.
    torch.use_deterministic_algorithms(True, warn_only=arguments.model == "unet")
    torch.backends.cudnn.benchmark = False
    device = torch.device(arguments.device)
    if device.type == "cuda":
        install(arguments.allocator, arguments.budget)
    if arguments.limit is not None and arguments.allocator == "native" and device.type == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(arguments.limit / total)
    torch.manual_seed(0)
    with scope_of(arguments.device, arguments.allocator, arguments.budget) as session:
        with device:
            job = make_job(arguments.model, arguments.batch, arguments.checkpoint)
        job.model.to(device)
        losses, seconds, optimizer = steps(job, arguments.steps, device, seed=0)
        peak, persistent = 0, 0
        if device.type == "cuda":
            # What a step leaves: parameters, gradients, optimizer state, workspaces of libraries.
            peak, left = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        elif session is not None:
            peak = session.stats().peak_bytes
        sums = {f"loss {i}": loss.hex() for i, loss in enumerate(losses)}
        for name, parameter in job.model.named_parameters():
            sums[name] = str(checksum(parameter))
            persistent += padded(parameter)
            if parameter.grad is not None:
                sums[f"gradient of {name}"] = str(checksum(parameter.grad))
                persistent += padded(parameter.grad)
            for value in optimizer.state.get(parameter, {}).values():
                persistent += padded(value) if isinstance(value, Tensor) else 0
    return {
        "step_seconds": seconds,
        "peak_bytes": peak,
        "persistent_bytes": left if device.type == "cuda" else persistent,
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "checksums": sums,
        "stats": figures(),
    }


def padded(tensor: Tensor) -> int:
    return (tensor.numel() * tensor.element_size() + 511) // 512 * 512


def figures() -> dict[str, int]:
    """What torch counted for the allocator; retries are evictions under dtr_alloc."""
    if not torch.cuda.is_available():
        return {}
    stats = torch.cuda.memory_stats()
    return {key: stats.get(key, 0) for key in ("num_alloc_retries", "num_ooms")}


def largest_batch(arguments: argparse.Namespace) -> dict[str, Any]:
    """Doubles the batch until it is out of memory, then tries what lies half way."""
    device = torch.device(arguments.device)
    if device.type == "cuda":
        install(arguments.allocator, arguments.budget)
        if arguments.allocator == "native":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(arguments.limit / total)
    seconds: dict[int, float] = {}

    def fits(batch: int) -> bool:
        try:
            with scope_of(arguments.device, arguments.allocator, arguments.budget):
                with device:
                    job = make_job(arguments.model, batch, arguments.checkpoint)
                seconds[batch] = steps(job, 2, device, seed=0)[1][-1]
            arguments.out.write_text(json.dumps(largest(seconds)) + "\n")
            return True
        except torch.OutOfMemoryError:
            return False

    search_largest(fits, arguments.batch, arguments.largest)
    return largest(seconds)


def largest(seconds: dict[int, float]) -> dict[str, Any]:
    batch = max(seconds, default=0)
    return {"batch": batch, "seconds": seconds.get(batch), "tried": sorted(seconds)}


def search_largest(fits: Callable[[int], bool], first: int, most: int) -> int:
    """The largest batch that fits, to a quarter of itself; 0 where the first does not."""
    good, bad = 0, first
    while bad <= most and fits(bad):
        good, bad = bad, bad * 2
    if good in (0, most) or bad > most:
        return good
    for part in (good + good // 2, good + good // 4, good + 3 * good // 4):
        if good < part < bad:
            if fits(part):
                good = part
            else:
                bad = part
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*MODELS, *SIZES], default="gpt-tiny")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="native")
    parser.add_argument("--budget", type=int, help="bytes")
    parser.add_argument("--limit", type=int, help="bytes that native may have")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--largest", type=int, help="look for the largest batch up to this")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        result = largest_batch(arguments) if arguments.largest else run(arguments)
    except torch.OutOfMemoryError as error:
        result = {"out_of_memory": str(error)}
    arguments.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
