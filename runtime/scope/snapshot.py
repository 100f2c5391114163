"""A scope's memory in the format of torch.cuda.memory._snapshot(), for pytorch.org/memory_viz.

Torch's format knows no evictions. So a block's frames begin with one that says what happened, at
the line of the script that first made the tensor: the operator, ``evict aten::relu``, or
``rematerialize aten::relu``. A segment is a range of addresses that blocks have used.

Source: torch/cuda/_memory_viz.py and torch/utils/viz/MemoryViz.js (torch 2.11 to 2.15), which reads
no pickle of a later protocol than 4.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dtr_alloc.runtime.scope.memory_history import Block, Event, History
from dtr_alloc.runtime.scope.sites import Site, site

_GAP = 2 << 20
"""Blocks so far apart are in segments of their own."""
_PLACE = {"stream": 0, "segment_pool_id": (0, 0)}


def dump(path: str | os.PathLike[str], history: History, budget: int | None) -> None:
    """Writes the snapshot, of one device; see `Session.dump_snapshot`."""
    first = history.events[0].at if history.events else 0
    segments = list(_segments(history))
    began = [_entry("segment_alloc", first, s["address"], s["total_size"], []) for s in segments]
    snapshot = {
        "segments": segments,
        "device_traces": [began + list(_trace(history, budget or 0))],
        "allocator_settings": {
            "trace_alloc_overflowed": history.dropped > 0,
            "dropped_events": history.dropped,
        },
        "external_annotations": [],
    }
    pickled = pickle.dumps(snapshot, protocol=4)
    _stack.cache_clear()  # Another dump may be of other programs.
    Path(path).write_bytes(pickled)


def _trace(history: History, budget: int) -> Iterator[dict[str, Any]]:
    begins = {block.begin: block for block in history.blocks}
    ends = {block.end: block for block in history.blocks}
    live = 0
    for number, (what, at, _, operator, where, *_, address, size) in enumerate(history.events):
        if what == "allocated":
            live += size
            block = begins[number]
            module = {"user_metadata": block.site.module}
            yield _entry("alloc", at, address, size, _frames(block)) | module
        elif what == "freed":
            live -= size
            frames = _frames_of_end(ends[number], history.events[number])
            yield _entry("free_requested", at, address, size, frames)
            yield _entry("free_completed", at, address, size, frames)
        elif what == "refused":
            free = max(budget - live, 0)
            frames = _stack(operator, site(where))
            yield _entry("oom", at, free, size, frames) | {"device_free": free}


def _entry(action: str, at: int, address: int, size: int, frames: list[Any]) -> dict[str, Any]:
    where = {"addr": address, "size": size, **_PLACE}
    return {"action": action, "time_us": at // 1000, "frames": frames, **where}


def _frames(block: Block) -> list[dict[str, Any]]:
    what = block.made.operator
    if block.made.again:
        what = f"rematerialize {what}" if what else "swap in"
    return _stack(what, block.site)


def _frames_of_end(block: Block, event: Event) -> list[dict[str, Any]]:
    if block.evicted:
        return _stack(f"evict {block.made.operator}".rstrip(), block.site)
    return _stack(f"freed in {event.operator}" if event.operator else "", site(event.site))


@cache
def _stack(what: str, where: Site) -> list[dict[str, Any]]:
    """The innermost frame first. Equal ones are one object, so a pickle has them once."""
    file, line, _ = where.frames[0] if where.frames else ("", 0, "")
    frames = [(file, line, what), *where.frames] if what else where.frames
    return [{"filename": file, "line": line, "name": name} for file, line, name in frames]


def _segments(history: History) -> Iterator[dict[str, Any]]:
    live = sorted(history.live_at(len(history.events) - 1), key=lambda block: block.made.address)
    for begin, end in _ranges(history.blocks):
        blocks, at = [], begin
        here = [block for block in live if begin <= block.made.address < end]
        for block in here:
            made = block.made
            blocks.append(_block(at, made.address - at, "inactive", []))
            blocks.append(_block(made.address, made.size, "active_allocated", _frames(block)))
            at = made.address + made.size
        blocks.append(_block(at, end - at, "inactive", []))
        used = sum(block.made.size for block in here)
        yield {
            "device": 0,
            "address": begin,
            "total_size": end - begin,
            **dict.fromkeys(("allocated_size", "active_size", "requested_size"), used),
            **_PLACE,
            "segment_type": "large",
            "is_expandable": False,
            "frames": [],
            "blocks": [block for block in blocks if block["size"]],
        }


def _block(address: int, size: int, state: str, frames: list[Any]) -> dict[str, Any]:
    where = {"address": address, "size": size, "requested_size": size}
    return {**where, "state": state, "frames": frames}


def _ranges(blocks: list[Block]) -> list[tuple[int, int]]:
    """Of all addresses that blocks have used."""
    ranges: list[tuple[int, int]] = []
    for begin, end in sorted({(b.made.address, b.made.address + b.made.size) for b in blocks}):
        if ranges and begin <= ranges[-1][1] + _GAP:
            begin, last = ranges.pop()
            end = max(end, last)
        ranges.append((begin, end))
    return ranges
