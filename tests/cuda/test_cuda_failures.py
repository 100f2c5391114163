"""Every call of the CUDA driver fails once: the pool stays whole and nothing is left behind."""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, ROOT, SCORER_CALLS, FakeCuda
from tests.support.cuda_pools import Blocks, alternating

HEADER = ROOT / "dtr_alloc/pool/csrc/cuda/driver.h"


class Life:
    """A pool's life in steps, any of which may fail: then the pool must be whole, and the next ones
    work. Each block's streams must find the value in it that is its own, when it is freed."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.a, self.b = cuda.stream(), cuda.stream()
        self.failed: list[Exception] = []
        self.blocks: Blocks | None = None

    def attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except (RuntimeError, MemoryError) as error:
            self.failed.append(error.with_traceback(None))  # It would keep the pool.
        if self.blocks is not None:
            self.blocks.pool.check()

    def make(self) -> None:
        self.blocks = Blocks(self.cuda, Pool(8 * PAGE, "cuda"))

    def allocate(self, pages: float, stream: int) -> None:
        assert self.blocks is not None
        self.blocks.allocate(int(pages * PAGE), stream)

    def free(self, which: int, also_on: int | None = None) -> None:
        assert self.blocks is not None
        address = sorted(self.blocks.held)[which % len(self.blocks.held)]
        if also_on is not None:
            self.blocks.use(address, also_on)
        self.blocks.free(address)

    def live(self) -> None:
        a, b = self.a, self.b
        for _ in range(2):  # The second time nothing fails any more.
            if self.blocks is None:
                self.attempt(self.make)
        assert self.blocks is not None
        pool = self.blocks.pool
        for pages, stream in ((1, a), (1, a), (2, b), (1, a), (1.5, b), (0.5, a), (1, b)):
            self.attempt(partial(self.allocate, pages, stream))
        self.attempt(lambda: self.free(0))
        self.attempt(lambda: self.free(0, also_on=b))
        self.attempt(lambda: self.free(1))
        self.attempt(lambda: self.allocate(1, b))  # Waits for a.
        self.attempt(lambda: self.allocate(1.5, a))  # Waits for b.
        self.attempt(lambda: self.free(1))
        self.attempt(lambda: self.free(-1))
        self.attempt(lambda: self.allocate(3, a))  # Takes two pages from where b may still be.
        before = len(self.failed)
        self.attempt(pool.begin_quarantine)
        begun = len(self.failed) == before
        self.attempt(lambda: self.free(1))
        self.attempt(lambda: self.allocate(0.5, a))
        if begun:
            self.attempt(pool.end_quarantine)
        self.cuda.drain(b)
        self.attempt(pool.trim)
        self.attempt(lambda: self.allocate(1, b))
        self.attempt(lambda: pool.retire_stream(b))
        self.attempt(lambda: self.free(0, also_on=b))
        self.attempt(lambda: self.allocate(1, b))
        while self.blocks.held:
            self.free(0)
        self.cuda.manual(False)
        self.cuda.finish()
        self.attempt(pool.trim)
        self.attempt(pool.trim)
        with suppress(MemoryError, RuntimeError):
            pool.free(pool.allocate(8 * PAGE, stream=a))
        pool.free(pool.allocate(8 * PAGE, stream=a))
        pool.check()
        assert pool.stats().live == 0


def declared_calls() -> set[str]:
    return set(re.findall(r"  CALL\((\w+),", HEADER.read_text()))


TEXTS = {"cuGetErrorName", "cuGetErrorString"}
OF_THE_RUNTIME = {
    *("cuEventElapsedTime", "cuMemcpyDtoDAsync_v2", "cuDeviceTotalMem_v2"),
    *("cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"),
}
CALLS = sorted(declared_calls() - TEXTS - OF_THE_RUNTIME - set(SCORER_CALLS))


def live_with(cuda: FakeCuda, name: str = "", after: int = 0, code: int = 700) -> Life:
    """One life in which a call fails. Nothing may be left of it, and no wrong byte found."""
    cuda.manual()
    life = Life(cuda)
    if name:
        cuda.fail(name, after, code)
    life.live()
    assert cuda.faults() == []
    life.blocks = None
    left = cuda.held()
    assert left == {}, (name, after, left, life.failed)
    return life


def test_without_a_failure_every_step_works_and_every_call_is_made(cuda: FakeCuda) -> None:
    assert live_with(cuda).failed == []
    assert [name for name in CALLS if cuda.calls(name) == 0] == []


@pytest.mark.parametrize("name", CALLS)
def test_a_failed_call_leaves_the_pool_whole_and_nothing_behind(cuda: FakeCuda, name: str) -> None:
    before = cuda.calls(name)
    live_with(cuda)
    times = cuda.calls(name) - before
    assert times > 0
    failed = 0
    for after in range(times):
        failed += len(live_with(cuda, name, after).failed)
        assert cuda.pending_failures() == 0
    # A release is tried again; a recording at a free, and the mode of capture, can be done without.
    quiet = ("Release", "Free", "Destroy", "Pop", "Exchange")
    assert failed > 0 or any(word in name for word in quiet)


@pytest.mark.parametrize("name", ["cuEventCreate", "cuEventRecord", "cuEventSynchronize"])
def test_a_dropped_pool_waits_for_work_although_a_call_fails(cuda: FakeCuda, name: str) -> None:
    cuda.manual()
    stream, pool = cuda.stream(), Pool(8 * PAGE, "cuda")
    block = pool.allocate(PAGE, stream=stream)
    cuda.write(block, PAGE, 1, stream)
    pool.free(block)
    cuda.fail(name, code=2)
    del pool
    cuda.finish()
    assert cuda.faults() == []


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_missing_memory_is_never_more_than_a_memory_error(cuda: FakeCuda, name: str) -> None:
    for after in range(5):
        life = live_with(cuda, name, after, code=2)
        assert all(isinstance(error, MemoryError) for error in life.failed)


@pytest.mark.parametrize("undoing", ["cuMemUnmap", "cuMemRelease"])
@pytest.mark.parametrize("doing", ["cuMemMap", "cuMemSetAccess"])
@pytest.mark.parametrize("after", range(12))
def test_a_failure_while_a_failure_is_undone_is_made_good_later(
    cuda: FakeCuda, doing: str, undoing: str, after: int
) -> None:
    cuda.fail(undoing)
    live_with(cuda, doing, after)


@pytest.mark.parametrize("next_is", ["a release", "a request"])
def test_a_page_that_was_not_released_is_at_the_next_chance(cuda: FakeCuda, next_is: str) -> None:
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(PAGE) for _ in range(4)]
    pool.free(blocks[0])
    cuda.fail("cuMemRelease")
    with suppress(RuntimeError):
        pool.trim()
    assert cuda.used() == 4 * PAGE
    if next_is == "a release":
        pool.free(blocks[3])
        pool.trim()
        assert cuda.used() == 2 * PAGE
    else:
        pool.allocate(PAGE)
        assert cuda.used() == 4 * PAGE
    pool.check()


def test_a_page_whose_unmapping_failed_is_still_the_pool_s(cuda: FakeCuda) -> None:
    pool, blocks = alternating(cuda)
    cuda.fail("cuMemUnmap", after=2)
    with pytest.raises(RuntimeError, match=r"^cuMemUnmap failed: CUDA_ERROR_ILLEGAL_ADDRESS$"):
        pool.trim()
    pool.check()
    assert pool.stats().committed == cuda.used() == 6 * PAGE
    for number in (1, 3, 5, 7):
        cuda.expect(blocks[number], PAGE, number, 0)


@pytest.mark.parametrize("name", ["cuMemMap", "cuMemSetAccess", "cuMemUnmap"])
@pytest.mark.parametrize("hole", [1, 3], ids=["holes_of_one_page", "holes_of_three_pages"])
def test_a_move_that_fails_half_way_loses_no_page(cuda: FakeCuda, hole: int, name: str) -> None:
    """Of several pages, some may have moved when a call fails."""
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(pages * PAGE) for pages in [hole, 1] * (8 // (hole + 1))]
    kept = blocks[1::2]
    for number, address in enumerate(kept):
        cuda.write(address, PAGE, number, 0)
    for address in blocks[::2]:
        pool.free(address)
    free = 8 - len(kept)
    for after in range(free):
        cuda.fail(name, after)
        with suppress(RuntimeError):
            pool.free(pool.allocate(free * PAGE))
        pool.check()
        assert pool.stats().committed == cuda.used() == 8 * PAGE
    large = pool.allocate(free * PAGE)
    cuda.write(large, free * PAGE, 200, 0)
    for number, address in enumerate(kept):
        cuda.expect(address, PAGE, number, 0)


def test_a_move_that_fails_leaves_no_page_at_two_places(cuda: FakeCuda) -> None:
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(pages * PAGE) for pages in (3, 1, 3, 1)]
    for address in blocks[::2]:
        pool.free(address)
    cuda.fail("cuMemSetAccess")
    with pytest.raises(RuntimeError, match="cuMemSetAccess failed"):
        pool.allocate(6 * PAGE)
    assert cuda.count("mappings") == 8
