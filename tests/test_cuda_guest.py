"""Guest mode on CUDA without a GPU: CPU tensors in the memory of an allocator that stands in for
torch's own, on the fake driver (native_stand_in). It is full when the fake device is.

Only CUDA builds of torch have the headers and the class, so `make check-cuda` runs these.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime._testing import instrumented
from dtr_alloc.runtime.heuristic import native_scorer, resolve
from dtr_alloc.size import LARGEST_BUDGET
from tests.exactness import bits, chain, same
from tests.fake_cuda.driver import FakeCuda
from tests.native_stand_in.native import INCLUDE, Native, build
from tests.test_cuda import tell

pytestmark = pytest.mark.skipif(
    not hasattr(_core, "GuestAllocator"), reason="torch or this build has no CUDA"
)
MIB = 1 << 20


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def native(library: str, cuda: FakeCuda) -> Iterator[Native]:
    """On a device of 64 MiB. What a test leaves behind in it is an error."""
    made = Native(library, cuda.path)
    cuda.set_capacity(64 * MIB)
    made.reset()
    yield made
    made.drop_all()
    gc.collect()
    made.takes_python(False)
    made.enable(True)
    assert made.live == 0
    made.reset()


def scope(native: Native, budget: int | str = LARGEST_BUDGET, **options: Any) -> Any:
    """Its tensors lie in the stand-in's memory."""
    with instrumented(native=native.address, **options):
        opened = dtr_alloc.rematerialize(budget, clock="logical", thrash_limit=0)
        session = opened.__enter__()
    return opened, session


def guest_of(native: Native, session: Any = None, device: int = 0) -> _core.GuestAllocator:
    made = _core.GuestAllocator(
        budget=LARGEST_BUDGET,
        device=device,
        heuristic=resolve("dtr")._native(),
        thrash_limit=0.0,
        scorer=native_scorer("host"),
        image="",
        recordable=[],
        native=native.address,
    )
    if session is not None:
        made.serve(session._core)
    return made


class Open:
    """A scope over the stand-in, and the allocator before it."""

    def __init__(self, native: Native, budget: int | str = LARGEST_BUDGET, **options: Any) -> None:
        self._native, self._budget, self._options = native, budget, options

    def __enter__(self) -> Open:
        self._scope, self.session = scope(self._native, self._budget, **self._options)
        self.guest = guest_of(self._native, self.session)
        self.address = self.guest.address()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)


# ---- Forwarding


def virtuals() -> set[str]:
    """Of torch's interface of a CUDA allocator, by the installed headers."""
    found: set[str] = set()
    for header, classes in (
        ("core/Allocator.h", ("Allocator",)),
        ("core/CachingDeviceAllocator.h", ("DeviceAllocator",)),
        ("cuda/CUDACachingAllocator.h", ("CUDAAllocator",)),
    ):
        text = re.sub(r"//[^\n]*", "", (INCLUDE / "c10" / header).read_text())
        for name in classes:
            body = re.search(
                rf"^(?:class|struct)[\w ]* {name}\b[^;{{]*{{(.*?)^}};", text, re.M | re.S
            )
            assert body is not None, name
            found |= set(re.findall(r"\bvirtual\b[^;{()]*?(\w+)\(", body[1]))
    return found - {"Allocator", "DeviceAllocator"}


def test_every_virtual_of_torchs_headers_is_forwarded(native: Native) -> None:
    known = virtuals()
    assert {"allocate", "raw_deleter", "recordStream", "getDeviceStats", "shareIpcHandle"} <= known
    assert len(known) >= 45
    native.fails(1)
    assert not native.hold(512)  # So that num_ooms is not 0.
    native.log()
    expected, calls = native.call_all(), native.log()
    guest = guest_of(native, device=5)  # Not of device 0: all is forwarded.
    native.fails(1)
    assert not native.hold(512)
    native.log()
    assert native.call_all(guest.address()) == expected
    assert native.log() == calls
    by_result = {"raw_deleter", "initialized", "getDeviceStats", "isEnabled", "name"}
    kept_here = {"attachOutOfMemoryObserver"}
    assert known - by_result - kept_here == {line.split()[0] for line in calls}


# What docs/allocator.md says that a pool refuses, and what torch then calls. Late installation has
# a test of its own.
SERVED = {
    "memory history": ("recordHistory 1 5 2 1 1", "isHistoryEnabled"),
    "checkpoints of a graph's memory": ("getCheckpointState 0 9", "setCheckpointPoolState 0 1"),
    "a MemPool with an allocator": ("createOrIncrefPool 0 9 1", "setUseOnOOM 0 9 1"),
    "tensors shared with other processes": ("shareIpcHandle", "getIpcDevPtr x"),
    "direct access from another GPU": ("enablePeerAccess 0 1",),
    "pages told to NCCL": ("attachAllocatorTraceTracker",),
    "expandable segments": ("getExpandableSegmentSizes 0",),
}


@pytest.mark.parametrize("refused", SERVED)
def test_what_a_pool_refuses_reaches_torch_while_a_session_evicts(
    native: Native, refused: str
) -> None:
    with Open(native, "4MiB") as opened:
        tensors = chain(24)
        assert all(dtr_alloc.evict(tensor) for tensor in tensors[:8])
        native.log()
        told = native.call_all(opened.address)
        native.create_pool(opened.address, native.address)
        calls = native.log()
        assert set(SERVED[refused]) <= set(calls), told
        assert told == native.call_all()
        assert not any(map(dtr_alloc.is_evicted, tensors))  # A capture was among the calls.
        opened.session.check()
        del tensors


def test_a_free_reaches_the_allocator_that_made_the_block(native: Native) -> None:
    """Blocks are held before, with and after the guest, and die whenever they do."""
    native.hold(MIB)
    with Open(native) as opened:
        native.hold(MIB, opened.address)
        kept = torch.ones(1 << 18).exp()
        assert native.live == 3 * MIB + kept.nbytes - MIB
    native.hold(MIB, opened.address)
    frees = native.frees
    native.drop_all()
    assert native.frees == frees + 3
    assert native.live == kept.nbytes
    del kept
    assert native.live == 0


def test_captures_pools_and_streams_are_forwarded_in_order(native: Native) -> None:
    with Open(native) as opened:
        x = torch.ones(1 << 16).exp()
        native.log()
        native.create_pool(opened.address, opened.address)
        native.capture(True, opened.address)
        inside = torch.ones(1 << 16).exp()
        assert not dtr_alloc.evict(x)  # Before a capture everything becomes ordinary.
        native.capture(False, opened.address)
        native.record_stream(x, 48, opened.address)
        assert not dtr_alloc.evict(inside)
        assert [line for line in native.log() if not line.startswith("raw_alloc")] == [
            "createOrIncrefPool 0 9 0",  # Never an allocator that torch asks under its own lock.
            "beginAllocateToPool 0 9 1",
            "endAllocateToPool 0 9",
            "recordStream 48",
        ]
        del x, inside


def test_record_stream_of_a_tracked_tensor_is_not_ignored(native: Native) -> None:
    with Open(native) as opened:
        x = torch.ones(1 << 16).exp()
        native.log()
        native.record_stream(x, 16)
        assert native.log() == ["recordStream 16 ignored"]  # Straight to torch's.
        native.record_stream(x, 16, opened.address)
        assert native.log() == ["recordStream 16"]
        del x


# ---- Memory that is short


def test_a_request_that_fails_natively_succeeds_after_an_eviction(native: Native) -> None:
    expected = [bits(tensor) for tensor in chain(96, rows=4096)]
    with Open(native) as opened:
        told = native.observe(opened.address)
        tensors = chain(48, rows=4096)  # 48 MiB, of 64.
        assert opened.session.stats().evictions == 0
        assert native.hold(32 * MIB, opened.address)
        assert opened.session.stats().evictions > 0
        assert native.num_ooms() > 0
        assert native.num_ooms(opened.address) == 0
        assert told == []
        assert all(same(bits(t), want) for t, want in zip(tensors, expected, strict=False))
        native.drop_all()
        del tensors
        opened.session.check()


def test_a_program_larger_than_the_device_runs_and_seldom_fails_natively(native: Native) -> None:
    expected = [bits(tensor) for tensor in chain(160, rows=4096)]
    with Open(native) as opened:
        tensors = chain(160, rows=4096)  # 160 MiB, of 64.
        first = native.retries
        for tensor, want in zip(tensors, expected, strict=True):
            assert same(bits(tensor), want)
        assert opened.session.stats().evictions > 100
        assert first <= 4
        # A last one may fail when the cap has risen: a thousandth of what is allocated.
        assert native.retries - first <= 4
        assert native.num_ooms(opened.address) == 0
        opened.session.check()
        del tensors, tensor


def test_when_nothing_is_left_to_evict_the_error_is_torchs_and_observers_hear_once(
    native: Native,
) -> None:
    with Open(native) as opened:
        told = native.observe(opened.address)
        kept = torch.ones(1 << 18).exp()
        with pytest.raises(
            torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate"
        ):
            opened.guest.allocate(65 * MIB, 0, 0)
        assert told == [65 * MIB]
        assert native.num_ooms(opened.address) == 1
        assert f"{kept[0]:.3f}" == "2.718"
        native.log()
        for _ in range(16):  # What failed is no measure for what comes after.
            kept = kept + 1
        assert opened.session.stats().evictions <= 1
        del kept


def test_a_request_larger_than_the_device_evicts_nothing(native: Native, cuda: FakeCuda) -> None:
    with Open(native, on_cuda=True) as opened:
        kept = torch.ones(1 << 18).exp()
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            opened.guest.allocate(4 << 30, 0, 0)
        assert opened.session.stats().evictions == 0
        del kept


def test_tries_that_fail_are_few_and_each_evicts_more(native: Native) -> None:
    with Open(native) as opened:
        tensors = chain(32, rows=4096)
        native.fails(3)
        assert native.hold(MIB, opened.address)
        assert native.num_ooms() == 3
        evicted = opened.session.stats().evictions
        assert evicted >= 8  # A sixty-fourth, then four, then sixteen of them.
        native.fails(1000)
        before = native.num_ooms()
        assert not native.hold(MIB, opened.address)
        assert native.num_ooms() - before <= 5
        native.fails(0)
        del tensors


@pytest.mark.parametrize("rows", [8, 256, 5000])
def test_a_budget_bounds_what_torch_counts(native: Native, rows: int) -> None:
    """Of blocks in small segments, in large ones, and of those that torch does not split."""
    expected = [bits(tensor) for tensor in chain(64, rows)]
    size = expected[0][2].numel()
    before = 20 * size  # Is in the budget, though it came earlier.
    native.hold(before)
    budget = before + 12 * size + (2 * MIB if size > MIB else 0)
    with Open(native, budget) as opened:
        tensors = chain(64, rows)
        assert all(same(bits(t), want) for t, want in zip(tensors, expected, strict=True))
        assert native.peak <= budget
        assert opened.session.stats().evictions > 0
        del tensors


def test_a_budget_that_is_full_says_so(native: Native) -> None:
    with Open(native, "8MiB") as opened:
        with pytest.raises(torch.OutOfMemoryError, match=r"budget 8\.00 MiB: 16\.00 MiB asked"):
            opened.guest.allocate(16 * MIB, 0, 0)
        assert native.num_ooms() == 0  # Torch was not asked.


def test_a_budget_changes_and_memory_is_given_back(native: Native) -> None:
    with Open(native, "60MiB") as opened:
        tensors = chain(48, rows=4096)
        opened.session.resize("16MiB")
        assert native.live <= 16 * MIB
        opened.session.resize("60MiB")
        assert bool((tensors[-1] == chain(48, rows=4096)[-1]).all())
        assert opened.session.release() >= 8 * MIB
        assert native.live <= MIB
        del tensors


# ---- What is not ours to evict


def test_in_a_capture_nothing_is_evicted_and_nothing_made_there_is(native: Native) -> None:
    with Open(native) as opened:
        tensors = chain(48, rows=4096)
        native.capture(True, opened.address)
        assert not native.hold(32 * MIB, opened.address)
        assert opened.session.stats().evictions == 0
        native.capture(False, opened.address)
        # They became ordinary when it began.
        assert not any(dtr_alloc.evict(tensor) for tensor in tensors)
        del tensors


def test_blocks_made_while_torchs_cache_is_off_are_left_alone(native: Native) -> None:
    with Open(native) as opened:
        native.enable(False)
        native.log()
        assert native.hold(MIB, opened.address)
        assert native.log()[0] == f"allocate {MIB}"  # By torch's own way, deleter and all.
        native.enable(True)
        native.log()
        assert native.hold(MIB, opened.address)
        assert native.log()[0] == f"raw_alloc_with_stream {MIB} 0"


def test_an_eviction_waits_for_the_streams_that_read_the_tensor(
    native: Native, cuda: FakeCuda
) -> None:
    with Open(native, on_cuda=True) as opened:
        x = torch.ones(1 << 16).exp()
        side = cuda.stream()
        _core.set_host_stream(side)
        y = x + 1
        _core.set_host_stream(0)
        native.log()
        assert dtr_alloc.evict(x)
        assert f"recordStream {side}" in native.log()
        assert f"{x[0]:.3f} {y[0]:.3f}" == "2.718 3.718"
        opened.session.check()
        del x, y


# ---- Threads and Python's lock

HISTORY = """
import sys, threading
import torch, dtr_alloc
from tests.native_stand_in.native import Native
from dtr_alloc.runtime._testing import instrumented
from tests.fake_cuda.driver import FakeCuda

cuda = FakeCuda(sys.argv[2])
native = Native(sys.argv[1], sys.argv[2])
cuda.set_capacity(64 << 20)
native.takes_python(True)  # In malloc and in free, as torch's memory history does.
with instrumented(native=native.address):
    scope = dtr_alloc.rematerialize("2MiB", thrash_limit=0)
    session = scope.__enter__()
wrong = []

def work(n):
    with dtr_alloc.join_scope():
        for _ in range(4):
            held = [torch.full((1 << 15,), float(n)).exp()]
            while len(held) < 24:
                held.append(held[-1] * 1.0001 + 1)
            again = [float(t[0]) for t in held[::5]]
            if again != [float(t[0]) for t in held[::5]]:
                wrong.append(n)
            del held

threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[t.start() for t in threads]
while any(t.is_alive() for t in threads):
    session.stats()  # Waits for the session's lock, and holds Python's.
assert session.stats().evictions > 100, session.stats()
scope.__exit__(None, None, None)
assert native.live == 0, native.live
print(wrong)
"""


def test_history_that_takes_pythons_lock_in_torch_hangs_nobody(
    library: str, fake_driver: str
) -> None:
    root = str(Path(__file__).parents[1])
    path = f"import sys; sys.path.append({root!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", path + HISTORY, library, fake_driver],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr[-2000:]


def test_threads_keep_the_budget(native: Native) -> None:
    expected = [bits(tensor) for tensor in chain(32)]
    wrong: list[str] = []

    def work() -> None:
        with dtr_alloc.join_scope():
            for _ in range(5):
                if not all(map(same, map(bits, chain(32)), expected)):
                    wrong.append("bits")

    with Open(native, "3MiB") as opened:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert native.peak <= 3 * MIB
        assert opened.session.stats().evictions > 0
        opened.session.check()
    assert wrong == []


# ---- To come and to go


def test_it_is_installed_late_and_removed_again(fake_driver: str) -> None:
    early, twice, stays, gone, refusal = tell(
        """
        allocator = dtr_alloc.allocator(None, memory="torch")
        core = allocator._core
        refusal = refused(allocator.remove)
        early = core.installed()
        _core.cuda_allocator_in_use = lambda: True  # As after the first tensor on a GPU.
        allocator.install()
        allocator.install()
        twice = core.installed()
        stays = _core.current_cuda_allocator()
        allocator.remove()
        with dtr_alloc.rematerialize("1MiB"):
            pass
        print(json.dumps([early, twice, stays, core.installed(), refusal[1]]))
        """,
        fake_driver,
    )
    assert (early, twice, stays, gone) == (False, True, "native", False)
    assert "it was not installed" in refusal


def test_change_current_allocator_takes_it_too(fake_driver: str) -> None:
    installed, shown = tell(
        """
        allocator = swap("1GiB", memory="torch")
        print(json.dumps([allocator._core.installed(), repr(allocator)]))
        """,
        fake_driver,
    )
    assert installed
    assert shown == "<dtr_alloc.Guest with a budget of 1 GiB>"


def test_another_allocator_than_torchs_own_is_refused(fake_driver: str) -> None:
    (text,) = tell(
        """
        swap("64MiB", rematerialize=False)
        print(json.dumps(refused(lambda: dtr_alloc.allocator(None, memory="torch"))[1:]))
        """,
        fake_driver,
    )
    assert 'needs torch\'s own CUDA allocator, and "dtr_alloc" is in use' in text


def test_a_trace_is_refused(native: Native) -> None:
    with (
        Open(native),
        pytest.raises(RuntimeError, match="a trace needs to know when memory is freed"),
        dtr_alloc.record_trace(),
    ):
        pass


def test_models_train_exactly(native: Native) -> None:
    def losses() -> list[Tensor]:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            *(
                torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.GELU())
                for _ in range(8)
            )
        )
        optimizer = torch.optim.Adam(layers.parameters())
        found = []
        for _ in range(3):
            loss = layers(torch.randn(1024, 64)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach().clone())
        return [*found, *(p.detach().clone() for p in layers.parameters())]

    expected = [bits(tensor) for tensor in losses()]
    with Open(native, "4MiB") as opened:
        found = losses()
        assert all(same(bits(one), want) for one, want in zip(found, expected, strict=True))
        assert opened.session.stats().evictions > 0
        assert native.peak <= 4 * MIB
        del found
