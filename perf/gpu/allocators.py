"""One allocator by itself: time of a request, bytes lost in fragments, the cost of moving pages.

    throughput       allocate and free tensors of mixed sizes, most of them small, no kernel
    fragmentation    a model's tensors at lengths that vary from step to step: the device memory an
                     allocator holds over the bytes that are live at the peak
    remap            a pool with scattered free pages asked for one large block: microseconds a page

The allocator of a CUDA process can be chosen once, so each is a process (run.py starts them).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from train import install

import dtr_alloc

MIB = 1 << 20


def sizes(count: int, rng: random.Random) -> list[int]:
    """Bytes from 512 to 64 MiB, as many in each octave."""
    return [int(512 * 2 ** rng.uniform(0, 17)) for _ in range(count)]


def throughput(make: Callable[[int], Any], rounds: int) -> dict[str, Any]:
    """A ring of 64 live blocks; each new one takes the place of the oldest."""
    ring: list[Any] = [None] * 64
    asked = sizes(4096, random.Random(0))

    def turn() -> None:
        for i, size in enumerate(asked):
            ring[i % 64] = None
            ring[i % 64] = make(size)

    turn()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        turn()
        best = min(best, time.perf_counter() - begin)
    return {"nanoseconds": best / len(asked) * 1e9}


def fragmentation(steps: int) -> dict[str, Any]:
    """Forward keeps three tensors a layer, backward frees them from the last; every step has
    another length."""
    rng = random.Random(0)
    live_peak = 0
    for _ in range(steps):
        length = rng.randrange(256, 4096)
        kept = []
        for _ in range(24):
            kept.append(torch.empty(8 * length * 1024, device="cuda", dtype=torch.bfloat16))
            kept.append(torch.empty(8 * length * 4096, device="cuda", dtype=torch.bfloat16))
            kept.append(torch.empty(8 * length * 16, device="cuda", dtype=torch.float32))
        live_peak = max(live_peak, torch.cuda.memory_allocated())
        while kept:
            kept.pop()
    torch.cuda.synchronize()
    held = torch.cuda.max_memory_reserved()
    return {"live_bytes": live_peak, "held_bytes": held, "ratio": held / max(live_peak, 1)}


def remap(arena: Any = "cuda", repeat: int = 5) -> dict[str, Any]:
    """Half of the pages are free, none next to another; one block wants them all."""
    best, pages = float("inf"), 0
    for _ in range(repeat):
        pool = dtr_alloc.Pool(1024 * MIB, arena=arena)
        blocks = [pool.allocate(4 * MIB) for _ in range(256)]
        for block in blocks[::2]:
            pool.free(block)
        begin = time.perf_counter()
        large = pool.allocate(512 * MIB)
        best = min(best, time.perf_counter() - begin)
        pages = 256
        assert pool.stats().remaps == 1
        for block in [large, *blocks[1::2]]:
            pool.free(block)
    begin = time.perf_counter()
    fresh = dtr_alloc.Pool(512 * MIB, arena=arena)
    fresh.free(fresh.allocate(512 * MIB))
    created = time.perf_counter() - begin
    return {"microseconds_a_page": best / pages * 1e6, "new_page": created / pages * 1e6}


def maker(allocator: str) -> Callable[[int], Any]:
    if allocator == "cupy":
        import cupy

        pool: Callable[[int], Any] = cupy.cuda.MemoryPool().malloc
        return pool
    if allocator == "cupy-dtr":
        return dtr_alloc.cupy_allocator(dtr_alloc.Pool("16GiB", arena="cuda"))
    install(allocator, 16 << 30)
    return lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=["throughput", "fragmentation", "remap"])
    parser.add_argument(
        "--allocator",
        choices=["native", "expandable", "async", "pool", "dtr", "cupy", "cupy-dtr"],
        default="pool",
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--arena", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.question == "remap":
        result = remap(arguments.arena, arguments.repeat)
    elif arguments.question == "fragmentation":
        install(arguments.allocator, 60 << 30)
        result = fragmentation(steps=60)
    else:
        result = throughput(maker(arguments.allocator), arguments.repeat)
    arguments.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
