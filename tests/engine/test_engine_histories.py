"""State that lives on: when a history is cut, and what a commit leaves."""

import pytest

from tests.models.modelled_values import content_of
from tests.support.engine_of_blocks import BLOCK, chain_of, engine


@pytest.mark.parametrize(
    ("blocks", "steps", "most_before_a_cut"),
    [
        (1, 300, range(11, 17)),  # Of 512 bytes, as much as a record weighs.
        (512, 1000, range(251, 258)),  # So many operators, whatever it weighs.
    ],
)
def test_a_history_that_weighs_more_than_what_it_can_bring_back_is_cut(
    blocks: int, steps: int, most_before_a_cut: range
) -> None:
    run = engine(8 * blocks + 2)
    c = x = run.constant(blocks * BLOCK, 7)
    number, most = 7, 0
    for step in range(steps):
        (y,) = run.call(step, 5, [x, c], [], [blocks * BLOCK])
        number = content_of(step, [number, 7], 0)
        if x != c:
            run.drop(x)
        x = y
        run.cut_history(x)
        most = max(most, run.stats().ops)
    assert most in most_before_a_cut
    assert run.read(x) == number
    run.check()


def test_what_the_program_still_holds_is_no_history() -> None:
    run = engine(2000)
    c = x = run.constant(BLOCK, 7)
    held = []
    for step in range(1000):
        (x,) = run.call(step, 5, [x, c], [], [BLOCK])
        run.cut_history(x)
        held.append(x)
    assert run.stats().ops == 1000
    assert all(run.evict(at) for at in held)
    run.check()


def test_a_frozen_value_is_cut_from_its_history_and_never_evicted() -> None:
    run = engine(3)
    a, b = chain_of(run, 5, 5)
    run.drop(a)
    run.evict(b)
    run.freeze(b)
    number = content_of(1, [content_of(0, [7], 0)], 0)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (0, 0, 2 * BLOCK)
    assert not run.evict(b)
    (z,) = run.call(2, 5, [b], [], [BLOCK])
    run.drop(b)
    run.evict(z)
    assert run.read(z) == content_of(2, [number], 0)
    run.drop(z)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (0, 0, BLOCK)
    run.check()


def test_after_commit_nothing_is_recomputable_and_no_record_is_left() -> None:
    run = engine(6)
    a, b, c = chain_of(run, 5, 5, 5)
    run.drop(b)
    run.evict(a)
    run.evict(c)
    run.commit()
    assert (run.stats().values, run.stats().ops, run.stats().evictable) == (0, 0, 0)
    assert run.live_bytes == 3 * BLOCK
    assert [run.evict(at) for at in (a, c)] == [False, False]
    first = content_of(0, [7], 0)
    assert run.read(a) == first
    assert run.read(c) == content_of(2, [content_of(1, [first], 0)], 0)
    run.check()


def test_a_commit_that_does_not_fit_fails_and_can_be_repeated() -> None:
    run = engine(5)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 5, [c], [], [3 * BLOCK])
    (y,) = run.call(2, 5, [c], [], [2 * BLOCK])
    assert not run.resident(x)
    with pytest.raises(MemoryError):
        run.commit()
    run.check()
    assert run.read(y) == content_of(2, [7], 0)
    run.drop(y)
    run.commit()
    assert run.read(x) == content_of(1, [7], 0)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (0, 0, 4 * BLOCK)
