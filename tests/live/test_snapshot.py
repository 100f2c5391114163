"""Snapshots of a scope's memory: torch's own functions read them, a replay adds up."""

import pickletools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz as viz

import dtr_alloc
from dtr_alloc.runtime.scope.memory_history import CLASSES, History
from tests.support.instruments import instrumented
from tests.support.squeezed_training import MIB, SCRIPT, Layer, dumped, line_of, squeezed, train
from tests.support.threads import in_threads


def replay(snapshot: dict[str, Any]) -> tuple[int, int]:
    """The most bytes that were allocated at once, and those at the end."""
    (trace,) = snapshot["device_traces"]
    live: dict[int, int] = {}
    most = total = 0
    for entry in trace:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
            total += entry["size"]
        elif entry["action"] == "free_completed":
            total -= live.pop(entry["addr"])
        most = max(most, total)
    return most, total


def firsts(snapshot: dict[str, Any], action: str) -> list[str]:
    (trace,) = snapshot["device_traces"]
    return [e["frames"][0]["name"] for e in trace if e["action"] == action and e["frames"]]


@pytest.mark.parametrize(
    "options", [{}, {"memory": "torch"}, {"swap": "8MiB"}], ids=["pool", "torch", "swap"]
)
def test_a_replay_has_the_peak_and_what_is_live(tmp_path: Path, options: dict[str, Any]) -> None:
    with dtr_alloc.rematerialize("3MiB", events=True, clock="logical", **options) as session:
        kept = train()
        inside = dumped(session, tmp_path)
        then = session.stats()
    assert replay(inside) == (then.peak_bytes, then.live_bytes)
    assert then.evictions > 0
    live = sum(segment["allocated_size"] for segment in inside["segments"])
    assert live == then.live_bytes > 0
    del kept
    assert replay(dumped(session, tmp_path)) == (then.peak_bytes, session.stats().live_bytes)


def test_a_replay_on_a_device_has_the_peak_and_what_is_live(tmp_path: Path, cuda: None) -> None:
    with instrumented(on_cuda=True):
        session = squeezed()
    now = session.stats()
    assert now.rematerializations > 0
    assert replay(dumped(session, tmp_path)) == (now.peak_bytes, now.live_bytes)


def test_a_session_that_measures_has_them_too(tmp_path: Path) -> None:
    with dtr_alloc.measure(events=True) as session:
        train()
    now = session.stats()
    assert replay(dumped(session, tmp_path)) == (now.peak_bytes, now.live_bytes)
    assert "evictable" not in {line.kind for line in session.held()}


def test_torchs_own_functions_read_a_snapshot(tmp_path: Path) -> None:
    def shown(lines: str) -> str:
        return lines

    with dtr_alloc.rematerialize("3MiB", events=True) as session:
        kept = train()
        snapshot = dumped(session, tmp_path)
    live = session.stats().live_bytes
    assert f"total_allocated: {viz.Bytes(live)}" in viz.segsum(snapshot)  # type: ignore[no-untyped-call]
    trace = viz.trace(snapshot)  # type: ignore[no-untyped-call]
    assert "= cudaMalloc(" in trace
    assert "free completed for" in trace
    assert "MEM" not in trace.replace("TOTAL MEM", "")  # Each block is in a segment.
    assert len(viz.trace_plot(snapshot)) > 10_000  # type: ignore[no-untyped-call]
    assert len(viz.segment_plot(snapshot)) > 10_000
    for lines in (viz.memory(snapshot, shown), viz.segments(snapshot, shown)):  # type: ignore[no-untyped-call]
        assert Path(SCRIPT).name in lines
    segments = snapshot["segments"]
    assert "only_after" not in viz.compare(segments, segments, shown)  # type: ignore[no-untyped-call]
    del kept


def test_the_visualisers_own_reader_of_pickles_knows_each_opcode(tmp_path: Path) -> None:
    known = """PROTO APPEND APPENDS LIST TUPLE NEWFALSE NEWTRUE NONE BINGET BININT BININT1 BININT2
        EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK MEMOIZE BINPUT LONG_BINPUT SETITEMS
        SETITEM DICT SHORT_BINUNICODE BINUNICODE STOP EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 BINFLOAT"""
    dumped(squeezed(), tmp_path)
    content = (tmp_path / "run.pickle").read_bytes()
    assert {opcode.name for opcode, *_ in pickletools.genops(content)} <= {*known.split()}
    assert len(content) < 1 << 20  # Frames are shared.


def test_evictions_and_recomputations_are_told_apart_by_operator(tmp_path: Path) -> None:
    session = squeezed()
    snapshot = dumped(session, tmp_path)
    made, gone = Counter(firsts(snapshot, "alloc")), Counter(firsts(snapshot, "free_completed"))
    evicted = {name: n for name, n in gone.items() if name.startswith("evict ")}
    again = {name: n for name, n in made.items() if name.startswith("rematerialize ")}
    assert sum(evicted.values()) == session.stats().evictions > 0
    assert 0 < sum(again.values()) <= session.stats().rematerializations  # Some write in place.
    assert {"rematerialize aten::sin", "rematerialize aten::addmm"} <= set(again)
    assert made["aten::sin"] == 12


def test_frames_name_the_scripts_lines_and_nobody_elses(tmp_path: Path) -> None:
    (trace,) = dumped(squeezed(), tmp_path)["device_traces"]
    named = [entry for entry in trace if entry["frames"]]
    of_sine = [entry for entry in named if entry["frames"][0]["name"].endswith("aten::sin")]
    verbs = {entry["frames"][0]["name"] for entry in of_sine}
    assert {"aten::sin", "evict aten::sin", "rematerialize aten::sin"} <= verbs
    for entry in of_sine:
        first, second, third = entry["frames"][:3]
        line = line_of(Layer.forward, "y.sin()")
        assert (first["filename"], first["line"]) == (SCRIPT, line)
        assert second == {"filename": SCRIPT, "line": line, "name": "forward"}
        assert third["line"] == line_of(train, "model(torch.randn")
    assert {entry["user_metadata"] for entry in of_sine if entry["action"] == "alloc"} == {
        f"Sequential.{n}" for n in range(6)
    }
    files = {frame["filename"] for entry in trace for frame in entry["frames"]}
    assert not any("/torch/" in file or "/runtime/" in file for file in files)


def test_what_comes_back_from_a_swap_is_called_so(tmp_path: Path) -> None:
    with instrumented(swap_always=True):
        snapshot = dumped(squeezed(swap="64MiB"), tmp_path)
    assert "swap in" in firsts(snapshot, "alloc")
    assert "evict aten::sin" in firsts(snapshot, "free_completed")


def test_the_oldest_events_are_dropped_and_it_is_said(tmp_path: Path) -> None:
    with dtr_alloc.rematerialize("3MiB", events=40, clock="logical") as session:
        kept = train()
        snapshot = dumped(session, tmp_path)
        assert replay(snapshot)[1] == session.stats().live_bytes > 0
        assert snapshot["allocator_settings"]["trace_alloc_overflowed"]
        assert snapshot["allocator_settings"]["dropped_events"] > 100
        held = session.held()
        assert held.size_bytes == replay(snapshot)[0] <= session.stats().peak_bytes
        levels = History(session._core).levels()[-1]
    whole = squeezed()
    assert not dumped(whole, tmp_path)["allocator_settings"]["trace_alloc_overflowed"]
    assert levels[CLASSES.index("state")] >= 6 * 2 * 128 * 128 * 4  # Classes outlive their events.
    del kept


def test_a_refused_request_is_in_the_snapshot_that_is_written_then(tmp_path: Path) -> None:
    with dtr_alloc.rematerialize("3MiB", events=True) as session:
        kept = torch.zeros(1 << 18)
        dtr_alloc.pin(kept)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1 << 20)
        snapshot = dumped(session, tmp_path)
    (refused,) = (e for e in snapshot["device_traces"][0] if e["action"] == "oom")
    assert (refused["size"], refused["device_free"]) == (4 * MIB, 2 * MIB)
    assert refused["frames"][1]["filename"] == __file__
    assert "raise OutOfMemoryError # 4.0MiB requested, 2.0MiB free" in viz.trace(snapshot)  # type: ignore[no-untyped-call]
    del kept


def test_threads_that_join_are_in_it(tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(50):
            torch.ones(1 << 14).exp().sum()

    with dtr_alloc.rematerialize("3MiB", events=True) as session:
        in_threads(work, work, work)
    now = session.stats()
    assert replay(dumped(session, tmp_path)) == (now.peak_bytes, now.live_bytes)
