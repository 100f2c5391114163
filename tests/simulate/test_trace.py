"""Traces: loaded, saved, pickled, and put together by hand."""

import gzip
import json
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from dtr_alloc.runtime.trace import Trace, TraceError
from dtr_alloc.runtime.trace import parse as trace_parse
from dtr_alloc.runtime.trace.format import Call, Constant, Mutate, Release, Result, line_count
from tests.support.trace_lines import (
    Line,
    alias_of,
    annotate,
    call,
    constant,
    copy,
    copy_from,
    load,
    mutate,
    refused,
    release,
    text_of,
)


def test_keys_in_lower_case_are_passed_over_and_kept_with_operators(log: Path) -> None:
    step = call("a", "b")
    step[0] |= {"bytes": 24, "own": [True, None, {"deep": 1.5}]}
    step[1] |= {"note": "gone"}
    write = mutate("b", 0)
    write[0] |= {"bytes": "16"}
    trace = load(log, constant("a"), step, write)
    _, made, written = trace.instructions
    assert isinstance(made, Call)
    assert isinstance(written, Mutate)
    assert made.extra == {"bytes": 24, "own": [True, None, {"deep": 1.5}]}
    assert written.extra == {"bytes": "16"}
    trace.save(log)
    assert Trace.load(log) == trace
    assert "gone" not in log.read_text()


def test_a_trace_is_saved_as_the_text_it_was_loaded_from(tmp_path: Path) -> None:
    parts = [
        annotate("START"),
        constant("a"),
        constant("z"),
        call("a a", "b c", time=123),
        call("a", "v", alias=0),
        mutate("a b", 0, 1),
        copy("d", "a"),
        copy_from("z", "d"),
        release("d", "never"),
        annotate('\ud800 \u4e00 "quoted"'),
    ]
    trace = load(tmp_path / "first.log", *parts)
    text = (tmp_path / "first.log").read_bytes()
    assert sum(map(line_count, trace.instructions)) == text.count(b"\n")
    trace.save(tmp_path / "second.log")
    assert (tmp_path / "second.log").read_bytes() == text
    trace.save(tmp_path / "third.log.gz")
    assert gzip.decompress((tmp_path / "third.log.gz").read_bytes()) == text
    assert Trace.load(tmp_path / "third.log.gz") == trace


def test_a_compressed_log_has_the_same_bytes_under_any_name_and_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = load(tmp_path / "step.log", constant("a"))
    trace.save(tmp_path / "one.gz")
    monkeypatch.setattr("time.time", lambda: 4e9)
    trace.save(tmp_path / "another.gz")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "another.gz").read_bytes()


def test_the_last_line_may_lack_its_end_and_lines_may_end_as_on_windows(log: Path) -> None:
    text = text_of(constant("a"))
    log.write_text(text.rstrip("\n"))
    whole = Trace.load(log)
    log.write_bytes(text.replace("\n", "\r\n").encode())
    assert Trace.load(log) == whole == Trace((Constant("a", 8),))


def test_a_trace_cannot_be_changed(log: Path) -> None:
    trace = load(log, constant("a"))
    with pytest.raises(FrozenInstanceError):
        trace.path = "other"  # type: ignore[misc]


def test_a_trace_goes_to_another_process_and_back(log: Path) -> None:
    trace = load(log, constant("a"), call("a", "b"))
    back = pickle.loads(pickle.dumps(trace))
    assert back == trace
    assert back.path == str(log)
    assert back.schedule().operand.tolist() == trace.schedule().operand.tolist()


def test_the_message_is_a_sentence_with_file_and_line(log: Path) -> None:
    with pytest.raises(TraceError) as error:
        load(log, constant("a"), call("a x9", "b"))
    assert str(error.value) == (f"{log} line 3: CALL op reads x9, which no earlier line defines")
    assert isinstance(error.value, ValueError)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("step.log", r"not of 'step\.log': Trace\.load\(path\) reads a log"),
        (5, "a trace is made of a tuple of instructions, not of 5"),
        (("x",), "'x' in a trace is no instruction of dtr_alloc.runtime.trace.format"),
    ],
)
def test_what_is_no_instructions_is_refused(given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Trace(given)


def test_a_trace_that_is_put_together_by_hand_is_checked_too() -> None:
    with pytest.raises(TraceError) as error:
        Trace((Constant("a", 8), Call("op", ("a", "b"), (Result("c", 8, -1),), 1)))
    assert str(error.value) == "line 3: CALL op reads b, which no earlier line defines"
    with pytest.raises(TraceError, match="line 1: the log is empty"):
        Trace(())
    assert Trace((Release("x"),)).path == ""


# A log that is not just so is refused: which line, and why.


A = constant("a")
CALL = call("a", "b")
LONG = "9" * 300
NO_NUMBERS = ("", "x", "1.5", "1e3", "0x10", "007", "+7", " 7", "7\n", "1_0", "-0", "\u0663")


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
            for text in NO_NUMBERS
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
