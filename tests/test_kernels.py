"""The kernels in Triton's interpreter against the formulas, and compiled for sm_90 without a GPU.

Where results are made they hold garbage first, and behind the last row there are rows that would
win: what a kernel does not write, or reads beyond the end, shows.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtr_alloc import kernels
from dtr_alloc.kernels import reference
from dtr_alloc.kernels.columns import Columns, Settings
from dtr_alloc.runtime.heuristic import Heuristic
from tests.score_columns import EXTREMES, HEURISTICS, drawn

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="tests/gpu has these for a GPU"
)

CLOCK = 1 << 41
FEW = [*HEURISTICS[:2], HEURISTICS[6], *HEURISTICS[-2:]]  # Some plain, MegEngine's, and tuned ones.


@pytest.fixture(autouse=True)
def _results_begin_as_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtr_alloc.kernels import launch

    class Dirty:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def empty(self, *shape: Any, **options: Any) -> torch.Tensor:
            made = torch.empty(*shape, **options)
            return made.fill_(torch.nan if made.is_floating_point() else -77)

    monkeypatch.setattr(launch, "torch", Dirty())


def among_winners(columns: Columns) -> Columns:
    """The same rows, in storages that go on with a row of the least score."""
    winner = {"size": 1 << 40, "cost": 0, "neighbourhood": 0, "last_access": 0, "evictable": 1}
    return Columns(
        **{
            name: torch.cat([column, column.new_full((2000,), winner.get(name, 1 << 30))])[
                : len(columns)
            ]
            for name, column in vars(columns).items()
        }
    )


@pytest.mark.parametrize("count", [1, 17, 255, 257, 1040])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_are_the_formulas(count: int, dtype: torch.dtype) -> None:
    columns = among_winners(drawn(count, count, CLOCK))
    settings = Settings.of(FEW)
    found = kernels.score(columns, settings, CLOCK, dtype)
    expected = reference.score(columns, settings, CLOCK)
    assert found.dtype == dtype
    assert found.shape == (len(FEW), count)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=0, equal_nan=True)


def test_scores_without_powers_are_equal_to_the_bit() -> None:
    columns = drawn(700, 5, CLOCK)
    settings = Settings.of([Heuristic(), Heuristic(size_exp=0), Heuristic(cost_exp=0)])
    found = kernels.score(columns, settings, CLOCK)
    expected = reference.score(columns, settings, CLOCK)
    assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))


def test_more_settings_than_one_program_takes_are_all_scored() -> None:
    columns = drawn(33, 6, CLOCK)
    settings = Settings.of(HEURISTICS[:19])
    torch.testing.assert_close(
        kernels.score(columns, settings, CLOCK),
        reference.score(columns, settings, CLOCK),
        rtol=1e-12,
        atol=0,
        equal_nan=True,
    )


@pytest.mark.parametrize("count", [1, 31, 1023, 2500])
def test_victims_are_the_formulas_and_the_c_plus_plus_scorers(count: int) -> None:
    columns = among_winners(drawn(count, count, CLOCK))
    settings = Settings.of(FEW)
    for share in (1 << 62, 4000):
        request = max(int(columns.size.sum()) // share, 1)
        found = kernels.victims(columns, settings, CLOCK, request)
        expected = reference.victims(columns, settings, CLOCK, request)
        assert [rows.tolist() for rows in found] == [rows.tolist() for rows in expected]


def test_all_go_where_even_they_are_too_few() -> None:
    columns = drawn(40, 7, CLOCK)
    (found,) = kernels.victims(columns, Settings.of([Heuristic()]), CLOCK, 1 << 62)
    scores = reference.score(columns, Settings.of([Heuristic()]), CLOCK)[0]
    assert found.tolist() == reference.ranking(scores, columns.order).tolist()
    assert len(found) == int(columns.evictable.sum()) > 30


def test_more_victims_than_there_was_room_for_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtr_alloc.kernels import launch

    monkeypatch.setattr(launch, "FIRST_VICTIMS", 3)
    columns = drawn(40, 7, CLOCK)
    settings = Settings.of([Heuristic(), Heuristic(cost_exp=0)])
    request = int(columns.size.sum()) // 2
    found = kernels.victims(columns, settings, CLOCK, request)
    expected = reference.victims(columns, settings, CLOCK, request)
    assert [rows.tolist() for rows in found] == [rows.tolist() for rows in expected]
    assert max(len(rows) for rows in found) > 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter's numpy overflows.
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_have_the_formulas_scores_and_victims(name: str) -> None:
    columns = EXTREMES[name](130, CLOCK)
    settings = Settings.of(FEW)
    expected = reference.score(columns, settings, CLOCK)
    found = kernels.score(columns, settings, CLOCK)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0, equal_nan=True)
    request = max(int(columns.size.sum()) // 20, 1)
    victims = kernels.victims(columns, Settings.of(FEW[:2]), CLOCK, request)
    scored = reference.victims(columns, Settings.of(FEW[:2]), CLOCK, request)
    assert [rows.tolist() for rows in victims] == [rows.tolist() for rows in scored]


def test_equal_scores_go_by_order_across_blocks() -> None:
    columns = EXTREMES["all equal"](2100, CLOCK)
    request = int(columns.size[0]) * 5
    (found,) = kernels.victims(columns, Settings.of([Heuristic()]), CLOCK, request)
    assert columns.order[found].tolist() == [2099, 2098, 2097, 2096, 2095]


def test_more_rows_than_the_second_launch_holds_go_to_the_formulas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dtr_alloc.kernels import launch

    monkeypatch.setattr(launch, "MOST_BLOCKS", 0)
    columns = drawn(9, 8, CLOCK)
    settings = Settings.of([Heuristic()])
    (found,) = kernels.victims(columns, settings, CLOCK, 1)
    assert found.tolist() == reference.victims(columns, settings, CLOCK, 1)[0].tolist()


@pytest.mark.parametrize("count", [1, 63, 1025, 2300])
@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_the_window_is_the_formulas(count: int, exponent: float) -> None:
    draw = random.Random(count)
    size = torch.tensor([512 * draw.randint(1, 100) for _ in range(count)])
    kind = torch.tensor([draw.choice([0, 0, 0, 0, 0, 0, 1, 2]) for _ in range(count)])
    cost = torch.tensor([float(draw.randint(1, 1000)) for _ in range(count)])
    access = torch.tensor([draw.randint(0, 1 << 20) for _ in range(count)])
    for request in (512, 512 * 300, 512 * 5000):
        arguments = (size, kind == 1, kind == 0, cost, access, 1 << 20, request, 512, exponent)
        found = kernels.window(*arguments)
        expected = reference.window(*arguments)
        assert (found.begin, found.end) == (expected.begin, expected.end)
        assert found.score == pytest.approx(expected.score, rel=1e-9)


def test_pinned_blocks_hold_no_window() -> None:
    none = torch.zeros(5, dtype=torch.bool)
    size = torch.full((5,), 512)
    found = kernels.window(size, none, none, size.double(), size, 1000, 512, 1)
    assert found == (0, 0, float("inf"))


def test_without_the_interpreter_cpu_columns_go_to_the_formulas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dtr_alloc.kernels import launch

    def refuse(*arguments: Any) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr(launch, "score", refuse)
    columns = drawn(3, 9, CLOCK)
    with pytest.raises(AssertionError, match="launched"):
        kernels.score(columns, Settings.of([Heuristic()]), CLOCK)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert kernels.score(columns, Settings.of([Heuristic()]), CLOCK).shape == (1, 3)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What Triton's compiler made for sm_90, by kernel and case."""
    script = Path(__file__).parent / "sm90/compile.py"
    cache = str(tmp_path_factory.mktemp("triton"))
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def test_no_kernel_spills(compiled: dict[str, dict[str, int]]) -> None:
    assert len(compiled) >= 10
    for name, used in compiled.items():
        assert (used["spills"], used["stack"]) == (0, 0), name


def test_score_has_64_registers_or_fewer(compiled: dict[str, dict[str, int]]) -> None:
    scores = {name: used["reg"] for name, used in compiled.items() if "rows" in name}
    assert len(scores) == 6
    assert max(scores.values()) <= 64, scores


def test_rows_of_16_are_read_16_bytes_at_a_time(compiled: dict[str, dict[str, int]]) -> None:
    """As the engine's columns are; with an odd number of rows Triton reads one by one."""
    for name, used in compiled.items():
        if name.endswith("100000 rows"):
            # Four wide columns, and two of free neighbours.
            assert used["loads_of_128"] == (4 if "plain" in name else 6), name
        if name.endswith("100001 rows"):
            assert used["loads_of_128"] == 0, name


def test_columns_of_different_devices_are_refused() -> None:
    columns = drawn(4, seed=3, clock=CLOCK)
    with pytest.raises(ValueError, match="column cost is on meta, sizes are on cpu"):
        replace(columns, cost=columns.cost.to("meta"))
