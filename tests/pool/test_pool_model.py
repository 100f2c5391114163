"""The pool and a naive model, given the same calls: every answer is the same."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dtr_alloc import _core
from dtr_alloc.pool import Pool
from tests.models.pool_model import Model

KIB = 1 << 10
MIB = 1 << 20


def holes_of(pool: _core.Pool) -> list[int]:
    return [size for _, size, free in pool.snapshot() if free]


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
