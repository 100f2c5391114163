"""Reuse in the order of streams, on the fake driver stepped by hand: what must wait waits, what
need not does not, and a missing wait shows."""

import pytest

from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.support.cuda_pools import in_order, start


def event_calls(cuda: FakeCuda) -> int:
    calls = ("Create", "Record", "Query", "Synchronize")
    return cuda.calls("cuStreamWaitEvent") + sum(cuda.calls(f"cuEvent{call}") for call in calls)


def test_the_same_stream_uses_memory_again_at_once_and_without_events(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    first = blocks.allocate(PAGE, a)
    blocks.free(first)
    assert blocks.allocate(PAGE, a) == first
    blocks.free(first)
    assert event_calls(cuda) == 0


def test_another_stream_gets_other_memory_while_there_is_some(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda)
    first = blocks.allocate(PAGE, a)
    blocks.allocate(PAGE, b)  # Keeps the hole of `a` from the rest.
    blocks.free(first)
    assert blocks.allocate(PAGE, b) == first + 2 * PAGE
    assert event_calls(cuda) == 0


def test_another_stream_waits_where_there_is_no_other_memory(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.free(first)
    assert blocks.allocate(PAGE, b) == first
    assert blocks.pool.stats().stream_waits == 1
    in_order(cuda, b, a)


def test_one_event_serves_all_that_was_freed_before_it(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda)
    kept = [blocks.allocate(PAGE // 2, a) for _ in range(8)]
    for address in kept[::2]:
        blocks.free(address)
    for _ in range(4):
        blocks.allocate(PAGE // 2, b)
    assert (cuda.calls("cuEventRecord"), blocks.pool.stats().stream_waits) == (1, 1)
    in_order(cuda, b, a)


def test_what_is_freed_after_the_event_needs_another(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda)
    kept = [blocks.allocate(PAGE, a) for _ in range(4)]
    for address in kept[:2]:
        blocks.free(address)
        blocks.allocate(PAGE, b)
    assert (cuda.calls("cuEventRecord"), blocks.pool.stats().stream_waits) == (2, 2)
    in_order(cuda, b, a)


def test_memory_whose_event_is_complete_is_anybody_s(cuda: FakeCuda) -> None:
    blocks, a, b, c = start(cuda, pages=2)
    first, second = blocks.allocate(PAGE, a), blocks.allocate(PAGE, a)
    blocks.free(first)
    blocks.free(second)
    assert blocks.allocate(PAGE, b) == first
    cuda.drain(a)
    assert blocks.allocate(PAGE, c) == second
    assert (cuda.calls("cuEventRecord"), cuda.calls("cuStreamWaitEvent")) == (1, 1)
    in_order(cuda, c, b)


def test_a_hole_that_is_ready_is_taken_before_a_better_one_that_is_not(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=6)
    of_a, _, of_b, _ = (
        blocks.allocate(pages * PAGE, stream) for pages, stream in ((1, a), (1, a), (2, b), (2, b))
    )
    blocks.free(of_a)
    blocks.free(of_b)
    assert blocks.allocate(PAGE, b) == of_b
    assert event_calls(cuda) == 0


def test_the_rest_of_a_hole_that_was_waited_for_still_belongs_to_its_stream(cuda: FakeCuda) -> None:
    blocks, a, b, c = start(cuda, pages=2)
    whole = blocks.allocate(2 * PAGE, a)
    blocks.free(whole)
    assert blocks.allocate(PAGE, b) == whole
    assert blocks.allocate(PAGE, c) == whole + PAGE
    assert blocks.pool.stats().stream_waits == 2
    in_order(cuda, c, b, a)


def test_a_recorded_stream_is_not_waited_for_once_it_is_past(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.use(first, b)
    blocks.use(first, b)
    blocks.free(first)
    assert cuda.calls("cuEventRecord") == 1
    cuda.finish()
    assert blocks.allocate(PAGE, a) == first
    assert cuda.calls("cuStreamWaitEvent") == 0


def test_a_hole_of_two_streams_is_waited_for_by_each_for_the_other(cuda: FakeCuda) -> None:
    for asks, waits in ((0, 1), (1, 1), (2, 2)):
        blocks, *streams = start(cuda, pages=2)
        first = blocks.allocate(PAGE, streams[0])
        second = blocks.allocate(PAGE, streams[1])
        blocks.free(first)
        blocks.free(second)
        assert blocks.allocate(2 * PAGE, streams[asks]) == first
        assert blocks.pool.stats().stream_waits == waits
        in_order(cuda, streams[asks])


def test_a_block_that_joins_the_holes_of_two_streams_keeps_all_three_waits(cuda: FakeCuda) -> None:
    blocks, a, b, c = start(cuda, pages=3)
    parts = [blocks.allocate(PAGE, stream) for stream in (a, b, c)]
    for at in (0, 2, 1):
        blocks.free(parts[at])
    default = blocks.allocate(3 * PAGE, 0)
    assert default == parts[0]
    assert blocks.pool.stats().stream_waits == 3
    in_order(cuda, 0)


def test_what_is_freed_in_quarantines_stays_out_of_use_until_the_last_ends(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    pool = blocks.pool
    first = blocks.allocate(PAGE, a)
    pool.begin_quarantine()
    pool.begin_quarantine()
    blocks.free(first)
    with pytest.raises(ValueError, match="no live block of this pool starts at address"):
        pool.free(first)
    assert (pool.stats().quarantined, pool.stats().live, pool.stats().frees) == (PAGE, PAGE, 0)
    assert blocks.allocate(PAGE, a) == first + PAGE
    pool.end_quarantine()
    assert pool.stats().quarantined == PAGE
    pool.end_quarantine()
    pool.check()
    assert (pool.stats().quarantined, pool.stats().live, pool.stats().frees) == (0, PAGE, 1)
    assert blocks.allocate(PAGE, a) == first
    with pytest.raises(ValueError, match="no quarantine has begun"):
        pool.end_quarantine()


def test_no_event_is_asked_recorded_or_waited_for_in_a_quarantine(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=4)
    parts = [blocks.allocate(PAGE, stream) for stream in (a, b, a, b)]
    blocks.free(parts[0])
    blocks.free(parts[2])
    blocks.pool.begin_quarantine()
    assert (cuda.queued(a), cuda.queued(b)) == (0, 2)
    before = event_calls(cuda)
    large = blocks.allocate(2 * PAGE, b)  # Moves pages.
    blocks.pool.record_stream(large, a)
    blocks.free(large)
    blocks.free(parts[1])
    blocks.pool.trim()
    assert event_calls(cuda) == before
    blocks.pool.end_quarantine()
    blocks.pool.check()
    cuda.finish()


def test_a_pool_that_goes_in_a_quarantine_gives_everything_back(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    first, _ = blocks.allocate(PAGE, a), blocks.allocate(PAGE, a)
    blocks.pool.begin_quarantine()
    blocks.free(first)
    del blocks
    assert cuda.held() == {}


def test_a_host_pool_knows_the_quarantine_as_well() -> None:
    pool = Pool(8192, "host")
    first = pool.allocate(512)
    pool.begin_quarantine()
    pool.free(first)
    assert pool.allocate(512) == first + 512
    pool.end_quarantine()
    pool.check()
    assert pool.allocate(512) == first


def test_a_stream_that_retires_is_waited_for_and_its_name_is_free(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda, pages=2)
    first, kept = blocks.allocate(PAGE, a), blocks.allocate(PAGE, a)
    blocks.free(first)
    blocks.pool.retire_stream(a)
    assert cuda.queued(a) == 0  # A stream that comes later has nothing to wait for.
    cuda.destroy_stream(a)
    assert cuda.stream() == a
    assert blocks.allocate(PAGE, a) == first
    assert blocks.pool.stats().stream_waits == 0
    cuda.drain(a)
    blocks.pool.free(kept)
    blocks.pool.check()
    blocks.allocate(PAGE, a)


def test_a_stream_is_not_retired_in_a_quarantine(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    blocks.allocate(PAGE, a)
    blocks.pool.begin_quarantine()
    with pytest.raises(RuntimeError, match="cannot be retired while a graph is captured"):
        blocks.pool.retire_stream(a)
    blocks.pool.end_quarantine()
    blocks.pool.retire_stream(a)
    assert cuda.queued(a) == 0


def test_retiring_a_stream_that_the_pool_never_saw_does_nothing(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    blocks.pool.retire_stream(a)
    assert event_calls(cuda) == 0


def test_the_default_stream_has_two_names_and_the_per_thread_one_none(cuda: FakeCuda) -> None:
    blocks, _, _, _ = start(cuda, pages=1)
    first = blocks.pool.allocate(PAGE, stream=1)
    blocks.pool.free(first)
    assert blocks.pool.allocate(PAGE, stream=0) == first
    with pytest.raises(ValueError, match="per-thread default stream"):
        blocks.pool.record_stream(first, 2)
    blocks.pool.free(first)
    with pytest.raises(ValueError, match="per-thread default stream"):
        blocks.pool.allocate(PAGE, stream=2)
    assert event_calls(cuda) == 0
    blocks.pool.check()


@pytest.mark.parametrize("arena", ["host", "virtual"])
def test_pools_without_a_device_take_no_notice_of_streams(cuda: FakeCuda, arena: str) -> None:
    pool = Pool(8192, arena)  # type: ignore[arg-type]
    first = pool.allocate(512, stream=7)
    pool.record_stream(first, 9)
    pool.free(first)
    pool.retire_stream(7)
    assert pool.allocate(512, stream=2) == first
    pool.check()
    assert pool.stats().stream_waits == 0
    assert event_calls(cuda) == 0


@pytest.mark.parametrize("way", ["gather", "spread", "neither"])
def test_a_stream_waits_for_all_that_another_was_given(cuda: FakeCuda, way: str) -> None:
    blocks, a, b, _ = start(cuda)
    address = blocks.allocate(PAGE, a)
    blocks.allocate(512, b)
    if way == "gather":
        blocks.pool._core.gather_streams(b)
    if way == "spread":
        blocks.pool._core.spread_stream(a)
    cuda.expect(address, PAGE, 1, b)
    cuda.drain(b)
    cuda.drain(a)
    cuda.drain(b)
    assert (cuda.faults() == []) == (way != "neither")
    blocks.pool.check()


def test_a_wait_for_a_stream_covers_what_it_frees_later(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.free(first)
    second = blocks.allocate(PAGE, b)
    blocks.free(second)
    blocks.pool._core.gather_streams(a)  # All that b was given, so the block as well.
    assert blocks.allocate(PAGE, a) == first
    in_order(cuda, b, a)
