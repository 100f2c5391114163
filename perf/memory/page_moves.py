"""What does it take to move a page of the host's, and to have one anew instead?

A pool is full of blocks of some pages each. Every second is freed, one request takes all that is
free, and a byte in every 4 KiB of it is written: so many runs of pages move. The figure is the time
of the request and the writes by the page, the least of some rounds. "Anew" is a pool that was made
with DTR_ALLOC_USERFAULTFD=0. A page of 2 MiB is moved by mremap in both.

    python perf/memory/page_moves.py [--quick] [--out perf/results/page_moves.json]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, report

from dtr_alloc import Pool, _core

KIB, MIB = 1 << 10, 1 << 20
CASES = ((4 * KIB, 1), (4 * KIB, 8), (4 * KIB, 64), (2 * MIB, 1), (2 * MIB, 4))  # Page, run.
PAGES = {4 * KIB: 4096, 2 * MIB: 64}  # That move at once.
TIMES_ANEW = 0.5  # A page of 4 KiB in a run of 8, moved.


def touch(address: int, size: int) -> None:
    """Writes a byte in every 4 KiB."""
    memory = (ctypes.c_char * size).from_address(address)
    np.frombuffer(memoryview(memory), np.uint8)[:: 4 * KIB] = 1


def microseconds(pool: Pool, page: int, run: int) -> float:
    """Of a page that moves, in runs of so many."""
    half = PAGES[page] * page
    blocks = [pool.allocate(run * page) for _ in range(2 * PAGES[page] // run)]
    for address in blocks:
        touch(address, run * page)
    for address in blocks[::2]:
        pool.free(address)
    begin = time.perf_counter()
    large = pool.allocate(half)
    touch(large, half)
    took = time.perf_counter() - begin
    for address in (large, *blocks[1::2]):
        pool.free(address)
    return took / PAGES[page] * 1e6


def measured(rounds: int) -> Iterator[Measurement]:
    """Each case in each way."""
    for page, run in CASES:
        huge = page == 2 * MIB
        budget = 2 * PAGES[page] * page
        pools = {}
        for way in ("moved",) if huge else ("moved", "anew"):
            os.environ["DTR_ALLOC_USERFAULTFD"] = str(int(way == "moved"))
            space = max(2 * budget, 512 * MIB) if huge else 2 * budget
            pools[way] = Pool(budget, "host", address_space=space)
        found = {
            way: min(microseconds(pool, page, run) for _ in range(rounds))
            for way, pool in pools.items()
        }
        limited = _core.host_pages_move() and (page, run) == (4 * KIB, 8)
        for way, us in found.items():
            limit = TIMES_ANEW * found["anew"] if limited and way == "moved" else None
            size = "2 MiB" if huge else "4 KiB"
            yield Measurement(f"a page of {size}, in runs of {run}: {way}", us, "us", limit)


def main() -> int:
    """Measures; returns 1 if moving takes more than half of what having pages anew does."""
    parser = argparse.ArgumentParser(description="What it takes to move a page of the host's.")
    parser.add_argument("--quick", action="store_true", help="two rounds instead of twenty")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    return report(list(measured(2 if options.quick else 20)), options.out)


if __name__ == "__main__":
    sys.exit(main())
