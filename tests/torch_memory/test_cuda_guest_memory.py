"""A guest on CUDA whose memory is short: what is evicted, what never is, and by which thread."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import dtr_alloc
from dtr_alloc import _core
from tests.fake_cuda.driver import FakeCuda
from tests.native_stand_in.guests import guest_of, open_guest
from tests.native_stand_in.native import Native
from tests.support.exactness import bits, chain, same

MIB = 1 << 20


ACTS: list[Callable[[], object]] = []


@torch.library.custom_op("test_guest::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    """Does the next of ACTS while it runs."""
    ACTS.pop()()
    return x * 3


def test_a_request_that_fails_natively_succeeds_after_an_eviction(native: Native) -> None:
    expected = [bits(tensor) for tensor in chain(96, rows=4096)]
    with open_guest(native) as opened:
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


def test_when_nothing_is_left_the_error_is_torchs_and_observers_hear_once(native: Native) -> None:
    with open_guest(native) as opened:
        told = native.observe(opened.address)
        kept = torch.ones(1 << 18).exp()
        with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to alloc"):
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
    with open_guest(native, on_cuda=True) as opened:
        kept = torch.ones(1 << 18).exp()
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            opened.guest.allocate(4 << 30, 0, 0)
        assert opened.session.stats().evictions == 0
        del kept


def test_tries_that_fail_are_few_and_each_evicts_more(native: Native) -> None:
    with open_guest(native) as opened:
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
    with open_guest(native, budget) as opened:
        tensors = chain(64, rows)
        assert all(same(bits(t), want) for t, want in zip(tensors, expected, strict=True))
        assert native.peak <= budget
        assert opened.session.stats().evictions > 0
        del tensors


def test_the_budget_that_an_error_names_does(native: Native) -> None:
    with open_guest(native, "16MiB") as opened:
        assert native.hold(8 * MIB, opened.address)
        text = r"asked: 9\.00 MiB\n  budget: 16\.00 MiB"
        with pytest.raises(torch.OutOfMemoryError, match=text) as refused:
            opened.guest.allocate(9 * MIB, 0, 0)
        assert native.num_ooms() == 0  # Torch was not asked.
        error: Any = refused.value
        opened.session.resize(error.needed)
        opened.guest.free(opened.guest.allocate(9 * MIB, 0, 0))
        native.drop_all()


def test_a_budget_that_shrinks_evicts_for_what_is_on_its_way(native: Native) -> None:
    with open_guest(native, "32MiB") as opened:
        tensors = chain(64, rows=4096)
        evictions = [opened.session.stats().evictions]

        def shrink() -> None:
            opened.session.resize("16MiB")
            opened.session.reset_peak()
            evictions.append(opened.session.stats().evictions)

        native.during(shrink)
        opened.guest.free(opened.guest.allocate(8 * MIB, 0, 0))
        assert evictions[1] >= evictions[0] + 16
        assert 8 * MIB <= native.peak <= 16 * MIB
        del tensors


def test_a_budget_without_room_for_what_is_on_its_way_is_refused(native: Native) -> None:
    refused = []
    with open_guest(native, "32MiB") as opened:

        def shrink() -> None:
            try:
                opened.session.resize("8MiB")
            except torch.OutOfMemoryError as error:
                refused.append(str(error))

        native.during(shrink)
        opened.guest.free(opened.guest.allocate(10 * MIB, 0, 0))
        opened.session.resize("8MiB")
    assert len(refused) == 1
    assert "cannot shrink to 8.00 MiB: 11.00 MiB are in use" in refused[0]


def test_a_request_that_is_just_being_served_is_not_counted_twice(native: Native) -> None:
    """The budget has room for it once, and another thread looks at the books while they change."""
    with open_guest(native, "32MiB") as opened, ThreadPoolExecutor(1) as pool:
        assert native.hold(2 * MIB, opened.address)
        resized = []

        def look() -> None:
            resized.append(pool.submit(opened.session.resize, "12MiB"))
            time.sleep(0.3)  # It waits for the books by now.

        native.booked(look)
        native.lingers(8)
        block = opened.guest.allocate(6 * MIB, 0, 0)
        resized[0].result(60)
        opened.guest.free(block)
        native.drop_all()


def test_a_budget_changes_and_memory_is_given_back(native: Native) -> None:
    with open_guest(native, "60MiB") as opened:
        tensors = chain(48, rows=4096)
        before = opened.session._core.pool_stats().committed
        opened.session.resize("16MiB")
        assert native.live <= 16 * MIB
        assert opened.session._core.pool_stats().committed <= before - 20 * MIB
        opened.session.resize("60MiB")
        assert bool((tensors[-1] == chain(48, rows=4096)[-1]).all())
        assert opened.session.release() >= 8 * MIB
        assert native.live <= MIB
        del tensors


def test_in_a_capture_nothing_is_evicted_and_nothing_made_there_is(native: Native) -> None:
    with open_guest(native) as opened:
        tensors = chain(48, rows=4096)
        native.capture(True, opened.address)
        assert not native.hold(32 * MIB, opened.address)
        assert opened.session.stats().evictions == 0
        native.capture(False, opened.address)
        # They became ordinary when it began.
        assert not any(dtr_alloc.evict(tensor) for tensor in tensors)
        del tensors


def test_the_end_of_a_capture_that_nobody_was_told_of_ends_no_other(native: Native) -> None:
    with open_guest(native) as opened:
        native.capture(True, opened.address, pool=7)
        native.capture(False, opened.address, pool=8)  # It began before the session was there.
        x = torch.ones(1 << 16).exp()
        assert not dtr_alloc.evict(x)
        native.capture(False, opened.address, pool=7)
        assert dtr_alloc.evict(x + 1)
        del x


def test_while_torchs_cache_is_off_nothing_is_evicted_nor_recorded(native: Native) -> None:
    with open_guest(native) as opened:
        x = torch.ones(1 << 16).exp()
        y = x + 1
        assert dtr_alloc.evict(x)
        native.enable(False, opened.address)
        assert not dtr_alloc.is_evicted(x)
        assert not dtr_alloc.evict(y)
        assert not dtr_alloc.evict(y + 1)
        native.enable(False, opened.address)
        native.enable(True, opened.address)
        assert dtr_alloc.evict(y + 1)
        assert f"{x[0]:.3f} {y[0]:.3f}" == "2.718 3.718"
        opened.session.check()
        del x, y


def test_a_cache_that_is_off_is_refused(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with pytest.raises(RuntimeError, match="unset PYTORCH_NO_CUDA_MEMORY_CACHING"):
        guest_of(native)


def test_blocks_made_while_torchs_cache_is_off_are_left_alone(native: Native) -> None:
    with open_guest(native) as opened:
        native.enable(False)
        native.log()
        assert native.hold(MIB, opened.address)
        assert native.log()[0] == f"allocate {MIB}"  # By torch's own way, deleter and all.
        native.enable(True)
        native.log()
        assert native.hold(MIB, opened.address)
        assert native.log()[0] == f"raw_alloc_with_stream {MIB} 0"


@pytest.mark.parametrize("aside", ["reads", "makes"])
def test_an_eviction_waits_for_the_streams_that_read_what_another_made(
    native: Native, cuda: FakeCuda, aside: str
) -> None:
    """Torch would give the memory to the stream that it was made for at once."""
    with open_guest(native, on_cuda=True) as opened:
        side = cuda.stream()
        makes, reads = (side, 0) if aside == "makes" else (0, side)
        _core.set_host_stream(makes)
        x = torch.ones(1 << 16).exp()
        _core.set_host_stream(reads)
        y = x + 1
        _core.set_host_stream(0)
        native.log()
        assert dtr_alloc.evict(x)
        assert f"recordStream {reads}" in native.log()
        assert f"{x[0]:.3f} {y[0]:.3f}" == "2.718 3.718"
        opened.session.check()
        del x, y


def test_recomputations_keep_no_events(native: Native, cuda: FakeCuda) -> None:
    with open_guest(native, on_cuda=True):
        x = torch.ones(1 << 16).exp()
        _core.set_host_stream(cuda.stream())
        y = x + 1
        _core.set_host_stream(0)
        for _ in range(50):
            assert dtr_alloc.evict(y)
            assert f"{y[0]:.3f}" == "3.718"
        assert cuda.count("events") < 10
        del x, y


def test_a_stream_that_is_gone_is_not_named_to_torch(native: Native, cuda: FakeCuda) -> None:
    with open_guest(native, on_cuda=True) as opened:
        x = torch.ones(1 << 16).exp()
        side = cuda.stream()
        _core.set_host_stream(side)
        y = x + 1
        _core.set_host_stream(0)
        cuda.manual()
        cuda.work(1, side)
        opened.guest.retire_stream(side, 0)
        assert cuda.queued(side) == 0  # The host has waited.
        cuda.manual(False)
        cuda.destroy_stream(side)
        native.log()
        assert dtr_alloc.evict(x)
        assert not any(line.startswith("recordStream") for line in native.log())
        assert f"{x[0]:.3f} {y[0]:.3f}" == "2.718 3.718"
        opened.session.check()
        del x, y


def test_a_budget_fits_where_torchs_blocks_are_larger_than_the_tensors(native: Native) -> None:
    with open_guest(native, "60MiB") as opened:
        tensors = chain(6, rows=26214)  # Of 6.4 MiB: the last in a segment has 0.8 MiB more.
        opened.session.resize("1MiB")
        assert opened.session.stats().live_bytes == 0
        opened.session.resize("60MiB")
        assert all(same(bits(one), bits(two)) for one, two in zip(tensors, tensors, strict=True))
        del tensors


def test_what_runs_while_a_capture_begins_is_not_recorded(native: Native) -> None:
    with open_guest(native, recordable=("test_guest::*",)) as opened:
        x = torch.ones(1 << 16).exp()
        ACTS.append(lambda: None)
        assert dtr_alloc.evict(tripled(x))
        ACTS.append(lambda: native.capture(True, opened.address))
        y = tripled(x)
        native.capture(False, opened.address)
        assert not dtr_alloc.evict(y)  # The graph may have its address.
        assert f"{y[0]:.3f}" == "8.155"
        opened.session.check()
        del x, y


def test_compiled_code_in_a_capture_waits_for_no_stream(native: Native, cuda: FakeCuda) -> None:
    with open_guest(native, on_cuda=True) as opened:
        x = torch.ones(1 << 16).exp()
        y = x + 1
        native.capture(True, opened.address)
        _core.set_host_stream(cuda.stream())
        waits = cuda.calls("cuStreamWaitEvent")
        assert opened.session._core.holding([x, y], [], False, 0, lambda: 7) == 7
        assert cuda.calls("cuStreamWaitEvent") == waits
        _core.set_host_stream(0)
        native.capture(False, opened.address)
        del x, y
