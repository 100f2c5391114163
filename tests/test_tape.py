"""The tape: what the next uses of values are, as far as a program repeats itself."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import Heuristic
from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS
from dtr_alloc.runtime.session import Session
from dtr_alloc.runtime.simulate import Simulator
from dtr_alloc.runtime.simulation_rules import Rules
from dtr_alloc.runtime.trace.record import record_trace

ELEMENTS = 1 << 14  # 64 KiB.
BYTES = 4 * ELEMENTS

KINDS = [
    Heuristic(next_use=True),
    Heuristic("ancestors", staleness_exp=0.7, next_use=True),
    Heuristic("full", staleness_exp=0.5, next_use=True),
    Heuristic("lineage", next_use=True, orphans_first=True),
    Heuristic("none", next_use=True, selection="window"),
    PRESETS[DEFAULT],
    Heuristic("eqclass", next_use=True, stepping_stones=True),
]


@contextmanager
def scope(blocks: float, heuristic: Heuristic = KINDS[0]) -> Iterator[Session]:
    """Costs are bytes, so that each run decides alike."""
    with dtr_alloc.rematerialize(
        int(blocks * BYTES), heuristic=heuristic, clock="logical", thrash_limit=0
    ) as session:
        yield session


class Program:
    """Steps of an optimizer that has nothing to do."""

    def __init__(self) -> None:
        self.parameter = torch.zeros(ELEMENTS)
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.1)

    def end_step(self) -> None:
        self.optimizer.step()


def first_needed_first(x: Tensor) -> list[bool]:
    """Two results, of which the older is needed first; then one that needs room. Returns which are
    evicted then."""
    old, new = x + 1, x + 2
    filler = x + 3
    evicted = [dtr_alloc.is_evicted(old), dtr_alloc.is_evicted(new)]
    del filler
    assert float((old * 2)[0]) == 2.0
    assert float((new * 2)[0]) == 4.0
    return evicted


def test_what_is_needed_last_goes_first_in_a_step_that_repeats() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)
    seen = []
    with scope(2.5) as session:
        for _ in range(3):
            seen.append(first_needed_first(x))
            program.end_step()
            session.check()
    assert seen == [[True, False], [False, True], [False, True]]


def test_what_is_newer_goes_on_being_kept_where_it_is_needed_first() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)
    with scope(2.5):
        for _ in range(3):
            old, new = x + 1, x + 2
            filler = x + 3
            assert [dtr_alloc.is_evicted(old), dtr_alloc.is_evicted(new)] == [True, False]
            del filler
            assert float((new * 2)[0]) == 4.0
            assert float((old * 2)[0]) == 2.0
            del old, new
            program.end_step()


def test_operators_that_make_no_value_tell_which_is_needed_first() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)
    seen = []
    with scope(2.5, Heuristic("none", next_use=True, selection="single")):
        for _ in range(4):
            old, new = x + 1, x + 2
            filler = x + 3
            seen.append([dtr_alloc.is_evicted(old), dtr_alloc.is_evicted(new)])
            del filler
            assert torch.equal(new, new)
            assert torch.equal(old, old)
            del old, new
            program.end_step()
    assert seen[1:] == [[True, False]] * 3


@pytest.mark.parametrize("neighbourhood", ["eqclass", "lineage", "full"])
def test_what_was_made_from_a_value_is_in_its_need_and_costs_nothing_beside_it(
    neighbourhood: Any,
) -> None:
    """`one` costs two blocks, and something missing was made from it; `other` costs three. Their
    next uses are far away, and nearly as far."""
    program, x, y = Program(), torch.zeros(ELEMENTS), torch.ones(ELEMENTS)
    seen = []
    with scope(2.5, Heuristic(neighbourhood, next_use=True, selection="single")) as session:
        for _ in range(3):
            one = x + 1
            made = one + 1
            dtr_alloc.evict(made)
            other = x + y
            filler = x + 3
            seen.append([dtr_alloc.is_evicted(one), dtr_alloc.is_evicted(other)])
            del filler
            for _ in range(20):
                x + 3
            assert [float((value * 2)[0]) for value in (one, other, made)] == [2.0, 2.0, 4.0]
            del one, made, other
            program.end_step()
            session.check()
    assert seen[1:] == [[True, False]] * 2


def test_what_was_made_from_a_value_counts_again_once_the_tape_is_given_up() -> None:
    """As above, without staleness: with what was made from it, `one` costs four blocks."""
    program, x, y = Program(), torch.zeros(ELEMENTS), torch.ones(ELEMENTS)
    without = Heuristic(staleness_exp=0, selection="single")
    with scope(2.5, replace(without, next_use=True)) as session:
        for _ in range(3):
            float((x + 1)[0])
            program.end_step()
        session._core.follow(without._native())
        one = x + 1
        made = one + 1
        dtr_alloc.evict(made)
        other = x + y
        filler = x + 3
        assert [dtr_alloc.is_evicted(one), dtr_alloc.is_evicted(other)] == [False, True]
        del one, made, other, filler


def test_without_the_tape_what_was_used_first_goes_first() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)
    with scope(2.5, Heuristic()):
        for _ in range(3):
            assert first_needed_first(x) == [True, False]
            program.end_step()


def test_a_step_that_differs_is_followed_no_further() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)
    with scope(2.5) as session:
        first_needed_first(x)
        program.end_step()
        half = x[: ELEMENTS // 2] + 1  # No step began so.
        before = session._core.stats().foretold
        assert first_needed_first(x) == [True, False]
        assert session._core.stats().foretold == before
        program.end_step()
        session.check()
    assert half[0] == 1


def test_one_that_began_alike_is_followed_instead() -> None:
    program, x = Program(), torch.zeros(ELEMENTS)

    def step(other: bool) -> list[bool]:
        y = (x + 1).exp()
        if other:
            y = (y[: ELEMENTS // 2] + 1).sin()
        del y
        return first_needed_first(x)

    with scope(2.5) as session:
        for other in (False, True, False, False, True, True, False):
            evicted = step(other)
            program.end_step()
            session.check()
    assert evicted == [False, True]


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


def test_a_program_without_steps_is_not_foretold() -> None:
    x = torch.zeros(ELEMENTS)
    with scope(2.5) as session:
        for _ in range(3):
            assert first_needed_first(x) == [True, False]
        assert session._core.stats().foretold == 0


def random_step(x: Tensor, choose: random.Random, carried: Tensor) -> tuple[Tensor, Tensor]:
    """A chain with branches, some of it in place; what one step carries, the next reads."""
    values = [x + 1, carried * 1]
    for _ in range(choose.randrange(6, 20)):
        one, other = choose.choice(values), choose.choice(values)
        kind = choose.randrange(5)
        if kind == 0:
            values.append(one.sin())
        elif kind == 1:
            values.append(one + other)
        elif kind == 2:
            values.append((one * other).clamp(-1, 1))
        elif kind == 3:
            values.append(one.clone().add_(0.5))
        elif len(values) > 3:
            values.pop(choose.randrange(len(values)))
    total = values[0]
    for value in values[1:]:
        total = (total + value).tanh()
    return total, values[-1].clamp(-1, 1)


def run(seeds: list[int], after: Callable[[int], None]) -> list[Tensor]:
    program, x = Program(), torch.linspace(0, 1, ELEMENTS)
    carried, kept = torch.zeros(ELEMENTS), []
    for number, seed in enumerate(seeds):
        total, carried = random_step(x, random.Random(seed), carried)
        kept.append(total[:10].clone())
        program.end_step()
        after(number)
    return kept


STEPS = [[0, 0, 0, 0], [1, 2, 1, 2, 1, 2], [3, 4, 5, 6, 7, 8, 3, 4, 5], [9, 9, 10, 9, 9, 10]]


def checked_steps(session: Session, choose: Callable[[int], random.Random], hand: bool) -> None:
    """Steps of two-result operators, fresh batches, writes in place, evictions by hand, pins and
    values that the next step reads early or late, with a check after each operator."""
    program, x = Program(), torch.linspace(0, 1, ELEMENTS)
    values = [x + 1]
    for number in range(6):
        draw = choose(number)
        batch = torch.full((ELEMENTS,), 0.5) if draw.randrange(2) else x.numpy().copy()
        values.append(torch.as_tensor(batch) * 1)
        for _ in range(24):
            one, other, kind = draw.choice(values), draw.choice(values), draw.randrange(8)
            if kind == 0:
                values.append(one.sin())
            elif kind == 1:
                values.append(one + other)
            elif kind == 2:
                values.append(one.clone().add_(0.5))
            elif kind == 3:
                values.append(torch.sort(one.view(128, -1)).values.reshape(-1))
            elif kind == 4:
                values.append((one * other).tanh())
            elif kind == 5 and hand:
                dtr_alloc.evict(one)
            elif kind == 6 and draw.randrange(4) == 0:
                dtr_alloc.pin(one)
            elif len(values) > 3:
                values.pop(draw.randrange(len(values)))
            del values[:-8]
            session.check()
        program.end_step()
        session.check()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["eager", "banish"])
def test_needs_add_up_after_each_operator(policy: Any, seed: int) -> None:
    kinds: list[Any] = ["none", "eqclass", "lineage", "full", "ancestors", "megengine"]
    with dtr_alloc.rematerialize(
        30 * BYTES,
        heuristic=Heuristic(kinds[seed % 6], next_use=True),
        policy=policy,
        clock="logical",
        thrash_limit=0,
    ) as session:
        repeats = seed % 3 == 0
        checked_steps(
            session, lambda step: random.Random(seed if repeats else 10 * seed + step % 2), seed > 0
        )


@pytest.mark.parametrize(
    ("length", "blocks", "by_classes"), [(100, 3, True), (100, 60, False), (20, 3, False)]
)
def test_long_lineages_are_left_where_much_is_recomputed(
    length: int, blocks: int, by_classes: bool
) -> None:
    """A chain, read from its end. The first step is not foretold."""
    program, x = Program(), torch.zeros(ELEMENTS)
    seen = []
    with scope(blocks, PRESETS[DEFAULT]) as session:
        for _ in range(6):
            chain = [x + 1]
            for _ in range(length):
                chain.append(chain[-1] + 1)
            seen.append(session._core.stats().classes > 0)
            for number in range(length, -1, -1):
                assert float(chain[number][0]) == number + 1
                if number % 25 == 0:
                    session.check()
            chain.clear()
            program.end_step()
            session.check()
    assert (seen[:2], seen[-1]) == ([False, False], by_classes)


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


@pytest.mark.parametrize("heuristic", KINDS, ids=range(len(KINDS)))
@pytest.mark.parametrize("seeds", STEPS, ids=range(len(STEPS)))
def test_any_steps_are_exact_and_the_book_keeping_adds_up(
    seeds: list[int], heuristic: Heuristic
) -> None:
    expected = run(seeds, lambda _: None)
    with scope(10, heuristic) as session:
        found = run(seeds, lambda _: session.check())
        assert session.stats().evictions > 0
        assert session._core.stats().foretold > 0
    assert all(map(torch.equal, expected, found))


def test_settings_may_change_after_any_step() -> None:
    """From each kind of neighbourhood to each other, with a tape and without."""
    kinds = [
        Heuristic(neighbourhood, next_use=next_use)
        for neighbourhood in ("none", "eqclass", "lineage", "full", "ancestors", "megengine")
        for next_use in (False, True)
    ]
    order = list(itertools.chain.from_iterable(itertools.permutations(kinds, 2)))
    seeds = [0] * len(order)
    expected = run(seeds, lambda _: None)
    with scope(10) as session:

        def change(number: int) -> None:
            session._core.follow(order[number]._native())
            session.check()
            assert session.heuristic == order[number]

        found = run(seeds, change)
    assert all(map(torch.equal, expected, found))


def test_settings_may_change_while_values_are_missing() -> None:
    x = torch.zeros(ELEMENTS)
    kinds = [Heuristic("full"), Heuristic("ancestors"), Heuristic("none"), Heuristic()]
    with scope(6.5) as session:
        values = [x + 1]
        for number in range(12):
            values.append(values[-1] + 1)
            session._core.follow(kinds[number % 4]._native())
            session.check()
        assert sum(map(dtr_alloc.is_evicted, values)) > 6
        assert [float(value[0]) for value in values] == list(range(1, 14))
        del values


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Heuristic("full", selection="single"), Heuristic("lineage", selection="single")),
        (Heuristic("full", selection="single"), Heuristic("ancestors", selection="single")),
        (Heuristic("lineage", selection="single"), Heuristic("full", selection="single")),
    ],
    ids=["lineage", "ancestors", "full"],
)
def test_walks_of_one_neighbourhood_leave_nothing_to_those_of_the_next(
    first: Heuristic, then: Heuristic
) -> None:
    """Both mark what they came by. Random graphs, since few come to the same mark twice."""
    for seed in range(140):
        draw = random.Random(seed)
        with scope(14, first) as session:
            x = torch.ones(ELEMENTS)
            values = [x + number for number in range(3)]
            change = 10 + draw.randrange(6)
            for number in range(change + 12):
                values.append(draw.choice(values[-4:]) + draw.choice(values[-6:]))
                if number == change - 1:
                    session._core.follow(then._native())
                if number >= change:
                    session.check()
            del values, x


@pytest.mark.parametrize("heuristic", [*KINDS[:3], *KINDS[-2:]], ids=range(5))
@pytest.mark.parametrize("blocks", [10, 13])
def test_the_simulator_follows_the_same_tape(blocks: int, heuristic: Heuristic) -> None:
    seeds = [3, 4, 3, 4, 3, 5, 4]
    with dtr_alloc.rematerialize(None, clock="logical"), record_trace() as recording:
        run(seeds, lambda _: None)
    assert recording.trace is not None
    with scope(blocks, heuristic) as session:
        run(seeds, lambda _: None)
        stats = session.stats()
    rules = Rules(heuristic, mode="pool", pin_outputs=False, thrash=None)
    simulated = Simulator(recording.trace).run(blocks * BYTES, rules)
    assert stats.evictions > 0
    assert (simulated.evictions - simulated.eager_evictions, simulated.rematerializations) == (
        stats.evictions,
        stats.rematerializations,
    )


def test_the_papers_simulator_knows_no_tape() -> None:
    with record_trace() as recording:
        run([0], lambda _: None)
    assert recording.trace is not None
    with pytest.raises(ValueError, match=r"next_use.*mode 'pool'"):
        Simulator(recording.trace).run(7 * BYTES, Rules(KINDS[0]))
