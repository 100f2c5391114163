"""The pool: placement, merging, budget, arenas, threads, fork, and its end."""

import ctypes
import gc
import random
from collections.abc import Callable
from functools import partial

import pytest
import torch

from dtr_alloc import _core
from dtr_alloc.pool import Block, Pool
from tests.support.own_process import printed
from tests.support.pool_memory import holds_only, write
from tests.support.threads import in_threads

KIB = 1 << 10
MIB = 1 << 20


# Placement


def test_an_empty_pool_is_one_hole_and_its_peak_can_be_reset() -> None:
    pool = Pool(64 * KIB, "virtual")
    begin = pool.snapshot()[0].address
    assert pool.snapshot() == [Block(begin, 64 * KIB, True)]
    pool.free(pool.allocate(3 * KIB))
    assert pool.stats().peak == 3 * KIB
    pool.reset_peak()
    stats = pool.stats()
    assert (stats.budget, stats.live, stats.peak) == (64 * KIB, 0, 0)
    assert (stats.largest_hole, stats.external_fragmentation) == (64 * KIB, 0.0)


def test_addresses_without_memory_are_reused_as_late_as_possible() -> None:
    assert len({Pool(64 * KIB, "virtual").allocate(KIB) for _ in range(5)}) == 5


def test_a_wrong_or_second_free_is_an_error_and_changes_nothing() -> None:
    pool = Pool(64 * KIB, "host")
    other = Pool(64 * KIB, "host")
    kept, freed = pool.allocate(KIB), pool.allocate(KIB)
    pool.free(freed)
    told = r"^no live block of this pool starts at address \d+"
    for wrong in (freed, kept + 512, other.allocate(KIB), 0, 2**63):
        for act in (pool.free, pool.free_neighbours):
            with pytest.raises(ValueError, match=told):
                act(wrong)
    assert (pool.stats().live, pool.stats().frees) == (KIB, 1)
    pool.check()


# The budget


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


def test_a_pool_that_ends_leaves_the_addresses_behind_its_own_to_their_pool() -> None:
    size = 1 << 30  # The unit in which addresses belong to a pool.
    first, second = (_core.Pool(size, "virtual", size) for _ in range(2))
    a, b = first.allocate(KIB), second.allocate(KIB)
    assert a is not None
    assert b == a + size
    del first
    gc.collect()
    assert second.holds(b)


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


ALL_ADDRESSES = """
from dtr_alloc.pool import Pool

pools = [Pool("32 TiB", "virtual") for _ in range(8)]
print(len({pool.snapshot()[0].address for pool in pools}))
try:
    Pool("1 KiB", "virtual")
except MemoryError:
    print("full")
"""


def test_eight_of_the_largest_pools_take_all_virtual_addresses() -> None:
    assert printed(ALL_ADDRESSES) == "8\nfull\n"


def test_beyond_a_tebibyte_holes_are_in_order_and_blocks_are_found() -> None:
    """A virtual page has 512 bytes, and its bit is the pool's: 256 MiB for each TiB allocated."""
    pool = Pool("32 TiB", "virtual")
    part = 1 << 36  # A sixteenth of a TiB.
    low, one, middle, other, high = [pool.allocate(n * part) for n in (1, 18, 1, 18, 1)]
    pool.free(other)
    pool.free(one)
    pool.check()
    assert pool.allocate(17 * part) == one  # Of equal holes that of the lowest address.
    assert pool.allocate(part) == one + 17 * part
    pool.free(high)
    assert pool.free_neighbours(middle) == (0, (32 * 16 - 20) * part)
    assert pool.allocate(20 * part) == other
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
        *(
            (lambda budget=b: _core.Pool(budget, "virtual", MIB), ValueError, "above 0 and within")
            for b in (0, -1, 2 * MIB)
        ),
        (lambda: Pool(MIB, "disk"), ValueError, 'arena "disk" is unknown'),  # type: ignore[arg-type]
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

    in_threads(*(partial(work, byte) for byte in (1, 2, 3, 4)), join=False)
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
    assert printed(FORKING_PROGRAM, PYTHONWARNINGS="ignore") == "50\n"
