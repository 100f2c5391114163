"""The engine: any program reads what it wrote, every decision is the model's; then case by case."""

import random
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.engine_harness.build import build_program
from tests.engine_harness.harness import EngineHarness
from tests.engine_model import Model, content_of
from tests.engine_program import Program, run_random

T = TypeVar("T")
Selection = Literal["sample", "single"]

BLOCK = 512
COST_ONLY = replace(PRESETS["dtr_local"], size_exp=0, staleness_exp=0)
CLASS_COST_ONLY = replace(COST_ONLY, neighbourhood="eqclass")
DECIDING = {
    "lru": PRESETS["lru"],
    "size": PRESETS["size"],
    "dtr_local": PRESETS["dtr_local"],
    "dtr": PRESETS["dtr"],
    "dtr_full": PRESETS["dtr_full"],
    "msps": PRESETS["msps"],
    "megengine": replace(PRESETS["megengine"], recompute_penalty=1.5),
    "megengine_published": PRESETS["megengine_published"],
    "tuned": Heuristic(cost_exp=0.7, size_exp=1.3, staleness_exp=0.5, fragmentation=0.25),
}
# None: as the least score goes; else room is made as in a scope, and a page costs this to move.
PAGE_PRICES = [None, 0, 50]
WINDOWED = ("dtr", "dtr_local")  # Of which room_model knows the windows.


def engine(blocks: int, heuristic: Heuristic = PRESETS["dtr"]) -> EngineHarness:
    """An engine with a budget of so many granules that looks at all candidates."""
    return EngineHarness(blocks * BLOCK, replace(heuristic, selection="single")._native())


# Any program


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        heuristic=st.sampled_from(sorted(DECIDING)),
        budget=st.integers(3 * BLOCK, 30 * BLOCK),
        sampled=st.booleans(),
        spare=st.sampled_from([0, 7 * BLOCK, 60 * BLOCK]),
        page_price=st.sampled_from(PAGE_PRICES),
    )
    def start(
        self, heuristic: str, budget: int, sampled: bool, spare: int, page_price: int | None
    ) -> None:
        chosen = replace(DECIDING[heuristic], selection="sample" if sampled else "single")
        if page_price and heuristic not in WINDOWED:
            page_price = 0
        self.program = Program(budget, chosen, True, spare, page_price)

    @rule(size=st.integers(0, 2000))
    def constant(self, size: int) -> None:
        self.program.constant(size)

    @rule(
        cost=st.integers(0, 1000),
        operands=st.lists(st.integers(0, 50), max_size=3),
        writes=st.lists(st.booleans(), max_size=2),
        results=st.lists(st.integers(0, 2000), max_size=3),
        drops=st.lists(st.booleans(), max_size=2),
    )
    def call(
        self,
        cost: int,
        operands: list[int],
        writes: list[bool],
        results: list[int],
        drops: list[bool],
    ) -> None:
        self.program.call(cost, operands, writes, results, drops)

    @rule(cost=st.integers(0, 1000), operand=st.integers(0, 50), size=st.integers(0, 2000))
    def chain(self, cost: int, operand: int, size: int) -> None:
        self.program.call(cost, [operand], [], [size])

    @precondition(lambda self: self.program.contents)
    @rule(operand=st.integers(0, 50))
    def drop(self, operand: int) -> None:
        self.program.drop(operand)

    @precondition(lambda self: self.program.contents)
    @rule(operand=st.integers(0, 50))
    def read(self, operand: int) -> None:
        self.program.read(operand)

    @precondition(lambda self: self.program.contents)
    @rule(operand=st.integers(0, 50))
    def evict(self, operand: int) -> None:
        self.program.evict(operand)

    @precondition(lambda self: self.program.contents)
    @rule(operand=st.integers(0, 50))
    def freeze(self, operand: int) -> None:
        self.program.freeze(operand)

    @rule()
    def commit(self) -> None:
        self.program.commit()

    @rule(k=st.integers(1, 6))
    def fail_allocation(self, k: int) -> None:
        self.program.fail_allocation(k)

    @rule(k=st.integers(1, 6))
    def fail_replay(self, k: int) -> None:
        self.program.fail_replay(k)

    @invariant()
    def equals_the_model(self) -> None:
        if hasattr(self, "program"):
            self.program.compare()

    def teardown(self) -> None:
        if hasattr(self, "program"):
            self.program.end()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=400,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
)


@pytest.mark.parametrize("heuristic", sorted(DECIDING))
@pytest.mark.parametrize("size", [BLOCK, 2500])
def test_every_decision_of_a_long_program_is_the_models(heuristic: str, size: int) -> None:
    evictions = rematerializations = failures = 0
    for seed in range(12):
        rng = random.Random(seed)
        chosen = replace(DECIDING[heuristic], selection="single")
        program = Program(rng.randint(10, 22) * size + rng.randint(0, 600), chosen, True)
        run_random(program, rng, steps=400, size=size, hold=20)
        program.end()
        evictions += program.run.stats().evictions
        rematerializations += program.run.stats().rematerializations
        failures += program.failures
    assert evictions > 500
    assert rematerializations > 500
    assert failures > 0


@pytest.mark.parametrize("heuristic", sorted(DECIDING))
def test_a_long_program_with_sampled_eviction_reads_what_it_wrote(heuristic: str) -> None:
    evictions = rematerializations = 0
    for seed in range(3):
        rng = random.Random(100 + seed)
        program = Program(60 * 2500, DECIDING[heuristic], with_model=False)
        run_random(program, rng, steps=1500, size=2500, hold=200)
        program.end()
        evictions += program.run.stats().evictions
        rematerializations += program.run.stats().rematerializations
    assert evictions > 1000
    assert rematerializations > 1000


@pytest.mark.parametrize("page_price", [0, 50])
@pytest.mark.parametrize("heuristic", WINDOWED)
def test_every_remedy_of_a_program_whose_requests_fail_is_the_models(
    heuristic: str, page_price: int
) -> None:
    given_up = failures = remaps = 0
    for seed in range(3):
        rng = random.Random(seed)
        chosen = replace(DECIDING[heuristic], selection="single")
        budget = rng.randint(12, 16) * 2500
        program = Program(budget, chosen, True, spare=40 * BLOCK, page_price=page_price)
        run_random(program, rng, steps=150, size=2500, hold=20, failing=True)
        program.end()
        assert program.model is not None
        given_up += program.model.given_up
        failures += program.failures
        remaps += program.model.pool.remaps
    assert failures > 10
    assert remaps > 10
    assert given_up > 10


def test_every_victim_that_is_drawn_is_the_models() -> None:
    """Operators of a few nanoseconds leave no time to look at all candidates."""
    program = Program(50 * 2500, PRESETS["dtr"], with_model=True)
    run_random(program, random.Random(3), steps=500, size=2500, hold=80, longest=9, failing=True)
    program.end()
    assert program.model is not None
    assert program.model.sampled > 100


# Coming back


def test_a_shared_subexpression_is_recomputed_once() -> None:
    run = engine(20)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 1, [c], [], [BLOCK])
    (left,) = run.call(2, 10, [x], [], [BLOCK])
    (right,) = run.call(3, 100, [x], [], [BLOCK])
    (y,) = run.call(4, 1000, [left, right], [], [BLOCK])
    for storage in (x, left, right):
        run.drop(storage)
    assert run.evict(y)
    assert run.live_bytes == BLOCK
    shared = content_of(1, [7], 0)
    sides = [content_of(2, [shared], 0), content_of(3, [shared], 0)]
    assert run.read(y) == content_of(4, sides, 0)
    stats = run.stats()
    assert (stats.rematerializations, stats.remat_cost, stats.clock) == (4, 1111, 2222)
    run.check()


def test_a_chain_of_200_000_operators_is_recomputed_and_forgotten_without_recursion() -> None:
    length = 200_000
    run = engine(4)
    c = x = run.constant(BLOCK, 7)
    number = 7
    for name in range(length):
        (y,) = run.call(name, 1, [x], [], [BLOCK])
        number = content_of(name, [number], 0)
        if x != c:
            run.drop(x)
        x = y
    assert run.evict(x)
    assert run.live_bytes == BLOCK
    assert run.read(x) == number
    stats = run.stats()
    assert (stats.rematerializations, stats.clock) == (length, 2 * length)
    assert (stats.values, stats.ops) == (length + 1, length)
    assert run.peak_bytes == 4 * BLOCK
    run.drop(x)
    stats = run.stats()
    assert (stats.values, stats.ops, run.live_bytes) == (0, 0, BLOCK)
    run.check()


def test_a_dropped_value_comes_back_as_an_intermediate_and_stays_until_evicted() -> None:
    run = engine(3)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    (y,) = run.call(2, 5, [x], [], [BLOCK])
    run.drop(x)
    assert run.live_bytes == 2 * BLOCK
    run.evict(y)
    number = content_of(2, [content_of(1, [7], 0)], 0)
    assert run.read(y) == number
    assert (run.stats().rematerializations, run.live_bytes) == (2, 3 * BLOCK)
    run.evict(y)
    assert run.read(y) == number
    assert run.stats().rematerializations == 3
    run.call(3, 5, [y], [], [])  # Time passes, so x is the staler one.
    run.take_evicted()
    evictions = run.stats().evictions
    run.constant(BLOCK, 8)
    assert run.take_evicted() == [-1]
    assert run.stats().evictions == evictions + 1
    assert run.resident(y)
    run.evict(y)
    with pytest.raises(MemoryError):
        run.read(y)
    run.check()


def test_one_run_of_an_operator_brings_back_all_its_missing_results() -> None:
    run = engine(10)
    c = run.constant(BLOCK, 7)
    made = run.call(1, 5, [c], [], [BLOCK, 1000, 0])
    for storage in made[:2]:
        assert run.evict(storage)
    assert run.live_bytes == 2 * BLOCK
    assert run.read(made[1]) == content_of(1, [7], 1)
    assert [run.resident(storage) for storage in made] == [True, True, True]
    assert run.live_bytes == 5 * BLOCK
    assert [run.read(storage) for storage in made] == [content_of(1, [7], i) for i in range(3)]
    assert run.stats().rematerializations == 1
    run.check()


def test_a_sibling_may_be_evicted_to_bring_a_result_back() -> None:
    run = engine(3, PRESETS["lru"])
    c = run.constant(BLOCK, 7)
    first, second = run.call(1, 10, [c], [], [BLOCK, BLOCK])
    run.evict(second)
    (other,) = run.call(2, 10, [c], [], [BLOCK])
    run.read(other)
    assert run.read(second) == content_of(1, [7], 1)
    assert run.read(first) == content_of(1, [7], 0)
    assert run.read(other) == content_of(2, [7], 0)
    run.check()


def test_only_what_is_missing_is_recomputed() -> None:
    run = engine(20)
    c = run.constant(BLOCK, 7)
    chain = [c]
    for name in range(6):
        chain += run.call(name, 1 << name, [chain[-1]], [], [BLOCK])
    for at in (3, 4, 6):
        run.evict(chain[at])
    run.read(chain[6])
    assert run.stats().remat_cost == 1 << 5
    run.read(chain[4])
    assert run.stats().remat_cost == (1 << 5) + (1 << 2) + (1 << 3)
    run.check()


def test_a_recomputation_that_multiplies_comes_to_an_end() -> None:
    """Each operator reads the last result and the one of sixteen steps ago, which waits for it. In
    ten blocks what waits must go, and is recomputed by what waits in turn."""
    run = EngineHarness(
        10 * BLOCK, replace(PRESETS["dtr"], selection="single")._native(), page_price=0
    )
    made = [run.constant(BLOCK, 7)] * 16
    for name in range(96):
        made += run.call(name, 10, [made[-16], made[-1]], [], [BLOCK])
    for value in made[16:]:
        run.evict(value)
    before = run.stats().rematerializations
    with pytest.raises(MemoryError):
        run.read(made[-1])
    assert 100 * 96 <= run.stats().rematerializations - before <= 101 * 96
    run.check()


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


def chain_of(run: Any, *costs: int) -> list[int]:
    x = run.constant(BLOCK, 7)
    made = []
    for name, cost in enumerate(costs):
        (x,) = run.call(name, cost, [x], [], [BLOCK])
        made.append(x)
    return made


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


# Writes


def test_a_written_storage_holds_a_new_version_and_readers_keep_the_old() -> None:
    run = engine(10)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    (z,) = run.call(2, 5, [x], [], [BLOCK])
    assert run.call(3, 5, [x, c], [0], [BLOCK]) == [z + 1]
    old = content_of(1, [7], 0)
    assert run.live_bytes == 4 * BLOCK  # The old version gave its memory to the new one.
    run.evict(z)
    assert run.read(z) == content_of(2, [old], 0)
    assert run.stats().rematerializations == 2
    run.evict(x)
    assert run.read(x) == content_of(3, [old, 7], 1)
    assert run.read(z + 1) == content_of(3, [old, 7], 0)
    assert run.stats().rematerializations == 3  # The old version was still there.
    run.check()


def test_a_version_that_nothing_reads_keeps_only_its_recipe() -> None:
    run = engine(10)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    number = content_of(1, [7], 0)
    for name in range(2, 5):
        run.call(name, 5, [x], [0], [])
        number = content_of(name, [number], 0)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (5, 4, 2 * BLOCK)
    run.evict(x)
    assert run.read(x) == number
    assert run.stats().rematerializations == 4
    run.drop(x)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (0, 0, BLOCK)
    run.check()


def test_a_constant_that_is_written_retires_all_that_rests_on_it() -> None:
    run = engine(10)
    c, other = run.constant(BLOCK, 7), run.constant(BLOCK, 8)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    (y,) = run.call(2, 5, [x], [], [BLOCK])
    (z,) = run.call(3, 5, [other], [], [BLOCK])
    for storage in (x, y, z):
        run.evict(storage)
    run.drop(x)
    run.call(4, 5, [c], [0], [])
    assert run.read(c) == content_of(4, [7], 0)
    assert run.resident(y)
    assert not run.evict(y)
    assert run.read(y) == content_of(2, [content_of(1, [7], 0)], 0)
    assert not run.resident(z)
    assert run.read(z) == content_of(3, [8], 0)
    assert (run.stats().values, run.stats().ops) == (2, 1)
    run.check()


def test_a_write_to_a_constant_and_a_value_leaves_neither_recomputable() -> None:
    run = engine(10)
    c, d = run.constant(BLOCK, 7), run.constant(BLOCK, 8)
    (x,) = run.call(1, 5, [d], [], [BLOCK])
    (z,) = run.call(2, 5, [x], [], [BLOCK])
    (y,) = run.call(3, 5, [x, c], [1, 0], [BLOCK])
    numbers = [content_of(1, [8], 0), 7]
    assert [run.read(at) for at in (y, c, x)] == [content_of(3, numbers, i) for i in range(3)]
    assert [run.evict(at) for at in (y, c, x, z)] == [False, False, False, True]
    assert run.read(z) == content_of(2, [numbers[0]], 0)
    assert run.read(x) == content_of(3, numbers, 2)
    run.check()


# State that lives on


def test_a_history_that_weighs_more_than_what_it_can_bring_back_is_cut() -> None:
    run = engine(10)
    c = x = run.constant(BLOCK, 7)
    number, most = 7, 0
    for step in range(300):
        (y,) = run.call(step, 5, [x, c], [], [BLOCK])  # Of 512 bytes, as much as a record weighs.
        number = content_of(step, [number, 7], 0)
        if x != c:
            run.drop(x)
        x = y
        run.cut_history(x)
        most = max(most, run.stats().ops)
    assert 10 < most <= 16
    assert run.read(x) == number
    run.check()


def test_the_history_of_a_large_value_is_cut_at_so_many_operators() -> None:
    run = engine(4096)
    c = x = run.constant(512 * BLOCK, 7)
    number, most = 7, 0
    for step in range(1000):
        (y,) = run.call(step, 5, [x, c], [], [512 * BLOCK])
        number = content_of(step, [number, 7], 0)
        if x != c:
            run.drop(x)
        x = y
        run.cut_history(x)
        most = max(most, run.stats().ops)
    assert 250 < most <= 257
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


# The budget


def test_what_the_budget_cannot_hold_fails_with_nothing_changed() -> None:
    run = engine(6)
    a, b = chain_of(run, 5, 5)
    before = run.stats()
    with pytest.raises(MemoryError):
        run.constant(6 * BLOCK, 8)
    with pytest.raises(MemoryError):
        run.call(9, 5, [b], [0], [BLOCK, 6 * BLOCK])
    with pytest.raises(MemoryError):
        run.call(9, 5, [a, b], [], [3 * BLOCK, BLOCK])
    stats = run.stats()
    assert (stats.values, stats.ops, stats.base_cost) == (
        before.values,
        before.ops,
        before.base_cost,
    )
    first = content_of(0, [7], 0)
    assert [run.read(a), run.read(b)] == [first, content_of(1, [first], 0)]
    assert run.live_bytes == 3 * BLOCK
    run.check()


def test_the_arguments_of_an_operator_stay_while_it_runs() -> None:
    run = engine(4)
    a, b = chain_of(run, 5, 5)
    (z,) = run.call(3, 5, [b], [], [BLOCK])
    with pytest.raises(MemoryError):
        run.call(4, 5, [a, b], [], [2 * BLOCK])
    assert [run.resident(at) for at in (a, b, z)] == [True, True, False]
    (y,) = run.call(5, 5, [a, b], [], [BLOCK])
    assert [run.resident(at) for at in (a, b, z, y)] == [True, True, False, True]
    run.check()


def test_an_operator_without_results_leaves_no_record_but_takes_time() -> None:
    run = engine(4)
    c = run.constant(BLOCK, 7)
    assert run.call(1, 5, [c], [], []) == []
    stats = run.stats()
    assert (stats.values, stats.ops, stats.clock, stats.base_cost) == (0, 0, 5, 5)
    run.check()


def test_a_constant_lives_as_long_as_the_program_or_a_recipe_needs_it() -> None:
    run = engine(4)
    c = run.constant(BLOCK, 7)
    assert not run.evict(c)
    (x,) = run.call(1, 5, [c, c], [], [BLOCK])
    run.drop(c)
    assert (run.live_bytes, run.stats().values) == (2 * BLOCK, 2)
    run.evict(x)
    assert run.read(x) == content_of(1, [7, 7], 0)
    run.drop(x)
    assert (run.live_bytes, run.stats().values) == (0, 0)


def test_a_wide_fan_out_is_recorded_recomputed_and_forgotten() -> None:
    run = engine(3000)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(0, 5, [c], [], [BLOCK])
    made = [run.call(name, 1, [x], [], [BLOCK])[0] for name in range(1, 2001)]
    run.drop(x)
    for storage in made[::2]:
        assert run.evict(storage)
    number = content_of(0, [7], 0)
    assert [run.read(at) for at in made] == [content_of(i, [number], 0) for i in range(1, 2001)]
    assert run.stats().rematerializations == 1001
    for storage in made:
        run.drop(storage)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (0, 0, BLOCK)
    run.check()


@pytest.mark.parametrize(
    "act",
    [
        lambda run, gone: run.read(gone),
        lambda run, gone: run.drop(gone),
        lambda run, gone: run.evict(gone),
        lambda run, gone: run.freeze(gone),
        lambda run, gone: run.resident(gone),
        lambda run, gone: run.call(1, 1, [0, gone], [], [BLOCK]),
    ],
)
def test_an_id_that_is_gone_is_named(act: Callable[[Any, int], object]) -> None:
    run = engine(4)
    run.constant(BLOCK, 7)
    gone = run.constant(BLOCK, 8)
    run.drop(gone)
    with pytest.raises(ValueError, match="no storage has the id 1"):
        act(run, gone)
    assert (run.stats().values, run.live_bytes) == (0, BLOCK)
    run.check()


def test_a_call_that_lacks_memory_of_the_host_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "failing_allocations"
    build_program(Path(__file__).with_name("failing_allocations.cpp"), program)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"[1-9]\d* allocations failed\n", told)


def test_the_content_of_a_result_depends_on_all_that_made_it() -> None:
    makers = [(1, [2, 3], 0), (4, [2, 3], 0), (1, [3, 2], 0), (1, [2], 0), (1, [2, 3], 1)]
    numbers = {EngineHarness.content_of(*maker) for maker in makers}
    assert len(numbers) == len(makers)
    assert numbers == {content_of(*maker) for maker in makers}
