"""Reuse in the order of streams, on the fake driver stepped by hand: what must wait waits, what
need not does not, and a missing wait shows."""

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

EVENT_CALLS = (
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
)


def event_calls(cuda: FakeCuda) -> int:
    return sum(cuda.calls(name) for name in EVENT_CALLS)


class Blocks:
    """Blocks of one pool that hold a value each; their streams look whether it is still there."""

    def __init__(self, cuda: FakeCuda, pool: Pool) -> None:
        self.cuda = cuda
        self.pool = pool
        self.held: dict[int, tuple[int, int, int]] = {}
        self.values = 0

    def allocate(self, size: int, stream: int) -> int:
        address = self.pool.allocate(size, stream=stream)
        self.values = self.values % 255 + 1
        self.cuda.write(address, size, self.values, stream)
        self.held[address] = (size, self.values, stream)
        self.pool.check()
        return address

    def use(self, address: int, stream: int, record: bool = True) -> None:
        """Reads the block on another stream, in order after the write."""
        size, value, home = self.held[address]
        self.cuda.order(home, stream)
        self.cuda.expect(address, size, value, stream)
        if record:
            self.pool.record_stream(address, stream)

    def free(self, address: int) -> None:
        """Frees the block while its stream has yet to read it."""
        size, value, stream = self.held.pop(address)
        self.cuda.expect(address, size, value, stream)
        self.pool.free(address)
        self.pool.check()


def start(
    cuda: FakeCuda, pages: int = 4, addresses: int | None = None
) -> tuple[Blocks, int, int, int]:
    """A pool of so many pages, with addresses for so many."""
    a, b, c = (cuda.stream() for _ in range(3))
    cuda.manual()
    space = None if addresses is None else addresses * PAGE
    return Blocks(cuda, Pool(pages * PAGE, "cuda", address_space=space)), a, b, c


def in_order(cuda: FakeCuda, *streams: int) -> None:
    """Runs the streams as far as they get, each before the next; then all to the end."""
    for stream in streams:
        cuda.drain(stream)
    cuda.finish()


# Waiting


def test_the_same_stream_uses_memory_again_at_once_and_without_events(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    first = blocks.allocate(PAGE, a)
    blocks.free(first)
    assert blocks.allocate(PAGE, a) == first
    blocks.free(first)
    assert event_calls(cuda) == 0
    cuda.finish()
    assert cuda.faults() == []


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
    assert cuda.faults() == []


def test_a_wait_that_is_missing_is_seen(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    cuda.drop("cuStreamWaitEvent")
    blocks.free(blocks.allocate(PAGE, a))
    blocks.allocate(PAGE, b)
    cuda.step(a)  # The write; the read is still to come.
    in_order(cuda, b, a)
    assert cuda.faults() == [f"a read of {PAGE} bytes for 1 found 2"]


def test_one_event_serves_all_that_was_freed_before_it(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda)
    kept = [blocks.allocate(PAGE // 2, a) for _ in range(8)]
    for address in kept[::2]:
        blocks.free(address)
    for _ in range(4):
        blocks.allocate(PAGE // 2, b)
    assert (cuda.calls("cuEventRecord"), blocks.pool.stats().stream_waits) == (1, 1)
    in_order(cuda, b, a)
    assert cuda.faults() == []


def test_what_is_freed_after_the_event_needs_another(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda)
    kept = [blocks.allocate(PAGE, a) for _ in range(4)]
    for address in kept[:2]:
        blocks.free(address)
        blocks.allocate(PAGE, b)
    assert (cuda.calls("cuEventRecord"), blocks.pool.stats().stream_waits) == (2, 2)
    in_order(cuda, b, a)
    assert cuda.faults() == []


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
    assert cuda.faults() == []


def test_a_hole_that_is_ready_is_taken_before_a_better_one_that_is_not(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=6)
    of_a, _, of_b, _ = (
        blocks.allocate(pages * PAGE, stream) for pages, stream in ((1, a), (1, a), (2, b), (2, b))
    )
    blocks.free(of_a)
    blocks.free(of_b)
    assert blocks.allocate(PAGE, b) == of_b
    assert event_calls(cuda) == 0


def test_the_rest_of_a_hole_that_was_waited_for_still_belongs_to_its_stream(
    cuda: FakeCuda,
) -> None:
    blocks, a, b, c = start(cuda, pages=2)
    whole = blocks.allocate(2 * PAGE, a)
    blocks.free(whole)
    assert blocks.allocate(PAGE, b) == whole
    assert blocks.allocate(PAGE, c) == whole + PAGE
    assert blocks.pool.stats().stream_waits == 2
    in_order(cuda, c, b, a)
    assert cuda.faults() == []


# Several streams at one block


def test_a_recorded_stream_is_waited_for(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.use(first, b)
    blocks.free(first)
    assert blocks.allocate(PAGE, a) == first
    in_order(cuda, a, b)
    assert cuda.faults() == []


def test_a_stream_that_was_not_recorded_is_caught_reading_what_is_not_there(
    cuda: FakeCuda,
) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.use(first, b, record=False)
    blocks.free(first)
    blocks.allocate(PAGE, a)
    in_order(cuda, a, b)
    assert cuda.faults() == [f"a read of {PAGE} bytes for 1 found 2"]


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


def test_an_event_that_cannot_be_recorded_at_a_free_is_recorded_later(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.use(first, b)
    cuda.fail("cuEventRecord")
    blocks.free(first)
    assert blocks.allocate(PAGE, a) == first
    in_order(cuda, a, b)
    assert cuda.faults() == []


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
        assert cuda.faults() == []


def test_a_block_that_joins_the_holes_of_two_streams_keeps_all_three_waits(cuda: FakeCuda) -> None:
    blocks, a, b, c = start(cuda, pages=3)
    parts = [blocks.allocate(PAGE, stream) for stream in (a, b, c)]
    for at in (0, 2, 1):
        blocks.free(parts[at])
    default = blocks.allocate(3 * PAGE, 0)
    assert default == parts[0]
    assert blocks.pool.stats().stream_waits == 3
    in_order(cuda, 0)
    assert cuda.faults() == []


# Pages


def two_pages_moved_to_b(cuda: FakeCuda) -> tuple[Blocks, int, int, int]:
    """One of two pages in holes was used by a, the other by b; b gets both as one block. Then no
    address is left that was never used."""
    blocks, a, b, _ = start(cuda, pages=4, addresses=6)
    parts = [blocks.allocate(PAGE, stream) for stream in (a, a, b, b)]
    blocks.free(parts[0])
    blocks.free(parts[2])
    large = blocks.allocate(2 * PAGE, b)
    assert large == parts[3] + PAGE
    assert blocks.pool.stats().remaps == 1
    return blocks, a, b, large


def test_pages_are_taken_from_a_hole_while_its_streams_still_use_them(cuda: FakeCuda) -> None:
    _blocks, a, b, _ = two_pages_moved_to_b(cuda)
    assert cuda.calls("cuEventSynchronize") == 0
    assert (cuda.queued(a) > 0, cuda.count("mappings")) == (True, 6)
    in_order(cuda, b, a)
    assert cuda.faults() == []


def test_a_stream_that_does_not_wait_for_a_page_that_moved_is_caught(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=4)
    parts = [blocks.allocate(PAGE, stream) for stream in (a, a, b, b)]
    cuda.finish()
    blocks.free(parts[0])
    blocks.free(parts[2])
    cuda.drop("cuStreamWaitEvent")
    blocks.allocate(2 * PAGE, b)
    in_order(cuda, b, a)
    assert "a read of 2097152 bytes for 1 found 5" in cuda.faults()


def take_the_old_places(blocks: Blocks, large: int, stream: int) -> None:
    """Frees all but the last of four pages, and takes three as one block where the first were."""
    blocks.free(large)
    blocks.free(min(blocks.held))
    assert blocks.allocate(3 * PAGE, stream) == min(blocks.held) == large - 4 * PAGE


def test_the_rest_of_a_page_that_moved_waits_for_who_used_it_at_its_old_place(
    cuda: FakeCuda,
) -> None:
    blocks, a, b, _ = start(cuda, pages=4)
    parts = [blocks.allocate(PAGE, a) for _ in range(4)]
    cuda.finish()
    blocks.free(parts[0])
    blocks.free(parts[2])
    blocks.allocate(PAGE * 3 // 2, a)  # Half of its second page is a hole.
    blocks.allocate(PAGE // 2, b)
    assert blocks.pool.stats().stream_waits > 0
    in_order(cuda, b, a)
    assert cuda.faults() == []


def test_a_page_that_moved_for_a_request_that_failed_waits_for_who_used_it(cuda: FakeCuda) -> None:
    blocks, a, b, c = start(cuda, pages=4)
    parts = [blocks.allocate(PAGE, a) for _ in range(3)]
    cuda.finish()
    blocks.free(parts[0])
    cuda.set_capacity(3 * PAGE)  # The budget allows a page that the device no longer has.
    with pytest.raises(MemoryError):
        blocks.allocate(2 * PAGE, b)
    blocks.allocate(PAGE // 2, c)
    in_order(cuda, c, b, a)
    assert cuda.faults() == []


def test_addresses_that_are_still_in_use_are_not_chosen_while_there_are_others(
    cuda: FakeCuda,
) -> None:
    blocks, a, _, _ = start(cuda, pages=16)
    parts = [blocks.allocate(PAGE, a) for _ in range(16)]
    cuda.finish()
    for address in parts[:8:2]:
        blocks.free(address)
    blocks.allocate(4 * PAGE, a)  # Its pages come from four holes, whose addresses are in use.
    blocks.free(parts[1])
    blocks.free(parts[15])
    blocks.free(parts[13])
    blocks.allocate(3 * PAGE, a)
    assert cuda.calls("cuEventSynchronize") == 0
    cuda.finish()
    assert cuda.faults() == []


def test_old_places_are_left_without_waiting_once_their_work_is_past(cuda: FakeCuda) -> None:
    blocks, _, b, large = two_pages_moved_to_b(cuda)
    cuda.finish()
    take_the_old_places(blocks, large, b)
    assert (cuda.calls("cuEventSynchronize"), cuda.calls("cuMemUnmap")) == (0, 2)
    cuda.finish()
    assert cuda.faults() == []


def test_a_block_at_an_old_place_waits_until_nobody_uses_it_there(cuda: FakeCuda) -> None:
    blocks, a, b, large = two_pages_moved_to_b(cuda)
    assert cuda.queued(a) > 0
    take_the_old_places(blocks, large, b)
    assert cuda.calls("cuEventSynchronize") > 0
    assert cuda.queued(b) > 0  # Only what used the old places was waited for.
    in_order(cuda, b, a)
    assert cuda.faults() == []


def test_pages_that_are_given_back_too_early_are_seen(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda, pages=4)
    cuda.drop("cuEventSynchronize")
    parts = [blocks.allocate(PAGE, a) for _ in range(4)]
    blocks.free(parts[0])
    blocks.free(parts[2])
    blocks.pool.trim()
    cuda.finish()
    assert f"a read of {PAGE} bytes for 1 touched memory that is not there" in cuda.faults()


def test_trim_waits_for_the_streams_of_what_it_gives_back_only(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=4)
    of_a = blocks.allocate(PAGE, a)
    blocks.allocate(PAGE, b)
    blocks.free(of_a)
    assert blocks.pool.trim() == PAGE
    assert (cuda.queued(a), cuda.queued(b)) == (0, 1)
    assert blocks.pool.trim() == 0
    assert cuda.calls("cuEventSynchronize") == 1
    cuda.finish()
    assert cuda.faults() == []


def test_a_dropped_pool_waits_for_the_work_on_what_it_holds(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda)
    blocks.free(blocks.allocate(PAGE, a))
    blocks.allocate(PAGE, b)
    blocks.held.clear()
    del blocks
    assert cuda.count("mappings") == 0
    cuda.finish()
    assert cuda.faults() == []


# Graph capture


def test_what_is_freed_in_a_quarantine_stays_out_of_use_until_its_end(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    pool = blocks.pool
    first = blocks.allocate(PAGE, a)
    pool.begin_quarantine()
    blocks.free(first)
    assert (pool.stats().quarantined, pool.stats().live, pool.stats().frees) == (PAGE, PAGE, 0)
    assert blocks.allocate(PAGE, a) == first + PAGE
    pool.end_quarantine()
    pool.check()
    assert (pool.stats().quarantined, pool.stats().live, pool.stats().frees) == (0, PAGE, 1)
    assert blocks.allocate(PAGE, a) == first


def test_quarantines_nest_and_the_last_end_counts(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    pool = blocks.pool
    first = blocks.allocate(PAGE, a)
    pool.begin_quarantine()
    pool.begin_quarantine()
    blocks.free(first)
    pool.end_quarantine()
    assert pool.stats().quarantined == PAGE
    pool.end_quarantine()
    assert pool.stats().quarantined == 0
    with pytest.raises(ValueError, match="no quarantine has begun"):
        pool.end_quarantine()
    pool.check()


def test_no_event_is_asked_recorded_or_waited_for_in_a_quarantine(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=4)
    parts = [blocks.allocate(PAGE, stream) for stream in (a, b, a, b)]
    blocks.free(parts[0])
    blocks.free(parts[2])
    blocks.pool.begin_quarantine()
    assert (cuda.queued(a), cuda.queued(b)) == (0, 2)
    cuda.capture(True)
    before = event_calls(cuda)
    large = blocks.allocate(2 * PAGE, b)  # Moves pages.
    blocks.pool.record_stream(large, a)
    blocks.free(large)
    blocks.free(parts[1])
    blocks.pool.trim()
    assert event_calls(cuda) == before
    cuda.capture(False)
    blocks.pool.end_quarantine()
    blocks.pool.check()
    cuda.finish()
    assert cuda.faults() == []


def test_a_second_free_in_a_quarantine_is_an_error(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda)
    first = blocks.allocate(PAGE, a)
    blocks.pool.begin_quarantine()
    blocks.pool.free(first)
    with pytest.raises(ValueError, match="no live block of this pool starts at address"):
        blocks.pool.free(first)
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
    cuda.finish()


def test_a_host_pool_knows_the_quarantine_as_well() -> None:
    pool = Pool(8192, "host")
    first = pool.allocate(512)
    pool.begin_quarantine()
    pool.free(first)
    assert pool.allocate(512) == first + 512
    pool.end_quarantine()
    pool.check()
    assert pool.allocate(512) == first


# Names of streams


def test_a_new_stream_with_an_old_name_waits_for_the_old_one(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda, pages=2)
    first, kept = blocks.allocate(PAGE, a), blocks.allocate(PAGE, a)
    blocks.free(first)
    blocks.pool.retire_stream(a)
    cuda.destroy_stream(a)
    assert cuda.stream() == a
    assert blocks.allocate(PAGE, a) == first
    assert blocks.pool.stats().stream_waits == 1
    cuda.drain(a)
    blocks.pool.free(kept)
    blocks.pool.check()
    blocks.allocate(PAGE, a)
    cuda.finish()
    assert cuda.faults() == []


def test_a_stream_that_was_not_retired_is_caught(cuda: FakeCuda) -> None:
    blocks, a, _, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.free(first)
    cuda.step(a)
    cuda.destroy_stream(a)
    assert cuda.stream() == a
    blocks.allocate(PAGE, a)
    cuda.drain(a)
    cuda.finish()
    assert cuda.faults() == [f"a read of {PAGE} bytes for 1 found 2"]


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


# All of it at random


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
    assert cuda.faults() == []
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


# Waiting for whole streams, as a replay does.


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
    cuda.finish()


def test_a_wait_for_a_stream_covers_what_it_frees_later(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=1)
    first = blocks.allocate(PAGE, a)
    blocks.free(first)
    second = blocks.allocate(PAGE, b)
    blocks.free(second)
    blocks.pool._core.gather_streams(a)  # All that b was given, so the block as well.
    assert blocks.allocate(PAGE, a) == first
    in_order(cuda, b, a)
    assert cuda.faults() == []
