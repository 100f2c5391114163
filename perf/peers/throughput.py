"""How fast is the pool beside the allocators that a user would have instead?

Each program of requests is played by each allocator in a process of its own (throughput.cpp), the
allocators taking turns, and the fastest of all rounds counts: nanoseconds for an allocate and a
free. The programs:

- random: RMM's random_allocations benchmark: 73 % of the calls allocate, sizes are uniform, what is
  live has a cap. https://github.com/rapidsai/rmm
- steady: N blocks are live, and each new one takes the place of one drawn at random; as many sizes
  in each octave. Small is 512 B to 16 KiB, mixed to 1 MiB, large 1 to 64 MiB.
- threads: steady on several threads at once, 1,000 mixed blocks each.
- trace: the blocks of one recorded training step, in order (perf/traces).
- touch: one tensor of 64 MiB after another is allocated, written in full, and freed.

Nothing but touch writes to the blocks. `virtual` is the pool without memory behind it, which shows
the bookkeeping alone; `host` has memory. mimalloc, jemalloc and tcmalloc take part where they are
installed (Debian: libmimalloc2.0, libjemalloc2, libtcmalloc-minimal4). torch is its CPU allocator,
torch_thp the same with THP_MEM_ALLOC_ENABLE=1.

    python perf/peers/throughput.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin, provenance
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.schedule import COMPUTE, GET, RELEASE

ROOT = Path(__file__).parents[2]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LIBRARIES = {"jemalloc": "jemalloc", "mimalloc": "mimalloc", "tcmalloc": "tcmalloc_minimal"}

Requests = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Program:
    """`requests` as throughput.cpp reads them, and how to play them."""

    name: str
    requests: Requests
    threads: int = 1
    touch: int = 0
    only: tuple[str, ...] = ()  # Allocators; all if empty.


def random_allocations(count: int, largest: int, cap: int) -> Requests:
    """RMM's design."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, largest, 2 * count)
    chances, picks = rng.integers(0, 100, 2 * count), rng.random(2 * count)
    live: list[int] = []
    size_of: list[int] = []
    held = 0
    requests: list[int] = []
    for size, chance, pick in zip(sizes.tolist(), chances, picks, strict=True):
        if not live or (chance < 73 and len(size_of) < count and held + size < cap):
            live.append(len(size_of))
            size_of.append(size)
            held += size
            requests.append(size)
        else:
            freed = live.pop(int(pick * len(live)))
            held -= size_of[freed]
            requests.append(-1 - freed)
    return np.array(requests, np.int64)


def steady(live: int, turns: int, least: int, largest: int) -> Requests:
    """`live` blocks, then `turns` times one of them is freed and another allocated."""
    rng = np.random.default_rng(0)
    sizes = np.exp2(rng.uniform(math.log2(least), math.log2(largest), live + turns))
    requests = np.empty(live + 2 * turns, np.int64)
    requests[:live] = sizes[:live]
    requests[live + 1 :: 2] = sizes[live:]
    slots = list(range(live))
    for turn, slot in enumerate(rng.integers(0, live, turns).tolist()):
        requests[live + 2 * turn] = -1 - slots[slot]
        slots[slot] = live + turn
    return requests


def of_trace(name: str, repeat: int) -> Requests:
    """The storages that a trace allocates, and frees with their last reference."""
    schedule = Trace.load(ROOT / "perf" / "traces" / f"{name}.log.gz").schedule()
    storage = np.arange(len(schedule.tensor_size))
    for tensor, alias in enumerate(schedule.tensor_alias.tolist()):
        if alias >= 0:
            storage[tensor] = storage[alias]
    begins = schedule.op_results_begin.tolist()
    number: dict[int, int] = {}  # Of the storages that are live: which allocation it is.
    references: dict[int, int] = {}
    requests: list[int] = []
    allocations = 0

    def end(held: int) -> None:
        if held in number:
            requests.append(-1 - number.pop(held))

    for _ in range(repeat):
        for kind, operand in zip(schedule.kind.tolist(), schedule.operand.tolist(), strict=True):
            if kind == COMPUTE:
                for tensor in range(begins[operand], begins[operand + 1]):
                    if schedule.tensor_size[tensor] > 0:
                        number[tensor] = allocations
                        allocations += 1
                        requests.append(int(schedule.tensor_size[tensor]))
            elif kind in (GET, RELEASE):
                held = int(storage[operand])
                references[held] = references.get(held, 0) + (1 if kind == GET else -1)
                if references[held] == 0:
                    end(held)
        for held in list(number):
            end(held)
        references.clear()
    return np.array(requests, np.int64)


def programs(quick: bool) -> Iterator[Program]:
    turns = 50_000 if quick else 200_000
    yield Program("random, to 64 KiB", random_allocations(turns // 2, 64 * KIB, 256 * MIB))
    yield Program("random, to 4 MiB", random_allocations(turns // 4, 4 * MIB, 4 * GIB))
    for kind, live, least, largest in (
        ("small", 10_000, 512, 16 * KIB),
        ("mixed", 10_000, 512, MIB),
        ("large", 200, MIB, 64 * MIB),
    ):
        name = f"steady, {kind}, {live:,} live"
        yield Program(name, steady(live, turns if live > 200 else turns // 10, least, largest))
    for name in ("unet", "transformer"):
        once = of_trace(name, 1)
        yield Program(f"trace, {name}", of_trace(name, max(1, turns // len(once))))
    yield Program("touch, 64 MiB", np.ravel([[64 * MIB, -1 - i] for i in range(8)]), touch=2)
    for threads in (1, 2) if quick else (1, 2, 4, 8):
        mixed = steady(1_000, turns // 4, 512, MIB)
        yield Program(f"threads, {threads}", mixed, threads)
    for live in (100, 1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000, 1_000_000):
        for kind, largest in (("small", 16 * KIB), ("mixed", MIB)):
            yield Program(
                f"growth, {kind}, {live:,} live",
                steady(live, turns, 512, largest),
                only=("virtual",),
            )


def allocators() -> dict[str, tuple[str, dict[str, str]]]:
    """Of each: what throughput.cpp calls it, and the environment that it needs."""
    c10 = {"LIBC10": str(Path(torch.__file__).parent / "lib" / "libc10.so")}
    found: dict[str, tuple[str, dict[str, str]]] = {
        "virtual": ("virtual", {}),
        "host": ("host", {}),
        "glibc": ("malloc", {}),
    }
    for name, library in LIBRARIES.items():
        if path := ctypes.util.find_library(library):
            found[name] = ("malloc", {"LD_PRELOAD": path})
    found["torch"] = ("torch", c10)
    found["torch_thp"] = ("torch", c10 | {"THP_MEM_ALLOC_ENABLE": "1"})
    return found


def build() -> Path:
    program = ROOT / "build" / "perf" / "throughput"
    program.parent.mkdir(parents=True, exist_ok=True)
    sources = [
        f for f in (ROOT / "dtr_alloc/pool/csrc").rglob("*.cpp") if not f.name.startswith("bind")
    ]
    sources.append(Path(__file__).with_suffix(".cpp"))
    command = ["g++", "-O3", "-DNDEBUG", "-std=c++20", f"-I{ROOT}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-ldl", "-pthread"], check=True)
    return program


def play(binary: Path, program: Program, turns: int, rounds: int) -> dict[str, float]:
    """Nanoseconds a pair of each allocator, the best of `turns` processes with `rounds` each."""
    best: dict[str, float] = {}
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        program.requests.tofile(file.name)
        for _ in range(turns):
            for name, (kind, environment) in allocators().items():
                if (program.only and name not in program.only) or (
                    program.touch and name == "virtual"
                ):
                    continue
                words = [file.name, kind, str(program.threads), str(rounds), str(program.touch)]
                done = subprocess.run(
                    [str(binary), *words],
                    env=os.environ | environment,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                least = min(map(float, done.stdout.split()))
                best[name] = min(best.get(name, math.inf), least)
    return best


def draw(results: dict[str, dict[str, float]], path: Path) -> None:
    figure = Figure(figsize=(12, 7), layout="constrained")
    top, bottom = figure.subplots(2, 1)
    shown = [name for name in results if not name.startswith(("growth", "threads"))]
    names = list(allocators())
    for i, name in enumerate(names):
        at = [x + (i - len(names) / 2) / (len(names) + 1) for x in range(len(shown))]
        heights = [results[program].get(name, math.nan) for program in shown]
        top.bar(at, heights, 1 / (len(names) + 1), label=name)
    top.set(yscale="log", ylabel="ns a pair")
    top.set_xticks(range(len(shown)), shown, fontsize=8)
    top.legend(ncols=len(names), fontsize=8)
    for kind in ("small", "mixed"):
        points = [
            (int(name.split(", ")[2].split()[0].replace(",", "")), value["virtual"])
            for name, value in results.items()
            if name.startswith(f"growth, {kind}")
        ]
        bottom.plot(*zip(*points, strict=True), marker="o", label=f"pool, virtual, {kind}")
    bottom.set(xscale="log", xlabel="live blocks", ylabel="ns a pair", ylim=(0, None))
    bottom.legend()
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute, short programs")
    parser.add_argument("--out", type=Path, help="folder for throughput.json, .txt and .png")
    options = parser.parse_args()
    binary = build()
    turns, rounds = (1, 2) if options.quick else (2, 4)
    todo = list(programs(options.quick))
    results = {p.name: play(binary, p, turns, rounds) for p in track(todo, "playing")}
    names = list(allocators())
    table = Table(title="Nanoseconds for an allocate and a free, best of all rounds")
    for column in ("program", *names):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name, values in results.items():
        cells = (f"{values[a]:,.0f}" if a in values else "" for a in names)
        table.add_row(name, *cells)
    Console(width=120).print(table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        head = provenance()
        document = json.dumps(head | {"ns_per_pair": results}, indent=1)
        (options.out / "throughput.json").write_text(document + "\n")
        with (options.out / "throughput.txt").open("w") as file:
            file.write(f"{origin()}\n\n")
            Console(file=file, width=120).print(table)
        draw(results, options.out / "throughput.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
