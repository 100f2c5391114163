"""What does a score cost, candidate by candidate, and where does a device begin to pay?

Rows are drawn over many orders of magnitude. For each number of rows: the C++ scorer row by row, as
it was before it had vectors; the C++ scorer of the engine, which also chooses the victim; and where
there is a GPU, the engine's way there, from columns in the host's memory to a victim. Figures are
nanoseconds for each score, the least of some rounds in which the ways take turns. The GPU's are
also told over a copy of the bytes that it reads, which is the fastest that they could come.

    python perf/choice/scoring.py --out perf/results/scoring.json
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from engine_harness import ScoreColumns
from measurement import Measurement, report, save

from dtr_alloc.kernels import ahead
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic

ROWS = tuple(10**power for power in range(2, 8))
CLOCK = 1 << 41
ROUNDS = 7
CPP_LIMIT_NS = 2.0
COPY_LIMIT = 1.25  # Times a copy, among the most rows: 80 % of its bandwidth.


def drawn(count: int) -> ScoreColumns:
    """Rows like those of a large model; all may go."""
    generator = np.random.default_rng(0)

    def magnitudes(low: float, high: float) -> np.ndarray[Any, Any]:
        return np.exp2(generator.uniform(low, high, count)).astype(np.int64)

    return ScoreColumns(
        size=magnitudes(9, 30) // 512 * 512,
        free_left=magnitudes(0, 20),
        free_right=magnitudes(0, 20),
        last_access=CLOCK - magnitudes(10, 40),
        cost=magnitudes(10, 30),
        neighbourhood=magnitudes(0, 32),
        recomputes=generator.integers(0, 9, count).astype(np.int32),
        evictable=np.ones(count, dtype=np.uint8),
        order=generator.permutation(count).astype(np.uint64),
    )


def on_cpu(columns: ScoreColumns, rows: int, rounds: int) -> list[Measurement]:
    """Nanoseconds a score, by way."""
    one, tuned = PRESETS["dtr"]._native(), Heuristic(size_exp=0.7)._native()
    repeat = max(1, 20_000 // rows)
    ways = {"C++ row by row": (one, True), "C++": (one, False), "C++, a power": (tuned, False)}
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):  # The ways take turns.
        for way, (heuristic, by_row) in ways.items():
            passed = columns.time_choices(heuristic, CLOCK, repeat, by_row)
            found[way] = min(found[way], passed)
    return [_score(way, rows, 1e9 * s / (rows * repeat)) for way, s in found.items()]


def as_the_engine(columns: ScoreColumns, rows: int) -> list[Measurement]:
    """The engine's way to the GPU and back: columns in the host's memory, one victim chosen."""
    image = ahead.image()
    repeat = max(3, 1_000_000 // rows)
    found = []
    ways = (("", PRESETS["dtr"], 33), (", a power", Heuristic(size_exp=0.7), 53))
    for name, heuristic, row_bytes in ways:  # As much of a row does the kernel read.
        native = heuristic._native()
        total = min(columns.time_choices(native, CLOCK, repeat, False, image) for _ in range(3))
        found.append(_score(f"engine's GPU{name}", rows, 1e9 * total / (rows * repeat)))
        over = total / repeat / copy_seconds(rows * row_bytes)
        limit = COPY_LIMIT if rows == ROWS[-1] else None
        way = f"engine's GPU{name} over a copy: {rows:,} rows"
        found.append(Measurement(way, over, "x", limit))
    return found


def copy_seconds(size: int) -> float:
    """The least time in which so many bytes of page-locked memory come to the GPU."""
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    least = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        least = min(least, time.perf_counter() - begin)
    return least


def _score(way: str, rows: int, ns: float) -> Measurement:
    limit = CPP_LIMIT_NS if way == "C++" and rows == 10_000 else None
    return Measurement(f"{way}: {rows:,} rows", ns, "ns", limit)


def crossover(found: list[Measurement]) -> list[Measurement]:
    """From how many rows a choice of the engine's is cheaper on the GPU than by the C++ scorer."""

    def of(way: str, rows: int) -> float | None:
        name = f"{way}: {rows:,} rows"
        return next((m.value for m in found if m.name == name), None)

    met = []
    for name in ("", ", a power"):
        for rows in ROWS:
            host, device = of(f"C++{name}", rows), of(f"engine's GPU{name}", rows)
            if host is not None and device is not None and device < host:
                way = f"crossover of C++ and the engine's GPU{name}"
                met.append(Measurement(way, rows, "rows"))
                break
    return met


def main() -> int:
    """Measures; returns 1 if the C++ scorer takes longer than its limit among 10,000 rows."""
    parser = argparse.ArgumentParser(description="Cost of a score.")
    parser.add_argument("--quick", action="store_true", help="up to 100,000 rows")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in which the ways take turns")
    parser.add_argument("--out", type=Path, help="write JSON here, after each number of rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[Measurement] = []
    chosen = ROWS[:-2] if options.quick else ROWS
    for rows in chosen:
        columns = drawn(rows)
        if torch.cuda.is_available():
            found += as_the_engine(columns, rows)
        found += on_cpu(columns, rows, options.rounds)
        save(found, options.out, f"{rows:,} rows were the last, of {chosen[-1]:,}")
    found += crossover(found)
    return report(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
