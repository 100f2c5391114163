"""The pool: placement, merging, budget, pages, threads, fork, its end; then all against a model."""

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.pool import Block, Pool
from tests.pool_model import Model

KIB = 1 << 10
MIB = 1 << 20


def holes(pool: Pool) -> list[int]:
    return [block.size for block in pool.snapshot() if block.free]


def holes_of(pool: _core.Pool) -> list[int]:
    return [size for _, size, free in pool.snapshot() if free]


def resident(pool: Pool) -> int:
    """Bytes of the pool's addresses that the kernel backs now."""
    begin = pool.snapshot()[0].address
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key = line.split(maxsplit=1)[0]
        if "-" in key and not key.endswith(":"):
            first, last = (int(part, 16) for part in key.split("-"))
            inside = begin <= first and last <= begin + pool.address_space
        elif key == "Rss:" and inside:
            total += int(line.split()[1]) * KIB
    return total


def write(address: int, size: int, byte: int) -> None:
    ctypes.memset(address, byte, size)


def holds_only(address: int, size: int, byte: int) -> bool:
    return ctypes.string_at(address, size) == bytes([byte]) * size


# Placement and merging


def test_a_new_pool_is_one_hole() -> None:
    pool = Pool(64 * KIB, "virtual")
    begin = pool.snapshot()[0].address
    assert pool.snapshot() == [Block(begin, 64 * KIB, True)]
    stats = pool.stats()
    assert (stats.budget, stats.live, stats.peak, stats.committed) == (64 * KIB, 0, 0, 0)
    assert (stats.largest_hole, stats.external_fragmentation) == (64 * KIB, 0.0)
    pool.check()


@pytest.mark.parametrize(("size", "rounded"), [(0, 512), (1, 512), (512, 512), (513, 1024)])
def test_sizes_are_rounded_up_to_512_bytes(size: int, rounded: int) -> None:
    pool = Pool(64 * KIB, "virtual")
    first = pool.allocate(size)
    second = pool.allocate(size)
    assert second - first == rounded
    assert pool.stats().live == 2 * rounded


def test_a_request_takes_the_low_end_of_the_smallest_hole_that_holds_it() -> None:
    pool = Pool(64 * KIB, "virtual")
    blocks = [pool.allocate(size * KIB) for size in (8, 1, 4, 1, 6, 1)]
    for hole in blocks[::2]:
        pool.free(hole)
    assert holes(pool) == [8 * KIB, 4 * KIB, 6 * KIB, 43 * KIB]
    assert pool.allocate(3 * KIB) == blocks[2]
    assert pool.allocate(5 * KIB) == blocks[4]
    assert pool.allocate(8 * KIB) == blocks[0]
    assert holes(pool) == [1 * KIB, 1 * KIB, 43 * KIB]


def test_among_equal_small_holes_the_one_freed_last_is_taken() -> None:
    pool = Pool(64 * KIB, "virtual")
    blocks = [pool.allocate(KIB) for _ in range(8)]
    for i in (1, 5, 3):
        pool.free(blocks[i])
    assert [pool.allocate(KIB) for _ in range(3)] == [blocks[3], blocks[5], blocks[1]]


def test_among_equal_large_holes_the_lowest_is_taken() -> None:
    pool = Pool(512 * KIB, "virtual")
    blocks = [pool.allocate(40 * KIB) for _ in range(8)]
    for i in (5, 1, 3):
        pool.free(blocks[i])
    assert [pool.allocate(40 * KIB) for _ in range(3)] == [blocks[1], blocks[3], blocks[5]]


@pytest.mark.parametrize("size", [KIB, 40 * KIB])
@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_holes_that_touch_become_one(order: tuple[int, ...], size: int) -> None:
    pool = Pool(4 * size, "virtual")
    blocks = [pool.allocate(size) for _ in range(4)]
    for i in order:
        pool.free(blocks[i])
        pool.check()
    assert holes(pool) == [3 * size]
    assert pool.allocate(3 * size) == blocks[0]


def test_the_free_bytes_beside_a_block_are_exact() -> None:
    pool = Pool(64 * KIB, "virtual")
    a, b, c, d = (pool.allocate(size * KIB) for size in (1, 2, 3, 4))
    assert pool.free_neighbours(b) == (0, 0)
    assert pool.free_neighbours(d) == (0, 54 * KIB)
    pool.free(a)
    pool.free(c)
    assert pool.free_neighbours(b) == (1 * KIB, 3 * KIB)
    assert pool.free_neighbours(d) == (3 * KIB, 54 * KIB)
    for wrong in (a, b + 512, 12345):
        with pytest.raises(ValueError, match="no live block of this pool starts at address"):
            pool.free_neighbours(wrong)


def test_a_wrong_or_second_free_is_an_error_and_changes_nothing() -> None:
    pool = Pool(64 * KIB, "host")
    other = Pool(64 * KIB, "host")
    kept, freed = pool.allocate(KIB), pool.allocate(KIB)
    pool.free(freed)
    for wrong in (freed, kept + 512, other.allocate(KIB), 0, 2**63):
        with pytest.raises(ValueError, match=r"^no live block of this pool starts at address \d+"):
            pool.free(wrong)
    assert (pool.stats().live, pool.stats().frees) == (KIB, 1)
    pool.check()


# The budget


def test_live_bytes_never_pass_the_budget() -> None:
    pool = Pool(10_000, "host")
    blocks = [pool.allocate(512) for _ in range(19)]
    assert pool.stats().live == 9728  # 19 granules; a 20th would be 10240.
    with pytest.raises(torch.OutOfMemoryError):
        pool.allocate(1)
    pool.free(blocks[7])
    assert pool.allocate(1) == blocks[7]
    assert pool.stats().failures == 1


@pytest.mark.parametrize("size", [64 * KIB + 1, 2**40, 2**63 - 1])
def test_a_request_above_the_budget_fails_whatever_its_size(size: int) -> None:
    pool = Pool("64 KiB", "host")
    with pytest.raises(torch.OutOfMemoryError, match=r"^pool is full: .* asked, 64 KiB free"):
        pool.allocate(size)
    pool.check()


def test_the_error_says_what_was_asked_and_what_there_was() -> None:
    pool = Pool("64 MiB", "virtual")
    blocks = [pool.allocate(MIB) for _ in range(64)]
    for i in (3, 10, 20, 40):
        pool.free(blocks[i])
    with pytest.raises(torch.OutOfMemoryError) as error:
        pool.allocate(6 * MIB)
    assert str(error.value) == (
        "pool is full: 6 MiB asked, 4 MiB free, largest hole 1 MiB; budget 64 MiB"
    )


def test_external_fragmentation_is_the_share_of_free_bytes_outside_the_largest_hole() -> None:
    pool = Pool(8 * KIB, "virtual")
    blocks = [pool.allocate(KIB) for _ in range(8)]
    assert pool.stats().external_fragmentation == 0.0
    for i in (0, 1, 4, 6):
        pool.free(blocks[i])
    stats = pool.stats()
    assert (stats.live, stats.largest_hole) == (4 * KIB, 2 * KIB)
    assert stats.external_fragmentation == 0.5


def test_the_largest_hole_counts_within_the_budget_only() -> None:
    pool = Pool(8 * KIB, "virtual", address_space=64 * KIB)
    pool.allocate(5 * KIB)
    assert holes(pool) == [59 * KIB]
    assert (pool.stats().largest_hole, pool.stats().external_fragmentation) == (3 * KIB, 0.0)


def test_the_peak_is_exact_and_can_be_reset() -> None:
    pool = Pool(64 * KIB, "virtual")
    a, b = pool.allocate(3 * KIB), pool.allocate(2 * KIB)
    pool.free(a)
    pool.allocate(KIB)
    assert (pool.stats().live, pool.stats().peak) == (3 * KIB, 5 * KIB)
    pool.reset_peak()
    assert pool.stats().peak == 3 * KIB
    pool.free(b)
    assert (pool.stats().live, pool.stats().peak) == (KIB, 3 * KIB)


def test_the_peak_of_blocks_is_exact_and_can_be_reset() -> None:
    pool = _core.Pool(64 * KIB, "virtual", 64 * KIB)
    blocks = [pool.allocate(KIB) for _ in range(5)]
    for address in blocks[:3]:
        pool.free(address or 0)
    assert pool.stats().peak_blocks == 5
    pool.reset_peak()
    assert pool.stats().peak_blocks == 2


# Pages


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


def test_without_leave_to_move_pages_a_hole_that_lacks_them_is_not_taken() -> None:
    pool = _core.Pool(MIB, "host", 2 * MIB)
    blocks = [pool.allocate(32 * KIB) for _ in range(32)]
    for address in blocks[::2]:
        assert address is not None
        pool.free(address)
    assert pool.allocate(64 * KIB, _core.Fit.committed) is None
    assert pool.allocate(32 * KIB, _core.Fit.committed) == blocks[0]
    assert (pool.stats().remaps, pool.stats().failures) == (0, 1)
    assert pool.allocate(64 * KIB, _core.Fit.remap) is not None
    assert pool.stats().remaps == 1


def one_in_eight(pool: Pool | _core.Pool) -> list[int]:
    """Fills 64 KiB with blocks of 512 bytes and frees all but one on each page. Returns those."""
    blocks = [pool.allocate(512) for _ in range(128)]
    assert None not in blocks
    for i, address in enumerate(blocks):
        if i % 8:
            pool.free(address or 0)
    return [address or 0 for address in blocks[::8]]


def test_pages_that_live_blocks_share_cannot_move() -> None:
    pool = _core.Pool(64 * KIB, "host", 128 * KIB)
    one_in_eight(pool)
    assert pool.allocate(8 * KIB, _core.Fit.remap) is None
    assert (pool.stats().committed, pool.stats().remaps) == (64 * KIB, 0)
    pool.check()


def test_a_request_within_the_budget_is_served_by_pages_beyond_it_as_a_last_remedy() -> None:
    pool = Pool(64 * KIB, "host", address_space=128 * KIB)
    kept = one_in_eight(pool)
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


def test_a_request_that_passes_the_page_limit_takes_what_holes_have_first() -> None:
    pool = Pool(64 * KIB, "host", address_space=128 * KIB)
    kept = one_in_eight(pool)
    for address in kept[:4]:
        pool.free(address)
    assert pool.stats().committed == 64 * KIB
    pool.allocate(40 * KIB)  # Ten pages, of which the hole of four pages gives its own.
    assert pool.stats().committed == (64 - 16 + 40) * KIB
    pool.check()


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


# Arenas and the pool's end


def test_each_arena_has_the_address_space_that_suits_it() -> None:
    assert Pool(3000, "virtual").address_space == 3072
    assert Pool(MIB, "host").address_space == 66 * MIB
    assert Pool(MIB, "virtual", address_space="4 MiB").address_space == 4 * MIB
    large = Pool("80 GiB", "virtual")
    assert (large.budget, large.arena) == (80 << 30, "virtual")
    assert large.allocate(79 << 30) % (1 << 30) == 0


def test_a_pool_knows_its_own_addresses() -> None:
    pools = [_core.Pool(MIB, arena, MIB) for arena in ("host", "virtual", "host", "virtual")]
    for pool in pools:
        address = pool.allocate(KIB)
        assert address is not None
        assert [other.holds(address + KIB - 1) for other in pools] == [
            other is pool for other in pools
        ]
    buffer = ctypes.create_string_buffer(KIB)
    assert not _core.Pool.is_owned(ctypes.addressof(buffer))
    assert not _core.Pool.is_owned(2**64 - 1)


@pytest.mark.parametrize("arena", ["host", "virtual"])
@pytest.mark.parametrize("live_blocks", [0, 3])
def test_a_dropped_pool_gives_its_addresses_up_with_its_last_block(
    arena: str, live_blocks: int
) -> None:
    pool = _core.Pool(MIB, arena, MIB)
    address = pool.allocate(KIB)
    assert address is not None
    for _ in range(live_blocks - 1):
        pool.allocate(KIB)
    if live_blocks == 0:
        pool.free(address)
    assert _core.Pool.is_owned(address)
    del pool
    gc.collect()
    assert not _core.Pool.is_owned(address)


def test_virtual_addresses_are_reused_when_pools_go() -> None:
    kept = Pool("32 TiB", "virtual")
    begin = kept.snapshot()[0].address
    for _ in range(20):  # 8 fill the whole range.
        other = Pool("32 TiB", "virtual").allocate(1)
        assert not begin <= other < begin + kept.address_space
    assert kept.allocate(1) == begin


def test_beyond_a_tebibyte_holes_are_in_order_and_blocks_are_found() -> None:
    pool = Pool("32 TiB", "virtual")
    tib = 1 << 40
    low, one, middle, other, high = [pool.allocate(n * tib) for n in (1, 7, 1, 7, 1)]
    pool.free(other)
    pool.free(one)
    pool.check()
    assert pool.allocate(6 * tib) == one  # Of equal holes that of the lowest address.
    assert pool.allocate(tib) == one + 6 * tib
    pool.free(high)
    assert pool.free_neighbours(middle) == (0, 23 * tib)
    assert pool.allocate(20 * tib) == other
    pool.free(low)
    pool.check()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Pool("8 apples"), ValueError, 'budget "8 apples" is not a size'),
        (lambda: Pool(0), ValueError, "budget 0 is not above zero"),
        (lambda: Pool(True), TypeError, "budget True is not a size"),
        (lambda: Pool("33 TiB"), ValueError, '"33 TiB" is above the largest possible, 32 TiB'),
        (lambda: _core.Pool(1, "host", 33 << 40), ValueError, "up to 32 TiB of addresses"),
        (lambda: Pool(MIB, "disk"), ValueError, 'arena "disk" is unknown'),  # type: ignore[arg-type]
        (lambda: Pool(MIB, placement="worst"), ValueError, 'placement "worst"'),  # type: ignore[arg-type]
        (lambda: Pool(MIB, address_space=KIB), ValueError, "address_space 1 KiB is less than"),
        (lambda: Pool(MIB).allocate(-1), ValueError, "must not be negative"),
    ],
)
def test_a_wrong_argument_is_named(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


# Threads and fork


def test_threads_never_share_a_block() -> None:
    pool = Pool(4 * MIB, "host")
    broken: list[str] = []

    def work(byte: int) -> None:
        rng = random.Random(byte)
        mine: list[tuple[int, int]] = []
        for _ in range(3000):
            if mine and rng.random() < 0.5:
                address, size = mine.pop(rng.randrange(len(mine)))
                if not holds_only(address, size, byte):
                    broken.append(f"block of thread {byte} was written by another")
                pool.free(address)
            else:
                size = rng.choice((100, 5000, 70_000))
                try:
                    address = pool.allocate(size)
                except torch.OutOfMemoryError:
                    continue
                write(address, size, byte)
                mine.append((address, size))
        for address, _ in mine:
            pool.free(address)

    threads = [threading.Thread(target=work, args=(byte,)) for byte in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    stats = pool.stats()
    assert (stats.live, stats.live_blocks, stats.allocations) == (0, 0, stats.frees)
    assert stats.peak <= 4 * MIB
    assert stats.committed <= 4 * MIB
    pool.check()


FORKING_PROGRAM = """
import os, signal, threading
from dtr_alloc import _core

pool = _core.Pool(4 << 20, "host", 8 << 20)

def churn():
    while True:
        address = pool.allocate(3 << 20)
        pool.free(address)
        pool.trim()

threading.Thread(target=churn, daemon=True).start()
ended_well = 0
for _ in range(50):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # A child that hangs is killed by it.
        pool.free(pool.allocate(1000))
        other = _core.Pool(1 << 20, "virtual", 1 << 20)
        other.free(other.allocate(1000))
        pool.check()
        os._exit(0)
    ended_well += os.waitpid(child, 0)[1] == 0
print(ended_well, flush=True)
os._exit(0)
"""


def test_a_forked_child_can_use_the_pool_whatever_other_threads_did() -> None:
    root = Path(dtr_alloc.__file__ or _core.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING_PROGRAM],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "50"), done.stderr


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


# Against the model


class Pair:
    """A pool and its model, given the same calls; every answer must be the same."""

    def __init__(self, arena: str, budget: int, spare: int) -> None:
        self.pool = _core.Pool(budget, arena, budget + spare)
        self.base = self.pool.snapshot()[0][0]
        self.model = Model(budget, self.pool.address_space, self.pool.page)
        self.live: list[int] = []
        self.peak_blocks = 0

    def allocate(self, size: int, fit: _core.Fit) -> bool:
        address = self.pool.allocate(size, fit)
        expected = self.model.allocate(size, fit)
        assert (None if address is None else address - self.base) == expected
        if address is not None:
            self.live.append(address)
            self.peak_blocks = max(self.peak_blocks, len(self.live))
        return address is not None

    def free(self, at: int) -> None:
        address = self.live.pop(at % len(self.live))
        expected = self.model.free_neighbours(address - self.base)
        assert self.pool.free_neighbours(address) == expected
        self.pool.free(address)
        self.model.free(address - self.base)

    def fill(self, size: int, keep_every: int) -> None:
        """Fills the pool with blocks of one size, then frees all but every n-th: many holes."""
        while self.allocate(size, _core.Fit.committed):
            pass
        for at in reversed(range(len(self.live))):
            if at % keep_every:
                self.free(at)

    def trim(self) -> None:
        assert self.pool.trim() == self.model.trim()

    def reset_peak(self) -> None:
        self.pool.reset_peak()
        self.model.peak = self.model.live()
        self.peak_blocks = len(self.live)

    def compare(self) -> None:
        self.pool.check()
        assert self.pool.snapshot() == [
            (self.base + r.offset, r.size, r.free) for r in self.model.ranges
        ]
        stats = self.pool.stats()
        assert stats.live == self.model.live()
        assert stats.peak == self.model.peak
        assert stats.committed == len(self.model.pages) * self.model.page
        assert stats.largest_hole == self.model.largest_hole()
        free = self.model.budget - self.model.live()
        assert stats.external_fragmentation == (1 - stats.largest_hole / free if free else 0.0)
        assert stats.live_blocks == len(self.live)
        assert stats.peak_blocks == self.peak_blocks
        assert stats.allocations == self.model.allocations
        assert stats.frees == self.model.frees
        assert stats.failures == self.model.failures
        assert stats.remaps == self.model.remaps


FITS = [_core.Fit.committed, _core.Fit.remap, _core.Fit.beyond]
ARENAS = [("host", 0), ("host", 512 * KIB), ("virtual", 0), ("virtual", 20 * KIB)]


class PoolMachine(RuleBasedStateMachine):
    @initialize(arena=st.sampled_from(ARENAS), budget=st.sampled_from([30_000, 130 * KIB]))
    def start(self, arena: tuple[str, int], budget: int) -> None:
        self.pair = Pair(arena[0], budget, arena[1])

    @rule(
        size=st.one_of(
            st.integers(0, 8 * KIB),
            st.integers(8 * KIB, 140 * KIB),
            st.sampled_from([512, 4096, 4608, 16 * KIB, 32 * KIB - 512, 32 * KIB]),
        ),
        fit=st.sampled_from(FITS),
    )
    def allocate(self, size: int, fit: _core.Fit) -> None:
        self.pair.allocate(size, fit)

    @precondition(lambda self: self.pair.live)
    @rule(at=st.integers(0, 100))
    def free(self, at: int) -> None:
        self.pair.free(at)

    @rule(size=st.sampled_from([3000, 8 * KIB, 9000, 33 * KIB]), keep_every=st.integers(1, 4))
    def fill(self, size: int, keep_every: int) -> None:
        self.pair.fill(size, keep_every)

    @rule()
    def trim(self) -> None:
        self.pair.trim()

    @rule()
    def reset_peak(self) -> None:
        self.pair.reset_peak()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pair.compare()


PoolMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestPoolAgainstModel = PoolMachine.TestCase


@pytest.mark.parametrize("arena", ARENAS)
@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_crowded_run_agrees_with_the_model(
    arena: tuple[str, int], seed: int, beyond: int
) -> None:
    rng = random.Random(seed)
    pair = Pair(arena[0], 300 * KIB, arena[1])
    for _ in range(1000):
        if pair.live and rng.random() < 0.4:
            pair.free(rng.randrange(len(pair.live)))
        else:
            largest = rng.choice([2 * KIB, 30 * KIB, 100 * KIB])
            pair.allocate(rng.randrange(largest), rng.choices(FITS, [3, 6, beyond])[0])
        if rng.random() < 0.01:
            pair.trim()
        pair.compare()
    assert pair.model.failures > 20
    assert (pair.model.remaps > 0) == (arena[1] > 0)


def test_a_pool_with_hundreds_of_large_holes_agrees_with_the_model() -> None:
    """Of 32 KiB and more each, in an order that is kept in several parts."""
    rng = random.Random(1)
    pair = Pair("virtual", 16 * MIB, 0)
    while pair.allocate(rng.randrange(32 * KIB, 40 * KIB), _core.Fit.committed):
        pass
    for at in reversed(range(0, len(pair.live), 2)):
        pair.free(at)
    most = 0
    for step in range(400):
        if pair.live and rng.random() < (0.6 if step % 200 < 100 else 0.4):
            pair.free(rng.randrange(len(pair.live)))
        else:
            pair.allocate(rng.choice([512, 30 * KIB, 40 * KIB, 70 * KIB]), _core.Fit.remap)
        if step % 20 == 0:
            pair.compare()
            most = max(most, sum(size >= 32 * KIB for size in holes_of(pair.pool)))
    assert most > 200
    for _ in range(len(pair.live)):
        pair.free(rng.randrange(len(pair.live)))
        pair.pool.check()
    pair.compare()


@pytest.mark.parametrize("smaller", [100, 128, 192])
def test_a_large_hole_that_is_cut_takes_its_new_place_in_the_order(smaller: int) -> None:
    """Its rest is smaller than all other holes, wherever the parts of the order begin."""
    pool = Pool(32 * MIB, "virtual")
    blocks = []
    for size in [44 * KIB] * smaller + [100 * KIB] * 100:
        blocks.append(pool.allocate(size))
        pool.allocate(512)
    for address in blocks:
        pool.free(address)
    pool.check()
    for address in blocks[smaller:]:
        assert pool.allocate(60 * KIB) == address
        pool.check()
    for address in blocks[smaller:]:
        assert pool.allocate(40 * KIB) == address + 60 * KIB
        pool.check()
