"""Streams in any order, on the fake driver: no wrong byte shows, and a missing wait does."""

import random
from contextlib import suppress
from functools import partial

import pytest
import torch

from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.support.cuda_pools import Blocks, start
from tests.support.threads import in_threads


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

    in_threads(*(partial(work, number) for number in range(4)), join=False)
    assert pool.stats().live == 0
    pool.check()


SIZES = (512, 20_000, PAGE // 2, PAGE, PAGE + 512, 2 * PAGE)


def random_run(cuda: FakeCuda, seed: int) -> None:
    rng = random.Random(seed)
    blocks, *streams = start(cuda, pages=rng.randint(1, 5))
    streams.append(0)
    pool, quarantines = blocks.pool, 0
    for _ in range(80):
        kind = rng.random()
        if kind < 0.4:
            with suppress(torch.OutOfMemoryError):
                blocks.allocate(rng.choice(SIZES), rng.choice(streams))
        elif kind < 0.7 and blocks.held:
            blocks.free(rng.choice(sorted(blocks.held)))
        elif kind < 0.75 and blocks.held:
            blocks.use(rng.choice(sorted(blocks.held)), rng.choice(streams))
        elif kind < 0.8:
            pool.trim()
        elif kind < 0.83 and quarantines < 2:
            pool.begin_quarantine()
            quarantines += 1
        elif kind < 0.88 and quarantines > 0:
            pool.end_quarantine()
            quarantines -= 1
        else:
            for _ in range(rng.randrange(5)):
                cuda.step(rng.choice(streams))
        pool.check()
        assert cuda.used() == pool.stats().committed
    cuda.finish()


@pytest.mark.parametrize("missing", ["", "cuStreamWaitEvent", "cuEventSynchronize"])
def test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else(
    cuda: FakeCuda, missing: str
) -> None:
    if missing:
        cuda.drop(missing)
    for seed in range(100):
        random_run(cuda, seed)
    assert bool(cuda.faults()) == bool(missing)
