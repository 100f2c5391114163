"""Stepping stones: what the program drops stays where it makes something larger cheap."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from dtr_alloc import Heuristic
from dtr_alloc.runtime.heuristic import PRESETS
from dtr_alloc.runtime.simulate.link import Link
from tests.engine_harness.harness import EngineHarness
from tests.models.engine_model import Model
from tests.support.engine_of_blocks import BLOCK, chain_of, engine
from tests.support.engine_program import Program, run_random
from tests.support.trace_lines import call, constant, load, release

WITHOUT = Heuristic("lineage", selection="single")
WITH = replace(WITHOUT, stepping_stones=True)
ROOM = 100


def small_and_whole(
    run: EngineHarness, blocks: int = 4, cost: int = 1000, whole: int = 10, whole_cost: int = 500
) -> tuple[int, int]:
    """A dear value, and a larger one that was made from it. By the defaults the small one costs 250
    a block, and the whole one 50."""
    (small,) = run.call(1, cost, [], [], [blocks * BLOCK])
    (made,) = run.call(2, whole_cost, [small], [], [whole * BLOCK])
    return small, made


def after_an_eviction(run: EngineHarness) -> None:
    (value,) = chain_of(run, 1)
    assert run.evict(value)
    run.drop(value)
    run.take_evicted()


def stays(run: EngineHarness, small: int, blocks: int = 4) -> bool:
    """Whether what is dropped keeps its memory."""
    before = run.live_bytes
    run.drop(small)
    run.check()
    assert before - run.live_bytes in (0, blocks * BLOCK)
    return run.live_bytes == before


@pytest.mark.parametrize(
    ("blocks", "cost", "whole_cost", "expected"),
    [
        (4, 1000, 500, True),
        (5, 1250, 500, False),  # Half as large.
        (4, 1000, 501, False),  # A byte costs less than five times as much.
        (1, 250, 500, True),
        (1, 249, 500, False),
        (4, 0, 0, True),
    ],
)
def test_a_stone_is_at_most_four_tenths_as_large_and_five_times_as_dear_a_byte(
    blocks: int, cost: int, whole_cost: int, expected: bool
) -> None:
    run = engine(ROOM, WITH)
    after_an_eviction(run)
    small, _ = small_and_whole(run, blocks, cost, 10, whole_cost)
    assert stays(run, small, blocks) == expected


def test_an_orphan_is_no_stone_and_a_stone_no_orphan() -> None:
    """The stone has the greatest score, and is held by nobody."""
    run = engine(30, replace(WITH, orphans_first=True))
    after_an_eviction(run)
    small, whole = small_and_whole(run, cost=1_000_000)
    run.drop(small)
    run.check()
    run.constant(20 * BLOCK, 8)
    assert run.take_evicted() == [whole]
    run.check()


def test_decisions_are_the_models() -> None:
    stones = 0
    for seed in range(60):
        rng = random.Random(seed)
        heuristic = replace(WITH, neighbourhood=("lineage", "eqclass", "none")[seed % 3])
        program = Program(rng.randint(16, 40) * BLOCK, heuristic, True)
        for _ in range(20):
            run_random(program, rng, 4, 1500, 6, failing=seed % 2 == 1)
            program.call(rng.randint(1000, 9000), [rng.randrange(9)], [], [rng.randint(1, 1500)])
            newest = len(program.contents) - 1
            results = [rng.randint(1, 5000) for _ in range(rng.randint(1, 2))]
            program.call(rng.randint(0, 2000), [newest, rng.randrange(9)], [], results, [True])
            program.compare()
        program.end()
        assert isinstance(program.model, Model)
        stones += program.model.stones
    assert stones > 200


def small_and_repeated(x: torch.Tensor) -> torch.Tensor:
    """A quarter of what is returned, which a sum of eight times as much makes dear, and which the
    program drops."""
    small = x.view(8, -1).sum(0)
    return small.repeat(4)


@pytest.mark.parametrize("orphans_first", [False, True])
def test_a_stone_is_needed_when_what_it_stays_for_is(orphans_first: bool) -> None:
    """What is needed last goes first, and nothing else counts. The first stone is needed before all
    that goes with the second."""
    by_need = Heuristic("none", cost_exp=0, size_exp=0, next_use=True, stepping_stones=True)
    by_need = replace(by_need, orphans_first=orphans_first)
    x, y = torch.ones(8 * ELEMENTS), torch.ones(4 * ELEMENTS)
    optimizer = torch.optim.SGD([torch.zeros(8)], lr=0.1)
    again = []
    with dtr_alloc.rematerialize(
        int(12.5 * 4 * ELEMENTS),
        heuristic=replace(by_need, selection="single"),
        clock="logical",
        thrash_limit=0,
    ) as session:
        for _ in range(4):
            first, last = small_and_repeated(x), small_and_repeated(x)
            filler = y + 1
            del filler
            dtr_alloc.evict(first)
            before = session.stats().rematerializations
            for _ in range(2):
                assert float(first[0]) == 8.0
                session.check()
            again.append(session.stats().rematerializations - before)
            assert float(last[0]) == 8.0
            session.check()
            del first, last
            optimizer.step()
    assert again[2:] == [1, 1]


def steps_with_a_missing_stone(heuristic: Heuristic) -> Iterator[tuple[Any, int, list[Tensor]]]:
    """Four alike, each with what was made from the stone: a large one, and one that is evicted."""
    x = torch.ones(8 * ELEMENTS)
    optimizer = torch.optim.SGD([torch.zeros(8)], lr=0.1)
    with dtr_alloc.rematerialize(1 << 30, heuristic=heuristic, clock="logical") as session:
        dtr_alloc.evict(x + 1)
        for step in range(4):
            small = x.view(8, -1).sum(0)
            made = [small.repeat(4), small + 1]
            del small
            dtr_alloc.evict(made[1])
            session.check()
            yield session, step, made
            session.check()
            made.clear()
            optimizer.step()


@pytest.mark.parametrize("heuristic", [replace(WITH, next_use=True), PRESETS["foresight"]])
def test_needs_add_up_when_a_stone_goes_in_a_step_that_repeats(heuristic: Heuristic) -> None:
    """What else was made from it stays."""
    for session, step, made in steps_with_a_missing_stone(heuristic):
        if step == 3:
            dtr_alloc.pin(made[0])
            session.check()
        assert [float(one[0]) for one in made] == [8.0, 9.0]


@pytest.mark.parametrize("heuristic", [replace(WITH, next_use=True), PRESETS["foresight"]])
def test_needs_add_up_when_what_was_made_from_a_stone_goes_while_it_is_missing(
    heuristic: Heuristic,
) -> None:
    for session, step, made in steps_with_a_missing_stone(heuristic):
        if step == 3:
            made.pop()
            session.check()
        else:
            assert float(made.pop()[0]) == 9.0
        assert float(made[0][0]) == 8.0


class Unseen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """In which nothing is evicted by torch 2.11, which calls it before our kernel."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_stones_make_room_where_nothing_may_be_evicted() -> None:
    x = torch.ones(8 * ELEMENTS)
    with dtr_alloc.rematerialize(6 * 4 * ELEMENTS, clock="logical", thrash_limit=0) as session:
        dtr_alloc.evict(x[:ELEMENTS] + 1)
        whole = small_and_repeated(x)
        assert session.stats().live_bytes == 5 * 4 * ELEMENTS
        with Unseen():  # type: ignore[no-untyped-call]
            other = torch.ones(2 * ELEMENTS)
        session.check()
        assert session.stats().live_bytes == 6 * 4 * ELEMENTS
        assert float(other[0]) == 1.0
        del other
        assert float(whole[0]) == 8.0


def test_a_stone_is_not_moved_to_the_swap() -> None:
    """Which has what it would keep for longer than the program needs it. The stalest goes first."""
    x = torch.ones(8 * ELEMENTS)
    with dtr_alloc.rematerialize(
        int(6.5 * 4 * ELEMENTS),
        heuristic=replace(PRESETS["lru"], selection="single", stepping_stones=True),
        swap="64MiB",
        clock="logical",
        thrash_limit=0,
    ) as session:
        dtr_alloc.evict(x[:ELEMENTS] + 1)
        whole = small_and_repeated(x)
        before = session.stats()
        other = x[: 2 * ELEMENTS] + 1
        assert session.stats().evictions == before.evictions + 1
        assert session.stats().swapped_out_bytes == before.swapped_out_bytes
        assert not dtr_alloc.is_evicted(whole)
        assert float(other[0]) == 2.0
        session.check()


def test_a_stone_in_use_goes_after_it_when_what_it_stays_for_moves_meanwhile(log: Path) -> None:
    """The other result needs the room of the whole one, and the small one to be computed."""
    block = 1 << 16
    program = [
        call("", "small", time=10**7, memory=4 * block),
        call("small", "whole", time=2 * 10**6, memory=10 * block),
        call("small", "other", memory=block),
        constant("k", 2 * block),
        release("small"),
        call("other", "read", memory=0),
    ]
    result = dtr_alloc.simulate(
        load(log, *program),
        16 * block,
        WITH,
        mode="pool",
        remap=False,
        link=Link(10**9),
        pin_outputs=False,
        log_events=True,
    )
    assert result.swapped_out_bytes == 10 * block
    computed, evicted, dropped = range(3)
    assert result.events.tolist()[-3:] == [[1, evicted], [2, computed], [0, dropped]]


@pytest.mark.parametrize("let_go", [dtr_alloc.pin, lambda whole: whole.mul_(2)])
def test_memory_of_a_stone_comes_back_when_what_it_stays_for_needs_it_no_more(let_go: Any) -> None:
    x = torch.ones(8 * ELEMENTS)
    with dtr_alloc.rematerialize(1 << 30, clock="logical") as session:
        dtr_alloc.evict(x + 1)
        whole = small_and_repeated(x)
        assert session.stats().live_bytes == 5 * 4 * ELEMENTS
        let_go(whole)
        session.check()
        assert session.stats().live_bytes == 4 * 4 * ELEMENTS


ELEMENTS = 1 << 14  # 64 KiB.
