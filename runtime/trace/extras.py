"""What a trace of the live runtime says beyond the paper's format, as columns.

The paper's logs say what was computed; a live run's evictions also depend on when an operator
allocates and frees, what it writes in place, and what the runtime would not recompute. A recorded
trace has that in lower-case fields, which other readers pass over; a line without them is taken for
an operator that allocates its results in order and nothing else::

    "memory": what happened inside the operator, in order: "a4096", so many bytes were allocated;
              "f0", the block allocated first was freed; "x7", the program let the tensor x7 go;
              "c64", so many bytes that it writes are copied each time before it runs again
    "blocks": for each result that is no view, which of those blocks it is
    "tracked": for each result 1 if it could be recomputed, 0 if not. A MUTATE line that has it was
               done in place; without, it is copy on write

and in annotations: ``FREEZE x7`` (from here on x7 cannot be recomputed) and ``STEP`` (a step of an
optimizer has ended). About 1 us an operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core

ALLOCATED, FREED, RELEASED, COPIED = (
    _core.MEMORY_EVENTS[event] for event in ("Allocated", "Freed", "Released", "Copied")
)
LETTERS = {ALLOCATED: "a", FREED: "f", RELEASED: "x", COPIED: "c"}
_KINDS = {letter: kind for kind, letter in LETTERS.items()}
_EVENT = re.compile(r"([acf])([0-9]{1,19})")
_LIMIT = 1 << 60


class TraceExtras:
    """Built operator by operator; `refuse` raises with a reason, `tensor_of` gives the tensor that
    a name is bound to."""

    def __init__(
        self, refuse: Callable[[str], NoReturn], tensor_of: Callable[[str, str], int]
    ) -> None:
        self.refuse = refuse
        self.tensor_of = tensor_of
        self.tensor_tracked: list[int] = []
        self.tensor_in_place: list[int] = []
        self.tensor_block: list[int] = []
        self.op_events_begin = [0]
        self.event_kind: list[int] = []
        self.event_value: list[int] = []

    def plain(self, results: int) -> None:
        """An operator of which no more is known."""
        for column in (self.tensor_tracked, self.tensor_in_place, self.tensor_block):
            column += [-1] * results
        self.op_events_begin.append(len(self.event_kind))

    def operator(
        self,
        reader: str,
        extra: dict[str, Any],
        sizes: Sequence[int],
        written: Sequence[int] | None,
    ) -> None:
        """`sizes` of its results, -1 for a view; `written`: the tensors that a MUTATE line writes,
        or None for a CALL."""
        if not extra:
            self.plain(len(sizes))
            return
        count = len(sizes)
        tracked = self._integers(reader, extra, "tracked", count, (0, 1))
        in_place = None if tracked is None else written
        self.tensor_tracked += tracked or [-1] * count
        self.tensor_in_place += in_place or [-1] * count
        allocated = self._events(reader, extra.get("memory", []))
        blocks = self._integers(reader, extra, "blocks", count, (-1, len(allocated) - 1))
        if blocks is None:
            if allocated:
                self.refuse(f'{reader} has "memory" but no "blocks"')
            blocks = [-1] * count
        # Each block that is not freed must be a result, and each result of bytes a block.
        for size, block in zip(sizes, blocks, strict=True):
            if block >= 0:
                if allocated[block] != size:
                    self.refuse(f"{reader}: block {block} is not one of {size} bytes that is left")
                allocated[block] = -1
            elif size > 0 and allocated and in_place is None:
                self.refuse(f'{reader}: "blocks" does not say which one a result is')
        if max(allocated, default=-1) >= 0:
            self.refuse(f"{reader}: a block is neither freed nor a result")
        self.tensor_block += blocks
        self.op_events_begin.append(len(self.event_kind))

    def _events(self, reader: str, memory: object) -> list[int]:
        """Adds them, and returns the bytes of each block, -1 for those that were freed."""
        if not isinstance(memory, list):
            self.refuse(f'{reader}: "memory" is not a list')
        allocated: list[int] = []
        for event in memory:
            kind, value = self._event(reader, event, allocated)
            if kind == ALLOCATED:
                allocated.append(value)
            elif kind == FREED:
                allocated[value] = -1
            self.event_kind.append(kind)
            self.event_value.append(value)
        return allocated

    def _event(self, reader: str, event: object, allocated: Sequence[int]) -> tuple[int, int]:
        """Its kind and its value, behind those that made `allocated`."""
        text = event if isinstance(event, str) else ""
        if text.startswith("x"):
            return RELEASED, self.tensor_of(text, reader)
        found = _EVENT.fullmatch(text)
        kind, value = (_KINDS[found[1]], int(found[2])) if found else (-1, -1)
        if kind == FREED:
            understood = value < len(allocated) and allocated[value] >= 0
        else:
            understood = 0 < value <= _LIMIT
        if not understood:
            self.refuse(f'{reader}: {event!r:.60} in "memory" is not understood')
        return kind, value

    def _integers(
        self, reader: str, extra: dict[str, Any], key: str, count: int, bounds: tuple[int, int]
    ) -> list[int] | None:
        values = extra.get(key)
        if values is None:
            return None
        low, high = bounds
        if (
            not isinstance(values, list)
            or len(values) != count
            or not all(type(value) is int and low <= value <= high for value in values)
        ):
            self.refuse(f'{reader}: "{key}" is not {count} integers from {low} to {high}')
        return list(values)

    def arrays(self) -> dict[str, npt.NDArray[np.int64]]:
        """The columns, by the names that `Schedule` has for them."""
        columns = {name: given for name, given in vars(self).items() if isinstance(given, list)}
        return {name: np.array(column, np.int64) for name, column in columns.items()}
