"""What pictures of a scope's memory show: snapshots, plots, what is held, counters by class."""

import importlib.util
import inspect
import json
import pickle
import pickletools
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.cuda import _memory_viz as viz
from torch.profiler import ProfilerActivity, profile

import dtr_alloc
from dtr_alloc.runtime.scope import sites
from dtr_alloc.runtime.scope.instruments import instrumented
from dtr_alloc.runtime.scope.memory_history import CLASSES, History

MIB = 1 << 20


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y.sin()  # Its line is looked for.


def train(steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer() for _ in range(6)])
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(512, 128)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def squeezed(events: bool | int = True, **options: Any) -> dtr_alloc.Session:
    """Some training that evicts and recomputes; what it made is gone."""
    with dtr_alloc.rematerialize("3MiB", events=events, clock="logical", **options) as session:
        train()
    return session


def dumped(session: dtr_alloc.Session, folder: Path) -> dict[str, Any]:
    session.dump_snapshot(folder / "run.pickle")
    snapshot: dict[str, Any] = pickle.loads((folder / "run.pickle").read_bytes())
    return snapshot


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
    """The names of the first frames."""
    (trace,) = snapshot["device_traces"]
    return [e["frames"][0]["name"] for e in trace if e["action"] == action and e["frames"]]


def line_of(what: object, text: str) -> int:
    lines, first = inspect.getsourcelines(what)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(lines) if text in line)


# ---- Snapshots


@pytest.mark.parametrize(
    "options", [{}, {"memory": "torch"}, {"swap": "8MiB"}], ids=["pool", "torch", "swap"]
)
def test_a_replay_of_the_snapshot_has_the_peak_and_what_is_live(
    tmp_path: Path, options: dict[str, Any]
) -> None:
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
        assert "test_pictures.py" in lines
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
    of_sine = [
        entry
        for entry in trace
        if entry["frames"] and entry["frames"][0]["name"].endswith("aten::sin")
    ]
    verbs = {entry["frames"][0]["name"] for entry in of_sine}
    assert {"aten::sin", "evict aten::sin", "rematerialize aten::sin"} <= verbs
    for entry in of_sine:
        first, second, third = entry["frames"][:3]
        line = line_of(Layer.forward, "y.sin()")
        assert (first["filename"], first["line"]) == (__file__, line)
        assert second == {"filename": __file__, "line": line, "name": "forward"}
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
    import threading

    def work() -> None:
        with dtr_alloc.join_scope():
            for _ in range(50):
                torch.ones(1 << 14).exp().sum()

    with dtr_alloc.rematerialize("3MiB", events=True) as session:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    now = session.stats()
    assert replay(dumped(session, tmp_path)) == (now.peak_bytes, now.live_bytes)


# ---- What is held


def test_modules_of_one_call_have_their_own_names() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.Sigmoid()(nn.Tanh()(nn.ReLU()(x)))  # type: ignore[no-any-return]

    with dtr_alloc.rematerialize("64MiB", events=True) as session:
        made = Net()(torch.ones(1 << 16))
    assert {line.module for line in session.held()} >= {"Net.(ReLU)", "Net.(Tanh)"}
    del made


def test_what_is_held_adds_up_to_the_peak_and_folds_equal_layers() -> None:
    session = squeezed()
    held = session.held()
    assert held.size_bytes == session.stats().peak_bytes
    assert sum(line.size_bytes for line in held) == held.size_bytes
    lines = {(line.module, line.line, line.kind): line for line in held}
    created = f"test_pictures.py:{line_of(Layer.__init__, 'nn.Linear')}"
    assert 1 <= sum(line.tensors for line in held if line.line == created) <= 12
    sine = f"test_pictures.py:{line_of(Layer.forward, 'y.sin()')}"
    (modules,) = {module for module, line, _ in lines if line == sine}
    assert re.fullmatch(r"Sequential\.[0-5][-,0-5]*", modules)
    assert {kind for _, _, kind in lines} <= set(CLASSES)


def test_a_text_of_what_is_held_has_twenty_lines_at_most() -> None:
    source = "\n".join(f"kept.append(torch.zeros({1024 * n}))" for n in range(1, 60))
    with dtr_alloc.measure(events=True) as session:
        exec(compile(source, "many.py", "exec"), {"kept": [], "torch": torch})
    held = session.held()
    text = str(held).splitlines()
    assert len(text) == 20
    assert text[0].split()[:2] == ["6.91", "MiB"]
    assert held[0].line == "many.py:59"
    assert (held[-1].module, held[-1].tensors) == ("41 more", 41)
    assert sum(line.size_bytes for line in held) == session.stats().peak_bytes


def test_layers_with_gaps_between_them_are_listed() -> None:
    layers = nn.ModuleList([nn.Sequential(nn.Tanh()) for _ in range(12)])

    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [self.layers[n](x) for n in (0, 1, 10)]

    with dtr_alloc.measure(events=True) as session:
        kept = Some()(torch.zeros(1024))
    assert "Some.layers.0,1,10.0" in {line.module for line in session.held()}
    del kept


# ---- Classes


def test_classes_are_what_is_known_of_a_tensor() -> None:
    with dtr_alloc.rematerialize("64MiB", events=True) as session:
        trained = train(1)
        kept = torch.randn(1 << 16).exp()
        bytes_of = dict(zip(CLASSES, History(session._core).levels()[-1].tolist(), strict=True))
        now = session.stats()
    weights = 6 * (128 * 128 + 128) * 4
    assert sum(bytes_of.values()) == now.live_bytes
    assert bytes_of["gradients"] == weights
    assert 2 * weights <= bytes_of["state"] < 3 * weights
    assert bytes_of["evictable"] == now.evictable_bytes == 4 << 16
    assert bytes_of["constant"] == weights + 12 * 512  # And the numbers of steps.
    del trained, kept


def test_a_pinned_tensor_is_not_evictable_any_more() -> None:
    with dtr_alloc.rematerialize("64MiB", events=True) as session:
        x = torch.randn(1 << 16).exp()
        dtr_alloc.pin(x)
        bytes_of = dict(zip(CLASSES, History(session._core).levels()[-1].tolist(), strict=True))
    assert bytes_of["constant"] >= 4 << 16
    assert bytes_of["evictable"] <= 4 << 16  # What it was made from.


def test_counters_by_class_are_beside_the_spans(tmp_path: Path) -> None:
    session = squeezed()
    session.export_chrome_trace(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    counters = [event["args"] for event in events if event["ph"] == "C"]
    assert all(set(args) == set(CLASSES) for args in counters)
    assert max(sum(args.values()) for args in counters) == session.stats().peak_bytes
    assert sum(counters[-1].values()) == session.stats().live_bytes


# ---- The plot


def test_a_plot_shows_classes_phases_and_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    told: list[str] = []

    def tell(figure: Figure, *args: Any, **kwargs: Any) -> None:
        (axes,) = figure.axes
        told.extend(axes.get_legend_handles_labels()[1])

    monkeypatch.setattr(Figure, "legend", tell)
    session = squeezed()
    session.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes()[:4] == b"\x89PNG"
    assert told == [*CLASSES, "forward", "backward", "optimizer", "budget"]


def test_an_empty_scope_has_pictures_too(tmp_path: Path) -> None:
    with dtr_alloc.rematerialize(None, events=True) as session:
        pass
    session.plot(tmp_path / "memory.png")
    assert dumped(session, tmp_path)["segments"] == []
    assert session.held().size_bytes == 0


def test_a_plot_without_matplotlib_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = squeezed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        session.plot(tmp_path / "memory.png")


# ---- What is kept


@pytest.mark.parametrize("events", ["yes", 2.5, 0, -1, None])
def test_a_wrong_number_of_events_is_refused(events: Any) -> None:
    with pytest.raises(ValueError, match="events is"):
        dtr_alloc.rematerialize("3MiB", events=events).__enter__()
    with pytest.raises(ValueError, match="events is"):
        dtr_alloc.measure(events=events).__enter__()


@pytest.mark.parametrize("picture", ["dump_snapshot", "plot", "held", "export_chrome_trace"])
def test_a_scope_that_kept_nothing_has_no_pictures(tmp_path: Path, picture: str) -> None:
    with dtr_alloc.rematerialize("3MiB") as session:
        pass
    arguments = [] if picture == "held" else [tmp_path / "run"]
    with pytest.raises(ValueError, match=r"no events were kept: open a scope by rematerialize\("):
        getattr(session, picture)(*arguments)
    assert not (tmp_path / "run").exists()


def test_without_events_no_line_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    known = len(sites._sites)
    with dtr_alloc.rematerialize("3MiB"):
        exec("torch.ones(1000).exp()", {"torch": torch})
    assert len(sites._sites) == known


def test_evictions_are_the_same_with_events() -> None:
    def evictions(events: bool) -> tuple[int, int]:
        with dtr_alloc.rematerialize("3MiB", events=events, clock="logical") as session:
            train()
        now = session.stats()
        return now.evictions, now.rematerializations

    assert evictions(True) == evictions(False)


# ---- What others see


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # Torch 2.11 says so once.
def test_torchs_profiler_sees_our_blocks_come_and_go() -> None:
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        dtr_alloc.rematerialize("3MiB", clock="logical") as session,
    ):
        train()
    events = profiled.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    pool = session._core.pool_stats()
    assert sum(size for size in sizes if size > 0) >= pool.allocated
    assert sum(size > 0 for size in sizes) >= pool.allocations
    assert sum(size < 0 for size in sizes) >= pool.frees
    assert session.stats().evictions > 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux'")
def test_the_pools_mapping_has_a_name_where_the_kernel_has_names() -> None:
    import ctypes
    import mmap

    def named(name: str) -> bool:
        return f"[anon:{name}]" in Path("/proc/self/smaps").read_text()

    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    prctl = ctypes.CDLL(None).prctl
    prctl(0x53564D41, 0, ctypes.c_ulong(address), ctypes.c_ulong(mmap.PAGESIZE), b"a test's")
    if not named("a test's"):
        pytest.skip("this kernel names no mappings")
    with dtr_alloc.rematerialize("3MiB"):
        assert named("dtr_alloc pool")
