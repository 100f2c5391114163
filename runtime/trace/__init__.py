"""A trace: what a program computed, in order, and which tensors it held on to.

Recorded once, it can be replayed at any budget and under any policy, in milliseconds and without
the program. `format` says what a log looks like, `parse` reads it, `schedule` says what it means. A
trace is checked when it is made, so one that exists can be replayed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtr_alloc.runtime.trace.format import Instruction, TraceError, write
from dtr_alloc.runtime.trace.parse import read
from dtr_alloc.runtime.trace.schedule import Schedule, resolve

__all__ = ["Trace", "TraceError"]


@dataclass(frozen=True)
class Trace:
    """Instructions that were checked.

    Raises:
        TypeError: they are no instructions.
        TraceError: they cannot be replayed. Lines are those that `save` would write.

    Example:
        >>> from dtr_alloc.runtime.trace.format import Constant, Release
        >>> Trace((Constant("x1", 4096), Release("x1"))).schedule().tensor_size
        array([4096])
    """

    instructions: tuple[Instruction, ...] = field(repr=False)
    path: str = field(default="", compare=False)
    _schedule: Schedule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.instructions, str) or not isinstance(self.instructions, Sequence):
            raise TypeError(
                f"a trace is made of a tuple of instructions, not of {self.instructions!r}: "
                "Trace.load(path) reads a log"
            )
        object.__setattr__(self, "_schedule", resolve(self.instructions, self.path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a log, compressed if its name ends in ``.gz``.

        Raises:
            TraceError: the log is not in the format, or cannot be replayed.
            OSError: the file cannot be opened or read.
        """
        return cls(read(path), os.fspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the log, compressed if the name ends in ``.gz``. The same trace gives the same
        bytes.
        """
        write(path, self.instructions)

    def schedule(self) -> Schedule:
        """The trace with its names resolved: what a simulator executes."""
        return self._schedule
