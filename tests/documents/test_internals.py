"""docs/internals.md against the torch that is installed."""

import importlib
import re
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.support.fences import ROOT

INCLUDE = Path(torch.__file__).parent / "include"
RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))


class Row(NamedTuple):
    names: list[str]
    place: str
    releases: str
    without: str

    @property
    def is_for_this_torch(self) -> bool:
        if "CUDA" in self.releases and not torch.version.cuda:
            return False
        numbers = [tuple(map(int, one.split("."))) for one in re.findall(r"2\.\d+", self.releases)]
        return numbers[0] <= RELEASE  # Newer releases than those named are what the test is for.


def rows() -> list[Row]:
    page = (ROOT / "docs/internals.md").read_text()
    cells = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    return [
        Row(re.findall(r"`([^`]+)`", names), place.strip(" `"), releases, without.strip())
        for names, place, releases, without in cells
    ]


def has(place: str, name: str) -> bool:
    if place.endswith(".h"):
        header = INCLUDE / place
        return header.exists() and bool(re.search(rf"\b{name}\b", header.read_text()))
    module, _, inside = place.partition(":")
    try:
        found = importlib.import_module(module)
        owner = reduce(getattr, inside.split(".") if inside else [], found)
    except (ImportError, AttributeError):
        return False
    return hasattr(owner, name)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.names[0])
def test_this_torch_has_what_the_row_names(row: Row) -> None:
    if not row.is_for_this_torch:
        pytest.skip(f"of torch {row.releases}")
    for name in row.names:
        assert has(row.place, name), (
            f"torch {torch.__version__} has no {name} in {row.place} any more "
            f"(docs/internals.md: {row.releases}). Without it: "
            f"{'the code must change' if row.without == '-' else row.without}"
        )


def test_the_table_is_read() -> None:
    assert len(rows()) > 30
    assert not has("ATen/Context.h", "nothing_of_this_name")
    assert not has("torch:Tensor", "gone")
