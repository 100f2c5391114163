"""One allocator by itself: time of a request, bytes lost in fragments, the cost of moving pages.

    throughput       allocate and free tensors of mixed sizes, most of them small, no kernel
    fragmentation    a model's tensors at lengths that vary from step to step, each written by a
                     kernel: the device memory an allocator holds over the bytes live at the peak
    remap            a pool with scattered free pages asked for one large block: microseconds a
                     page on an idle device, behind a kernel of the same stream, and beside one of
                     another stream. What lies in the pool must be there afterwards.

The allocator of a CUDA process can be chosen once, so each is a process (parts_memory.py starts
them). Without a GPU they take host memory: torch's own, and the pool of a scope.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from driver_calls import Driver
from measurement import write_json
from ways import install

import dtr_alloc

MIB = 1 << 20
cuda: Any = torch.cuda  # Its functions have no types.
KERNEL_CYCLES = 40_000_000  # Some 20 ms.
END = 512


def sizes(count: int, rng: random.Random) -> list[int]:
    """Bytes from 512 to 64 MiB, as many in each octave."""
    return [int(512 * 2 ** rng.uniform(0, 17)) for _ in range(count)]


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def throughput(make: Callable[[int], Any], count: int, rounds: int) -> dict[str, Any]:
    """A ring of 64 live blocks; each new one takes the place of the oldest."""
    ring: list[Any] = [None] * 64
    asked = sizes(count, random.Random(0))

    def turn() -> None:
        for i, size in enumerate(asked):
            ring[i % 64] = None
            ring[i % 64] = make(size)

    turn()
    wait()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        turn()
        found.append((time.perf_counter() - begin) / len(asked) * 1e9)
    return {"nanoseconds": min(found), "rounds": found}


def fragmentation(device: str, steps: int, longest: int, held: Callable[[], int]) -> dict[str, Any]:
    """Forward keeps three tensors a layer, backward reads and frees them from the last; every step
    has another length."""
    rng = random.Random(0)
    live_peak = 0
    seconds = []
    for _ in range(steps):
        length = rng.randrange(longest // 16, longest)
        kept: list[torch.Tensor] = []
        begin = time.perf_counter()
        for _ in range(24):
            for width, kind in ((1024, torch.bfloat16), (4096, torch.bfloat16), (16, torch.float)):
                kept.append(torch.ones(8 * length * width, device=device, dtype=kind))
        live = sum((t.nbytes + 511) // 512 * 512 for t in kept)
        live_peak = max(live_peak, live)
        total = torch.zeros((), device=device)
        while kept:
            total += kept.pop()[-1]
        right = float(total) == 72  # Which waits for the device.
        seconds.append(time.perf_counter() - begin)
        assert right, "a tensor was written by somebody else"
    found = held()
    ratio = found / max(live_peak, 1)
    return {"live_bytes": live_peak, "held_bytes": found, "ratio": ratio, "step_seconds": seconds}


class Bytes:
    """Writes and reads memory of an arena by its address."""

    def __init__(self, arena: str) -> None:
        self._driver = None if arena == "host" else Driver()

    def write(self, address: int, size: int, value: int) -> None:
        if self._driver is None:
            ctypes.memset(address, value, size)
            return
        with self._driver as driver:
            driver("cuMemsetD8Async", address, value, size, 0)

    def ends(self, address: int, size: int) -> set[int]:
        """The values of the bytes at both ends of a block."""
        buffer = ctypes.create_string_buffer(END)
        found: set[int] = set()
        for place in (address, address + size - END):
            if self._driver is None:
                found |= set(ctypes.string_at(place, END))
                continue
            with self._driver as driver:
                driver("cuMemcpyDtoH_v2", buffer, place, END)
            found |= set(buffer.raw)
        return found


def remap(arena: Any, blocks_count: int, repeat: int) -> dict[str, Any]:
    """Half of the pages are free, none next to another; one block wants them all."""
    kernels = arena == "cuda" and torch.cuda.is_available()
    states: dict[str, Any] = {"idle": None}
    if kernels:
        cuda.init()
        own, other = torch.cuda.default_stream(), cuda.Stream()
        states |= {"behind a kernel of its stream": own, "beside a kernel of another": other}
    found: dict[str, Any] = {}
    content = Bytes(arena)
    for state, stream in states.items():
        rounds = [_remap_once(arena, blocks_count, content, stream) for _ in range(repeat)]
        found[state] = {
            "microseconds_a_page": min(row["microseconds_a_page"] for row in rounds),
            "rounds": rounds,
        }
    size = blocks_count * 2 * MIB
    begin = time.perf_counter()
    fresh = dtr_alloc.Pool(size, arena=arena)
    fresh.free(fresh.allocate(size))
    pages = size // (2 * MIB)
    return found | {"new_page": (time.perf_counter() - begin) / pages * 1e6, "pages": pages}


def _remap_once(arena: Any, count: int, content: Bytes, stream: Any) -> dict[str, Any]:
    """Blocks of two pages; every second one is freed and moved."""
    pool = dtr_alloc.Pool(count * 4 * MIB, arena=arena)
    blocks = [pool.allocate(4 * MIB) for _ in range(count)]
    for i, block in enumerate(blocks):
        content.write(block, 4 * MIB, 1 + i % 250)
    wait()
    if stream is not None:
        with torch.cuda.stream(stream):
            cuda._sleep(KERNEL_CYCLES)
    for block in blocks[::2]:
        pool.free(block)
    begin = time.perf_counter()
    large = pool.allocate(count * 2 * MIB)
    seconds = time.perf_counter() - begin
    runs = stream is not None and not stream.query()
    assert pool.stats().remaps == 1
    content.write(large, count * 2 * MIB, 255)
    wait()
    for i, block in list(enumerate(blocks))[1::2]:
        assert content.ends(block, 4 * MIB) == {1 + i % 250}, "a block that stayed has changed"
    assert content.ends(large, count * 2 * MIB) == {255}
    for block in [large, *blocks[1::2]]:
        pool.free(block)
    return {"microseconds_a_page": seconds / count * 1e6, "kernel_still_runs": runs}


def opened(scope: ExitStack, allocator: str, device: str, budget: int) -> None:
    """Makes torch's tensors on the device come from the allocator, until the scope ends."""
    if device == "cuda":
        install(allocator, budget)
    elif allocator == "dtr_alloc":
        scope.enter_context(dtr_alloc.rematerialize(budget))
    elif allocator == "pool":
        scope.enter_context(dtr_alloc.measure())


def maker(allocator: str, device: str) -> Callable[[int], Any]:
    if allocator == "cupy":
        import cupy

        pool: Callable[[int], Any] = cupy.cuda.MemoryPool().malloc
        return pool
    if allocator == "cupy-dtr_alloc":
        return dtr_alloc.cupy_allocator(dtr_alloc.Pool("16GiB", arena="cuda"))
    return lambda size: torch.empty(size, dtype=torch.uint8, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=["throughput", "fragmentation", "remap"])
    names = ["stock", "expandable", "async", "pool", "dtr_alloc", "cupy", "cupy-dtr_alloc"]
    parser.add_argument("--allocator", choices=names, default="pool")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a hundredth of the work")
    parser.add_argument("--arena", choices=["cuda", "host"], default="cuda", help="for remap")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    allocator, device, small = arguments.allocator, arguments.device, arguments.small
    if arguments.question == "remap":
        result = remap(arguments.arena, 16 if small else 256, arguments.repeat)
        write_json(arguments.out, result)
        return
    with ExitStack() as scope:
        budget = (4 << 30) if small else (60 << 30)
        opened(scope, allocator, device, budget)
        if arguments.question == "throughput":
            made = maker(allocator, device)
            result = throughput(made, 256 if small else 4096, arguments.repeat)
        else:
            result = fragmentation(device, 6 if small else 60, 64 if small else 4096, _held(device))
    write_json(arguments.out, result)


def _held(device: str) -> Callable[[], int]:
    """Bytes that the allocator has of the machine; of host allocators, what the process had."""
    if device == "cuda":
        return lambda: int(torch.cuda.max_memory_reserved())
    status = Path("/proc/self/status")
    return lambda: 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    main()
