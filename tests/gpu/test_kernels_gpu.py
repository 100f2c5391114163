"""The kernel on a GPU against the formula on the CPU: nothing that the interpreter can show."""

import pytest
import torch

from dtr_alloc.kernels import ahead
from dtr_alloc.runtime.heuristic import Heuristic
from tests.kernels import launch, reference
from tests.kernels.columns import Columns
from tests.kernels.score_columns import EXTREMES, HEURISTICS, drawn

pytestmark = pytest.mark.gpu
CLOCK = 1 << 41


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton")


def compare(columns: Columns, heuristic: Heuristic, general: bool, tolerance: float) -> None:
    scores = reference.score(columns, heuristic, CLOCK).nan_to_num(torch.inf, torch.inf)
    expected = torch.stack([tile.min() for tile in torch.split(scores, ahead.TILE)])
    found = launch.least_of_tiles(columns.to("cuda"), heuristic, CLOCK, general=general)
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("count", [1, 1023, 100_000, 100_001])
def test_the_least_of_tiles_is_the_formulas(count: int) -> None:
    columns = drawn(count, 1, CLOCK)
    for heuristic in HEURISTICS:
        compare(columns, heuristic, general=True, tolerance=1e-12)


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_have_the_formulas_least(name: str) -> None:
    columns = EXTREMES[name](700, CLOCK)
    for heuristic in HEURISTICS:
        compare(columns, heuristic, general=True, tolerance=1e-11)


def test_the_plain_version_is_equal_to_the_bit() -> None:
    columns = drawn(10_007, 5, CLOCK)
    for heuristic in HEURISTICS:
        if launch.is_plain(heuristic):
            compare(columns, heuristic, general=False, tolerance=0)
