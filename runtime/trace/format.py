"""The instructions of a trace, and their text: one JSON object a line.

A trace is the log that the paper's simulator replays, so that published logs can be read, and ours
by others. Keys are upper case and in alphabetical order; every scalar is a string, numbers too;
only ARGS and RESULT (names) and MUTATE (positions in ARGS, integers) are lists::

    {"INSTRUCTION":"CONSTANT","NAME":"x1"}
    {"INSTRUCTION":"MEMORY","MEMORY":"4096","NAME":"x1"}
    {"ARGS":["x1"],"INSTRUCTION":"CALL","NAME":"aten::relu","RESULT":["x2"],"TIME":"850"}
    {"INSTRUCTION":"MEMORY","MEMORY":"4096","NAME":"x2"}
    {"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"x2"}

Lower-case keys are extensions: on any line they are passed over, on CALL and MUTATE lines they are
kept as `extra`. Bytes are in MEMORY, nanoseconds in TIME.

Source: Kirisame et al., ICLR 2021, section 5 and appendix C (the logs of its simulator).
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

NUMBER_LIMIT = 1 << 60
"""The largest number, and the largest sum of bytes or times. In 64 bits it leaves room for what a
simulation adds to them. As bytes it is an exbibyte, as nanoseconds 36 years."""

_SHOWN_CHARACTERS = 60


class TraceError(ValueError):
    """A log that cannot be replayed. The text says where and why.

    Attributes:
        path: the file, or "" if the trace did not come from one.
        line: the line of the log, counted from 1.
        reason: what is wrong there.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path, self.line, self.reason = path, line, reason

    def __str__(self) -> str:
        return f"{self.path} line {self.line}: {self.reason}".lstrip()


@dataclass(frozen=True, slots=True)
class Annotate:
    """A mark. What precedes the first ``START`` is not replayed; no other has a meaning here."""

    text: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor from outside, of `memory` bytes."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that a call makes: of `memory` bytes of its own, or with the storage of the call's
    argument at position `alias`, if that is not -1.
    """

    name: str
    memory: int
    alias: int


@dataclass(frozen=True, slots=True)
class Call:
    """An operator that makes new tensors in `time` ns. `args` are names, and may repeat."""

    name: str
    args: tuple[str, ...]
    results: tuple[Result, ...]
    time: int
    extra: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Mutate:
    """An operator that writes its arguments at `positions` in place."""

    name: str
    args: tuple[str, ...]
    positions: tuple[int, ...]
    time: int
    extra: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Copy:
    """A new name for a tensor: one more reference from the program, no bytes."""

    destination: str
    source: str


@dataclass(frozen=True, slots=True)
class CopyFrom:
    """A name that is bound leaves its tensor for another one."""

    destination: str
    source: str


@dataclass(frozen=True, slots=True)
class Release:
    """A reference from the program goes away."""

    name: str


Instruction: TypeAlias = Annotate | Constant | Call | Mutate | Copy | CopyFrom | Release


def line_count(instruction: Instruction) -> int:
    """How many lines of a log the instruction takes."""
    if isinstance(instruction, Call):
        return 1 + 2 * len(instruction.results)
    return 2 if isinstance(instruction, Constant) else 1


def shown(name: str) -> str:
    """A name as messages show it: short, and printable everywhere."""
    text = name if name.isascii() and name.isprintable() and name else ascii(name)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def write(path: str | os.PathLike[str], instructions: Iterable[Instruction]) -> None:
    """Writes a log, compressed if its name ends in ``.gz``; the same bytes each time."""
    path = os.fspath(path)
    text = map(_encoded, chain.from_iterable(map(_lines, instructions)))
    with open(path, "wb") as file:
        if path.endswith(".gz"):
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                packed.writelines(text)
        else:
            file.writelines(text)


def _encoded(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def _lines(item: Instruction) -> Iterator[dict[str, Any]]:
    match item:
        case Annotate(text):
            yield {"INSTRUCTION": "ANNOTATE", "ANNOTATION": text}
        case Constant(name, memory):
            yield {"INSTRUCTION": "CONSTANT", "NAME": name}
            yield {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(memory)}
        case Call():
            yield {
                "INSTRUCTION": "CALL",
                "NAME": item.name,
                "ARGS": item.args,
                "RESULT": [result.name for result in item.results],
                "TIME": str(item.time),
                **item.extra,
            }
            for made in item.results:
                yield {"INSTRUCTION": "MEMORY", "NAME": made.name, "MEMORY": str(made.memory)}
                yield {"INSTRUCTION": "ALIAS", "NAME": made.name, "ALIAS": str(made.alias)}
        case Mutate():
            yield {
                "INSTRUCTION": "MUTATE",
                "NAME": item.name,
                "ARGS": item.args,
                "MUTATE": item.positions,
                "TIME": str(item.time),
                **item.extra,
            }
        case Copy(destination, source):
            yield {"INSTRUCTION": "COPY", "DST": destination, "SRC": source}
        case CopyFrom(destination, source):
            yield {"INSTRUCTION": "COPY_FROM", "DST": destination, "SRC": source}
        case Release(name):
            yield {"INSTRUCTION": "RELEASE", "NAME": name}
