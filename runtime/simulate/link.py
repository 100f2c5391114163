"""The way to a second tier, as a simulation takes it: ``"50GB/s"``.

A simulator needs no such tier to say what one would save. It needs to know how fast bytes go there
and come back. The program waits for each transfer, as it does in a scope with `swap`.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dtr_alloc.pool.size import parse_size

LeaveBy = Literal["drop", "swap", "both"]

# Bytes a second. No memory is as fast; over a slower link sums of times would overflow.
_FASTEST, _SLOWEST = 100_000 * 10**9, 10**6
_LATENCY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms)\s*", re.ASCII)
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000}


@dataclass(frozen=True)
class Link:
    """Bytes go each way at `bytes_per_second`, after `latency_ns`.

    Raises:
        TypeError: not integers.
        ValueError: a bandwidth below 1 MB or above 100 TB a second, or a latency that is negative
            or above a second.

    Example:
        >>> Link.parse("50GB/s")
        Link(bytes_per_second=50000000000, latency_ns=0)
        >>> Link.parse("12.5GiB/s + 10us").latency_ns
        10000
    """

    bytes_per_second: int
    latency_ns: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(one, int) for one in (self.bytes_per_second, self.latency_ns)):
            raise TypeError(f"{self!r} is no link: give integers")
        if not _SLOWEST <= self.bytes_per_second <= _FASTEST:
            raise ValueError(
                f"a link of {self.bytes_per_second} bytes a second: give 1 MB to 100 TB"
            )
        if not 0 <= self.latency_ns <= 10**9:
            raise ValueError(f"a link's latency of {self.latency_ns} ns: give 0 to a second")

    @classmethod
    def parse(cls, link: Link | str) -> Link:
        """A link, or one that is written as a size a second and, after a "+", a latency. Raises
        TypeError where `link` is neither, ValueError where it is not written so, and as above."""
        if isinstance(link, Link):
            return link
        if not isinstance(link, str):
            raise TypeError(f'link {link!r} is neither a Link nor a text such as "50GB/s"')
        no_speed = f'link "{link}" is no speed: write it as "50GB/s" or "50GB/s+10us"'
        speed, plus, latency = link.partition("+")
        size, slash, second = speed.strip().rpartition("/")
        wait = _LATENCY.fullmatch(latency)
        if not slash or second != "s" or (plus and wait is None):
            raise ValueError(no_speed)
        latency_ns = round(float(wait[1]) * _UNITS[wait[2]]) if wait else 0
        try:
            bytes_per_second = parse_size(size)
        except ValueError as error:
            raise ValueError(no_speed) from error
        return cls(bytes_per_second, latency_ns)

    @classmethod
    def measured(cls, folder: str | os.PathLike[str] | None = None) -> Link:
        """The way to a file in `folder`, or in that of temporary files: what `swap_dir` means.

        As a scope with `swap` measures it: the machine's cache has the file. Raises OSError where
        no file can be written there."""
        block = bytes(1 << 20)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.pwrite(file.fileno(), block, 0)  # The first write finds no page there.
            began = time.perf_counter_ns()
            os.pwrite(file.fileno(), block, 0)
            os.pread(file.fileno(), len(block), 0)
            one_way_ns = max(time.perf_counter_ns() - began, 1) / 2
        return cls(min(round(len(block) * 1e9 / one_way_ns), _FASTEST))

    def __str__(self) -> str:
        """As `parse` reads it: ``"50GB/s"``."""
        size, unit = self.bytes_per_second, 0
        while size % 1000 == 0 and unit < 4:
            size, unit = size // 1000, unit + 1
        speed = f"{size}{('', 'K', 'M', 'G', 'T')[unit]}B/s"
        return f"{speed}+{self.latency_ns}ns" if self.latency_ns else speed


Linked: TypeAlias = Link | str | None
