"""Pages of the pool: they move to where they are needed, and the budget bounds them."""

import re
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtr_alloc.pool import Pool
from tests.support.pool_memory import holds_only, resident, write

KIB = 1 << 10
MIB = 1 << 20


def scattered(pool: Pool) -> list[int]:
    """Fills 1 MiB with blocks of 32 KiB that hold their number; frees every second. Returns all."""
    blocks = [pool.allocate(32 * KIB) for _ in range(32)]
    for number, address in enumerate(blocks):
        write(address, 32 * KIB, number)
    for address in blocks[::2]:
        pool.free(address)
    return blocks


def test_pages_move_to_where_they_are_needed_and_never_pass_the_budget() -> None:
    pool = Pool(MIB, "host", address_space=2 * MIB)
    blocks = scattered(pool)
    assert (pool.stats().committed, resident(pool)) == (MIB, MIB)

    large = pool.allocate(500 * KIB)
    assert large == blocks[0] + MIB
    assert (pool.stats().remaps, pool.stats().committed) == (1, MIB)
    write(large, 500 * KIB, 0xFF)
    assert resident(pool) <= MIB
    assert all(holds_only(blocks[i], 32 * KIB, i) for i in range(1, 32, 2))
    assert holds_only(large, 500 * KIB, 0xFF)
    pool.check()


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
    pool = Pool(MIB, "host")
    blocks = scattered(pool)
    assert pool.trim() == MIB // 2
    assert (pool.stats().committed, resident(pool)) == (MIB // 2, MIB // 2)
    assert all(holds_only(blocks[i], 32 * KIB, i) for i in range(1, 32, 2))
    assert pool.trim() == 0
    for address in blocks[1::2]:
        pool.free(address)
    assert pool.trim() == MIB // 2
    assert (pool.stats().committed, resident(pool)) == (0, 0)
    pool.check()


def test_resident_memory_stays_within_the_budget_where_the_arena_has_huge_pages() -> None:
    pool = Pool(16 * MIB, "host", address_space="4 GiB")
    blocks = [pool.allocate(2 * MIB) for _ in range(8)]
    for i, address in enumerate(blocks):
        write(address, 2 * MIB, i)
    for address in blocks[::2]:
        pool.free(address)
    large = pool.allocate(8 * MIB)
    write(large, 8 * MIB, 0xFF)
    assert (pool.stats().committed, pool.stats().remaps) == (16 * MIB, 1)
    assert resident(pool) == 16 * MIB
    assert all(holds_only(blocks[i], 2 * MIB, i) for i in range(1, 8, 2))


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
