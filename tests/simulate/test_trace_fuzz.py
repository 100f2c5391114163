"""Whatever the bytes, a log is a trace or a TraceError: damaged logs, damaged JSON, noise."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dtr_alloc.runtime.trace import Trace, TraceError
from dtr_alloc.runtime.trace.schedule import COMPUTE, GET, PIN, Schedule
from tests.support.trace_lines import (
    annotate,
    call,
    constant,
    copy,
    copy_from,
    mutate,
    release,
    text_of,
)

LINES = [
    line
    for part in [
        constant("old"),
        annotate("START"),
        constant("a", 4096),
        constant("b", 64),
        call("a b b", "c d", time=700, memory=512),
        call("c", "v", alias=0),
        copy("e", "c"),
        mutate("v a", 0, time=90),
        annotate("BACKWARD"),
        copy_from("e", "d"),
        release("c", "b", "nothing"),
        call("e v", "f", memory=0),
        release("d", "f"),
    ]
    for line in part
]
TEXT = text_of(LINES).encode()
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "v", "x"])
NUMBERS = st.one_of(
    st.integers(-2, 5).map(str),
    st.sampled_from([str(1 << 59), str(1 << 60), str(1 << 62), str(1 << 80), "-1", "1e9", ""]),
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    NAMES,
    NUMBERS,
    st.lists(NAMES, max_size=3),
    st.lists(st.integers(-2, 3), max_size=3),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
)
KEYS = st.sampled_from(
    ["INSTRUCTION", "NAME", "ARGS", "RESULT", "MUTATE", "TIME", "MEMORY", "ALIAS", "SRC", "DST"]
) | st.text(max_size=3)
KINDS = st.sampled_from(
    ["CALL", "MUTATE", "CONSTANT", "MEMORY", "ALIAS", "COPY", "COPY_FROM", "RELEASE", "ANNOTATE"]
)

fuzzed = settings(max_examples=200, deadline=None)


def check(schedule: Schedule) -> None:
    """All that a simulator relies on without looking."""
    tensors, operators = len(schedule.tensor_op), len(schedule.op_cost)
    args, results = schedule.op_args_begin.tolist(), schedule.op_results_begin.tolist()
    assert len(schedule.op_name) == len(schedule.op_constant) == operators
    assert len(args) == len(results) == operators + 1
    assert args[0] == results[0] == 0
    assert args[-1] == len(schedule.op_args)
    assert results[-1] == tensors
    storage: list[int] = []
    for operator in range(operators):
        inputs = schedule.op_args[args[operator] : args[operator + 1]].tolist()
        assert all(0 <= tensor < results[operator] for tensor in inputs)
        assert results[operator] < results[operator + 1]
        for tensor in range(results[operator], results[operator + 1]):
            alias = int(schedule.tensor_alias[tensor])
            assert schedule.tensor_op[tensor] == operator
            assert alias == -1 or (alias in inputs and schedule.tensor_size[tensor] == 0)
            storage.append(tensor if alias == -1 else storage[alias])
    assert (schedule.tensor_size >= 0).all()
    assert (schedule.op_cost >= 0).all()
    assert sum(schedule.tensor_size.tolist()) <= 1 << 60
    assert sum(schedule.op_cost.tolist()) <= 1 << 60
    held = [0] * tensors
    computed = 0
    for kind, operand in zip(schedule.kind.tolist(), schedule.operand.tolist(), strict=True):
        if kind == COMPUTE:
            assert operand == computed  # Each operator once, in order.
            computed += 1
            for tensor in range(results[operand], results[operand + 1]):
                held[storage[tensor]] += 1
        else:
            assert operand < results[computed]
            if kind != PIN:  # There must be a reference to take another one from.
                assert held[storage[operand]] > 0
                held[storage[operand]] += 1 if kind == GET else -1
    assert computed == operators


def load(content: bytes, name: str = "step.log") -> None:
    """Loads the bytes. If they are a trace, it is sound, and saves as what loads as itself."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / name
        log.write_bytes(content)
        try:
            trace = Trace.load(log)
        except TraceError as error:
            assert error.path == str(log)
            assert 1 <= error.line <= content.count(b"\n") + 1 or name.endswith(".gz")
            assert str(error).isascii()
            assert "\n" not in str(error)
            assert len(error.reason) < 400
            return
        check(trace.schedule())
        trace.save(log)
        assert Trace.load(log) == trace


def test_the_log_that_is_damaged_below_is_a_trace() -> None:
    load(TEXT)
    load(gzip.compress(TEXT), "step.log.gz")


@fuzzed
@given(st.integers(0, len(TEXT)), st.integers(0, 12), st.binary(max_size=6))
def test_a_log_with_some_bytes_replaced_is_a_trace_or_refused(
    position: int, removed: int, inserted: bytes
) -> None:
    damaged = TEXT[:position] + inserted + TEXT[position + removed :]
    load(damaged)
    load(gzip.compress(damaged), "step.log.gz")


@fuzzed
@given(st.data())
def test_a_compressed_log_with_some_bytes_replaced_is_a_trace_or_refused(
    data: st.DataObject,
) -> None:
    packed = gzip.compress(TEXT, mtime=0)
    position = data.draw(st.integers(0, len(packed)))
    removed = data.draw(st.integers(0, 4))
    load(
        packed[:position] + data.draw(st.binary(max_size=4)) + packed[position + removed :], "z.gz"
    )


def damage(data: st.DataObject, lines: list[Any]) -> None:
    """Puts one thing wrong: a value, a key, a kind, a name, or the place of a line."""
    places = st.integers(0, len(lines) - 1)
    kind, at = data.draw(st.integers(0, 6)), data.draw(places)
    line = lines[at]
    if kind == 0:
        line[data.draw(KEYS | st.sampled_from(sorted(line)))] = data.draw(VALUES)
    elif kind == 1:
        del line[data.draw(st.sampled_from(sorted(line)))]
    elif kind == 2:
        line["INSTRUCTION"] = data.draw(KINDS)
    elif kind == 3:
        line["SRC" if "SRC" in line else "NAME"] = data.draw(NAMES)
    elif kind == 4:
        del lines[at]
    elif kind == 5:
        lines.insert(data.draw(places), lines.pop(at))
    else:
        lines.insert(data.draw(places), dict(line))


@fuzzed
@given(st.data())
def test_a_log_with_some_lines_changed_is_a_trace_or_refused(data: st.DataObject) -> None:
    lines = json.loads(json.dumps(LINES))
    for _ in range(data.draw(st.integers(1, 4))):
        lines = [line for line in lines if line]
        if lines:
            damage(data, lines)
    load("".join(json.dumps(line) + "\n" for line in lines).encode())


@fuzzed
@given(
    st.lists(
        st.one_of(
            st.builds(lambda n, m: constant(n, m), NAMES, st.integers(0, 1 << 58)),
            st.builds(
                lambda a, r, m, alias: call(" ".join(a), r, memory=m, alias=alias),
                st.lists(NAMES, max_size=3),
                NAMES,
                st.integers(0, 1 << 58),
                st.sampled_from([-1, 0]),
            ),
            st.builds(lambda n: mutate(n, 0), NAMES),
            st.builds(copy, NAMES, NAMES),
            st.builds(copy_from, NAMES, NAMES),
            st.builds(release, NAMES),
        ),
        max_size=12,
    )
)
def test_any_well_formed_lines_are_a_trace_or_refused(parts: list[list[dict[str, Any]]]) -> None:
    start = [*constant("a"), *constant("b"), *call("a", "c"), *call("c", "v", alias=0)]
    load(text_of([*start, *(line for part in parts for line in part)]).encode())
