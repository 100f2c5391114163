"""What torch tells of the memory that our CUDA allocator has: statistics, snapshot, errors."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.swapped_allocator import tell, with_cuda

pytestmark = [with_cuda, pytest.mark.usefixtures("cuda")]


@pytest.mark.parametrize("rematerialize", [True, False])
def test_statistics_are_those_of_the_pool(rematerialize: bool) -> None:
    stats = tell(
        f"""
        allocator = swap(rematerialize={rematerialize})
        a, b = allocator.allocate(3 * MIB), allocator.allocate(100)
        allocator.free(a)
        allocator.allocate(MIB)
        stats = torch._C._cuda_memoryStats(0)
        torch._C._cuda_resetPeakMemoryStats(0)
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        stats["later"] = torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]
        allocator._core.init()  # As torch does once it has found a device.
        stats["accelerator"] = torch._C._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]
        allocator.free(b)
        last = torch._C._cuda_memoryStats(0)
        stats["freed since"] = [last[of]["all"]["freed"] for of in ("allocation", "active_bytes")]
        stats["largest hole"] = allocator._core.largest_cached(0)  # For cuDNN's benchmark.
        stats["of no bytes"] = allocator._core.allocate(0, 0, 0)
        allocator._core.check(0)
        print(json.dumps(stats))
        """
    )
    mib = 1 << 20
    whole = stats["allocated_bytes"]["all"]
    assert whole == {
        "current": mib + 512,
        "peak": 3 * mib + 512,
        "allocated": 4 * mib + 512,
        "freed": 3 * mib,
    }
    assert stats["active_bytes"]["all"] == stats["allocated_bytes"]["large_pool"] == whole
    assert stats["allocation"]["all"] == {"current": 2, "peak": 2, "allocated": 3, "freed": 1}
    assert stats["reserved_bytes"]["all"]["current"] == 4 * mib
    assert stats["inactive_split_bytes"]["all"]["current"] == 3 * mib - 512
    assert stats["num_ooms"] == 0
    assert stats["later"] == {"current": mib + 512, "peak": mib + 512, "allocated": 0, "freed": 0}
    assert stats["accelerator"] == stats["later"]
    assert stats["freed since"] == [1, 512]
    assert stats["largest hole"] == 63 * mib  # Once pages have moved.
    assert stats["of no bytes"] == 0


def test_a_snapshot_has_every_block_and_opens_in_the_visualiser(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    addresses = tell(
        f"""
        import pickle
        allocator = swap()
        a, b, c = (allocator.allocate(n * MIB) for n in (1, 2, 5))
        allocator.free(b)
        with open({str(path)!r}, "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        from torch.cuda import _memory_viz as viz
        snapshot = torch.cuda.memory._snapshot()
        assert "<html>" in viz.segment_plot(snapshot) or len(viz.segment_plot(snapshot)) > 1000
        assert torch.cuda.memory_snapshot() == snapshot["segments"]
        print(json.dumps([a, c]))
        """
    )
    snapshot = pickle.loads(path.read_bytes())
    mib = 1 << 20
    (segment,) = snapshot["segments"]
    assert segment["address"] == addresses[0]
    assert segment["total_size"] == 8 * mib
    assert segment["allocated_size"] == segment["active_size"] == 6 * mib
    blocks = [(b["address"], b["size"], b["state"]) for b in segment["blocks"]]
    assert blocks == [
        (addresses[0], mib, "active_allocated"),
        (addresses[0] + mib, 2 * mib, "inactive"),
        (addresses[1], 5 * mib, "active_allocated"),
    ]


def test_an_out_of_memory_error_is_torchs_and_says_what_would_do() -> None:
    plain, served, counts = tell(
        """
        def fill(allocator):
            for _ in range(8):
                allocator.allocate(8 * MIB)
            return refused(lambda: allocator.allocate(MIB))
        plain = dtr_alloc.allocator("64MiB", rematerialize=False)
        served = swap()
        texts = [fill(plain), fill(served)]
        counts = [torch._C._cuda_memoryStats(0)["num_ooms"]]
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        counts.append(torch._C._cuda_memoryStats(0)["num_ooms"])
        print(json.dumps([*texts, counts]))
        """
    )
    assert plain[0] == served[0] == "OutOfMemoryError"
    assert "asked: 1048576 bytes on CUDA device 0\n" in plain[1]
    assert "budget: 67108864 bytes, of which 0 are free" in plain[1]
    assert "Raise the budget to at least 68157440 bytes" in plain[1]
    assert "asked: 1.00 MiB\n  budget: 64.00 MiB, of which 0 B are free\n" in served[1]
    assert "Raise the budget to at least 65.00 MiB" in served[1]
    told: list[Any] = [torch.OutOfMemoryError(text) for _, text in (plain, served)]
    assert [error.needed for error in told] == [65 << 20] * 2
    assert counts == [1, 0]


def test_no_budget_is_advised_for_more_than_the_device_has() -> None:
    plain, served = tell(
        """
        kinds = [dtr_alloc.allocator("64MiB", rematerialize=False), swap()]
        print(json.dumps([refused(lambda: one.allocate(2**63 - 1))[1] for one in kinds]))
        """
    )
    assert "no budget helps" in plain
    assert "no budget helps" in served


def test_a_fraction_and_a_budget_that_changes_both_hold() -> None:
    # The fake device has 4 GiB.
    limits, grown, refusal = tell(
        """
        allocator = swap("64MiB")
        limits = []
        def note(act):
            act()
            limits.append(allocator.session.stats().budget_bytes // MIB)
        allocator.free(allocator.allocate(MIB))
        note(lambda: allocator.session.resize("32MiB"))
        note(lambda: torch._C._cuda_setMemoryFraction(1.0, 0))
        note(lambda: torch._C._cuda_setMemoryFraction(16 / 4096, 0))
        note(lambda: allocator.session.resize("48MiB"))
        a = allocator.allocate(12 * MIB)
        note(lambda: torch._C._cuda_setMemoryFraction(4 / 4096, 0))
        with allocator.session.lend("16MiB"):
            note(lambda: torch._C._cuda_setMemoryFraction(8 / 4096, 0))
        refusal = refused(lambda: allocator.session.resize("8MiB"))
        note(lambda: torch._C._cuda_setMemoryFraction(1.0, 0))
        b = allocator.allocate(30 * MIB)
        allocator._core.check(0)
        print(json.dumps([limits, b > 0, refusal[1]]))
        """
    )
    assert limits == [32, 32, 16, 16, 4, 8, 48]
    assert grown
    assert "cannot shrink to 8.00 MiB: 12.00 MiB are in use" in refusal


def test_a_stream_that_is_about_to_be_destroyed_is_announced() -> None:
    answers = tell(
        f"""
        import sys
        sys.path.append({str(Path(__file__).parents[2])!r})
        from tests.fake_cuda.driver import FakeCuda
        cuda = FakeCuda(os.environ["DTR_ALLOC_LIBCUDA"])
        allocator = swap("64MiB")
        side = cuda.stream()
        a = allocator.allocate(40 * MIB, stream=side)
        allocator.free(a)
        allocator.retire_stream(side)
        cuda.destroy_stream(side)
        allocator.free(allocator.allocate(40 * MIB))
        allocator._core.check(0)
        cuda.finish()
        print(json.dumps([cuda.faults()]))
        """
    )
    assert answers == [[]]  # No faults.


def test_a_fraction_of_the_device_bounds_the_pool_below_its_budget() -> None:
    # The fake device has 4 GiB.
    before, small, large, committed = tell(
        """
        allocator = swap("64MiB")
        a = allocator.allocate(40 * MIB)
        allocator.free(a)
        torch._C._cuda_setMemoryFraction(32 / 4096, 0)
        committed = allocator._core.pool_stats(0).committed
        small = refused(lambda: allocator.allocate(33 * MIB))
        allocator.free(allocator.allocate(32 * MIB))
        fraction = torch._C._cuda_getMemoryFraction(0)
        torch._C._cuda_setMemoryFraction(1.0, 0)
        allocator.allocate(33 * MIB)
        allocator._core.check(0)
        print(json.dumps([fraction, small[0], torch._C._cuda_getMemoryFraction(0), committed]))
        """
    )
    assert before == pytest.approx(32 / 4096)
    assert (small, large) == ("OutOfMemoryError", 1.0)
    assert committed == 32 << 20


def test_empty_cache_gives_pages_back_but_within_an_operator() -> None:
    """There it is cuDNN's benchmark that calls it, after each new shape."""
    within, after = tell(
        """
        allocator = swap()
        allocator.free(allocator.allocate(8 * MIB))
        committed = lambda: allocator._core.pool_stats(0).committed
        found = []
        @torch.library.custom_op("dtr_test_cuda::tries", mutates_args=())
        def tries(x: torch.Tensor) -> torch.Tensor:
            torch._C._cuda_emptyCache()
            found.append(committed())
            return x + 1
        tries(torch.ones(4))
        torch._C._cuda_emptyCache()
        print(json.dumps([*found, committed()]))
        """
    )
    assert (within, after) == (8 << 20, 0)
