"""The tape: what the next uses of values are, as far as a program repeats itself."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import Heuristic
from tests.support.taped_programs import ELEMENTS, KINDS, Program, scope

T = TypeVar("T")


def two_and_room(x: Tensor) -> tuple[Tensor, Tensor, list[bool]]:
    """Two results, the older first, and which of them are evicted by a third that needs room."""
    old, new = x + 1, x + 2
    filler = x + 3
    evicted = [dtr_alloc.is_evicted(old), dtr_alloc.is_evicted(new)]
    del filler
    return old, new, evicted


def first_needed_first(x: Tensor, newer: bool = False) -> list[bool]:
    """The older, or the newer, of two is needed first. Returns which are evicted before."""
    old, new, evicted = two_and_room(x)
    for value in (new, old) if newer else (old, new):
        assert float((value * 2)[0]) == (4.0 if value is new else 2.0)
    return evicted


def newer_needed_first(x: Tensor) -> list[bool]:
    return first_needed_first(x, newer=True)


def steps(
    *each: Callable[[Tensor], T], blocks: float = 2.5, heuristic: Heuristic = KINDS[0]
) -> list[T]:
    """What each step makes of one batch. All is checked after each."""
    program, x, found = Program(), torch.zeros(ELEMENTS), []
    with scope(blocks, heuristic) as session:
        for step in each:
            found.append(step(x))
            program.end_step()
            session.check()
    return found


def test_what_is_needed_last_goes_first_in_a_step_that_repeats() -> None:
    assert steps(*[first_needed_first] * 3) == [[True, False], [False, True], [False, True]]


def test_what_is_newer_goes_on_being_kept_where_it_is_needed_first() -> None:
    assert steps(*[newer_needed_first] * 3) == [[True, False]] * 3


def test_an_operator_that_touches_no_value_may_come_between() -> None:
    def with_another(x: Tensor) -> list[bool]:
        torch.zeros(2)
        return first_needed_first(x)

    found = steps(first_needed_first, with_another, first_needed_first)
    assert found == [[True, False], [False, True], [False, True]]


def test_a_step_too_long_for_a_tape_foretells_nothing() -> None:
    program = Program()
    with scope(2.5) as session:
        value = torch.zeros(ELEMENTS)
        for _ in range((1 << 20) + 1):
            value.sum()
        program.end_step()
        value.sum()
        assert session._core.stats().foretold == 0


def test_operators_that_make_no_value_tell_which_is_needed_first() -> None:
    def step(x: Tensor) -> list[bool]:
        old, new, evicted = two_and_room(x)
        assert torch.equal(new, new)
        assert torch.equal(old, old)
        return evicted

    single = Heuristic("none", next_use=True, selection="single")
    assert steps(*[step] * 4, heuristic=single)[1:] == [[True, False]] * 3


@pytest.mark.parametrize("neighbourhood", ["eqclass", "lineage", "full"])
def test_what_was_made_from_a_value_is_in_its_need_and_costs_nothing_beside_it(
    neighbourhood: Any,
) -> None:
    """`one` costs two blocks, and something missing was made from it; `other` costs three. Their
    next uses are far away, and nearly as far."""
    y = torch.ones(ELEMENTS)

    def step(x: Tensor) -> list[bool]:
        one = x + 1
        made = one + 1
        dtr_alloc.evict(made)
        other = x + y
        filler = x + 3
        evicted = [dtr_alloc.is_evicted(one), dtr_alloc.is_evicted(other)]
        del filler
        for _ in range(20):
            x + 3
        assert [float((value * 2)[0]) for value in (one, other, made)] == [2.0, 2.0, 4.0]
        return evicted

    heuristic = Heuristic(neighbourhood, next_use=True, selection="single")
    assert steps(*[step] * 3, heuristic=heuristic)[1:] == [[True, False]] * 2


def test_what_was_made_from_a_value_counts_again_once_the_tape_is_given_up() -> None:
    """As above, without staleness: with what was made from it, `one` costs four blocks."""
    program, x, y = Program(), torch.zeros(ELEMENTS), torch.ones(ELEMENTS)
    with scope(2.5, Heuristic(staleness_exp=0, next_use=True, selection="single")):
        for _ in range(3):
            float((x + 1)[0])
            program.end_step()
        square = (x[:128] + 0).square()  # No step began so.
        one = x + 1
        made = one + 1
        dtr_alloc.evict(made)
        other = x + y
        filler = x + 3
        assert [dtr_alloc.is_evicted(one), dtr_alloc.is_evicted(other)] == [False, True]
        del one, made, other, filler
    assert square[0] == 0


def test_without_the_tape_what_was_used_first_goes_first() -> None:
    assert steps(*[first_needed_first] * 3, heuristic=Heuristic()) == [[True, False]] * 3


def test_a_step_that_differs_is_followed_no_further() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)
    with scope(2.5) as session:
        first_needed_first(x)
        program.end_step()
        square = (x[:128] + 0).square()  # No step began so.
        before = session._core.stats().foretold
        assert first_needed_first(x) == [True, False]
        assert session._core.stats().foretold == before
        program.end_step()
        session.check()
    assert square[0] == 0


def test_a_batch_of_another_length_is_foretold_from_one_before() -> None:
    program = Program()
    batches = [torch.zeros(int(length * ELEMENTS)) for length in (1.0, 0.9, 0.95, 0.85, 0.9)]
    seen, foretold = [], 0
    with scope(2.5) as session:
        for x in batches:
            seen.append(first_needed_first(x))
            program.end_step()
            session.check()
            before, foretold = foretold, session._core.stats().foretold
    assert seen == [[True, False], *[[False, True]] * 4]
    assert foretold > before


def test_of_tapes_in_the_same_order_that_of_the_same_length_is_followed() -> None:
    """A step as long as the first, after one that was shorter and used the newer result first."""

    def short(x: Tensor) -> list[bool]:
        return newer_needed_first(x[: int(0.9 * ELEMENTS)])

    each = [first_needed_first, first_needed_first, short, short, first_needed_first]
    assert steps(*each)[-1] == [False, True]


def test_one_that_began_alike_is_followed_instead() -> None:
    def usual(x: Tensor) -> list[bool]:
        (x + 1).exp()
        return first_needed_first(x)

    def other(x: Tensor) -> list[bool]:
        ((x + 1).exp()[: ELEMENTS // 2] + 1).sin()
        return first_needed_first(x)

    assert steps(usual, other, usual, usual, other, other, usual)[-1] == [False, True]


def test_steps_that_take_turns_are_foretold_from_their_first_operator() -> None:
    """As a generator's and a critic's do."""
    program, x = Program(), torch.zeros(ELEMENTS)
    counts = []
    with scope(2.5) as session:
        for turn in range(8):
            if turn % 2:
                (x[: ELEMENTS // 2] + 1).sin()
            first_needed_first(x)
            program.end_step()
            stats = session._core.stats()
            counts.append((stats.operators, stats.foretold))
    operators, foretold = (b - a for a, b in zip(counts[3], counts[7], strict=True))
    assert foretold >= operators - 8  # Of the optimizer some do not reach the engine.


def test_a_rare_step_does_not_change_what_the_usual_ones_are_foretold_by() -> None:
    """One that begins with a validation: the same operators, whose results nobody reads."""

    def rare(x: Tensor) -> list[bool]:
        two_and_room(x)
        return newer_needed_first(x)

    usual = [newer_needed_first]
    assert steps(*usual * 3, rare, *usual * 3, rare, *usual * 2)[5:] == [[True, False]] * 5


def test_a_program_without_steps_is_not_foretold() -> None:
    x = torch.zeros(ELEMENTS)
    with scope(2.5) as session:
        for _ in range(3):
            assert first_needed_first(x) == [True, False]
        assert session._core.stats().foretold == 0


def test_a_step_without_operators_changes_nothing() -> None:
    """A second optimizer's, which has nothing to do."""
    program, x = Program(), torch.zeros(ELEMENTS)
    with scope(2.5) as session:
        for _ in range(3):
            evicted = first_needed_first(x)
            program.end_step()
            program.end_step()
            session.check()
    assert evicted == [False, True]


def test_what_the_program_keeps_is_needed_behind_the_step() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)
    with scope(3.5):
        kept = x + 5
        for _ in range(4):
            old, dead = x + 1, x + 2
            assert float(dead[0] + kept[0]) >= 2.0
            filler = x + 3
            evicted = [dtr_alloc.is_evicted(kept), dtr_alloc.is_evicted(dead)]
            del filler
            assert float((old * 2)[0]) == 2.0
            kept = kept * 1
            del dead
            program.end_step()
        del kept, old
    assert evicted == [False, True]
