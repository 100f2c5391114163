"""What pictures show of a scope's memory: what is held, plots, counters by class."""

import gc
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import dtr_alloc
from dtr_alloc.runtime.scope import sites, snapshot
from dtr_alloc.runtime.scope.memory_history import CLASSES, History
from tests.support.squeezed_training import SCRIPT, Layer, dumped, line_of, squeezed, train


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
    created = f"{Path(SCRIPT).name}:{line_of(Layer.__init__, 'nn.Linear')}"
    assert 1 <= sum(line.tensors for line in held if line.line == created) <= 12
    sine = f"{Path(SCRIPT).name}:{line_of(Layer.forward, 'y.sin()')}"
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


def test_without_matplotlib_a_plot_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = squeezed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        session.plot(tmp_path / "memory.png")


def test_pictures_tell_of_dropped_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    def texts(session: dtr_alloc.Session) -> list[str]:
        session.plot(tmp_path / "memory.svg")
        session.export_chrome_trace(tmp_path / "run.json")
        moments = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
        return [*titles, str(session.held()).splitlines()[0], *(one["name"] for one in moments)]

    titles: list[str] = []
    monkeypatch.setattr(Axes, "set_title", lambda _, text, **__: titles.append(text))
    few = squeezed(events=100)
    gap = f"{dumped(few, tmp_path)['allocator_settings']['dropped_events']:,} older events were"
    assert sum(gap in text for text in texts(few)) == 3
    assert not any("dropped" in text for text in texts(squeezed())[1:])


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


def test_no_module_and_no_picture_is_remembered(tmp_path: Path) -> None:
    known = len(sites._names)
    dumped(squeezed(), tmp_path)
    gc.collect()
    assert len(sites._names) <= known
    assert snapshot._stack.cache_info().currsize == 0


def test_evictions_are_the_same_with_events() -> None:
    def evictions(events: bool) -> tuple[int, int]:
        with dtr_alloc.rematerialize("3MiB", events=events, clock="logical") as session:
            train()
        now = session.stats()
        return now.evictions, now.rematerializations

    assert evictions(True) == evictions(False)


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
