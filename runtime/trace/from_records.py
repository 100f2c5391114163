"""From the live runtime's raw records to the instructions of a trace.

The C++ recorder (live/trace/trace_recorder.h) appends integers while a program runs, because making
text there would be slow. A record is its kind, its length and its fields; a list within it is its
length and its items. This file reads them afterwards, at some microseconds an operator. Names
follow the program: at any budget the same program gives the same trace, but for times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dtr_alloc import _core
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.extras import LETTERS, RELEASED
from dtr_alloc.runtime.trace.format import (
    Annotate,
    Call,
    Constant,
    Instruction,
    Mutate,
    Release,
    Result,
)

_OPERATOR, _CONSTANT, _RELEASE, _FREEZE, _STEP, _OPTIMIZING = (
    _core.RECORD_KINDS[kind]
    for kind in ("Operator", "Constant", "Release", "Freeze", "Step", "Optimizing")
)


def trace_of(records: list[int], operators: list[str]) -> Trace:
    """The trace that a recorder's records are."""
    return Trace((Annotate("START"), *_instructions(records, operators)))


def calls(records: list[int], operators: list[str]) -> Iterator[tuple[Any, ...]]:
    """Of each operator its name and the bytes of each result, without making lines of them."""
    for kind, fields in _split(records):
        if kind == _OPERATOR:
            results = list(_lists(fields[2:]))[2]
            yield operators[fields[0]], *results[1::4]


def with_later_state(records: list[int]) -> list[int]:
    """A step's records as they would be in the next step: what the last step of an optimizer made,
    and kept beyond what it had, is there from the begin on. They end where that step began, behind
    its closure if it called one; none where it kept no more.
    """
    begun = ended = had = state = 0
    inside = False
    made: dict[int, int] = {}  # By optimizers, while it lives: pool bytes.
    at = 0
    for kind, fields in _split(records):
        if kind == _OPTIMIZING:
            begun, had, inside = at, sum(made.values()), True
        elif kind == _STEP:
            ended, state, inside = begun, sum(made.values()) - had, False
        elif kind == _RELEASE:
            made.pop(fields[0], None)
        elif kind == _OPERATOR:
            _, _, results, memory = _lists(fields[2:])
            if inside:
                rows = zip(results[::4], results[1::4], results[2::4], strict=True)
                made |= {name: -(-size // 512) * 512 for name, size, block in rows if block >= 0}
            for event, name in zip(memory[::2], memory[1::2], strict=True):
                if event == RELEASED:
                    made.pop(name, None)
        at += 2 + len(fields)
    return [_CONSTANT, 2, 1 << 40, state, *records[:ended]] if state > 0 else []


def _split(records: list[int]) -> Iterator[tuple[int, list[int]]]:
    at = 0
    while at < len(records):
        kind, length = records[at : at + 2]
        yield kind, records[at + 2 : at + 2 + length]
        at += 2 + length


def _instructions(records: list[int], operators: list[str]) -> Iterator[Instruction]:
    dummies = 0
    for kind, fields in _split(records):
        if kind == _CONSTANT:
            yield Constant(f"x{fields[0]}", fields[1])
        elif kind == _RELEASE:
            yield Release(f"x{fields[0]}")
        elif kind == _FREEZE:
            yield Annotate(f"FREEZE x{fields[0]}")
        elif kind == _STEP:
            yield Annotate("STEP")
        elif kind == _OPERATOR:
            args, written, results, memory = _lists(fields[2:])
            rows = np.array(results, np.int64).reshape(-1, 4).tolist()
            item = _operator(operators[fields[0]], fields[1], args, written, rows, memory)
            if not isinstance(item, Call) or item.results:
                yield item
                continue
            # The format has no operator without a result.
            dummies += 1
            nothing = Result(f"y{dummies}", 0, -1)
            extra = {**item.extra, "tracked": [0], "blocks": [-1]}
            yield Call(item.name, item.args, (nothing,), item.time, extra)
            yield Release(nothing.name)


def _lists(fields: list[int]) -> Iterator[list[int]]:
    at = 0
    while at < len(fields):
        yield fields[at + 1 : at + 1 + fields[at]]
        at += 1 + fields[at]


def _operator(
    name: str,
    cost: int,
    args: list[int],
    written: list[int],
    rows: list[list[int]],
    memory: list[int],
) -> Call | Mutate:
    names = tuple(f"x{arg}" for arg in args)
    events = [
        f"{LETTERS[event]}{value}" for event, value in zip(memory[::2], memory[1::2], strict=True)
    ]
    fresh = [row for row in rows if row[2] >= 0]
    # Few operators write and make at once; what those write is constant (intercept.cpp).
    if written and not fresh:
        targets: dict[int, tuple[int, int]] = {}  # The storage, its first position, tracked.
        for position, row in zip(written, rows, strict=True):
            targets.setdefault(row[0], (position, row[3]))
        positions = tuple(position for position, _ in targets.values())
        extra: dict[str, Any] = {"tracked": [tracked for _, tracked in targets.values()]}
        if events:
            extra |= {"memory": events, "blocks": [-1] * len(positions)}
        return Mutate(name, names, positions, cost, extra)
    results = tuple(Result(f"x{row[0]}", row[1], -1) for row in fresh)
    extra = {"tracked": [row[3] for row in fresh]}
    if [row[2] for row in fresh] != list(range(len(fresh))) or len(events) > len(fresh):
        extra |= {"memory": events, "blocks": [row[2] for row in fresh]}
    return Call(name, names, results, cost, extra)
