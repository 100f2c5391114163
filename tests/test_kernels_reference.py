"""The formulas of kernels/reference.py against the C++ scorer, and against the engine itself."""

from __future__ import annotations

import doctest
import random
from typing import Any

import numpy as np
import pytest
import torch

from dtr_alloc import _core
from dtr_alloc.kernels import columns as columns_module
from dtr_alloc.kernels import reference
from dtr_alloc.kernels.columns import Columns, Settings
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.engine_harness.harness import EngineHarness
from tests.score_columns import EXTREMES, HEURISTICS, drawn, native_columns

CLOCK = 1 << 41


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    finite = expected.isfinite() & (expected != 0)
    return float(((found.double() - expected).abs() / expected.abs())[finite].max())


def test_scores_ranking_and_victims_are_the_c_plus_plus_scorers() -> None:
    columns = drawn(100_000, seed=1, clock=CLOCK)
    rows = native_columns(columns)
    settings = Settings.of(HEURISTICS)
    assert len(HEURISTICS) == 32
    double = reference.score(columns, settings, CLOCK)
    single = reference.score(columns, settings, CLOCK, torch.float32)
    request = int(columns.size.sum()) // 3000
    for at, heuristic in enumerate(HEURISTICS):
        expected = torch.from_numpy(rows.scores(heuristic._native(), CLOCK))
        found = double[at]
        assert torch.equal(found.isnan(), columns.evictable == 0)
        assert torch.equal(expected.isnan(), columns.evictable == 0)
        assert relative_error(found, expected) <= 1e-12
        assert relative_error(single[at], expected) <= 1e-6
        order = reference.ranking(found, columns.order)
        assert torch.equal(order, reference.ranking(expected, columns.order))
        victims = reference.select(found, columns.size, columns.order, request)
        chosen = rows.victims(heuristic._native(), CLOCK, request)
        assert victims.tolist() == chosen.tolist() == order[: len(victims)].tolist()
        assert len(victims) > 1


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("epsilon", [0, 1])
def test_extremes_have_the_c_plus_plus_scorers_scores_and_victims(name: str, epsilon: int) -> None:
    columns = EXTREMES[name](257, CLOCK)
    rows = native_columns(columns)
    scores = reference.score(columns, Settings.of(HEURISTICS, epsilon), CLOCK)
    for at, heuristic in enumerate(HEURISTICS):
        found = torch.from_numpy(rows.scores(heuristic._native(epsilon), CLOCK))
        torch.testing.assert_close(found, scores[at], rtol=1e-12, atol=0, equal_nan=True)
        expected = scores[at]
        if name.startswith("all equal"):  # Vectors' powers of equal rows may differ in a last bit.
            expected = expected.where(expected.isnan(), expected.nanmedian())
        victims = reference.select(expected, columns.size, columns.order, 1 << 62)
        assert rows.victims(heuristic._native(epsilon), CLOCK, 1 << 62).tolist() == victims.tolist()


def test_without_candidates_nobody_goes() -> None:
    columns = EXTREMES["none evictable"](5, CLOCK)
    scores = reference.score(columns, Settings.of([Heuristic()]), CLOCK)[0]
    assert scores.isnan().all()
    assert reference.select(scores, columns.size, columns.order, 1).tolist() == []
    assert native_columns(columns).victims(Heuristic()._native(), CLOCK, 1).tolist() == []


def test_a_request_for_nothing_takes_nobody() -> None:
    columns = drawn(9, seed=2, clock=CLOCK)
    scores = reference.score(columns, Settings.of([Heuristic()]), CLOCK)[0]
    assert reference.select(scores, columns.size, columns.order, 0).tolist() == []


def test_equal_scores_go_from_the_last_that_became_evictable() -> None:
    columns = EXTREMES["all equal"](6, CLOCK)
    scores = reference.score(columns, Settings.of([Heuristic()]), CLOCK)[0]
    ranked = reference.ranking(scores, columns.order)
    assert ranked.tolist() == columns.order.argsort(descending=True).tolist()


def test_a_zero_ends_the_search_among_what_is_not_positive() -> None:
    scores = torch.tensor([-1.0, 0.0, -3.0, 2.0, 0.0, -5.0, 1.0])
    order = torch.tensor([0, 1, 2, 3, 4, 5, 6])
    # The scan meets -1 and stops at the first zero; then that zero; then -3 up to the second.
    assert reference.ranking(scores, order).tolist() == [0, 1, 2, 4, 5, 6, 3]


@pytest.mark.parametrize("name", ["dtr_local", "lru", "size"])
def test_an_engine_evicts_what_select_says(name: str) -> None:
    """Values in a real engine; with no neighbourhood the scores stay while victims go."""
    draw = random.Random(name)
    heuristic = PRESETS[name]
    run = EngineHarness(
        1 << 30,
        _core.Heuristic(
            _core.Neighbourhood.none,
            heuristic.cost_exp,
            heuristic.size_exp,
            heuristic.staleness_exp,
            0.0,
            1.0,
            _core.Selection.single,
            1,
            0,
        ),
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
    scores = reference.score(columns, Settings.of([heuristic]), clock)[0]
    distinct = len(set(scores.tolist())) == len(scores)
    assert distinct or name != "dtr_local"
    expected = reference.ranking(scores, columns.order)
    run.constant(held, 2)  # All that is free: from here on bytes come from victims alone.
    run.constant(request, 3)
    victims = [ids.index(one) for one in run.take_evicted()]
    if distinct:
        assert victims == expected[: len(victims)].tolist()
    assert sorted(scores[victims].tolist()) == scores[expected[: len(victims)]].tolist()
    freed = sum(sizes[v] for v in victims)
    assert freed >= request


@pytest.mark.parametrize("seed", range(6))
def test_the_window_is_the_engines(seed: int) -> None:
    """Blocks of a real pool, some of them free and some pinned."""
    draw = random.Random(seed)
    heuristic = Heuristic("none", selection="window", cost_exp=[1, 0, 0.5][seed % 3])
    budget = 512 * 4000
    run = EngineHarness(budget, heuristic._native())
    blocks: list[list[Any]] = []  # Bytes, kind, cost, last access.
    source = run.constant(512, 1)
    blocks.append([512, "pinned", 0, 0, source])
    clock = 0
    for _ in range(300):
        size = 512 * draw.randint(1, 10)
        if draw.random() < 0.1:
            blocks.append([size, "pinned", 0, 0, run.constant(size, 2)])
            continue
        cost = draw.randint(1, 1000)
        (made,) = run.call(3, cost, [source], [], [size])
        clock += cost
        blocks.append([size, "evictable", cost, clock, made])
    for at in draw.sample(range(1, 301), 40):
        run.drop(blocks[at][-1])
        blocks[at][1] = "free"
    rest = budget - sum(block[0] for block in blocks)
    blocks.append([rest, "free", 0, 0, None])
    request = 512 * draw.randint(30, 200)
    request += rest if seed % 2 else 0
    lacking = max(run.live_bytes + request - budget, 1)
    found = reference.window(
        torch.tensor([block[0] for block in blocks]),
        torch.tensor([block[1] == "free" for block in blocks]),
        torch.tensor([block[1] == "evictable" for block in blocks]),
        torch.tensor([float(block[2]) for block in blocks]),
        torch.tensor([block[3] for block in blocks]),
        clock,
        request,
        lacking,
        heuristic.cost_exp,
    )
    offsets = np.cumsum([0] + [block[0] for block in blocks])
    expected = run.window(request)
    inside = [
        int(offsets[at]) for at in range(found.begin, found.end) if blocks[at][1] == "evictable"
    ]
    assert inside == expected
    assert expected or found.score == float("inf")


def test_columns_of_unequal_lengths_or_types_are_refused() -> None:
    columns = drawn(4, seed=3, clock=CLOCK)
    kept = dict(columns.__dict__)
    with pytest.raises(ValueError, match=r"column cost is torch.int64 of shape \(3,\); it must be"):
        Columns(**kept | {"cost": columns.cost[:3]})
    with pytest.raises(ValueError, match=r"column recomputes is torch.int64"):
        Columns(**kept | {"recomputes": columns.recomputes.long()})
    with pytest.raises(ValueError, match="setting size_exp must be float64"):
        one = torch.ones(1, dtype=torch.float64)
        Settings(one, one.float(), one, one, one)


def test_the_examples_run() -> None:
    for module in (reference, columns_module):
        assert doctest.testmod(module).failed == 0
