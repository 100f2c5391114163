"""Guest mode on CUDA without a GPU: CPU tensors in the memory of an allocator that stands in for
torch's own, on the fake driver (native_stand_in). Only CUDA builds of torch have the headers and
the class, so `make check-cuda` runs these."""

import ctypes
import itertools
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch

import dtr_alloc
from dtr_alloc import _core
from tests.fake_cuda.driver import FakeCuda
from tests.native_stand_in.guests import guest_of, open_guest
from tests.native_stand_in.native import INCLUDE, Native
from tests.support.exactness import bits, chain, same
from tests.support.swapped_allocator import tell, with_cuda

pytestmark = with_cuda
MIB = 1 << 20


def virtuals() -> set[str]:
    """Of torch's interface of a CUDA allocator, by the installed headers."""
    found: set[str] = set()
    for header, name in (
        ("core/Allocator.h", "Allocator"),
        ("core/CachingDeviceAllocator.h", "DeviceAllocator"),
        ("cuda/CUDACachingAllocator.h", "CUDAAllocator"),
    ):
        text = re.sub(r"//[^\n]*", "", (INCLUDE / "c10" / header).read_text())
        body = re.search(rf"^(?:class|struct)[\w ]* {name}\b[^;{{]*{{(.*?)^}};", text, re.M | re.S)
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
    "tensors shared with other processes": ("shareIpcHandle 0", "getIpcDevPtr x"),
    "direct access from another GPU": ("enablePeerAccess 0 1",),
    "pages told to NCCL": ("attachAllocatorTraceTracker",),
    "expandable segments": ("getExpandableSegmentSizes 0",),
}


@pytest.mark.parametrize("refused", SERVED)
def test_what_a_pool_refuses_reaches_torch_beside_evictions(native: Native, refused: str) -> None:
    with open_guest(native, "4MiB") as opened:
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


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(True, id="as torch.multiprocessing does"),
        pytest.param(
            False,
            id="past its methods",
            marks=pytest.mark.skipif(not _core.sees_raw_access, reason="torch before 2.13"),
        ),
    ],
)
def test_a_tensor_shared_with_another_process_stays_where_it_is(native: Native, told: bool) -> None:
    with open_guest(native) as opened:
        tensors = chain(24, rows=4096)  # 24 MiB, of 64.
        shared = tensors[8]
        assert dtr_alloc.evict(shared)
        dtr_alloc.materialize(shared)
        assert dtr_alloc.evict(tensors[9])
        if told:
            shared._typed_storage()  # type: ignore[no-untyped-call]
        native.log()
        place = native.share(shared, opened.address)
        assert native.log() == [f"shareIpcHandle {place}"]
        assert not dtr_alloc.evict(shared)
        assert native.hold(50 * MIB, opened.address)
        assert opened.session.stats().evictions > 12
        assert not dtr_alloc.is_evicted(shared)
        assert native.place(shared) == place
        ctypes.memset(place, 0, 4)  # What the other process writes is seen.
        assert shared[0, :2].tolist() == [0, shared[1, 1]]
        native.drop_all()
        assert same(bits(tensors[9]), bits(chain(10, rows=4096)[9]))
        opened.session.check()
        del tensors, shared


def test_a_free_reaches_the_allocator_that_made_the_block(native: Native) -> None:
    """At six moments a block of each that made one dies, and a tensor of the guest's, whatever is
    installed then. The other allocator has memory and a deleter of its own."""
    made: dict[str, list[Callable[[], object]]] = {}
    numbers = itertools.count()

    def make(maker: str) -> None:
        blocks = [next(numbers) for _ in range(6) if native.hold(MIB, native.installed)]
        made[maker] = [partial(native.drop, number) for number in blocks]

    def freed() -> dict[str, tuple[int, int]]:
        """Frees that reached torch's allocator, and the other, when a block of each maker died."""
        found = {}
        for maker, deaths in made.items():
            before = native.frees, native.other_frees
            deaths.pop()()
            found[maker] = native.frees - before[0], native.other_frees - before[1]
        return found

    native.install()
    make("torch's, before")
    with open_guest(native) as opened:
        opened.guest.install()
        assert native.installed == opened.address
        make("the guest")
        tensors = [torch.ones(1 << 18) for _ in range(6)]
        made["the guest, a tensor"] = [tensors.pop] * 6
        native.install(native.other)
        make("the other, meanwhile")
        expected = dict.fromkeys(made, (1, 0)) | {"the other, meanwhile": (0, 1)}
        assert freed() == expected
        native.install(opened.address)
        assert freed() == expected
        opened.guest.remove()
        assert native.installed == native.address
        make("torch's, after")
        expected["torch's, after"] = (1, 0)
        assert freed() == expected
        native.install(native.other)
        assert freed() == expected
    native.install()
    assert freed() == expected
    with open_guest(native) as opened:
        opened.guest.install()
        assert freed() == expected


def test_what_is_freed_by_its_address_reaches_torchs_allocator(native: Native) -> None:
    native.install()
    early = native.raw_alloc(MIB)
    with open_guest(native) as opened:
        opened.guest.install()
        late = opened.guest.allocate(2 * MIB, 0, 0)
        torch.cuda.caching_allocator_delete(early)  # type: ignore[no-untyped-call]
        assert native.live == 2 * MIB
        opened.guest.remove()
        torch.cuda.caching_allocator_delete(late)  # type: ignore[no-untyped-call]
        assert native.live == 0


def test_captures_pools_and_streams_are_forwarded_in_order(native: Native) -> None:
    with open_guest(native) as opened:
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


def test_it_is_installed_late_and_removed_again(cuda: FakeCuda) -> None:
    early, twice, stays, gone, again = tell(
        """
        allocator = dtr_alloc.allocator(None, memory="torch")
        core = allocator._core
        early = core.installed()
        _core.cuda_allocator_in_use = lambda: True  # As after the first tensor on a GPU.
        allocator.install()
        allocator.install()
        twice = core.installed()
        stays = _core.current_cuda_allocator()
        allocator.remove()
        with dtr_alloc.rematerialize("1MiB"):
            pass
        again = [refused(allocator.install)[1], refused(allocator.remove)[1]]
        print(json.dumps([early, twice, stays, core.installed(), again]))
        """
    )
    assert (early, twice, stays, gone) == (False, True, "native", False)
    assert "was removed, for good" in again[0]
    assert "was removed, or another was installed" in again[1]


def test_one_that_was_never_installed_makes_way(cuda: FakeCuda) -> None:
    budget, refusal = tell(
        """
        late = dtr_alloc.allocator(None, memory="torch")
        late.remove()
        second = dtr_alloc.allocator("8MiB", memory="torch")
        second.install()
        print(json.dumps([second.budget, refused(late.install)[1]]))
        """
    )
    assert budget == 8 * MIB
    assert "was removed, for good" in refusal


def test_a_removal_brings_all_back_or_leaves_all_as_it_was(native: Native, cuda: FakeCuda) -> None:
    expected = [bits(tensor) for tensor in chain(48, rows=4096)]
    with open_guest(native, "16MiB") as opened:
        native.install()
        opened.guest.install()
        tensors = chain(48, rows=4096)
        cuda.set_capacity(32 * MIB)
        with pytest.raises(torch.OutOfMemoryError, match="not all tensors that the program holds"):
            opened.guest.remove()
        assert opened.guest.installed()
        assert opened.session.stats().budget_bytes == 16 * MIB
        assert all(same(bits(one), want) for one, want in zip(tensors, expected, strict=True))
        assert dtr_alloc.evict(tensors[0] + 1)
        assert opened.session.stats().live_bytes <= 16 * MIB
        cuda.set_capacity(64 * MIB)
        opened.guest.remove()
        assert not opened.guest.installed()
        assert not any(map(dtr_alloc.is_evicted, tensors))
        assert all(same(bits(one), want) for one, want in zip(tensors, expected, strict=True))
        del tensors


def test_change_current_allocator_takes_it_too(cuda: FakeCuda) -> None:
    installed, shown = tell(
        """
        allocator = swap("1GiB", memory="torch")
        print(json.dumps([allocator._core.installed(), repr(allocator)]))
        """
    )
    assert installed
    assert shown == "<dtr_alloc.Guest with a budget of 1 GiB>"


def test_another_allocator_than_torchs_own_is_refused(cuda: FakeCuda) -> None:
    (text,) = tell(
        """
        swap("64MiB", rematerialize=False)
        print(json.dumps(refused(lambda: dtr_alloc.allocator(memory="torch"))[1:]))
        """
    )
    assert 'needs torch\'s own CUDA allocator, and "dtr_alloc" is in use' in text


def test_a_trace_is_refused(native: Native) -> None:
    with (
        open_guest(native),
        pytest.raises(RuntimeError, match="a trace needs to know when memory is freed"),
        dtr_alloc.record_trace(),
    ):
        pass
