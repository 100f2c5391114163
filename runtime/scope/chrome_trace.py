"""Evictions, rematerializations and transfers over time, for Chrome's trace viewer and Perfetto.

The format is theirs and torch.profiler's: JSON whose times are microseconds. Torch's begin at a
moment that it names in ``baseTimeNanoseconds``; to lie on the same axis ours are taken from there.
A rematerialization and a transfer have a duration, an eviction is a moment, and the bytes in use
are counters, one for each class of tensors (memory_history.py).

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

import numpy as np

from dtr_alloc.runtime.scope.memory_history import CLASSES, Event, History

TRACK = "dtr_alloc"
_VERBS = {
    "evicted": "evict",
    "recomputed": "rematerialize",
    "swapped out": "swap out",
    "swapped in": "swap in",
}


def write(
    path: str | os.PathLike[str], history: History, profile: str | os.PathLike[str] | None
) -> None:
    """Writes them alone, or added to what torch.profiler exported; see
    `Session.export_chrome_trace`."""
    document = {"traceEvents": []} if profile is None else _read(profile)
    base_ns = int(document.setdefault("baseTimeNanoseconds", 0))
    document["traceEvents"].extend(_spans(history.events, base_ns))
    if history.gap:
        began = {"ph": "i", "s": "t", "ts": (history.events[0].at - base_ns) / 1e3}
        document["traceEvents"].append({"name": history.gap, **_place(), **began})
    document["traceEvents"].extend(_counters(history, base_ns))
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


def _place() -> dict[str, Any]:
    return {"pid": os.getpid(), "tid": TRACK}


def _spans(events: Iterable[Event], base_ns: int) -> Iterator[dict[str, Any]]:
    for event in events:
        moves = event.what == "evicted" and not event.operator  # To the swap: its span tells.
        if event.what not in _VERBS or moves:
            continue
        name = f"{_VERBS[event.what]} {event.operator}".rstrip()
        shown = {"name": name, "cat": TRACK, **_place(), "args": {"bytes": event.size}}
        shown["ts"] = (event.at - base_ns) / 1e3
        if event.what == "evicted":
            yield {**shown, "ph": "i", "s": "t"}
        else:
            yield {**shown, "ph": "X", "dur": event.duration / 1e3}


def _counters(history: History, base_ns: int) -> Iterator[dict[str, Any]]:
    levels = history.levels()
    changed = np.diff(levels, axis=0, prepend=0).any(axis=1)
    for i in np.flatnonzero(changed):
        bytes_of = dict(zip(CLASSES, levels[i].tolist(), strict=True))
        at = (history.events[i].at - base_ns) / 1e3
        yield {"name": "pool bytes", "ph": "C", **_place(), "args": bytes_of, "ts": at}
