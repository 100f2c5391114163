"""Trains one model in one way in a process of its own, and tells losses, gradients and parameters.

It is for exactness: fp32, deterministic algorithms, one seed, and a checksum of every loss,
parameter and gradient, computed on the device. Its times are not those of a training as people run
it; speed.py has these. The allocator of a CUDA process can be chosen once, so every configuration
is a process; parts_exact.py starts them and compares. Without a GPU the same code runs in a scope.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from large_models import GPT_SIZES
from measurement import write_json
from torch import Tensor
from ways import OPTIONS, Memory

from dtr_alloc.demo.models import MODELS, Job, gpt


def make_job(name: str, batch: int) -> Job:
    if name in MODELS:
        return MODELS[name]()
    return gpt(**GPT_SIZES[name], texts=batch, dropout=0.1)


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


def padded(tensor: Tensor) -> int:
    return (tensor.numel() * tensor.element_size() + 511) // 512 * 512


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    # Where it only warns, attention's backward adds in any order. Unet has operators that have no
    # other way.
    torch.use_deterministic_algorithms(True, warn_only=arguments.model == "unet")
    torch.backends.cudnn.benchmark = False
    device = torch.device(arguments.device)
    memory = Memory(arguments.way, arguments.device, arguments.memory)
    torch.manual_seed(0)
    with device:
        job = make_job(arguments.model, arguments.batch)
    job.model.to(device)
    optimizer = job.optimizer(job.model.parameters())
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {"step_seconds": []}
    sums: dict[str, str] = {}
    for step in range(arguments.steps):
        write_json(arguments.out, found | {"unfinished": f"in step {step} of {arguments.steps}"})
        batch = to_device(job.batch(generator), device)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        loss = job.loss(job.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        sums[f"loss {step}"] = float(loss.detach()).hex()
        found["step_seconds"].append(time.perf_counter() - begin)
    del loss, batch
    counts, figures = memory.counts(), memory.figures()  # Checksums would change them.
    persistent = 0
    for name, parameter in job.model.named_parameters():
        sums[name] = str(checksum(parameter))
        persistent += padded(parameter)
        if parameter.grad is not None:
            sums[f"gradient of {name}"] = str(checksum(parameter.grad))
            persistent += padded(parameter.grad)
        for value in optimizer.state.get(parameter, {}).values():
            persistent += padded(value) if isinstance(value, Tensor) else 0
    if memory.cuda:  # Workspaces of libraries stay as well.
        persistent = max(persistent, torch.cuda.memory_allocated())
    return found | {
        **figures,
        "persistent_bytes": persistent,
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "checksums": sums,
        "counts": counts,
        "caught": memory.caught(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*MODELS, *GPT_SIZES], default="gpt-tiny")
    parser.add_argument("--way", choices=["stock", *OPTIONS], default="stock")
    parser.add_argument("--memory", type=int, help="bytes")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        result = run(arguments)
    except torch.OutOfMemoryError as error:
        result = {"out_of_memory": str(error)}
    write_json(arguments.out, result)


if __name__ == "__main__":
    main()
