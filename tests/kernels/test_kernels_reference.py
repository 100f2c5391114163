"""The formula of reference.py against the C++ scorer, and against the engine itself."""

from __future__ import annotations

import doctest
import random
from dataclasses import replace

import pytest
import torch

from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.engine_harness.harness import EngineHarness
from tests.kernels import columns as columns_module
from tests.kernels import reference
from tests.kernels.columns import Columns
from tests.kernels.score_columns import EXTREMES, HEURISTICS, drawn, native_columns, ranking, select

CLOCK = 1 << 41


def test_scores_ranking_and_victims_are_the_c_plus_plus_scorers() -> None:
    columns = drawn(100_000, seed=1, clock=CLOCK)
    rows = native_columns(columns)
    assert len(HEURISTICS) == 32
    request = int(columns.size.sum()) // 3000
    for heuristic in HEURISTICS:
        expected = torch.from_numpy(rows.scores(heuristic._native(), CLOCK))
        found = reference.score(columns, heuristic, CLOCK)
        assert torch.equal(found.isnan(), columns.evictable == 0)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)
        order = ranking(found, columns.order)
        assert torch.equal(order, ranking(expected, columns.order))
        victims = select(found, columns.size, columns.order, request)
        chosen = rows.victims(heuristic._native(), CLOCK, request)
        assert victims.tolist() == chosen.tolist() == order[: len(victims)].tolist()
        assert len(victims) > 1


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("epsilon", [0, 1])
def test_extremes_have_the_c_plus_plus_scorers_scores_and_victims(name: str, epsilon: int) -> None:
    columns = EXTREMES[name](257, CLOCK)
    rows = native_columns(columns)
    for heuristic in HEURISTICS:
        expected = reference.score(columns, heuristic, CLOCK, epsilon)
        found = torch.from_numpy(rows.scores(heuristic._native(epsilon), CLOCK))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)
        if name.startswith("all equal"):  # Vectors' powers of equal rows may differ in a last bit.
            expected = expected.where(expected.isnan(), expected.nanmedian())
        victims = select(expected, columns.size, columns.order, 1 << 62)
        assert rows.victims(heuristic._native(epsilon), CLOCK, 1 << 62).tolist() == victims.tolist()


def test_without_candidates_nobody_goes() -> None:
    columns = EXTREMES["none evictable"](5, CLOCK)
    scores = reference.score(columns, Heuristic(), CLOCK)
    assert scores.isnan().all()
    assert select(scores, columns.size, columns.order, 1).tolist() == []
    assert native_columns(columns).victims(Heuristic()._native(), CLOCK, 1).tolist() == []


def test_a_request_for_nothing_takes_nobody() -> None:
    columns = drawn(9, seed=2, clock=CLOCK)
    scores = reference.score(columns, Heuristic(), CLOCK)
    assert select(scores, columns.size, columns.order, 0).tolist() == []


def test_equal_scores_go_from_the_last_that_became_evictable() -> None:
    columns = EXTREMES["all equal"](6, CLOCK)
    scores = reference.score(columns, Heuristic(), CLOCK)
    ranked = ranking(scores, columns.order)
    assert ranked.tolist() == columns.order.argsort(descending=True).tolist()


def test_a_zero_ends_the_search_among_what_is_not_positive() -> None:
    scores = torch.tensor([-1.0, 0.0, -3.0, 2.0, 0.0, -5.0, 1.0])
    order = torch.tensor([0, 1, 2, 3, 4, 5, 6])
    # The scan meets -1 and stops at the first zero; then that zero; then -3 up to the second.
    assert ranking(scores, order).tolist() == [0, 1, 2, 4, 5, 6, 3]


@pytest.mark.parametrize("name", ["dtr_local", "lru", "size"])
def test_an_engine_evicts_what_select_says(name: str) -> None:
    """Values in a real engine; with no neighbourhood the scores stay while victims go."""
    draw = random.Random(name)
    heuristic = PRESETS[name]
    run = EngineHarness(
        1 << 30,
        replace(heuristic, selection="single")._native(),
    )
    source = run.constant(512, 1)
    ids, sizes, costs, access, clock = [], [], [], [], 0
    for _ in range(200):
        size, cost = 512 * draw.randint(1, 2000), draw.randint(1, 10_000)
        ids += run.call(7, cost, [source], [], [size])
        clock += cost
        sizes.append(size)
        costs.append(cost)
        access.append(clock)
    for _ in range(300):
        at = draw.randrange(200)
        run.read(ids[at])
        access[at] = clock
    held = (1 << 30) - run.live_bytes
    request = sum(sizes) // 3
    zeros = torch.zeros(200, dtype=torch.int64)
    columns = Columns(
        torch.tensor(sizes),
        zeros,
        zeros,
        torch.tensor(access),
        torch.tensor(costs),
        zeros,
        zeros.int(),
        torch.ones(200, dtype=torch.uint8),
        torch.arange(200),
    )
    scores = reference.score(columns, heuristic, clock)
    distinct = len(set(scores.tolist())) == len(scores)
    assert distinct or name != "dtr_local"
    expected = ranking(scores, columns.order)
    run.constant(held, 2)  # All that is free: from here on bytes come from victims alone.
    run.constant(request, 3)
    victims = [ids.index(one) for one in run.take_evicted()]
    if distinct:
        assert victims == expected[: len(victims)].tolist()
    assert sorted(scores[victims].tolist()) == scores[expected[: len(victims)]].tolist()
    freed = sum(sizes[v] for v in victims)
    assert freed >= request


def test_columns_of_unequal_lengths_or_types_are_refused() -> None:
    columns = drawn(4, seed=3, clock=CLOCK)
    kept = dict(columns.__dict__)
    with pytest.raises(ValueError, match=r"column cost is torch.int64 of shape \(3,\); it must be"):
        Columns(**kept | {"cost": columns.cost[:3]})
    with pytest.raises(ValueError, match=r"column recomputes is torch.int64"):
        Columns(**kept | {"recomputes": columns.recomputes.long()})


def test_the_examples_run() -> None:
    for module in (reference, columns_module):
        assert doctest.testmod(module).failed == 0
