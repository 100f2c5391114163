"""The formula of reference.py against the C++ scorer, and against the engine itself."""

import doctest

import pytest
import torch

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


def test_a_zero_ends_the_search_among_what_is_not_positive() -> None:
    scores = torch.tensor([-1.0, 0.0, -3.0, 2.0, 0.0, -5.0, 1.0])
    order = torch.tensor([0, 1, 2, 3, 4, 5, 6])
    # The scan meets -1 and stops at the first zero; then that zero; then -3 up to the second.
    assert ranking(scores, order).tolist() == [0, 1, 2, 4, 5, 6, 3]


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
