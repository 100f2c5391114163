"""The pool on CUDA memory, through the fake driver: pages, moves, and memory that others hold."""

from typing import Any

import pytest
import torch

from dtr_alloc import _core
from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, ROOT, FakeCuda
from tests.support.cuda_pools import alternating
from tests.support.own_process import printed

MIB = 1 << 20

POSIX_HANDLES, RDMA_PAGES = 103, 110  # Device attributes.


@pytest.mark.parametrize(
    ("options", "rdma", "exportable"),
    [
        ({}, 0, 0),
        ({"rdma": True}, 8, 0),
        ({"exportable": True}, 0, 8),
        ({"rdma": True, "exportable": True}, 8, 8),
    ],
)
def test_pages_are_made_for_what_was_asked(
    cuda: FakeCuda, options: dict[str, Any], rdma: int, exportable: int
) -> None:
    """Those of a later request and those that take the place of released ones, too."""
    pool = Pool(8 * PAGE, "cuda", **options)
    blocks = [pool.allocate(2 * PAGE) for _ in range(4)]
    pool.free(blocks[0])
    pool.trim()
    pool.allocate(2 * PAGE)
    assert (cuda.count("rdma"), cuda.count("exportable")) == (rdma, exportable)


@pytest.mark.parametrize(
    ("attribute", "option", "what"),
    [
        (RDMA_PAGES, "rdma", r"that a network card can reach \(GPUDirect RDMA\)"),
        (POSIX_HANDLES, "exportable", "that a file descriptor can name"),
    ],
)
def test_a_device_that_makes_no_such_pages_is_an_error_before_anything_is_reserved(
    cuda: FakeCuda, attribute: int, option: str, what: str
) -> None:
    cuda.lacks(attribute)
    with pytest.raises(
        RuntimeError, match=f"^CUDA device 0 makes no pages {what}: leave {option}=True out$"
    ):
        Pool(8 * PAGE, "cuda", **{option: True})
    assert cuda.calls("cuMemAddressReserve") == 0
    assert cuda.held() == {}
    other = {"rdma": "exportable", "exportable": "rdma"}[option]
    pool = Pool(8 * PAGE, "cuda", **{other: True})
    pool.allocate(PAGE)
    assert (cuda.count(option), cuda.count(other)) == (0, 1)


@pytest.mark.parametrize("arena", ["host", "virtual"])
def test_only_a_device_s_pages_are_made_for_other_uses(arena: Any) -> None:
    with pytest.raises(
        ValueError, match=f'rdma and exportable are of arena "cuda", not of "{arena}"'
    ):
        Pool(PAGE, arena, rdma=True)


def test_a_new_pool_holds_addresses_and_no_memory(cuda: FakeCuda) -> None:
    pool = Pool("1 GiB", "cuda")
    assert (pool.arena, pool.budget, pool.address_space) == ("cuda", 1 << 30, (2 << 30) + 64 * MIB)
    assert (cuda.used(), cuda.count("reservations")) == (0, 1)
    begin = pool.snapshot()[0].address
    assert begin % (1 << 30) == 0
    assert _core.Pool.is_owned(begin)


def test_pools_never_share_a_gibibyte_of_addresses(cuda: FakeCuda) -> None:
    pools = [Pool(PAGE, arena) for arena in ("cuda", "host", "cuda", "virtual", "cuda")]
    assert len({pool.snapshot()[0].address >> 30 for pool in pools}) == 5


def test_pages_come_with_the_blocks_that_need_them(cuda: FakeCuda) -> None:
    pool = Pool(16 * PAGE, "cuda")
    first = pool.allocate(1)
    assert (cuda.used(), pool.stats().committed) == (PAGE, PAGE)
    pool.allocate(PAGE - 512)
    assert cuda.used() == PAGE
    last = pool.allocate(2 * PAGE + 512)
    assert cuda.used() == pool.stats().committed == 4 * PAGE
    cuda.write(first, 1, 1, 0)
    cuda.write(last, 2 * PAGE + 512, 2, 0)
    pool.check()


def test_the_pages_of_holes_stay_until_they_are_trimmed(cuda: FakeCuda) -> None:
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(PAGE) for _ in range(4)]
    for address in blocks[:3]:
        pool.free(address)
    assert cuda.used() == 4 * PAGE
    assert pool.trim() == 3 * PAGE
    assert (cuda.used(), cuda.count("mappings"), cuda.count("handles")) == (PAGE, 1, 1)
    pool.check()


def test_memory_is_that_of_the_device_asked_for(cuda: FakeCuda) -> None:
    pools = [Pool(8 * PAGE, "cuda", device=device) for device in (0, 1)]
    pools[0].allocate(3 * PAGE)
    pools[1].allocate(5 * PAGE)
    assert [cuda.used(device) for device in (0, 1)] == [3 * PAGE, 5 * PAGE]
    assert cuda.count("contexts") == 2


def test_a_pool_leaves_the_thread_s_context_as_it_was(cuda: FakeCuda) -> None:
    with cuda.current(1):
        pool = Pool(8 * PAGE, "cuda", device=0)
        pool.free(pool.allocate(PAGE))
        pool.trim()
        assert cuda.count("current") == 1
    assert cuda.count("current") == 0


def test_only_a_devices_pool_is_on_a_device(cuda: FakeCuda) -> None:
    assert Pool(PAGE, "cuda", device=1).device == 1
    assert Pool("1MiB", device=3).device == 0


def test_a_dropped_pool_gives_everything_back_with_its_live_blocks(cuda: FakeCuda) -> None:
    pool = Pool(8 * PAGE, "cuda")
    for _ in range(3):
        pool.allocate(PAGE)
    begin = pool.snapshot()[0].address
    del pool
    assert cuda.held() == {}
    assert not _core.Pool.is_owned(begin)


def test_remapping_keeps_contents_and_copies_nothing(cuda: FakeCuda) -> None:
    pool, blocks = alternating(cuda)
    created = cuda.calls("cuMemCreate")
    large = pool.allocate(3 * PAGE)
    assert large == blocks[0] + 8 * PAGE
    assert (pool.stats().remaps, pool.stats().committed, cuda.used()) == (1, 8 * PAGE, 8 * PAGE)
    assert cuda.calls("cuMemCreate") == created
    # The pages of three freed blocks, whole and with the contents they had.
    found = [cuda.bytes_at(large + i * PAGE, PAGE) for i in range(3)]
    assert all(len(set(page)) == 1 for page in (p[:512] + p[-512:] for p in found))
    assert {page[0] for page in found} < {0, 2, 4, 6}
    assert len({page[0] for page in found}) == 3
    for number in (1, 3, 5, 7):
        cuda.expect(blocks[number], PAGE, number, 0)


def test_memory_of_others_is_respected_and_the_error_is_a_memory_error(cuda: FakeCuda) -> None:
    cuda.set_capacity(8 * PAGE)
    pool = Pool(8 * PAGE, "cuda")
    kept = pool.allocate(2 * PAGE)
    cuda.set_others(5 * PAGE)
    before = pool.snapshot()
    with pytest.raises(MemoryError, match=r"^cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY \(out"):
        pool.allocate(3 * PAGE)
    pool.check()
    assert pool.snapshot() == before
    assert (cuda.used(), pool.stats().live) == (2 * PAGE, 2 * PAGE)
    cuda.set_others(3 * PAGE)
    assert pool.allocate(3 * PAGE) == kept + 2 * PAGE
    pool.check()


def test_the_peak_has_the_pages_of_a_request_that_the_device_could_not_serve(
    cuda: FakeCuda,
) -> None:
    pool = Pool(64 * PAGE, "cuda")
    first, between, last, _ = (pool.allocate(PAGE) for _ in range(4))
    pool.free(first)
    pool.free(last)
    pool.trim()
    pool.free(between)  # A hole of three pages, of which only the middle one is there.
    pool.reset_peak()
    cuda.set_capacity(3 * PAGE)
    with pytest.raises(MemoryError):
        pool.allocate(3 * PAGE)
    assert pool.stats().committed == pool.stats().peak_committed == 3 * PAGE


def test_the_pools_own_free_pages_are_used_before_the_device_is_called_full(cuda: FakeCuda) -> None:
    pool, blocks = alternating(cuda)
    pool.allocate(4 * PAGE)  # Takes the pages of the four holes: the limit is the budget.
    wide = Pool(64 * PAGE, "cuda")
    mine = [wide.allocate(PAGE) for _ in range(6)]
    for address in mine[::2]:
        wide.free(address)
    cuda.set_capacity(cuda.used())
    created = cuda.used()
    large = wide.allocate(3 * PAGE)
    assert large == mine[5] + PAGE
    assert (wide.stats().remaps, cuda.used()) == (1, created)
    with pytest.raises(MemoryError):
        wide.allocate(PAGE)
    wide.check()
    assert len(blocks) == 8


def test_a_budget_above_the_device_s_memory_is_no_error_until_it_is_needed(cuda: FakeCuda) -> None:
    cuda.set_capacity(4 * PAGE)
    pool = Pool(16 * PAGE, "cuda")
    pool.allocate(4 * PAGE)
    with pytest.raises(MemoryError):
        pool.allocate(512)
    with pytest.raises(torch.OutOfMemoryError, match="pool is full"):
        pool.allocate(13 * PAGE)
    pool.check()


FORKING_PROGRAM = """
import os, signal
from dtr_alloc.pool import Pool
pool = Pool("16 MiB", "cuda")
pool.allocate(1000)
child = os.fork()
if child == 0:
    signal.alarm(10)
    try:
        pool.allocate(4 << 20)
    except RuntimeError as error:
        print(error, flush=True)
    pool.check()
    del pool
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
pool.allocate(4 << 20)
pool.check()
"""


def test_a_forked_child_is_refused_and_does_not_call_the_driver(cuda: FakeCuda) -> None:
    assert printed(FORKING_PROGRAM, PYTHONPATH=str(ROOT)).splitlines() == [
        "a CUDA pool cannot be used in a forked process, where CUDA does not work: start the "
        'process with "spawn"',
        "0",
    ]
