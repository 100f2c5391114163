"""Engines whose budgets are numbers of blocks, for tests that go case by case."""

from dataclasses import replace
from typing import Any

from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.engine_harness.harness import EngineHarness

BLOCK = 512
COST_ONLY = replace(PRESETS["dtr_local"], size_exp=0, staleness_exp=0)


def engine(blocks: int, heuristic: Heuristic = PRESETS["dtr"]) -> EngineHarness:
    """An engine with a budget of so many granules that looks at all candidates."""
    return EngineHarness(blocks * BLOCK, replace(heuristic, selection="single")._native())


def chain_of(run: Any, *costs: int) -> list[int]:
    """Results of a block each, every one made of the one before."""
    x = run.constant(BLOCK, 7)
    made = []
    for name, cost in enumerate(costs):
        (x,) = run.call(name, cost, [x], [], [BLOCK])
        made.append(x)
    return made
