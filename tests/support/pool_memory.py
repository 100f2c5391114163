"""Bytes at a pool's addresses, as tests write and read them, and what of them is in memory."""

import ctypes
import re
from pathlib import Path

from dtr_alloc.pool import Pool

KIB = 1 << 10


def of_this_process(what: str) -> int:
    """Bytes of the process, as the system counts them under this name."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)
    assert found is not None
    return int(found[1]) * KIB


def resident(pool: Pool) -> int:
    """Bytes of the pool's addresses that the kernel backs now."""
    begin = pool.snapshot()[0].address
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key = line.split(maxsplit=1)[0]
        if "-" in key and not key.endswith(":"):
            first, last = (int(part, 16) for part in key.split("-"))
            inside = begin <= first and last <= begin + pool.address_space
        elif key == "Rss:" and inside:
            total += int(line.split()[1]) * KIB
    return total


def write(address: int, size: int, byte: int) -> None:
    ctypes.memset(address, byte, size)


def holds_only(address: int, size: int, byte: int) -> bool:
    return ctypes.string_at(address, size) == bytes([byte]) * size
