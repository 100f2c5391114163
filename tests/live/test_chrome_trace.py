"""What a person sees of a run in Chrome's trace viewer, alone and beside torch's profile."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import dtr_alloc

MIB = 1 << 20


def squeezed() -> torch.Tensor:
    """Four results of a MiB where three fit; the first is touched again."""
    x = torch.ones(MIB // 4)
    kept = [x.exp() for _ in range(3)]
    return kept[0].sum()


def read(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(
        gzip.decompress(raw) if path.suffix == ".gz" else raw
    )["traceEvents"]
    return [event for event in events if event.get("tid") == "dtr_alloc"]


def of(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_evictions_are_moments_and_rematerializations_last(tmp_path: Path, name: str) -> None:
    begin = time.time_ns()
    with dtr_alloc.rematerialize("3MiB", events=True, clock="logical") as session:
        squeezed()
    end = time.time_ns()
    session.export_chrome_trace(tmp_path / name)
    events = read(tmp_path / name)
    moments, spans, counters = (of(events, phase) for phase in "iXC")
    stats = session.stats()
    assert len(moments) == stats.evictions > 0
    assert len(spans) == stats.rematerializations > 0
    known = {"rematerialize aten::exp", "rematerialize aten::ones"}
    assert {event["name"] for event in spans} <= known
    assert all(event["args"] == {"bytes": MIB} for event in (*moments, *spans))
    assert max(sum(event["args"].values()) for event in counters) <= 3 * MIB
    for event in (*moments, *spans):
        assert begin <= event["ts"] * 1e3 + 1e3
        assert event["ts"] * 1e3 + event.get("dur", 0) * 1e3 <= end + 1e6


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # Torch 2.11 says so once.
def test_they_lie_where_torchs_profile_has_the_same(tmp_path: Path) -> None:
    torchs, both = tmp_path / "torch.json", tmp_path / "both.json"
    with (
        profile(activities=[ProfilerActivity.CPU]) as profiled,
        dtr_alloc.rematerialize("3MiB", events=True, clock="logical") as session,
        record_function("squeezed"),
    ):
        squeezed()
    profiled.export_chrome_trace(str(torchs))
    session.export_chrome_trace(both, profile=torchs)
    everything = json.loads(both.read_text())["traceEvents"]
    seen = [
        event
        for event in everything
        if event.get("name", "").startswith("dtr::rematerialize(") and event["ph"] == "X"
    ]
    spans = of(read(both), "X")
    assert len(seen) == len(spans) > 0
    for theirs, ours in zip(seen, spans, strict=True):
        assert ours["name"] == f"rematerialize {theirs['name'].split('(')[1].rstrip(')')}"
        # Ours begins before and ends after. A profiler's clock is drawn on the system's: 1 ms.
        assert ours["ts"] - 1e3 <= theirs["ts"]
        assert theirs["ts"] + theirs["dur"] <= ours["ts"] + ours["dur"] + 1e3
    (body,) = (event for event in everything if event.get("name") == "squeezed")
    for moment in of(read(both), "i"):
        assert body["ts"] - 1e3 <= moment["ts"] <= body["ts"] + body["dur"] + 1e3


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", '{"traceEvents": []}', '{"baseTimeNanoseconds": 0}']
)
def test_what_is_no_profile_is_refused_before_a_file_is_written(tmp_path: Path, text: str) -> None:
    wrong, out = tmp_path / "wrong.json", tmp_path / "run.json"
    wrong.write_text(text)
    with dtr_alloc.rematerialize("3MiB", events=True) as session:
        pass
    with pytest.raises(ValueError, match=r"wrong\.json"):
        session.export_chrome_trace(out, profile=wrong)
    assert not out.exists()
