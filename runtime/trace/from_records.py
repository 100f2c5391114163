"""From the live runtime's raw records to the instructions of a trace.

The C++ recorder (live/trace/trace_recorder.h) appends integers while a program runs, because making
text there would be slow. A record is its kind, its length and its fields; a list within it is its
length and its items. This file reads them afterwards, at some microseconds an operator. Names
follow the program: at any budget the same program gives the same trace, but for times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

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

_PLAIN: dict[int, Callable[[list[int]], Instruction]] = {
    _CONSTANT: lambda fields: Constant(f"x{fields[0]}", fields[1]),
    _RELEASE: lambda fields: Release(f"x{fields[0]}"),
    _FREEZE: lambda fields: Annotate(f"FREEZE x{fields[0]}"),
    _STEP: lambda _: Annotate("STEP"),
}


class _Made(NamedTuple):
    """A result of an operator, or a tensor that it writes. `block` is below 0 for what has none of
    its own."""

    name: int
    size: int
    block: int
    tracked: int


def trace_of(records: list[int], operators: list[str]) -> Trace:
    """The trace that a recorder's records are."""
    return Trace((Annotate("START"), *_instructions(records, operators)))


def calls(records: list[int], operators: list[str]) -> Iterator[tuple[Any, ...]]:
    """Of each operator its name and the bytes of each result, without making lines of them."""
    for kind, fields in _split(records):
        if kind == _OPERATOR:
            _, _, results, _ = _lists(fields[2:])
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
        elif kind == _OPERATOR and inside:
            made |= _allocated(fields)
        for name in _let_go(kind, fields):
            made.pop(name, None)
        at += 2 + len(fields)
    return [_CONSTANT, 2, 1 << 40, state, *records[:ended]] if state > 0 else []


def _allocated(fields: list[int]) -> dict[int, int]:
    """Of an operator's results that have a block: their bytes in the pool."""
    _, _, results, _ = _lists(fields[2:])
    return {one.name: -(-one.size // 512) * 512 for one in _made(results) if one.block >= 0}


def _let_go(kind: int, fields: list[int]) -> list[int]:
    """The names that a record says the program let go."""
    if kind == _RELEASE:
        return [fields[0]]
    if kind != _OPERATOR:
        return []
    _, _, _, memory = _lists(fields[2:])
    return [name for event, name in _pairs(memory) if event == RELEASED]


def _split(records: list[int]) -> Iterator[tuple[int, list[int]]]:
    at = 0
    while at < len(records):
        kind, length = records[at : at + 2]
        yield kind, records[at + 2 : at + 2 + length]
        at += 2 + length


def _lists(fields: list[int]) -> Iterator[list[int]]:
    at = 0
    while at < len(fields):
        yield fields[at + 1 : at + 1 + fields[at]]
        at += 1 + fields[at]


def _made(results: list[int]) -> list[_Made]:
    return [_Made(*results[at : at + 4]) for at in range(0, len(results), 4)]


def _pairs(memory: list[int]) -> Iterator[tuple[int, int]]:
    return zip(memory[::2], memory[1::2], strict=True)


def _instructions(records: list[int], operators: list[str]) -> Iterator[Instruction]:
    dummies = count(1)
    for kind, fields in _split(records):
        if kind in _PLAIN:
            yield _PLAIN[kind](fields)
        elif kind == _OPERATOR:
            item = _operator(operators[fields[0]], fields[1], *_lists(fields[2:]))
            if isinstance(item, Mutate) or item.results:
                yield item
                continue
            # The format has no operator without a result.
            nothing = Result(f"y{next(dummies)}", 0, -1)
            extra = {**item.extra, "tracked": [0], "blocks": [-1]}
            yield replace(item, results=(nothing,), extra=extra)
            yield Release(nothing.name)


def _operator(
    name: str,
    cost: int,
    args: list[int],
    written: list[int],
    results: list[int],
    memory: list[int],
) -> Call | Mutate:
    names = tuple(f"x{arg}" for arg in args)
    events = [f"{LETTERS[event]}{value}" for event, value in _pairs(memory)]
    made = _made(results)
    fresh = [one for one in made if one.block >= 0]
    # Few operators write and make at once; what those write is constant (intercept.cpp).
    if written and not fresh:
        return _mutate(name, names, dict(zip(written, made, strict=True)), cost, events)
    return _call(name, names, fresh, cost, events)


def _call(
    name: str, args: tuple[str, ...], fresh: list[_Made], cost: int, events: list[str]
) -> Call:
    blocks = [one.block for one in fresh]
    extra: dict[str, Any] = {"tracked": [one.tracked for one in fresh]}
    if blocks != list(range(len(fresh))) or len(events) > len(fresh):
        extra |= {"memory": events, "blocks": blocks}
    results = tuple(Result(f"x{one.name}", one.size, -1) for one in fresh)
    return Call(name, args, results, cost, extra)


def _mutate(
    name: str, args: tuple[str, ...], written: dict[int, _Made], cost: int, events: list[str]
) -> Mutate:
    """`written`: by the positions of arguments, of which several may be one tensor."""
    first: dict[int, int] = {}
    for position, one in written.items():
        first.setdefault(one.name, position)
    positions = tuple(first.values())
    extra: dict[str, Any] = {"tracked": [written[position].tracked for position in positions]}
    if events:
        extra |= {"memory": events, "blocks": [-1] * len(positions)}
    return Mutate(name, args, positions, cost, extra)
