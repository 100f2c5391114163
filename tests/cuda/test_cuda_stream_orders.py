"""Streams in any order, on the fake driver: no wrong byte shows, and a missing wait does."""

import random
import threading
from contextlib import suppress

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.support.cuda_pools import Blocks, start


def test_threads_with_a_stream_each_never_see_each_other_s_bytes(cuda: FakeCuda) -> None:
    pool = Pool(4 * PAGE, "cuda")
    streams = [cuda.stream() for _ in range(4)]

    def work(number: int) -> None:
        rng = random.Random(number)
        blocks = Blocks(cuda, pool)
        blocks.values = 60 * number
        for _ in range(60):
            try:
                address = blocks.allocate(rng.choice((512, 5000, PAGE)), streams[number])
            except RuntimeError:
                continue
            blocks.free(address)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats().live == 0
    pool.check()


class StreamsMachine(RuleBasedStateMachine):
    """Allocates, uses and frees on four streams that run in any order."""

    library = ""

    @initialize(pages=st.integers(1, 5))
    def begin(self, pages: int) -> None:
        self.cuda = FakeCuda(self.library)
        self.streams = [0, *(self.cuda.stream() for _ in range(3))]
        self.cuda.manual()
        self.blocks = Blocks(self.cuda, Pool(pages * PAGE, "cuda"))
        self.depth = 0

    @rule(
        size=st.sampled_from([512, 20_000, PAGE // 2, PAGE, PAGE + 512, 2 * PAGE]),
        stream=st.integers(0, 3),
    )
    def allocate(self, size: int, stream: int) -> None:
        try:
            self.blocks.allocate(size, self.streams[stream])
        except RuntimeError as error:
            assert "pool is full" in str(error)

    @precondition(lambda self: self.blocks.held)
    @rule(at=st.integers(0, 100), stream=st.integers(0, 3))
    def use(self, at: int, stream: int) -> None:
        self.blocks.use(sorted(self.blocks.held)[at % len(self.blocks.held)], self.streams[stream])

    @precondition(lambda self: self.blocks.held)
    @rule(at=st.integers(0, 100))
    def free(self, at: int) -> None:
        self.blocks.free(sorted(self.blocks.held)[at % len(self.blocks.held)])

    @rule(stream=st.integers(0, 3), steps=st.integers(1, 10))
    def run_stream(self, stream: int, steps: int) -> None:
        for _ in range(steps):
            self.cuda.step(self.streams[stream])

    @rule()
    def trim(self) -> None:
        self.blocks.pool.trim()

    @precondition(lambda self: self.depth < 2)
    @rule()
    def begin_quarantine(self) -> None:
        self.blocks.pool.begin_quarantine()
        self.depth += 1

    @precondition(lambda self: self.depth > 0)
    @rule()
    def end_quarantine(self) -> None:
        self.blocks.pool.end_quarantine()
        self.depth -= 1

    @invariant()
    def holds(self) -> None:
        pool = self.blocks.pool
        pool.check()
        assert self.cuda.used() == pool.stats().committed
        assert self.cuda.faults() == []

    def teardown(self) -> None:
        if not hasattr(self, "blocks"):
            return
        self.cuda.finish()
        del self.blocks.pool._core  # Even where a failure's traceback keeps the pool.
        assert self.cuda.faults() == []
        assert self.cuda.held() == {}


def test_no_order_of_streams_shows_a_wrong_byte(
    fake_driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", fake_driver)
    StreamsMachine.library = fake_driver
    StreamsMachine.TestCase.settings = settings(
        max_examples=150, stateful_step_count=40, deadline=None
    )
    StreamsMachine.TestCase().runTest()


def random_run(cuda: FakeCuda, seed: int) -> None:
    rng = random.Random(seed)
    blocks, *streams = start(cuda, pages=3)
    for _ in range(80):
        kind = rng.random()
        if kind < 0.4:
            with suppress(torch.OutOfMemoryError):
                size = rng.choice((512, PAGE // 2, PAGE, 2 * PAGE))
                blocks.allocate(size, rng.choice(streams))
        elif kind < 0.75 and blocks.held:
            blocks.free(rng.choice(sorted(blocks.held)))
        elif kind < 0.8 and blocks.held:
            blocks.use(rng.choice(sorted(blocks.held)), rng.choice(streams))
        elif kind < 0.85:
            blocks.pool.trim()
        else:
            for _ in range(rng.randrange(5)):
                cuda.step(rng.choice(streams))
    cuda.finish()


@pytest.mark.parametrize("missing", ["", "cuStreamWaitEvent", "cuEventSynchronize"])
def test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else(
    cuda: FakeCuda, missing: str
) -> None:
    if missing:
        cuda.drop(missing)
    for seed in range(30):
        random_run(cuda, seed)
    assert bool(cuda.faults()) == bool(missing)
