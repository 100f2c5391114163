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

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core

ALLOCATED, FREED, RELEASED, COPIED = (
    _core.MEMORY_EVENTS[event] for event in ("Allocated", "Freed", "Released", "Copied")
)
LETTERS = {ALLOCATED: "a", FREED: "f", RELEASED: "x", COPIED: "c"}
_LIMIT = 1 << 60


class TraceExtras:
    """Built operator by operator; `refuse` raises with a reason, `tensor_of` gives the tensor that
    a name is bound to."""

    def __init__(self, refuse: Callable[[str], Any], tensor_of: Callable[[str, str], int]) -> None:
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
        count = len(sizes)
        tracked = self._integers(reader, extra, "tracked", count, (0, 1))
        in_place = written is not None and tracked is not None
        self.tensor_tracked += tracked or [-1] * count
        self.tensor_in_place += list(written or ()) if in_place else [-1] * count
        allocated = self._events(reader, extra.get("memory", []))
        blocks = self._integers(reader, extra, "blocks", count, (-1, len(allocated) - 1))
        if blocks is None:
            blocks = [-1] * count
            if allocated:
                self.refuse(f'{reader} has "memory" but no "blocks"')
        for size, block in zip(sizes, blocks, strict=True):
            if block < 0:
                if size > 0 and allocated and not in_place:
                    self.refuse(f'{reader}: "blocks" does not say which one a result is')
                continue
            if allocated[block] != size:
                self.refuse(f"{reader}: block {block} is not one of {size} bytes that is left")
            allocated[block] = -1
        if any(size >= 0 for size in allocated):
            self.refuse(f"{reader}: a block is neither freed nor a result")
        self.tensor_block += blocks
        self.op_events_begin.append(len(self.event_kind))

    def _events(self, reader: str, memory: object) -> list[int]:
        """Adds them, and returns the bytes of each block, -1 for those that were freed."""
        allocated: list[int] = []
        if not isinstance(memory, list):
            self.refuse(f'{reader}: "memory" is not a list')
            return allocated
        for event in memory:
            text = event if isinstance(event, str) and event else "?"
            kind, rest = text[0], text[1:]
            number = int(rest) if rest.isascii() and rest.isdecimal() and len(rest) < 20 else -1
            if kind == "a" and 0 < number <= _LIMIT:
                allocated.append(number)
                self._event(ALLOCATED, number)
            elif kind == "f" and 0 <= number < len(allocated) and allocated[number] >= 0:
                allocated[number] = -1
                self._event(FREED, number)
            elif kind == "c" and 0 < number <= _LIMIT:
                self._event(COPIED, number)
            elif kind == "x":
                self._event(RELEASED, self.tensor_of(text, reader))
            else:
                self.refuse(f'{reader}: {event!r:.60} in "memory" is not understood')
        return allocated

    def _event(self, kind: int, value: int) -> None:
        self.event_kind.append(kind)
        self.event_value.append(value)

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
