"""The blocks of a scope's memory over time, from the events that the runtime kept.

All pictures of a run are made of this replay (snapshot.py, plot.py, held.py, chrome_trace.py): each
block from the event that made it to the one that freed it, and its class meanwhile. The runtime
tells of blocks in the order in which they count, so the bytes add up to ``live_bytes`` after every
event, and to ``peak_bytes`` at the highest. A class is what is known of a block, no guess
(docs/pictures.md#classes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core
from dtr_alloc.runtime.scope import sites

CLASSES = ("constant", "state", "gradients", "evictable")
_BY_PHASE = {"forward": "constant", "optimizer": "state", "backward": "gradients"}


class Event(NamedTuple):
    """One of runtime/csrc/live/trace/event_log.h. Times are ns since 1970, sizes bytes."""

    what: str
    at: int
    duration: int
    operator: str
    site: int
    phase: str
    again: bool
    address: int
    size: int


@dataclass
class Block:
    """A block, the numbers of the events that made and freed it (of one that lives: how many there
    are), and its classes, each with the event from which on it is of that class."""

    made: Event
    begin: int
    end: int
    classes: list[tuple[int, str]]
    evicted: bool = False

    @property
    def site(self) -> sites.Site:
        """Where the operator ran that made it first."""
        return sites.site(self.made.site)

    def class_at(self, event: int) -> str:
        """Its class after an event."""
        return [name for begin, name in self.classes if begin <= event][-1]


class History:
    """The events of a scope and its blocks. Raises ValueError where the scope kept none."""

    def __init__(self, core: _core.Session) -> None:
        kept = core.events()
        if kept is None:
            raise ValueError(
                "no events were kept: open a scope by rematerialize(events=True), "
                "measure(events=True) or allocator(events=True)"
            )
        rows, self.dropped = kept
        self.gap = f"{self.dropped:,} older events were dropped" if self.dropped else ""
        self.events = [Event(*row) for row in rows]
        self.blocks: list[Block] = []
        live: dict[int, Block] = {}
        for i, event in enumerate(self.events):
            if event.what == "allocated":
                first = (i, _BY_PHASE[event.phase])
                live[event.address] = Block(event, i, len(self.events), [first])
                self.blocks.append(live[event.address])
            elif event.what == "freed":
                live.pop(event.address).end = i
            elif block := live.get(event.address):
                _change(block, i, event.what)

    def levels(self) -> npt.NDArray[np.int64]:
        """Bytes of each of the `CLASSES` after each event, shape (events, 4)."""
        changes = np.zeros((len(self.events) + 1, len(CLASSES)), np.int64)
        for block in self.blocks:
            ends = [begin for begin, _ in block.classes[1:]] + [block.end]
            for (begin, name), end in zip(block.classes, ends, strict=True):
                changes[begin, CLASSES.index(name)] += block.made.size
                changes[end, CLASSES.index(name)] -= block.made.size
        return np.cumsum(changes[:-1], axis=0)

    def live_at(self, event: int) -> list[Block]:
        """The blocks in use after an event."""
        return [block for block in self.blocks if block.begin <= event < block.end]


def _change(block: Block, event: int, what: str) -> None:
    if what == "evicted":
        block.evicted = True
        return
    by_phase = _BY_PHASE[block.made.phase]
    name = "evictable" if what == "evictable" else by_phase
    if what == "evictable" and block.classes == [(block.begin, by_phase)]:
        block.classes = [(block.begin, name)]  # A result gets its recipe when the operator is over.
    elif block.classes[-1][1] != name:
        block.classes.append((event, name))


def number_kept(events: bool | int) -> int:
    """What `rematerialize` calls ``events``, as a number; raises ValueError."""
    if isinstance(events, bool):
        return events << 18
    if not isinstance(events, int) or not 0 < events <= 1 << 30:
        raise ValueError(f"events is {events!r}; give True, or how many to keep, up to 2**30")
    return events
