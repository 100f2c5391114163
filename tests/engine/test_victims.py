"""Which value goes first where many are sampled, what a long lineage costs, and what the simulator
sees otherwise. The rest of what decides is compared with a model, in test_engine_programs.py."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from dtr_alloc.runtime.heuristic import PRESETS
from tests.engine_harness.harness import EngineHarness
from tests.models.engine_model import Model
from tests.models.modelled_values import CROWDING
from tests.support.engine_of_blocks import BLOCK, COST_ONLY, chain_of, engine
from tests.support.trace_lines import call, evicted, release

Selection = Literal["sample", "single"]
LINEAGE_COST_ONLY = replace(COST_ONLY, neighbourhood="lineage")


# Samples


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


# Lineages


def first_victim(run: Any) -> int:
    while not (gone := run.take_evicted()):
        run.constant(BLOCK, 8)
    (victim,) = gone
    return int(victim)


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
    assert evicted(log, 20, LINEAGE_COST_ONLY, *program) == [61]


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
    assert evicted(log, 32, LINEAGE_COST_ONLY, *made, view) == [0, 3, 2]


# Simulations


def test_megengine_sees_a_right_hole_only_where_bytes_end_at_a_granule(log: Path) -> None:
    """The older of two values has the hole at its right, the other at its left."""
    published = replace(PRESETS["megengine_published"], selection="single", staleness_exp=0.01)
    for size, goes in ((2 * BLOCK, 0), (2 * BLOCK - 24, 2)):
        made = [call("", name, 10, size) for name in ("left", "between", "right")]
        program = [*made, release("between"), call("", "big", 10, 4 * BLOCK)]
        found = evicted(log, 6 * BLOCK, published, *program, mode="pool", remap=False)
        assert found == [goes], size


@pytest.mark.parametrize(("clock", "goes"), [("wall", 2), ("logical", 1)])
def test_by_the_logical_clock_costs_are_bytes(log: Path, clock: str, goes: int) -> None:
    """The last of three is made of a large one, so by bytes it is dear, by its time cheap."""
    program = [
        call("", "large", 1000, 8 * BLOCK),
        call("", "slow", 1000, BLOCK),
        call("large", "quick", 1, BLOCK),
        call("", "next", 1, BLOCK),
    ]
    pool = {"mode": "pool", "remap": False, "clock": clock}
    assert evicted(log, 10 * BLOCK, COST_ONLY, *program, **pool) == [goes]


def test_of_very_many_orphans_the_last_are_looked_at(log: Path) -> None:
    """Each eviction would else look at all that a long recomputation left behind."""
    small = [call("", f"s{n}", memory=4) for n in range(256)]
    names = [f"s{n}" for n in range(256)]
    program = [call("", "large"), release("large"), *small, release(*names)]
    new = call("", "new", memory=4)
    first = replace(COST_ONLY, orphans_first=True)
    assert evicted(log, 8 + 4 * 256, first, *program, new, policy="ignore") == [256]


def test_an_orphan_goes_before_a_window_of_neighbours(log: Path) -> None:
    block = 1 << 16
    program = [
        call("", "dear", time=1000, memory=block),
        call("dear", "held", memory=block),
        release("dear"),
        call("", "new", memory=block),
    ]
    for orphans_first, victim in ((False, 1), (True, 0)):
        heuristic = replace(COST_ONLY, selection="window", orphans_first=orphans_first)
        found = evicted(log, 2 * block, heuristic, *program, policy="ignore", mode="pool")
        assert found == [victim]
