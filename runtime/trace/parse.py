"""Reads the text of a trace and refuses whatever is not just so, with line and reason.

A number that is misread, or a line that is lost, gives wrong results without a sign; so only what
`format` describes is taken. What is read may come from anywhere. Lines are streamed, so an endless
one is given up after `LINE_LIMIT_BYTES` and a bomb of them after `LOG_LIMIT_BYTES`; a number is
only ever a number, and nothing is allocated by it. About 4 us a line, most of it for JSON.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, BinaryIO, NoReturn, cast

from dtr_alloc.runtime.trace.format import (
    NUMBER_LIMIT,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Mutate,
    Release,
    Result,
    TraceError,
    shown,
)

LINE_LIMIT_BYTES = 16 << 20
"""The longest line: about a million arguments."""

LOG_LIMIT_BYTES = 1 << 30
"""The longest log, uncompressed: about 18 million lines."""

_DIGITS_LIMIT = 20  # An integer that is not a string: a position, or an extension's.


def read(path: str | os.PathLike[str]) -> tuple[Instruction, ...]:
    """The instructions of a log, uncompressed if its name ends in ``.gz``.

    Raises:
        TraceError: it is not in the format. Names are not checked here.
        OSError: the file cannot be opened or read.
    """
    path = os.fspath(path)
    with open(path, "rb") as file:
        stream = gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file
        return tuple(_Reader(path, cast(BinaryIO, stream)))


def _described(value: object) -> str:
    if isinstance(value, (list, dict)):  # Not its contents: they may be deep.
        return "a list" if isinstance(value, list) else "an object"
    return shown(json.dumps(value))


def _string(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is {_described(value)}, not a string")
    return value


def _whole(key: str, value: object) -> int:
    text = _string(key, value)
    if not re.fullmatch("0|-?[1-9][0-9]*", text):
        raise ValueError(f"{key} is {_described(text)}, not a whole number")
    if len(text) > _DIGITS_LIMIT or (number := int(text)) > NUMBER_LIMIT:
        raise ValueError(f"{key} is {shown(text)}, beyond 2^60")
    return number


def _amount(key: str, value: object) -> int:
    number = _whole(key, value)
    if number < 0:
        raise ValueError(f"{key} is negative: {number}")
    return number


def _list(key: str, value: object, kind: type, plural: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{key} is {_described(value)}, not a list")
    for item in value:
        if type(item) is not kind:  # A bool is an int, but no position.
            raise ValueError(f"{key} holds {_described(item)}, but must hold {plural}")
    return tuple(value)


_names = partial(_list, kind=str, plural="names")
_positions = partial(_list, kind=int, plural="positions, which are integers")

_FIELDS: dict[str, dict[str, Callable[[str, object], Any]]] = {
    "ALIAS": {"NAME": _string, "ALIAS": _whole},
    "ANNOTATE": {"ANNOTATION": _string},
    "CALL": {"NAME": _string, "ARGS": _names, "RESULT": _names, "TIME": _amount},
    "CONSTANT": {"NAME": _string},
    "COPY": {"DST": _string, "SRC": _string},
    "COPY_FROM": {"DST": _string, "SRC": _string},
    "MEMORY": {"NAME": _string, "MEMORY": _amount},
    "MUTATE": {"NAME": _string, "ARGS": _names, "MUTATE": _positions, "TIME": _amount},
    "RELEASE": {"NAME": _string},
}
_PLAIN: dict[str, Callable[..., Instruction]] = {  # Made of these fields, in this order.
    "ANNOTATE": Annotate,
    "COPY": Copy,
    "COPY_FROM": CopyFrom,
    "RELEASE": Release,
}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key is given twice")
    return record


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS_LIMIT:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return number


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_finite, parse_constant=_not_json
)


class _Reader:
    """Iterates over the instructions of a log. `line` is the number of lines read."""

    def __init__(self, path: str, stream: BinaryIO) -> None:
        self.path, self.stream = path, stream
        self.line = 0
        self.bytes_left = LOG_LIMIT_BYTES

    def __iter__(self) -> Iterator[Instruction]:
        while (text := self.text()) is not None:
            yield self.instruction(*self.fields(text))

    def fail(self, reason: str) -> NoReturn:
        raise TraceError(self.path, max(self.line, 1), reason) from None

    def text(self) -> bytes | None:
        """The next line, or None at the end."""
        try:
            text = self.stream.readline(min(LINE_LIMIT_BYTES, self.bytes_left) + 1)
        except EOFError:
            self.line += 1
            self.fail("the compressed file ends here, before its end mark")
        except (gzip.BadGzipFile, zlib.error) as error:
            self.line += 1
            self.fail(f"the compressed file is damaged: {error}")
        if not text:
            return None
        self.line += 1
        if len(text) > self.bytes_left:
            self.fail(f"the log is longer than {LOG_LIMIT_BYTES >> 30} GiB")
        if len(text) > LINE_LIMIT_BYTES:
            self.fail(f"the line is longer than {LINE_LIMIT_BYTES >> 20} MiB")
        self.bytes_left -= len(text)
        return text

    def decoded(self, text: bytes) -> dict[str, Any]:
        """The object that a line is."""
        try:
            record = _decoder.decode(text.decode())
        except UnicodeDecodeError:
            self.fail("the line is not text in UTF-8")
        except json.JSONDecodeError as error:
            self.fail(f"the line is not JSON: {error.msg} (column {error.colno})")
        except RecursionError:
            self.fail("the line is not JSON that can be read: it is nested too deeply")
        except ValueError as error:
            self.fail(f"the line is not JSON that can be read: {error}")
        if not isinstance(record, dict):
            self.fail(f"the line is {_described(record)}, not an object")
        return record

    def fields(self, text: bytes) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """The kind of a line, its fields, and its extensions."""
        record = self.decoded(text)
        kind = record.pop("INSTRUCTION", None)
        if not isinstance(kind, str) or kind not in _FIELDS:
            what = "missing" if kind is None else f"{_described(kind)}, which is not known"
            self.fail(f"INSTRUCTION is {what}")
        expected = _FIELDS[kind]
        extra = {}
        if record.keys() != expected.keys():
            extra = {key: record.pop(key) for key in list(record) if key.islower()}
            self.insist_keys(kind, record.keys(), expected.keys())
        try:
            for key, convert in expected.items():
                record[key] = convert(key, record[key])
        except ValueError as error:
            self.fail(f"{kind}: {error}")
        return kind, record, extra

    def insist_keys(self, kind: str, given: Collection[str], expected: Collection[str]) -> None:
        """Refuses a line that lacks a field, or has one too many."""
        for key in expected:
            if key not in given:
                self.fail(f"{kind} has no field {key}")
        for key in given:
            if key not in expected:
                self.fail(f"{kind} has a field {shown(key)}, which is not known")

    def instruction(self, kind: str, fields: dict[str, Any], extra: dict[str, Any]) -> Instruction:
        """The instruction that begins with this line; reads the lines that belong to it."""
        if kind in _PLAIN:
            return _PLAIN[kind](*(fields[key] for key in _FIELDS[kind]))
        if kind == "CONSTANT":
            return Constant(fields["NAME"], self.detail("MEMORY", fields["NAME"]))
        if kind == "CALL":
            return self.call(fields, extra)
        if kind == "MUTATE":
            return self.mutate(fields, extra)
        self.fail(f"{kind} of {shown(fields['NAME'])} follows nothing that it could belong to")

    def call(self, fields: dict[str, Any], extra: dict[str, Any]) -> Call:
        name, args, time = fields["NAME"], fields["ARGS"], fields["TIME"]
        if not fields["RESULT"]:
            self.fail(f"CALL {shown(name)} has no results")
        results = []
        for result in fields["RESULT"]:
            memory = self.detail("MEMORY", result)
            alias = self.detail("ALIAS", result)
            if not -1 <= alias < len(args):
                self.fail(
                    f"ALIAS of {shown(result)} is {alias}, "
                    f"but CALL {shown(name)} has {_counted(len(args))}"
                )
            results.append(Result(result, memory, alias))
        return Call(name, args, tuple(results), time, extra)

    def mutate(self, fields: dict[str, Any], extra: dict[str, Any]) -> Mutate:
        name, args, positions = fields["NAME"], fields["ARGS"], fields["MUTATE"]
        if not positions:
            self.fail(f"MUTATE {shown(name)} writes nothing")
        for position in positions:
            if not 0 <= position < len(args):
                self.fail(
                    f"MUTATE {shown(name)} writes argument {position}, "
                    f"but has {_counted(len(args))}"
                )
        return Mutate(name, args, positions, fields["TIME"], extra)

    def detail(self, kind: str, name: str) -> int:
        """The number on the next line, which must be of that kind and about that name."""
        text = self.text()
        if text is None:
            self.fail(f"the log ends where {kind} of {shown(name)} belongs")
        found, fields, _ = self.fields(text)
        if found != kind or fields["NAME"] != name:
            other = f"{found} of {shown(fields['NAME'])}" if "NAME" in fields else found
            self.fail(f"{other} stands where {kind} of {shown(name)} belongs")
        return cast(int, fields[kind])


def _counted(arguments: int) -> str:
    return f"{arguments} argument" + "s" * (arguments != 1)
