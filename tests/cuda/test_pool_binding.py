"""Calls of a pool from Python: none keeps Python's lock while it waits for the device, whose work
may be a function of Python's."""

import threading
from collections.abc import Callable

import pytest

from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, FakeCuda


def pool_with_a_hole() -> tuple[Pool, int]:
    pool = Pool(4 * PAGE, "cuda")
    kept = pool.allocate(512)
    pool.free(pool.allocate(PAGE))
    return pool, kept


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, _: pool.stats(),
        lambda pool, _: pool.snapshot(),
        lambda pool, kept: pool.free_neighbours(kept),
        lambda pool, kept: pool.record_stream(kept, 0),
        lambda pool, kept: pool.free(kept),
    ],
    ids=["stats", "snapshot", "free_neighbours", "record_stream", "free"],
)
def test_a_call_leaves_pythons_lock_to_what_another_thread_waits_for(
    cuda: FakeCuda, call: Callable[[Pool, int], object]
) -> None:
    pool, kept = pool_with_a_hole()
    waits, calls = threading.Event(), threading.Event()

    def told() -> None:
        waits.set()
        calls.wait()

    cuda.host_function(told)
    trimming = threading.Thread(target=pool.trim)
    trimming.start()
    waits.wait()
    calls.set()
    call(pool, kept)
    trimming.join()
    assert cuda.faults() == []


def test_a_pool_that_is_dropped_leaves_it_too(cuda: FakeCuda) -> None:
    pool, _ = pool_with_a_hole()
    ran: list[bool] = []
    cuda.host_function(lambda: ran.append(True))
    del pool
    assert ran == [True]
    assert cuda.faults() == []
