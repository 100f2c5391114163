"""Pages that move while streams still use them, on the fake driver stepped by hand."""

import pytest

from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.support.cuda_pools import Blocks, in_order, start


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


def take_the_old_places(blocks: Blocks, large: int, stream: int) -> None:
    """Frees all but the last of four pages, and takes three as one block where the first were."""
    blocks.free(large)
    blocks.free(min(blocks.held))
    assert blocks.allocate(3 * PAGE, stream) == min(blocks.held) == large - 4 * PAGE


def test_the_rest_of_a_moved_page_waits_for_who_used_it_at_its_old_place(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda, pages=4)
    parts = [blocks.allocate(PAGE, a) for _ in range(4)]
    cuda.finish()
    blocks.free(parts[0])
    blocks.free(parts[2])
    blocks.allocate(PAGE * 3 // 2, a)  # Half of its second page is a hole.
    blocks.allocate(PAGE // 2, b)
    assert blocks.pool.stats().stream_waits > 0
    in_order(cuda, b, a)


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


def test_old_places_are_left_without_waiting_once_their_work_is_past(cuda: FakeCuda) -> None:
    blocks, _, b, large = two_pages_moved_to_b(cuda)
    cuda.finish()
    take_the_old_places(blocks, large, b)
    assert (cuda.calls("cuEventSynchronize"), cuda.calls("cuMemUnmap")) == (0, 2)
    cuda.finish()


def test_a_block_at_an_old_place_waits_until_nobody_uses_it_there(cuda: FakeCuda) -> None:
    blocks, a, b, large = two_pages_moved_to_b(cuda)
    assert cuda.queued(a) > 0
    take_the_old_places(blocks, large, b)
    assert cuda.calls("cuEventSynchronize") > 0
    assert cuda.queued(b) > 0  # Only what used the old places was waited for.
    in_order(cuda, b, a)


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


def test_trim_gives_back_pages_that_are_still_mapped_at_their_old_places(cuda: FakeCuda) -> None:
    blocks, _, _, large = two_pages_moved_to_b(cuda)
    blocks.free(large)
    assert blocks.pool.trim() == 2 * PAGE
    assert cuda.used() == blocks.pool.stats().committed == 2 * PAGE
    cuda.finish()


def test_a_dropped_pool_waits_for_the_work_on_what_it_holds(cuda: FakeCuda) -> None:
    blocks, a, b, _ = start(cuda)
    blocks.free(blocks.allocate(PAGE, a))
    blocks.allocate(PAGE, b)
    blocks.held.clear()
    del blocks
    assert cuda.count("mappings") == 0
    cuda.finish()
