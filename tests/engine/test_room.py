"""How a request gets memory where bytes are free and no hole is: pages move, or neighbours go."""

import pytest
import torch

import dtr_alloc
from dtr_alloc import Heuristic, SimulationResult, Trace, simulate
from dtr_alloc.runtime.trace.format import Call, Constant, Instruction, Mutate, Release, Result
from tests.engine_harness.harness import EngineHarness

PAGE = 4 << 10
BLOCK = 4 * PAGE  # Of a small host arena.
COUNT = 32
MOVED = 3 * 4
BACKED, EVICTABLE, FIXED = range(3)


def scattered(
    move_ns: int | None,
    cost: int = 1000,
    *,
    count: int = COUNT,
    others: int | None = None,
    before: tuple[Instruction, ...] = (),
) -> SimulationResult:
    """A full pool of which every second block is free, and then a request for four of them. Four
    neighbours that hold it are two values, `cost` each; all `others` may be dearer. The last block
    is free, and more addresses come after it, so that pages of three other holes make one there."""
    names = [f"v{i}" for i in range(count)]
    cheap = ("v8", "v10")
    made = [
        Call("make", (), (Result(n, BLOCK, -1),), cost if n in cheap else others or cost)
        for n in names
    ]
    freed = [Release(name) for name in names[1::2]]
    big = Call("big", (), (Result("big", 4 * BLOCK, -1),), 1)
    heuristic = Heuristic(neighbourhood="none", staleness_exp=0)
    return simulate(
        Trace((*before, *made, *freed, big)),
        COUNT * BLOCK,
        heuristic,
        mode="pool",
        pin_outputs=False,
        move_ns=move_ns,
    )


def evicted(result: SimulationResult) -> int:
    assert result.status == "ok"
    return result.evicted_bytes // BLOCK


@pytest.mark.parametrize("cost", [1000, 50_000])
def test_pages_are_dear_where_one_takes_more_than_a_tenth_of_computing_it(cost: int) -> None:
    """A value of four pages took `cost`. While nothing is recomputed, dear pages do not move."""
    tenth = cost // 4 // 10
    assert evicted(scattered(move_ns=tenth, cost=cost)) == 0
    assert evicted(scattered(move_ns=tenth + 1, cost=cost)) == 2


SEARCH = 10 * COUNT // 2
"""Nanoseconds: the search of a window looks at each block."""


def test_cheap_pages_move_even_where_a_window_would_take_no_time_to_recompute() -> None:
    """Beside values of 1 ms, pages of 20 us are cheap. No window is searched for."""
    assert evicted(scattered(20_000, 0, others=1_000_000)) == 0


def recomputed(cost: int) -> tuple[Instruction, ...]:
    """A value that takes `cost` is evicted by a large one and recomputed; nothing is left."""
    return (
        Call("make", (), (Result("a", BLOCK, -1),), cost),
        Call("large", (), (Result("fill", COUNT * BLOCK, -1),), 0),
        Release("fill"),
        Call("use", ("a",), (Result("b", BLOCK, -1),), 0),
        Release("a"),
        Release("b"),
    )


A_THIRD = COUNT * 1000 // 2
"""What is recomputed, of all that is computed once: this and 32 values of 1 us."""


def test_what_was_recomputed_counts_where_a_page_is_dear_or_not() -> None:
    computed = 2 * A_THIRD + COUNT * 1000
    pages = 4 * (COUNT + 3 + COUNT)
    tenth = computed // 10 // pages
    assert evicted(scattered(tenth, before=recomputed(A_THIRD))) == 1
    assert evicted(scattered(tenth + 1, before=recomputed(A_THIRD))) == 1 + 2


def test_dear_pages_move_only_where_a_program_recomputes_more_than_a_third_of_its_time() -> None:
    page = (2 * 1000 + SEARCH) // MOVED
    assert evicted(scattered(page, before=recomputed(A_THIRD))) == 1 + 2
    assert evicted(scattered(page, before=recomputed(A_THIRD + 1))) == 1


def test_of_a_program_that_recomputes_much_a_window_counts_once() -> None:
    page = (2 * 1000 + SEARCH) // MOVED
    before = recomputed(COUNT * 1000)
    assert evicted(scattered(page, before=before)) == 1
    assert evicted(scattered(page + 1, before=before)) == 1 + 2


def test_a_move_may_take_as_long_as_the_search_for_a_window_that_takes_no_time() -> None:
    """Of a program that takes 64 ns in all, half of them recomputed: each page is dear."""
    most = SEARCH // MOVED
    before = recomputed(COUNT)
    assert evicted(scattered(most, 0, others=1, before=before)) == 1
    assert evicted(scattered(most + 1, 0, others=1, before=before)) == 1 + 2


def test_nothing_is_evicted_where_the_bytes_are_there_and_a_host_moves_them() -> None:
    """At a host's usual price, 1 us a run and 150 ns a page, against twice 100 us."""
    result = scattered(move_ns=None, cost=100_000)
    assert evicted(result) == 0
    assert result.move_ns == 3 * 1_000 + MOVED * 150


def test_nothing_is_evicted_where_what_was_let_go_left_the_bytes() -> None:
    """The result becomes constant instead of what it was made from. What that leaves and the end of
    the pool are no hole together."""
    block = 1 << 20
    outside = torch.zeros(block // 4)
    with dtr_alloc.rematerialize(4 * block + (64 << 10), clock="logical") as session:
        constant = torch.tensor([2.0] * (block // 4))
        made = constant + 1
        dear = torch.addcmul(outside, outside, outside)
        del constant
        large = torch.full((block // 2,), 7.0)
        assert session.stats().evictions == 0
        assert (float(made[0]), float(dear[0]), float(large[0])) == (3.0, 0.0, 7.0)
        del made, dear, large


def test_pages_that_the_budget_still_allows_need_not_move() -> None:
    """Where the pool was filled but for two blocks, their pages are new."""
    assert scattered(move_ns=7, count=COUNT - 2).move_ns == (MOVED - 2 * 4) * 7


# Placement


def layout(*steps: Call | Constant | Mutate) -> list[tuple[int, int]]:
    """Block and kind of what lies in a pool of 32 blocks after all steps."""
    result = simulate(
        Trace(steps),
        COUNT * BLOCK,
        "dtr",
        remap=False,
        pin_outputs=False,
        placement="two_ended",
        layouts=1,
    )
    assert result.status == "ok"
    return [
        (offset // BLOCK, kind) for _, offset, _, kind in result.layouts.tolist() if kind != BACKED
    ]


def value(name: str, cost: int) -> Call:
    return Call("make", (), (Result(name, BLOCK, -1),), cost)


def test_what_is_cheap_for_its_bytes_lies_at_one_end_and_what_is_dear_at_the_other() -> None:
    made = [value(f"v{i}", 1_000_000 if i % 2 else 10) for i in range(2, 18)]
    blocks = layout(value("first", 10), *made)
    assert blocks == [(at, EVICTABLE) for at in [*range(9), *range(24, 32)]]


def test_the_high_end_of_a_hole_is_taken_only_where_it_has_pages() -> None:
    """All pages of the budget are committed, two of them at the low end of the last hole."""
    run = EngineHarness(4 * PAGE, Heuristic()._native(), spare=8 * PAGE, page=PAGE)
    run.constant(2 * PAGE, 1)
    run.drop(run.constant(2 * PAGE, 2))
    assert run.place(PAGE, high=True) is None
    run.check()


@pytest.mark.parametrize("high", [False, True])
def test_the_outermost_hole_that_holds_a_block_is_taken(high: bool) -> None:
    run = EngineHarness(8 * BLOCK, Heuristic()._native())
    blocks = [run.constant(BLOCK, number) for number in range(8)]
    for number in (1, 3, 4, 6):
        run.drop(blocks[number])
    assert run.place(BLOCK, high) == (6 if high else 1) * BLOCK
    assert run.place(BLOCK, high) == (4 if high else 3) * BLOCK
    run.check()


def test_a_large_dear_operator_is_cheap_for_its_bytes() -> None:
    """The same time, for one block and for four."""
    made = [
        Call("make", (), (Result(f"v{i}", (4 - 3 * (i % 2)) * BLOCK, -1),), 1000) for i in range(6)
    ]
    assert [at for at, _ in layout(*made)] == [0, 4, 8, 29, 30, 31]


def test_what_cannot_be_recomputed_lies_apart_from_what_is_cheap() -> None:
    steps: list[Call | Constant | Mutate] = []
    for i in range(4):
        steps += [Constant(f"c{i}", BLOCK), value(f"v{i}", 10)]
    assert layout(*steps) == [
        *((at, EVICTABLE) for at in range(4)),
        *((at, FIXED) for at in range(28, 32)),
    ]


def test_what_is_written_in_place_stays_in_place() -> None:
    written = Mutate("add_", ("v0",), (0,), 1_000_000, {"tracked": [1]})
    before = [value("v0", 10), value("v1", 10)]
    assert layout(*before) == layout(*before, written) == [(0, EVICTABLE), (1, EVICTABLE)]
