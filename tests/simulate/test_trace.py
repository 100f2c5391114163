"""Traces: loaded, saved, pickled, and put together by hand."""

import gzip
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from dtr_alloc.runtime.trace import Trace, TraceError
from dtr_alloc.runtime.trace.format import Call, Constant, Mutate, Release, Result, line_count
from tests.support.reference_data import reference
from tests.support.trace_lines import (
    annotate,
    call,
    constant,
    copy,
    copy_from,
    load,
    mutate,
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


@pytest.mark.parametrize("name", ["lstm", "resnet32", "tv_densenet121", "unet"])
def test_a_log_of_the_paper_is_saved_as_it_was(name: str, tmp_path: Path) -> None:
    log = reference(f"dtr-logs/{name}.log.gz")
    Trace.load(log).save(tmp_path / "again.log")
    assert (tmp_path / "again.log").read_bytes() == gzip.decompress(log.read_bytes())
