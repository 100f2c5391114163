"""The C++ scorer: every processor's version, every number of rows, and ties."""

import re
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch

from dtr_alloc.runtime.heuristic import Heuristic
from tests.kernels import reference
from tests.kernels.score_columns import EXTREMES, drawn, native_columns

ROOT = Path(__file__).parents[2]
CLOCK = 1 << 41


def test_all_processors_versions_round_as_the_scalar_score_does(tmp_path: Path) -> None:
    program = str(tmp_path / "versions")
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", f"-I{ROOT}"]
    sources = [ROOT / "tests/engine/scorer_versions.cpp", ROOT / "runtime/csrc/policy/score.cpp"]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", program], check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = re.fullmatch(
        r"(\d+) versions compared, (\d+) scores differ\n"
        r"powers are off by (\S+), (\d+) versions differ in them\n",
        told,
    )
    assert found
    assert int(found[1]) >= 32  # As many as there are combinations of terms.
    assert int(found[2]) == 0
    assert float(found[3]) <= 6e-14
    assert int(found[4]) == 0


@pytest.mark.parametrize("exponents", list(product((0, 1), repeat=3)))
def test_without_powers_scores_are_the_formulas_to_the_bit(exponents: tuple[int, ...]) -> None:
    cost, size, staleness = exponents
    heuristics = [
        Heuristic("none", cost, size, staleness, fragmentation, penalty)
        for fragmentation, penalty in ((0, 1), (0.5, 1), (0, 1.25), (0.5, 1.25))
    ]
    for count in (*range(1, 10), 17, 255, 256, 257, 1000):
        columns = drawn(count, count, CLOCK)
        rows = native_columns(columns)
        for heuristic in heuristics:
            expected = reference.score(columns, heuristic, CLOCK)
            found = torch.from_numpy(rows.scores(heuristic._native(), CLOCK))
            if heuristic.recompute_penalty == 1:
                assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))
            else:  # Torch's power may round otherwise.
                torch.testing.assert_close(found, expected, rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [1, 7, 300, 1000])
@pytest.mark.parametrize("epsilon", [0, 1])
def test_among_equals_the_last_that_became_evictable_goes(count: int, epsilon: int) -> None:
    columns = EXTREMES["all equal"](count, CLOCK)
    request = int(columns.size[0]) * min(count, 5)
    found = native_columns(columns).victims(Heuristic()._native(epsilon), CLOCK, request)
    assert columns.order[found.tolist()].tolist() == list(range(count))[::-1][:5]


def test_equal_quotients_that_round_differently_are_equal() -> None:
    """k * c / (k * s * t) is the same for every k; its floating point is not."""
    k = torch.arange(1, 41)
    columns = drawn(40, 1, CLOCK)
    columns.size.copy_(k * 123_456_789)
    columns.last_access.fill_(CLOCK - 987_654_321_123)
    columns.cost.copy_(k * 1_000_000_007)
    columns.neighbourhood.zero_()
    columns.evictable.fill_(1)
    rows = native_columns(columns)
    assert len(set(rows.scores(Heuristic()._native(0), CLOCK))) > 1
    found = rows.victims(Heuristic()._native(0), CLOCK, 1 << 60)
    assert columns.order[found.tolist()].tolist() == list(range(40))[::-1]


@pytest.mark.parametrize("exponent", [0.01, 0.5, 2, 3.99, 4, 4.01, 9, 40])
def test_powers_have_the_formulas_scores_whatever_the_exponent(exponent: float) -> None:
    """Above 4 they are the library's."""
    columns = drawn(1001, 7, CLOCK)
    for name in ("cost_exp", "size_exp", "staleness_exp"):
        heuristic = Heuristic(**{name: exponent})  # type: ignore[arg-type]
        expected = reference.score(columns, heuristic, CLOCK)
        found = torch.from_numpy(native_columns(columns).scores(heuristic._native(), CLOCK))
        torch.testing.assert_close(found, expected, rtol=2e-13, atol=0, equal_nan=True)
