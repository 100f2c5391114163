"""The tape under random steps: nothing differs, and the needs add up."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtr_alloc
from dtr_alloc import Heuristic
from dtr_alloc.runtime.scope.record import record_trace
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from tests.support.taped_programs import BYTES, ELEMENTS, KINDS, Program, run, scope

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
def test_needs_add_up_after_each_operator(seed: int) -> None:
    kinds: list[Any] = ["none", "eqclass", "lineage", "full", "ancestors"]
    with dtr_alloc.rematerialize(
        30 * BYTES,
        heuristic=Heuristic(kinds[seed % 5], next_use=True),
        clock="logical",
        thrash_limit=0,
    ) as session:
        repeats = seed % 3 == 0
        checked_steps(
            session, lambda step: random.Random(seed if repeats else 10 * seed + step % 2), seed > 0
        )


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


@pytest.mark.parametrize("heuristic", KINDS, ids=range(len(KINDS)))
def test_needs_found_at_the_first_choice_are_those_found_access_by_access(
    heuristic: Heuristic,
) -> None:
    """A check finds all needs; without one, they are found when the first victim is chosen."""

    def choices(check: bool) -> tuple[int, int, int]:
        with scope(10, heuristic) as session:
            after = (lambda _: session.check()) if check else (lambda _: None)
            run([seed for seeds in STEPS for seed in seeds], after)
            stats = session.stats()
        return stats.evictions, stats.rematerializations, stats.evicted_bytes

    assert choices(check=True) == choices(check=False)


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
    with pytest.raises(ValueError, match=r"next_use.*use mode 'pool'"):
        Simulator(recording.trace).run(7 * BYTES, Rules(KINDS[0], mode="bytes"))
