"""Every way by which memory leaves torch without an operator, as perf/survey/pointers.py tries
them: each is as its committed result says, and no method of torch's is missing there."""

import sys
from pathlib import Path

import pytest
import torch
from result_files import cells, text

from dtr_alloc import _core

sys.path.append(str(Path(__file__).parents[2] / "perf/survey"))

import pointers


def committed() -> dict[str, list[str]]:
    """The cells of each way's row."""
    lines = text("survey/pointers").splitlines()
    rows = [cells(line) for line in lines[3 : lines.index("", 3)]]
    return {row[0]: row[1:] for row in rows}


ROWS = committed()
# Without torch's hook the methods alone are watched.
BY_THE_HOOK = ("torch._C.TensorBase.", "from before the scope, ")


def test_each_way_has_a_row_and_each_row_a_way() -> None:
    assert [name for name, *_ in pointers.ways()] == list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_way_does_what_its_row_says(name: str) -> None:
    if not _core.sees_raw_access and name.startswith(BY_THE_HOOK):
        pytest.skip("torch before 2.13 tells of no pointer that leaves it")
    _, take, way, kinds = next(one for one in pointers.ways() if one[0] == name)
    for kind, expected in zip(kinds, ROWS[name], strict=True):
        found = pointers.cell(take, way, kind)
        if not (found.startswith("eager: ") or expected.startswith("eager: ")):
            assert found == expected, kind


def test_only_memory_taken_before_the_scope_goes_unseen() -> None:
    unseen = {name for name, cells in ROWS.items() if "other bits" in cells}
    assert unseen == {
        "from before the scope, a NumPy array is written",
        "from before the scope, an address is written",
    }


def test_no_method_of_torch_has_not_been_looked_at() -> None:
    found = pointers.unknown()
    assert not found, (
        f"torch {torch.__version__} has methods that perf/survey/pointers.py does not know: "
        f"{', '.join(found)}; where one hands out memory or writes, add a way, else a name"
    )
