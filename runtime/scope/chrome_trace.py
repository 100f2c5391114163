"""Evictions, rematerializations and transfers over time, for Chrome's trace viewer and Perfetto.

The format is theirs and torch.profiler's: JSON whose times are microseconds. Torch's begin at a
moment that it names in ``baseTimeNanoseconds``; to lie on the same axis ours are taken from there.
A rematerialization and a transfer have a duration, an eviction is a moment, and the pool's bytes
are a counter.

Source: Trace Event Format, Google, 2016.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

TRACK = "dtr_alloc"
Event = tuple[str, int, int, str, int, int]
"""What happened, as in `_VERBS`; when, in ns since 1970; for how long; the operator that makes it,
empty of a transfer; its bytes; the pool's bytes afterwards."""

_VERBS = {
    "evicted": "evict",
    "recomputed": "rematerialize",
    "swapped out": "swap out",
    "swapped in": "swap in",
}


def write(
    path: str | os.PathLike[str], events: Iterable[Event], profile: str | os.PathLike[str] | None
) -> None:
    """Writes events alone, or added to what torch.profiler exported; see
    `Session.export_chrome_trace`."""
    document = {"traceEvents": []} if profile is None else _read(profile)
    base_ns = int(document.setdefault("baseTimeNanoseconds", 0))
    document["traceEvents"].extend(_lines(events, base_ns))
    text = json.dumps(document).encode("ascii")
    Path(path).write_bytes(gzip.compress(text) if os.fspath(path).endswith(".gz") else text)


def _read(profile: str | os.PathLike[str]) -> dict[str, Any]:
    raw = Path(profile).read_bytes()
    try:
        document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{os.fspath(profile)} is not JSON: {error}") from error
    if not isinstance(document, dict) or not {"baseTimeNanoseconds", "traceEvents"} <= {*document}:
        raise ValueError(
            f"{os.fspath(profile)} does not say when it begins: give what "
            "torch.profiler.profile.export_chrome_trace wrote"
        )
    return document


def _lines(events: Iterable[Event], base_ns: int) -> Iterator[dict[str, Any]]:
    place = {"pid": os.getpid(), "tid": TRACK}
    for what, at, duration, operator, size, live in events:
        begin = (at - base_ns) / 1e3
        name = f"{_VERBS[what]} {operator}".rstrip()
        shown = {"name": name, "cat": TRACK, **place, "args": {"bytes": size}, "ts": begin}
        if what == "evicted":
            yield {**shown, "ph": "i", "s": "t"}
        else:
            yield {**shown, "ph": "X", "dur": duration / 1e3}
        counter = {"name": "pool bytes", "ph": "C", **place, "args": {"live": live}}
        yield {**counter, "ts": begin + duration / 1e3}
