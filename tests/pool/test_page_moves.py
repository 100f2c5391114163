"""Pages of the pool: how those of the host move, by a call of the kernel or without, and how the
budget and limits bound them."""

import ctypes
import mmap
import os
import platform
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtr_alloc import _core, info
from dtr_alloc.pool import Pool
from tests.support.pool_memory import holds_only, resident, write

KIB, MIB = 1 << 10, 1 << 20
SMALL, HUGE = 4 * KIB, 2 * MIB
BLOCK = 2  # Pages.

of_each_page = pytest.mark.parametrize("page", [SMALL, HUGE], ids=["small pages", "huge pages"])
where_pages_move = pytest.mark.skipif(
    not _core.host_pages_move(), reason="this machine moves no small page"
)


def kernel_moves_pages() -> bool:
    """Whether Linux has UFFDIO_MOVE and lets this process use it, as its own answer tells."""
    system = ctypes.CDLL(None, use_errno=True)
    number, user_mode_only, feature_move = 323, 1, 1 << 16  # The first is of x86-64.
    descriptor = system.syscall(number, os.O_CLOEXEC | user_mode_only)
    if descriptor < 0:
        return False
    api = (ctypes.c_uint64 * 3)(0xAA, feature_move, 0)
    answer = system.ioctl(descriptor, ctypes.c_ulong(0xC018AA3F), api)  # UFFDIO_API.
    os.close(descriptor)
    return bool(answer == 0)


def kernel_moves_mappings() -> bool:
    """Whether mremap can leave the old mapping without its pages, which Linux has from 5.7 on."""
    system = ctypes.CDLL(None, use_errno=True)
    system.mremap.restype = ctypes.c_void_p
    may_move, fixed, dont_unmap = 1, 2, 4
    with mmap.mmap(-1, 2 * SMALL, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        begin = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        moved = system.mremap(
            ctypes.c_void_p(begin), SMALL, SMALL, may_move | fixed | dont_unmap,
            ctypes.c_void_p(begin + SMALL),
        )  # fmt: skip
    return bool(moved == begin + SMALL)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a number of that machine's")
def test_the_kernels_call_is_used_wherever_there_is_one() -> None:
    assert _core.host_pages_move() == kernel_moves_pages()


@contextmanager
def switched_off() -> Iterator[None]:
    """No pool that is made in it uses userfaultfd."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTR_ALLOC_USERFAULTFD", "0")
        yield


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The process may open nothing."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))


def forty_pages(page: int) -> Pool:
    """A pool of so many, in many more addresses."""
    return Pool(40 * page, "host", address_space=512 * MIB if page == HUGE else 4 * MIB)


def scatter(pool: Pool, page: int) -> tuple[list[int], list[int]]:
    """Fills the pool with blocks that hold their number, and frees every second: what stays, and
    what is free now."""
    blocks = [pool.allocate(BLOCK * page) for _ in range(20)]
    for number, address in enumerate(blocks):
        write(address, BLOCK * page, number // 2)
    for address in blocks[1::2]:
        pool.free(address)
    return blocks[::2], blocks[1::2]


def gather(pool: Pool, page: int, kept: list[int]) -> int:
    """Takes all that is free in one block and frees everything. Each block that stayed had its
    bytes. Returns how many pages the kernel had to bring while the block was written."""
    before = pool.stats().remaps
    large = pool.allocate(20 * page)
    assert pool.stats().remaps == before + 1
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    write(large, 20 * page, 0xFF)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert resident(pool) <= pool.stats().committed == 40 * page
    assert all(holds_only(address, BLOCK * page, i) for i, address in enumerate(kept))
    assert holds_only(large, 20 * page, 0xFF)
    pool.check()
    for address in [large, *kept]:
        pool.free(address)
    return faults


def mappings(pool: Pool) -> int:
    """In so many pieces the kernel keeps the pool's addresses."""
    begin, end = pool.snapshot()[0].address, pool.snapshot()[0].address + pool.address_space
    ranges = (line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines())
    pieces = [tuple(int(part, 16) for part in one.split("-")) for one in ranges]
    return sum(begin <= first and last <= end for first, last in pieces)


@of_each_page
@pytest.mark.parametrize("way", [nullcontext, switched_off, no_descriptors])
def test_live_blocks_keep_their_bytes_and_no_page_is_there_twice(
    page: int, way: Callable[[], AbstractContextManager[None]]
) -> None:
    with way():
        pool = forty_pages(page)
    for _ in range(20):
        kept, _ = scatter(pool, page)
        gather(pool, page, kept)


@where_pages_move
def test_a_page_that_moves_is_not_brought_anew() -> None:
    moving = forty_pages(SMALL)
    with switched_off():
        still = forty_pages(SMALL)
    assert gather(moving, SMALL, scatter(moving, SMALL)[0]) < 5
    assert gather(still, SMALL, scatter(still, SMALL)[0]) > 10


@pytest.mark.skipif(not kernel_moves_mappings(), reason="this kernel moves no huge page")
def test_a_huge_page_that_moves_is_not_brought_anew() -> None:
    pool = forty_pages(HUGE)
    assert gather(pool, HUGE, scatter(pool, HUGE)[0]) < 5


@pytest.mark.parametrize("way", [nullcontext, switched_off])
def test_however_often_small_pages_move_the_range_is_one_mapping(
    way: Callable[[], AbstractContextManager[None]],
) -> None:
    with way():
        pool = forty_pages(SMALL)
    for _ in range(50):
        gather(pool, SMALL, scatter(pool, SMALL)[0])
        assert mappings(pool) == 1


@of_each_page
def test_after_a_fork_both_processes_have_their_own_bytes(page: int) -> None:
    """The kernel moves no page that a child still shares; here every second one of a hole. In the
    child it moves none."""
    pool = forty_pages(page)
    kept, holes = scatter(pool, page)
    come, go = os.pipe()
    child = os.fork()
    if child == 0:
        failed = True
        try:
            os.close(go)
            os.read(come, 1)  # The parent has moved its pages.
            gather(pool, page, kept)
            gather(pool, page, scatter(pool, page)[0])
            failed = False
        finally:
            os._exit(failed)
    try:
        for address in holes:
            write(address, page, 0xEE)  # Nothing of a hole is anybody's.
        gather(pool, page, kept)
    finally:
        os.close(go)
        ended = os.waitpid(child, 0)[1]
        os.close(come)
    assert ended == 0
    gather(pool, page, scatter(pool, page)[0])


@of_each_page
def test_the_kernel_itself_may_be_first_to_write_a_page(page: int, tmp_path: Path) -> None:
    """The range is registered with a descriptor of faults, and none goes there."""
    pool = forty_pages(page)
    file = tmp_path / "content"
    file.write_bytes(bytes([5]) * 3 * page)
    fresh = pool.allocate(3 * page)
    with file.open("rb", buffering=0) as source:
        memory = (ctypes.c_char * (3 * page)).from_address(fresh)
        assert source.readinto(memory) == 3 * page
    assert holds_only(fresh, 3 * page, 5)


def test_pages_that_are_locked_in_memory_move_and_are_given_back() -> None:
    pool = forty_pages(SMALL)
    kept, _ = scatter(pool, SMALL)
    libc = ctypes.CDLL(None)
    begin = ctypes.c_void_p(pool.snapshot()[0].address)
    if libc.mlock(begin, ctypes.c_size_t(40 * SMALL)) != 0:
        pytest.skip("this process may lock no memory")
    gather(pool, SMALL, kept)
    assert pool.trim() == 40 * SMALL
    assert resident(pool) == 0


@where_pages_move
def test_a_pool_closes_its_descriptor() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    pools = [forty_pages(SMALL) for _ in range(3)]
    assert descriptors() == before + 3
    del pools
    assert descriptors() == before


def test_info_tells_whether_pages_move() -> None:
    told = info.rows()["moving a page"]
    assert told.startswith("by the kernel" if _core.host_pages_move() else "not possible")
    with switched_off():
        assert info.rows()["moving a page"].startswith("not possible")


# Budgets and limits.


def test_a_request_within_the_budget_is_served_by_pages_beyond_it_as_a_last_remedy() -> None:
    pool = Pool(64 * KIB, "host", address_space=128 * KIB)
    blocks = [pool.allocate(512) for _ in range(128)]
    kept = blocks[::8]  # One on each page.
    for address in set(blocks) - set(kept):
        pool.free(address)
    large = pool.allocate(56 * KIB)
    write(large, 56 * KIB, 0xFF)
    stats = pool.stats()
    assert (stats.live, stats.committed) == (64 * KIB, 120 * KIB)
    pool.check()

    # Each page goes with the last block on it, until the limit is kept again.
    for number, address in enumerate(kept[:14], 1):
        pool.free(address)
        assert pool.stats().committed == (120 - 4 * number) * KIB
        pool.check()
    assert holds_only(large, 56 * KIB, 0xFF)
    pool.free(large)
    assert pool.stats().committed == 64 * KIB
    assert pool.stats().peak_committed == 120 * KIB


@given(
    budget=st.sampled_from([4 * KIB, 30_000, 130 * KIB, 300 * KIB]),
    arena=st.sampled_from(["host", "virtual"]),
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 512, 3000, 4096, 4608, 9000, 33 * KIB, 64 * KIB, 1 << 30]),
            st.integers(0, 1000),
            st.integers(0, 3),
        ),
        max_size=120,
    ),
)
@settings(max_examples=200, deadline=None)
def test_whatever_is_asked_within_the_budget_is_served(
    budget: int, arena: Literal["host", "virtual"], steps: list[tuple[int, int, int]]
) -> None:
    pool = Pool(budget, arena, address_space=2 * budget + 64 * MIB)
    live: list[int] = []
    for size, at, frees in steps:
        for _ in range(min(frees, len(live))):
            pool.free(live.pop(at % len(live)))
        room = (budget - pool.stats().live) // 512 * 512
        if room > 0:  # The largest size stands for all that is left.
            live.append(pool.allocate(min(size, room)))
        pool.check()
    for address in live:
        pool.free(address)
    assert pool.stats().committed <= -(-budget // 4096) * 4096


def test_trim_gives_the_pages_of_holes_back_to_the_machine() -> None:
    pool = forty_pages(SMALL)
    kept, _ = scatter(pool, SMALL)
    assert pool.trim() == pool.stats().committed == resident(pool) == 20 * SMALL
    assert all(holds_only(address, BLOCK * SMALL, i) for i, address in enumerate(kept))
    assert pool.trim() == 0
    for address in kept:
        pool.free(address)
    assert pool.trim() == 20 * SMALL
    assert pool.stats().committed == resident(pool) == 0
    pool.check()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no such pages"
)
def test_the_tables_of_a_pool_take_small_pages_so_that_a_few_blocks_take_little_memory() -> None:
    def small() -> int:
        text = Path("/proc/self/smaps").read_text()
        ranges = re.findall(r"^Size: +(\d+) kB$.*?^VmFlags: (.*?)$", text, re.M | re.S)
        return sum(int(size) for size, flags in ranges if "nh" in flags.split())

    before = small()
    pool = Pool(1 << 30, "virtual")
    assert small() > before
    pool.check()


# A limit below the budget


def test_a_limit_below_the_budget_bounds_what_is_asked_from_then_on() -> None:
    pool = Pool("64KiB", "virtual")
    held = pool.allocate(48 << 10)
    pool._core.set_limit(32 << 10)
    assert pool.stats().budget == 32 << 10
    with pytest.raises(torch.OutOfMemoryError):
        pool.allocate(512)
    pool.free(held)
    with pytest.raises(torch.OutOfMemoryError):
        pool.allocate((32 << 10) + 1)
    pool.free(pool.allocate(32 << 10))
    pool._core.set_limit(64 << 10)
    pool.allocate(64 << 10)
    pool.check()


def test_a_limit_gives_pages_back_that_it_does_not_allow() -> None:
    pool = Pool("64KiB", "virtual")
    pool.free(pool.allocate(64 << 10))
    assert pool.stats().committed == 64 << 10
    pool._core.set_limit(16 << 10)
    assert pool.stats().committed == 16 << 10
    pool.check()


@pytest.mark.parametrize("limit", [-1, (64 << 10) + 1])
def test_a_limit_is_between_nothing_and_the_budget(limit: int) -> None:
    with pytest.raises(ValueError, match="must be between 0 and its budget"):
        Pool("64KiB", "virtual")._core.set_limit(limit)
