"""The kernel in Triton's interpreter against the formula, and compiled for sm_90 without a GPU.

Where results are made they hold garbage first, and behind the last row there are rows that would
win: what the kernel does not write, or reads beyond the end, shows.
"""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dtr_alloc import _core
from dtr_alloc.kernels import ahead
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic
from tests.kernels import launch, reference
from tests.kernels.columns import Columns
from tests.kernels.score_columns import EXTREMES, HEURISTICS, drawn

pytest.importorskip("triton")
in_interpreter = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="tests/gpu has these for a GPU"
)

CLOCK = 1 << 41
IMAGE = ahead.image()
FEW = [PRESETS["dtr"], PRESETS["size"], PRESETS["megengine"], *HEURISTICS[-2:]]


@pytest.fixture(autouse=True)
def _results_begin_as_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dirty:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def empty(self, *shape: Any, **options: Any) -> torch.Tensor:
            return torch.empty(*shape, **options).fill_(torch.nan)

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


def least_by_formula(columns: Columns, heuristic: Heuristic, epsilon: int) -> Tensor:
    scores = reference.score(columns, heuristic, CLOCK, epsilon).nan_to_num(torch.inf, torch.inf)
    return torch.stack([tile.min() for tile in torch.split(scores, ahead.TILE)])


@in_interpreter
@pytest.mark.filterwarnings("ignore:overflow encountered")  # NumPy's, of many recomputes.
@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize("name", ["drawn", *EXTREMES])
def test_the_kernel_finds_the_least_score_of_each_tile(name: str, count: int) -> None:
    columns = drawn(count, count, CLOCK) if name == "drawn" else EXTREMES[name](count, CLOCK)
    columns = among_winners(columns)
    for heuristic in FEW:
        expected = least_by_formula(columns, heuristic, 1)
        for general in (True, False) if launch.is_plain(heuristic) else (True,):
            found = launch.least_of_tiles(columns, heuristic, CLOCK, general=general)
            torch.testing.assert_close(found, expected, rtol=1e-12 if general else 0, atol=0)


@in_interpreter
def test_nothing_is_added_without_an_epsilon() -> None:
    columns = drawn(300, 5, CLOCK)
    found = launch.least_of_tiles(columns, PRESETS["dtr"], CLOCK, epsilon=0, general=False)
    assert found.tolist() == least_by_formula(columns, PRESETS["dtr"], 0).tolist()


def test_a_heuristic_is_plain_where_the_engine_says_so() -> None:
    plain = [name for name, heuristic in PRESETS.items() if launch.is_plain(heuristic)]
    assert set(PRESETS) - set(plain) == {"megengine", "megengine_published"}
    assert not any(launch.is_plain(heuristic) for heuristic in HEURISTICS[len(PRESETS) :])


def test_the_kernels_arguments_are_the_listed_columns_and_numbers() -> None:
    from dtr_alloc.kernels import _kernels

    kernel: Any = _kernels.least_of_tiles
    numbers = [
        f"log2_{one.name}" if one.role == "factor" else one.name
        for one in _core.SCORE_PARAMETERS
        if one.role in ("exponent", "weight", "factor")
    ]
    columns = [field.name for field in fields(Columns) if field.name != "order"]
    whole = ["lowest", "n", "clock", "epsilon"]
    assert kernel.arg_names == [*columns, *whole, *numbers, "block", "general"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Triton and its assembler make of the kernel now. Another release of Triton than the one
    that it was compiled ahead with wants other arguments.
    """
    triton = pytest.importorskip("triton")
    made_with = IMAGE.splitlines()[0].rsplit(" ", 1)[1].rstrip(".")
    if triton.__version__ != made_with:
        pytest.skip(f"it was made with Triton {made_with}")
    script = Path(__file__).parents[1] / "sm90/assemble.py"
    cache = str(tmp_path_factory.mktemp("triton"))
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_text_beside_the_kernel_is_what_triton_makes_of_it(compiled: Any) -> None:
    assert compiled["image"] == IMAGE


@pytest.mark.parametrize("version", ["plain", "general"])
def test_assembled_for_sm_90_it_reads_16_bytes_at_a_time_and_spills_nothing(
    compiled: Any, version: str
) -> None:
    used = compiled["sm_90"][version]
    assert (used["spills"], used["stack"]) == (0, 0)
    assert used["reg"] <= 64
    assert used["loads_of_128"] == {"plain": 4, "general": 6}[version]
