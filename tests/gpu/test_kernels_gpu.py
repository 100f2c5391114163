"""The kernels on a GPU against the formulas on the CPU: nothing that the interpreter can show.

Run by `make gpu`.
"""

import pytest
import torch

from dtr_alloc import kernels
from dtr_alloc.kernels import reference
from dtr_alloc.kernels.columns import Settings
from tests.score_columns import EXTREMES, HEURISTICS, drawn

pytestmark = pytest.mark.gpu
CLOCK = 1 << 41


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton")


@pytest.mark.parametrize("count", [1, 1023, 100_000, 100_001])
def test_scores_and_victims_are_the_formulas(count: int) -> None:
    columns = drawn(count, 1, CLOCK)
    settings = Settings.of(HEURISTICS)
    expected = reference.score(columns, settings, CLOCK)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        found = kernels.score(columns.to("cuda"), settings, CLOCK, dtype).cpu().double()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0, equal_nan=True)
    request = max(int(columns.size.sum()) // 3000, 1)
    chosen = kernels.victims(columns.to("cuda"), settings, CLOCK, request)
    wanted = reference.victims(columns, settings, CLOCK, request)
    assert [rows.tolist() for rows in chosen] == [rows.tolist() for rows in wanted]


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_have_the_formulas_scores(name: str) -> None:
    columns = EXTREMES[name](257, CLOCK)
    settings = Settings.of(HEURISTICS)
    found = kernels.score(columns.to("cuda"), settings, CLOCK).cpu()
    expected = reference.score(columns, settings, CLOCK)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0, equal_nan=True)


def test_scores_without_powers_are_equal_to_the_bit() -> None:
    columns = drawn(10_007, 5, CLOCK)
    settings = Settings.of(HEURISTICS[:6])
    assert settings.plain()
    found = kernels.score(columns.to("cuda"), settings, CLOCK).cpu()
    expected = reference.score(columns, settings, CLOCK)
    assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))


def test_the_window_is_the_formulas() -> None:
    count = 10_007
    columns = drawn(count, 6, CLOCK)
    free = columns.order % 7 == 0
    arguments = (columns.size, free, columns.evictable.bool(), columns.cost.double())
    rest = (columns.last_access, CLOCK, int(columns.size.max()) * 4, 1)
    expected = reference.window(*arguments, *rest)
    found = kernels.window(*(t.cuda() for t in arguments), rest[0].cuda(), *rest[1:])
    assert (found.begin, found.end) == (expected.begin, expected.end)
