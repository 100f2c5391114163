"""Which value the engine evicts first, and what it counts as the cost of bringing it back."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import dtr_alloc
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.engine_harness.harness import EngineHarness
from tests.models.engine_model import Model
from tests.models.modelled_values import CROWDING
from tests.support.engine_of_blocks import BLOCK, COST_ONLY, chain_of, engine
from tests.support.trace_lines import call, load, release

Selection = Literal["sample", "single"]
CLASS_COST_ONLY = replace(COST_ONLY, neighbourhood="eqclass")
LINEAGE_COST_ONLY = replace(COST_ONLY, neighbourhood="lineage")


# What goes first


@pytest.mark.parametrize(
    ("heuristic", "order"),
    [
        (PRESETS["lru"], "abc"),
        (PRESETS["size"], "bac"),
        (COST_ONLY, "cba"),
        (PRESETS["dtr_local"], "acb"),  # 101/(1024*92), 2/(512*1), 91/(2048*2)
    ],
)
def test_what_is_stale_big_or_cheap_goes_first(heuristic: Heuristic, order: str) -> None:
    run = engine(8, heuristic)
    c = run.constant(BLOCK, 7)
    names = {}
    for name, cost, blocks in (("a", 100, 2), ("b", 90, 4), ("c", 1, 1)):
        (made,) = run.call(ord(name), cost, [c], [], [blocks * BLOCK])
        names[made] = name
    run.constant(7 * BLOCK, 8)
    assert "".join(names[at] for at in run.take_evicted()) == order


def test_a_value_just_read_is_not_stale() -> None:
    run = engine(3, PRESETS["lru"])
    c = run.constant(BLOCK, 7)
    (a,) = run.call(1, 10, [c], [], [BLOCK])
    (b,) = run.call(2, 10, [c], [], [BLOCK])
    run.call(3, 10, [a], [], [])  # Time passes; b was made before a was last read.
    run.read(a)
    run.constant(BLOCK, 8)
    assert run.take_evicted() == [b]


def test_among_equal_scores_the_value_made_last_goes() -> None:
    run = engine(4, PRESETS["size"])
    c = run.constant(BLOCK, 7)
    made = [run.call(name, 1, [c], [], [BLOCK])[0] for name in range(3)]
    run.constant(3 * BLOCK, 8)
    assert run.take_evicted() == [made[2], made[1], made[0]]


def test_a_penalty_keeps_what_has_been_recomputed() -> None:
    def victim(penalty: float) -> str:
        run = engine(3, replace(COST_ONLY, recompute_penalty=penalty))
        c = run.constant(BLOCK, 7)
        (cheap,) = run.call(1, 10, [c], [], [BLOCK])
        (dear,) = run.call(2, 12, [c], [], [BLOCK])
        for _ in range(2):
            run.evict(cheap)
            run.read(cheap)
        run.take_evicted()
        run.constant(BLOCK, 8)
        return {cheap: "cheap", dear: "dear"}[run.take_evicted()[0]]

    assert victim(1) == "cheap"
    assert victim(1.05) == "cheap"  # 11 * 1.05^2 < 13
    assert victim(1.1) == "dear"  # 11 * 1.1^2 > 13


def test_a_weight_on_free_neighbours_prefers_what_opens_a_large_hole() -> None:
    def first_victim(weight: float) -> int:
        run = engine(8, replace(PRESETS["size"], fragmentation=weight))
        c = run.constant(BLOCK, 7)
        made = [run.call(i, 1, [c], [], [n * BLOCK])[0] for i, n in enumerate((2, 2, 1, 2))]
        run.evict(made[1])
        run.take_evicted()
        run.constant(3 * BLOCK, 8)
        return int(made.index(run.take_evicted()[0]))

    assert first_victim(0) == 3  # 2, 1, 2 blocks: the last of the largest.
    assert first_victim(1) == 0  # 2 + 2, 1 + 2, 2 blocks.


@pytest.mark.parametrize("side", ["left", "right"])
def test_sampling_sees_the_free_bytes_on_either_side(side: str) -> None:
    """Forty values have a hole beside them, and forty that were made later have none."""
    run = EngineHarness(161 * BLOCK, replace(PRESETS["size"], fragmentation=1)._native())
    pairs = []
    for _ in range(40):
        run.constant(BLOCK, 7)
        pairs.append([run.call(name, 1, [], [], [BLOCK])[0] for name in range(2)])
    run.constant(BLOCK, 7)
    for name in range(40):
        run.call(name, 1, [], [], [BLOCK])
    beside = [pair.pop(side == "left") for pair in pairs]
    for (dropped,) in pairs:
        run.drop(dropped)
    run.take_evicted()
    run.constant(2 * BLOCK, 8)
    assert run.take_evicted()[0] in beside


def test_sampling_decides_like_the_full_search_up_to_32_candidates() -> None:
    def order(selection: Selection) -> list[int]:
        heuristic = replace(PRESETS["dtr"], selection=selection)
        run = EngineHarness(33 * BLOCK, heuristic._native())
        rng = random.Random(5)
        x = run.constant(BLOCK, 7)
        for name in range(32):
            (x,) = run.call(name, rng.randint(1, 1000), [x], [], [BLOCK])
        run.drop(0)
        run.constant(32 * BLOCK, 8)
        return list(run.take_evicted())

    assert len(order("sample")) == 32
    assert order("sample") == order("single")


def test_sampling_takes_the_best_of_the_root_of_all_candidates() -> None:
    count, rounds = 10_000, 50
    run = EngineHarness((count + 1) * BLOCK, replace(COST_ONLY, selection="sample")._native())
    c = run.constant(BLOCK, 7)
    costs = list(range(count))
    random.Random(5).shuffle(costs)
    made = {run.call(0, cost, [c], [], [BLOCK])[0]: cost for cost in costs}
    for _ in range(rounds):
        run.constant(BLOCK, 8)
    mean = sum(made[at] for at in run.take_evicted()) / rounds
    assert 60 < mean < 160  # The least of 100 draws is 99 on average, of 32 it is 303.
    assert run.stats().evictions == rounds


def test_all_candidates_are_looked_at_while_that_takes_little_of_the_operators_time() -> None:
    """100 times 10,000 scores may take a hundredth of 50 s, but not of 25 ms."""

    def evicted(unit: int) -> list[int]:
        run = EngineHarness(10_001 * BLOCK, replace(COST_ONLY, selection="sample")._native())
        c = run.constant(BLOCK, 7)
        costs = [unit * cost for cost in range(10_000)]
        random.Random(5).shuffle(costs)
        made = {run.call(0, cost, [c], [], [BLOCK])[0]: cost for cost in costs}
        for _ in range(100):
            run.constant(BLOCK, 8)
        return [made[at] // unit for at in run.take_evicted()]

    assert evicted(1000) == list(range(100))
    assert max(evicted(1)) > 200


def test_sampling_passes_over_values_below_a_hundredth_of_the_mean_size() -> None:
    def victims(selection: Selection) -> list[bool]:
        run = EngineHarness(
            (1 + 100 + 100 * 300) * BLOCK, replace(COST_ONLY, selection=selection)._native()
        )
        c = run.constant(BLOCK, 7)
        small = [run.call(name, 0, [c], [], [BLOCK])[0] for name in range(100)]
        for name in range(100):
            run.call(name, 100, [c], [], [300 * BLOCK])
        run.constant(BLOCK, 8)
        return [at in small for at in run.take_evicted()]

    assert victims("single") == [True]
    assert victims("sample") == [False]


# The evicted neighbourhood


def first_victim(run: Any) -> int:
    while not (evicted := run.take_evicted()):
        run.constant(BLOCK, 8)
    (victim,) = evicted
    return int(victim)


def nothing_missing(run: Any) -> int:
    chain_of(run, 1000, 20)
    return 20


def a_missing_input(run: Any) -> int:
    _, b, _ = chain_of(run, 1000, 20, 5)
    run.evict(b)
    return 5 + 20


def a_missing_result(run: Any) -> int:
    _, b = chain_of(run, 1000, 20)
    run.evict(b)
    return 1000 + 20


def two_missing_that_touch(run: Any) -> int:
    _, b, c, _ = chain_of(run, 1000, 20, 40, 5)
    run.evict(b)
    run.evict(c)
    return 5 + 20 + 40


def one_of_two_that_came_back(run: Any) -> int:
    _, b, c, _ = chain_of(run, 1000, 20, 40, 5)
    run.evict(b)
    run.evict(c)
    run.read(b)
    return 5 + 40


def both_of_two_that_came_back(run: Any) -> int:
    _, b, c, _ = chain_of(run, 1000, 200, 400, 5)
    run.evict(b)
    run.evict(c)
    run.read(c)
    return 5


def one_class_on_two_sides(run: Any) -> int:
    x = run.constant(BLOCK, 7)
    (a,) = run.call(1, 100, [x], [], [BLOCK])
    (b,) = run.call(2, 200, [a], [], [BLOCK])
    (c,) = run.call(3, 400, [a], [], [BLOCK])
    run.call(4, 5, [b, c], [], [BLOCK])
    for value in (b, c, a):
        run.evict(value)
    return 5 + 100 + 200 + 400


def two_classes_on_two_sides(run: Any) -> int:
    x = run.constant(BLOCK, 7)
    (b,) = run.call(2, 200, [x], [], [BLOCK])
    (c,) = run.call(3, 400, [x], [], [BLOCK])
    run.call(4, 5, [b, c], [], [BLOCK])
    run.evict(b)
    run.evict(c)
    return 5 + 200 + 400


def a_duplicated_missing_input(run: Any) -> int:
    x = run.constant(BLOCK, 7)
    (b,) = run.call(2, 200, [x], [], [BLOCK])
    run.call(4, 5, [b, b], [], [BLOCK])
    run.evict(b)
    return 5 + 200


def a_class_that_is_not_split(run: Any) -> int:
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 100, [c], [], [BLOCK])
    (y,) = run.call(2, 20, [x], [], [BLOCK])
    (z,) = run.call(3, 40, [x], [], [BLOCK])
    run.call(4, 5, [y], [], [BLOCK])
    for value in (y, x, z):
        run.evict(value)
    run.read(x)
    return 5 + 20 + 40  # z does not touch y any more; the class does not know.


def a_phantom_that_came_back(run: Any) -> int:
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 100, [c], [], [BLOCK])
    (y,) = run.call(2, 20, [x], [], [BLOCK])
    (z,) = run.call(3, 40, [x], [], [BLOCK])
    run.call(4, 5, [y], [], [BLOCK])
    for value in (y, x, z):
        run.evict(value)
    run.read(x)
    run.read(z)
    return 5 + 20


def a_dropped_input(run: Any) -> int:
    _, b, _ = chain_of(run, 1000, 20, 5)
    run.drop(b)
    return 5 + 20


def a_version_that_was_overwritten(run: Any) -> int:
    _, b, _ = chain_of(run, 1000, 20, 5)
    run.call(9, 7, [b], [0], [])
    return 5 + 20


def a_missing_result_that_was_forgotten(run: Any) -> int:
    _, b = chain_of(run, 1000, 20)
    run.evict(b)
    run.drop(b)
    return 1000


def a_missing_sibling(run: Any) -> int:
    x = run.constant(BLOCK, 7)
    first, _ = run.call(1, 30, [x], [], [BLOCK, BLOCK])
    run.evict(first)
    return 30  # It is no neighbour: it comes back for free.


@pytest.mark.parametrize(
    "situation",
    [
        nothing_missing,
        a_missing_input,
        a_missing_result,
        two_missing_that_touch,
        one_of_two_that_came_back,
        both_of_two_that_came_back,
        one_class_on_two_sides,
        two_classes_on_two_sides,
        a_duplicated_missing_input,
        a_class_that_is_not_split,
        a_phantom_that_came_back,
        a_dropped_input,
        a_version_that_was_overwritten,
        a_missing_result_that_was_forgotten,
        a_missing_sibling,
    ],
)
def test_the_cost_of_the_evicted_neighbourhood_is_exact(situation: Callable[[Any], int]) -> None:
    """The cheapest value goes before a probe that costs more, and after one that costs less."""
    for more, probe_goes in ((-1, True), (1, False)):
        for run in (engine(60, CLASS_COST_ONLY), Model(60 * BLOCK, CLASS_COST_ONLY)):
            expected = situation(run)
            (probe,) = run.call(99, expected + more, [], [], [BLOCK])
            run.take_evicted()
            assert (first_victim(run) == probe) == probe_goes


def costs_for(situation: Callable[[Any], object], expected: int) -> None:
    """The cheapest value goes before a probe that costs more, and after one that costs less."""
    for more, probe_goes in ((-1, True), (1, False)):
        for run in (engine(160, LINEAGE_COST_ONLY), Model(160 * BLOCK, LINEAGE_COST_ONLY)):
            situation(run)
            (probe,) = run.call(99, expected + more, [], [], [BLOCK])
            run.take_evicted()
            assert (first_victim(run) == probe) == probe_goes


def missing_behind(run: Any, missing: int) -> list[int]:
    """One value is there. It costs 5, and rests on so many that cost 20 each. A value that costs 40
    was made from the first of these, and is missing too. Returns all."""
    made = chain_of(run, *[20] * missing, 5)
    (beside,) = run.call(98, 40, [made[0]], [], [BLOCK])
    for value in (*made[:-1], beside):
        run.evict(value)
    return [*made, beside]


@pytest.mark.parametrize("missing", [1, 2, 47, 48])
def test_a_lineage_is_what_a_value_rests_on(missing: int) -> None:
    costs_for(lambda run: missing_behind(run, missing), 5 + together(missing, 20))


def together(missing: int, cost: int) -> int:
    """So many operators of this cost, and what they weigh because they are many."""
    return missing * cost + CROWDING * missing**2


@pytest.mark.parametrize("missing", [49, 97])
def test_of_a_long_lineage_the_nearest_count_four_times(missing: int) -> None:
    costs_for(lambda run: missing_behind(run, missing), 5 + 4 * together(48, 20))


@pytest.mark.parametrize("missing", [48, 49, 50])
def test_a_lineage_is_counted_anew_when_its_end_comes_back(missing: int) -> None:
    run = engine(160, LINEAGE_COST_ONLY)
    made = chain_of(run, *[20] * missing, 5)
    (probe,) = run.call(99, 1, [], [], [BLOCK])
    for value in made[:-1]:
        assert run.evict(value)
    run.take_evicted()
    assert first_victim(run) == probe  # All are scored.
    run.check()
    run.read(made[0])
    run.check()


def test_a_simulation_counts_a_long_lineage_alike(log: Path) -> None:
    """The end of the chain costs 1, and what it rests on four times 4.6 ms; the other 10 ms."""
    chain = [call("", "0")]
    for number in range(60):
        chain += [call(str(number), str(number + 1)), release(str(number))]
    program = [*chain, call("", "other", time=10_000_000), call("", "new")]
    result = dtr_alloc.simulate(
        load(log, *program),
        20,
        replace(LINEAGE_COST_ONLY, size_exp=0),
        log_events=True,
        pin_outputs=False,
    )
    assert [tensor for tensor, event in result.events.tolist() if event == 1] == [61]


def test_a_lineage_counts_the_fewest_operators_away() -> None:
    """Behind both inputs is a chain: of the one 24 that cost 20, of the other as many that cost
    10, and so on behind them."""

    def two_chains(run: Any) -> None:
        chains = [chain_of(run, *[7] * 6, *[cost] * 24) for cost in (20, 10)]
        run.call(97, 5, [chain[-1] for chain in chains], [], [BLOCK])
        for value in itertools.chain(*chains):
            run.evict(value)

    costs_for(two_chains, 5 + 4 * together(48, (20 + 10) // 2))


def test_a_view_that_is_attached_to_a_missing_value_is_in_the_lineages_of_its_readers(
    log: Path,
) -> None:
    """With the view, what was made from it costs more than the other."""
    made = [call("", "a"), call("a", "made", time=5), call("", "other", time=50)]
    made += [call("", "filler", time=2), call("", "b", time=90), call("", "c", time=90)]
    view = call("a", "view", time=100, alias=0)
    result = dtr_alloc.simulate(
        load(log, *made, view), 32, LINEAGE_COST_ONLY, log_events=True, pin_outputs=False
    )
    assert [tensor for tensor, event in result.events.tolist() if event == 1] == [0, 3, 2]
