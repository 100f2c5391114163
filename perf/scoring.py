"""What does a score cost, candidate by candidate, and where does a device begin to pay?

Rows are drawn over many orders of magnitude. For each number of rows N and of settings P: the C++
scorer row by row, as it was before it had vectors; the C++ scorer of the engine, which also
chooses the victim; plain torch; and where there is a GPU, Triton, with the copy bandwidth of the
machine beside it, and the engine's way there, from columns in the host's memory to a victim. C++
scores one setting, so P settings are P calls. Figures are nanoseconds for each score, the least of
some rounds in which the ways take turns; sizes that would take over a second are left out.

    python perf/scoring.py --out perf/results/scoring.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_harness import ScoreColumns
from measurement import Measurement, report

from dtr_alloc.kernels import ahead, reference
from dtr_alloc.kernels.columns import Columns, Settings
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic

ROWS = tuple(10**power for power in range(2, 8))
SETTINGS = (1, 8, 64, 512)
CLOCK = 1 << 41
ROUNDS = 7
MOST_SCORES = 4_000_000  # Of one call that is timed on the CPU.
CPP_LIMIT_NS = 2.0
PLAIN_BYTES = 4 * 8 + 1 + 8  # Read and written for a score of preset dtr.


def drawn(count: int) -> Columns:
    """Rows like those of a large model; all may go."""
    generator = np.random.default_rng(0)

    def magnitudes(low: float, high: float) -> torch.Tensor:
        return torch.from_numpy(np.exp2(generator.uniform(low, high, count)).astype(np.int64))

    return Columns(
        size=magnitudes(9, 30) // 512 * 512,
        free_left=magnitudes(0, 20),
        free_right=magnitudes(0, 20),
        last_access=CLOCK - magnitudes(10, 40),
        cost=magnitudes(10, 30),
        neighbourhood=magnitudes(0, 32),
        recomputes=torch.from_numpy(generator.integers(0, 9, count).astype(np.int32)),
        evictable=torch.ones(count, dtype=torch.uint8),
        order=torch.from_numpy(generator.permutation(count)),
    )


def native_columns(columns: Columns) -> ScoreColumns:
    return ScoreColumns(**{f.name: getattr(columns, f.name).numpy() for f in fields(columns)})


def on_cpu(rows: int, settings: int) -> dict[str, float]:
    """Nanoseconds a score, by way."""
    columns = drawn(rows)
    given = Settings.of([PRESETS["dtr"]] * settings)
    repeat = max(1, 20_000 // (rows * settings))
    found: dict[str, float] = {}
    for _ in range(ROUNDS):  # The ways take turns.
        begin = time.perf_counter()
        for _ in range(repeat):
            reference.score(columns, given, CLOCK)
        seconds = {"torch": time.perf_counter() - begin}
        if settings == 1:
            rows_of = native_columns(columns)
            one = PRESETS["dtr"]._native()
            tuned = Heuristic(size_exp=0.7)._native()
            seconds["C++ row by row"] = rows_of.time_choices(one, CLOCK, repeat, True)
            seconds["C++"] = rows_of.time_choices(one, CLOCK, repeat, False)
            seconds["C++, a power"] = rows_of.time_choices(tuned, CLOCK, repeat, False)
        for way, passed in seconds.items():
            found[way] = min(found.get(way, passed), passed)
    return {way: 1e9 * s / (rows * settings * repeat) for way, s in found.items()}


def copy_bandwidth(device: str) -> float:
    """Bytes a second of a copy, read and written, of what no cache holds."""
    source = torch.ones(1 << 28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = on_device({"copy": lambda: target.copy_(source)})["copy"]
    return 2 * source.numel() / seconds


def on_device(ways: dict[str, Callable[[], object]], rounds: int = 20) -> dict[str, float]:
    """Seconds of each way on the GPU, the least of the rounds, by events. The GPU is kept busy
    until the host has launched everything, so that the host's time is not counted."""
    device: Any = torch.cuda
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds + 3):  # The first ones compile.
        for name, way in ways.items():
            begin, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
            device._sleep(2_000_000)  # Cycles: a millisecond.
            begin.record()
            way()
            end.record()
            end.synchronize()
            seconds[name] = min(seconds[name], 1e-3 * begin.elapsed_time(end))
    return seconds


def on_gpu(quick: bool) -> list[Measurement]:
    """Triton and torch on the GPU, its share of the copy bandwidth, and a whole selection."""
    from dtr_alloc.kernels import launch

    found = []
    bandwidth = copy_bandwidth("cuda")
    found.append(Measurement("copy on the GPU", bandwidth / 1e9, "GB/s"))
    for rows in ROWS[:-2] if quick else ROWS:
        columns = drawn(rows).to("cuda")
        for settings in SETTINGS:
            if rows * settings > 1 << 28:
                continue
            given = Settings.of([PRESETS["dtr"]] * settings)
            ways: dict[str, Callable[[], object]] = {
                "Triton": lambda c=columns, g=given: launch.score(c, g, CLOCK),  # type: ignore[misc]
            }
            if rows * settings <= 1 << 26:
                ways["torch on the GPU"] = lambda c=columns, g=given: reference.score(c, g, CLOCK)  # type: ignore[misc]
            for name, seconds in on_device(ways).items():
                scores = rows * settings
                found.append(_score(name, rows, settings, 1e9 * seconds / scores))
                if name == "Triton" and settings == 1 and rows == ROWS[-1]:
                    share = PLAIN_BYTES * rows / seconds / bandwidth
                    found.append(Measurement("Triton: share of copy bandwidth", share, "x"))
            if settings == 1:
                found += as_the_engine(rows)
    columns, given = drawn(100_000).to("cuda"), Settings.of([PRESETS["dtr"]])
    request = int(columns.size.max())

    def selection() -> object:
        return launch.victims(columns, given, CLOCK, request)[0].tolist()

    passed = []
    for _ in range(30):
        begin = time.perf_counter()
        selection()
        passed.append(time.perf_counter() - begin)
    name = "Triton: select of 100,000, to the victims"
    found.append(Measurement(name, 1e6 * min(passed), "us"))
    return found


def as_the_engine(rows: int) -> list[Measurement]:
    """The engine's way to the GPU and back: columns in the host's memory, one victim chosen."""
    at = native_columns(drawn(rows))
    image = ahead.image()
    repeat = max(3, 1_000_000 // rows)
    found = []
    for name, heuristic in (("", PRESETS["dtr"]), (", a power", Heuristic(size_exp=0.7))):
        native = heuristic._native()
        seconds = min(at.time_choices(native, CLOCK, repeat, False, image) for _ in range(3))
        found.append(_score(f"engine's GPU{name}", rows, 1, 1e9 * seconds / (rows * repeat)))
    return found


def _score(way: str, rows: int, settings: int, ns: float) -> Measurement:
    limit = CPP_LIMIT_NS if way == "C++" and rows == 10_000 else None
    return Measurement(f"{way}: {rows:,} rows x {settings}", ns, "ns", limit)


def crossover(found: list[Measurement]) -> list[Measurement]:
    """From how many rows a choice of the engine's is cheaper on the GPU than by the C++ scorer."""

    def of(way: str, rows: int) -> float | None:
        name = f"{way}: {rows:,} rows x 1"
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
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for rows in ROWS[:-2] if options.quick else ROWS:
        for settings in SETTINGS:
            if settings > 1 and rows * settings > MOST_SCORES:
                continue
            for way, ns in on_cpu(rows, settings).items():
                found.append(_score(way, rows, settings, ns))
    if torch.cuda.is_available():
        found += on_gpu(options.quick)
        found += crossover(found)
    return report(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
