"""The engine: any program reads what it wrote, and every decision is the model's."""

import random
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.support.engine_of_blocks import BLOCK
from tests.support.engine_program import Program, run_random

DECIDING = {
    "lru": PRESETS["lru"],
    "size": PRESETS["size"],
    "dtr_local": PRESETS["dtr_local"],
    "dtr": PRESETS["dtr"],
    "dtr_full": PRESETS["dtr_full"],
    "msps": PRESETS["msps"],
    "lineage": Heuristic("lineage"),
    "stones": Heuristic("lineage", stepping_stones=True),
    "megengine": replace(PRESETS["megengine"], recompute_penalty=1.5),
    "megengine_published": PRESETS["megengine_published"],
    "tuned": Heuristic(cost_exp=0.7, size_exp=1.3, staleness_exp=0.5, fragmentation=0.25),
}
# None: as the least score goes; else room is made as in a scope, and a page costs this to move.
PAGE_PRICES = [None, 0, 50]
WINDOWED = ("dtr", "dtr_local", "lineage", "stones")  # Of which room_model knows the windows.


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


@pytest.mark.parametrize("heuristic", ["dtr", "tuned"])
def test_every_victim_that_is_drawn_is_the_models(heuristic: str) -> None:
    """Operators of a few nanoseconds leave no time to look at all candidates."""
    program = Program(50 * 2500, DECIDING[heuristic], with_model=True)
    run_random(program, random.Random(3), steps=500, size=2500, hold=80, longest=9, failing=True)
    program.end()
    assert program.model is not None
    assert program.model.sampled > 100
