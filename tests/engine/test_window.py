"""The cheapest window: against a search of all runs, and in layouts that it does not come to."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.engine_harness.harness import EngineHarness
from tests.models.engine_model import Model
from tests.models.modelled_values import Value, classes_cost, neighbourhood_cost
from tests.models.room_model import windows as windows_of
from tests.support.engine_of_blocks import BLOCK
from tests.support.engine_program import Program, run_random
from tests.support.trace_lines import call, evicted

WINDOW = Heuristic(neighbourhood="none", staleness_exp=0, selection="window")


def run_score(model: Model, values: list[Value]) -> float:
    """The score of a run as a whole: shared neighbours once, staleness in the mean over bytes."""
    h = model.heuristic
    cost = 0.0
    for value in values:
        assert value.recipe is not None
        own = float(value.recipe.cost)
        if h.neighbourhood != "eqclass":
            own += neighbourhood_cost(model.heuristic.neighbourhood, value)
        cost += own * h.recompute_penalty**value.recomputes
    if h.neighbourhood == "eqclass":
        cost += classes_cost(values)
    bytes_ = sum(value.size for value in values)
    stale = sum(value.size * (model.clock - value.last_access) for value in values) / bytes_
    return float((cost + 1) ** h.cost_exp / (stale + 1) ** h.staleness_exp)


def every_window(model: Model, asked: int) -> list[list[Value]]:
    return list(windows_of(model, max(-(-asked // BLOCK), 1) * BLOCK))


def places(values: list[Value]) -> list[int]:
    return [value.content.offset for value in values if value.content]


@pytest.mark.parametrize("spare", [0, 30 * BLOCK])
@pytest.mark.parametrize("name", ["dtr", "dtr_full", "dtr_local", "lru", "megengine"])
def test_the_window_is_the_cheapest_of_all_runs(name: str, spare: int) -> None:
    """Also where addresses are spare, and free ones hold what the budget lacks."""
    heuristic = replace(PRESETS[name], selection="single", recompute_penalty=1.5)
    looked = 0
    for seed in range(12):
        rng = random.Random(seed)
        program = Program(40 * BLOCK, heuristic, with_model=True, spare=spare)
        model = program.model
        assert model is not None
        for _ in range(25):
            run_random(program, rng, steps=4, size=2500, hold=12)
            asked = rng.randint(0, 12 * BLOCK)
            offsets = program.run.window(asked)
            windows = [(run_score(model, run), places(run)) for run in every_window(model, asked)]
            if not windows:
                assert offsets == []
                continue
            least = min(score for score, _ in windows)
            taken = [score for score, found in windows if found == offsets]
            assert taken, f"{offsets} is no shortest run"
            assert taken[0] == pytest.approx(least, rel=1e-9)
            looked += 1
        program.end()
    assert looked > 40


def evicted_from(
    log: Path, costs: list[int], reads: str, selection: Literal["window", "single"] = "window"
) -> list[int]:
    """What goes from a pool that is full of blocks of these costs, for an operator of two."""
    made = [call("", f"v{n}", cost, BLOCK) for n, cost in enumerate(costs)]
    big = call(reads, "big", 1, 2 * BLOCK)
    heuristic = replace(WINDOW, selection=selection)
    return evicted(log, len(costs) * BLOCK, heuristic, *made, big, mode="pool", remap=False)


def test_what_the_pending_operator_reads_is_never_in_a_window(log: Path) -> None:
    """The cheapest run for its result would be the two blocks of which it reads one."""
    assert evicted_from(log, [900, 800, 1, 1, 800, 900], "v3") == [1, 2]


def test_the_window_evicts_what_is_needed_where_single_victims_evict_twice_that(log: Path) -> None:
    """Cheap and dear values alternate, but for two neighbours in the middle of the price. For two
    blocks the cheapest victims, one by one, are all four cheap ones before a hole appears."""
    costs = [10, 100, 10, 100, 10, 100, 10, 60, 60, 100]
    assert len(evicted_from(log, costs, "")) == 2
    assert len(evicted_from(log, costs, "", "single")) >= 4


def test_a_window_frees_what_the_budget_lacks_though_its_last_page_has_more() -> None:
    """Twelve granules lie on two pages of eight: the four beyond them are free, and not allowed."""
    run = EngineHarness(12 * BLOCK, WINDOW._native(), spare=4 * BLOCK, page=8 * BLOCK)
    for name in range(12):
        run.call(name, 10, [], [], [BLOCK])
    assert run.window(4 * BLOCK) == [place * BLOCK for place in range(4)]
