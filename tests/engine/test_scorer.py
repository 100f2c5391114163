"""The C++ scorer: every processor's version, every number of rows, the reference's formula."""

import re
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch

from dtr_alloc.runtime.heuristic import Heuristic
from tests.kernels import reference
from tests.kernels.score_columns import EXTREMES, HEURISTICS, drawn, native_columns, ranking, select

ROOT = Path(__file__).parents[2]
CLOCK = 1 << 41


def test_all_processors_versions_round_as_the_scalar_score_does(tmp_path: Path) -> None:
    program = str(tmp_path / "versions")
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", f"-I{ROOT}"]
    sources = [ROOT / "tests/engine/scorer_versions.cpp", ROOT / "runtime/csrc/policy/score.cpp"]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", program], check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = re.fullmatch(
        r"(\d+) versions compared, 0 scores differ\n"
        r"powers are off by (\S+), 0 versions differ in them\n",
        told,
    )
    assert found, told
    assert int(found[1]) >= 32  # As many as there are combinations of terms.
    assert float(found[2]) <= 6e-14


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
