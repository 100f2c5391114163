"""A log that is not just so is refused: which line, and why."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dtr_alloc.runtime.trace import Trace, TraceError
from dtr_alloc.runtime.trace import parse as trace_parse
from tests.support.trace_lines import (
    Line,
    alias_of,
    annotate,
    call,
    constant,
    load,
    mutate,
    refused,
    release,
    text_of,
)

A = constant("a")
CALL = call("a", "b")
LONG = "9" * 300


def changed(line: Line, **fields: Any) -> Line:
    """The line with fields replaced; None takes a field out."""
    return {key: value for key, value in {**line, **fields}.items() if value is not None}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (A[:1], "1: the log ends where MEMORY of a belongs"),
        (A + CALL[:1], "3: the log ends where MEMORY of b belongs"),
        (A + CALL[:2], "4: the log ends where ALIAS of b belongs"),
        (A[:1] + A, "2: CONSTANT of a stands where MEMORY of a belongs"),
        (A[:1] + annotate("START"), "2: ANNOTATE stands where MEMORY of a belongs"),
        (A[:1] + constant("b")[1:], "2: MEMORY of b stands where MEMORY of a belongs"),
        ([*A, CALL[0], CALL[2]], "4: ALIAS of b stands where MEMORY of b belongs"),
        (A + A[1:], "3: MEMORY of a follows nothing that it could belong to"),
        ([alias_of("a")], "1: ALIAS of a follows nothing that it could belong to"),
        ([changed(A[0], INSTRUCTION=None)], "1: INSTRUCTION is missing"),
        ([changed(A[0], INSTRUCTION="FREE")], '1: INSTRUCTION is "FREE", which is not known'),
        ([changed(A[0], INSTRUCTION=7)], "1: INSTRUCTION is 7, which is not known"),
        ([changed(A[0], INSTRUCTION=["CALL"])], "1: INSTRUCTION is a list, which is not known"),
        ([changed(A[0], NAME=None)], "1: CONSTANT has no field NAME"),
        ([changed(A[0], TIME="1")], "1: CONSTANT has a field TIME, which is not known"),
        ([changed(A[0], Bytes="1")], "1: CONSTANT has a field Bytes, which is not known"),
        ([changed(A[0], **{"": "1"})], "1: CONSTANT has a field '', which is not known"),
        ([changed(A[0], NAME=5)], "1: CONSTANT: NAME is 5, not a string"),
        ([changed(A[0], NAME=True)], "1: CONSTANT: NAME is true, not a string"),
        ([changed(A[0], NAME={})], "1: CONSTANT: NAME is an object, not a string"),
        ([A[0], changed(A[1], MEMORY=8)], "2: MEMORY: MEMORY is 8, not a string"),
        ([A[0], changed(A[1], MEMORY="-8")], "2: MEMORY: MEMORY is negative: -8"),
        (
            [A[0], changed(A[1], MEMORY=str((1 << 60) + 1))],
            "2: MEMORY: MEMORY is 1152921504606846977, beyond 2^60",
        ),
        ([A[0], changed(A[1], MEMORY=LONG)], f"2: MEMORY: MEMORY is {LONG[:60]}..., beyond 2^60"),
        *(
            (
                [A[0], changed(A[1], MEMORY=text)],
                f"2: MEMORY: MEMORY is {json.dumps(text)}, not a whole number",
            )
            for text in (
                "",
                "x",
                "1.5",
                "1e3",
                "0x10",
                "007",
                "+7",
                " 7",
                "7\n",
                "1_0",
                "-0",
                "\u0663",
            )
        ),
        ([changed(CALL[0], TIME="-1")], "1: CALL: TIME is negative: -1"),
        ([changed(CALL[0], ARGS="a")], '1: CALL: ARGS is "a", not a list'),
        ([changed(CALL[0], ARGS=[1])], "1: CALL: ARGS holds 1, but must hold names"),
        ([changed(CALL[0], RESULT=[None])], "1: CALL: RESULT holds null, but must hold names"),
        ([changed(CALL[0], RESULT=[])], "1: CALL op has no results"),
        (A + call("a", "b", alias=1), "5: ALIAS of b is 1, but CALL op has 1 argument"),
        (A + call("", "b", alias=0), "5: ALIAS of b is 0, but CALL op has 0 arguments"),
        (A + call("a a", "b", alias=-2), "5: ALIAS of b is -2, but CALL op has 2 arguments"),
        (A + mutate("a"), "3: MUTATE op_ writes nothing"),
        (A + mutate("a", 1), "3: MUTATE op_ writes argument 1, but has 1 argument"),
        (A + mutate("a", -1), "3: MUTATE op_ writes argument -1, but has 1 argument"),
        (
            [changed(mutate("a")[0], MUTATE=[True])],
            "1: MUTATE: MUTATE holds true, but must hold positions, which are integers",
        ),
        (
            [changed(mutate("a")[0], MUTATE=["0"])],
            '1: MUTATE: MUTATE holds "0", but must hold positions, which are integers',
        ),
        (
            [changed(A[0], NAME="\u4e00\n", INSTRUCTION="MEMORY", MEMORY="1")],
            "1: MEMORY of '\\u4e00\\n' follows nothing that it could belong to",
        ),
    ],
    ids=lambda value: value.split(": ", 1)[1][:60] if isinstance(value, str) else "",
)
def test_what_a_line_gets_wrong_is_told(log: Path, lines: list[Line], message: str) -> None:
    assert refused(log, lines) == message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"hello\n", "the line is not JSON: Expecting value (column 1)"),
        (b"\n", "the line is not JSON: Expecting value (column 1)"),
        (b'{"INSTR', "the line is not JSON: Unterminated string starting at (column 2)"),
        (b"{} {}\n", "the line is not JSON: Extra data (column 4)"),
        (b"[1]\n", "the line is a list, not an object"),
        (b"17\n", "the line is 17, not an object"),
        (b"\xff\xfe\n", "the line is not text in UTF-8"),
        (
            b'{"NAME":"a","NAME":"b"}\n',
            "the line is not JSON that can be read: a key is given twice",
        ),
        (b'{"x":NaN}\n', "the line is not JSON that can be read: NaN is not a number"),
        (b'{"x":1e999}\n', "the line is not JSON that can be read: a number is too large"),
        (
            b'{"x":' + b"9" * 10_000 + b"}\n",
            "the line is not JSON that can be read: a number has 10000 digits",
        ),
        (
            b'{"x":' + b"[" * 200_000 + b"}\n",
            "the line is not JSON that can be read: it is nested too deeply",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_that_is_no_object_of_json_is_told(log: Path, text: bytes, reason: str) -> None:
    log.write_bytes(text_of(A).encode() + text)
    with pytest.raises(TraceError) as error:
        Trace.load(log)
    assert (error.value.line, error.value.reason) == (3, reason)


def test_a_compressed_log_that_was_cut_is_told(tmp_path: Path) -> None:
    log = tmp_path / "step.log.gz"
    load(tmp_path / "step.log", A, *(call("a", f"b{i}") for i in range(100))).save(log)
    whole = log.read_bytes()
    for length in range(1, len(whole), 7):
        log.write_bytes(whole[:length])
        with pytest.raises(TraceError):
            Trace.load(log)
    log.write_bytes(whole[:-4])
    with pytest.raises(TraceError) as error:
        Trace.load(log)
    assert error.value.reason == "the compressed file ends here, before its end mark"
    assert error.value.line == 2 + 100 * 3 + 1


def test_a_compressed_log_that_is_damaged_is_told(tmp_path: Path) -> None:
    log = tmp_path / "step.log.gz"
    log.write_bytes(text_of(A).encode())
    with pytest.raises(TraceError, match="line 1: the compressed file is damaged: Not a gzip"):
        Trace.load(log)
    packed = bytearray(gzip.compress(text_of(A).encode()))
    packed[-8] ^= 1
    log.write_bytes(packed)
    with pytest.raises(TraceError, match="the compressed file is damaged: CRC check failed"):
        Trace.load(log)
    log.write_bytes(b"")
    with pytest.raises(TraceError, match="line 1: the log is empty"):
        Trace.load(log)


def test_an_endless_line_is_given_up_at_the_limit(tmp_path: Path) -> None:
    log = tmp_path / "step.log.gz"
    bomb = text_of(A).encode() + b" " * (trace_parse.LINE_LIMIT_BYTES + 1)
    log.write_bytes(gzip.compress(bomb, 1))
    with pytest.raises(TraceError, match="line 3: the line is longer than 16 MiB"):
        Trace.load(log)
    assert len(bomb) > 100 * log.stat().st_size


def test_endlessly_many_lines_are_given_up_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of(release("x") * 50)
    log = tmp_path / "step.log"
    log.write_text(text)
    monkeypatch.setattr(trace_parse, "LOG_LIMIT_BYTES", len(text))
    assert len(Trace.load(log).instructions) == 50
    monkeypatch.setattr(trace_parse, "LOG_LIMIT_BYTES", len(text) - 1)
    with pytest.raises(TraceError, match="line 50: the log is longer than 0 GiB"):
        Trace.load(log)


def test_a_file_that_cannot_be_opened_raises_what_open_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "missing.log")
    with pytest.raises(IsADirectoryError):
        Trace.load(tmp_path)
