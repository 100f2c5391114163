"""A budget that is too small is refused with the numbers, and the search for the smallest one finds
what it has to find."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from budget_floor import Cell, draw, floor, record, simulate, table

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.demo import Job
from dtr_alloc.demo.models import gpt, lstm

MIB = 1 << 20

TEXT = re.compile(
    r"dtr_alloc is out of memory\. Raise the budget to at least ([\d.]+) MiB; .*\n"
    r"  operator: aten::exp\n"
    r"  asked: ([\d.]+) MiB\n"
    r"  budget: ([\d.]+) MiB, of which ([\d.]+) KiB are free\n"
    r"  read by operators now running or being recomputed: ([\d.]+) MiB\n"
    r"  cannot be recomputed \(gradients, optimizer state, inputs, exposed or pinned tensors\): "
    r"([\d.]+) MiB\n"
    r"  largest operator so far: ([\d.]+) MiB"
)


def work(budget: int) -> None:
    """Holds 2 MiB that cannot be recomputed, and 1 MiB that an operator reads to make 1 MiB."""
    with dtr_alloc.rematerialize(budget):
        pinned = torch.ones(2 << 18)
        dtr_alloc.pin(pinned)
        torch.ones(1 << 18).exp()


def test_the_report_of_a_budget_below_the_floor_adds_up() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        work(3 * MIB + MIB // 2)
    told = TEXT.fullmatch(str(caught.value))
    assert told is not None, str(caught.value)
    enough, asked, budget, free, read, constant, largest = map(float, told.groups())
    assert (budget, asked, free, read, constant) == (3.5, 1.0, 512.0, 1.0, 2.0)
    assert largest <= 2.0
    assert enough == 4.0


def test_the_report_tells_what_the_operator_has_made_until_it_asks_for_too_much() -> None:
    x = torch.arange(1 << 18, 0, -1, dtype=torch.float32)
    told = (
        r"asked: 2\.00 MiB\n.* of which 512\.00 KiB are free\n"
        r"  read by operators now running or being recomputed: 0 B\n"
        r"  made so far by the one that asks: 1\.00 MiB\n"
        r"  cannot be recomputed .*: 1\.00 MiB\n"
    )
    with dtr_alloc.rematerialize("2.5MiB") as session:
        kept = torch.ones(1 << 18)
        dtr_alloc.pin(kept)
        for _ in range(2):  # What failed before is no part of it.
            with pytest.raises(torch.OutOfMemoryError, match=told):
                x.sort()  # Makes the values, and then the order.
        session.check()


def test_the_budget_that_the_report_names_is_enough_and_a_granule_less_is_not() -> None:
    work(4 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        work(4 * MIB - 512)


def cell(percent: int, status: str) -> Cell:
    return Cell("gpt", "logical", percent, percent * MIB, status, 1.5, 10, 20, percent * MIB)


def test_a_failure_above_a_budget_that_works_is_found() -> None:
    cells = [cell(5, "ok"), cell(4, "oom"), cell(3, "ok"), cell(2, "oom")]
    found = floor(gpt, cells, check=False)
    assert (found.least, found.gaps, found.kept) == (3, [4], False)
    assert floor(gpt, [cells[0], cells[1]], check=False).kept
    disagreeing = replace(found, gaps=[], live={3: ("ok", False)})
    assert not disagreeing.kept
    assert table([found, disagreeing], cells).row_count == 2


# No theorem says so: as torch 2.11 runs this GPT, 32 % fails and a smaller budget works.
@pytest.mark.skipif(not _core.sees_raw_access, reason="one budget fails above one that works")
@pytest.mark.parametrize(
    "make",
    [
        partial(gpt, layers=3, width=32, heads=2, length=16, texts=4, vocabulary=32),
        partial(lstm, hidden=32, length=24, texts=16),
    ],
)
def test_each_budget_above_the_smallest_works_and_training_says_so(make: Callable[[], Job]) -> None:
    cells = simulate("small", "logical", *record(make, "logical"), range(100, 4, -1))
    found = floor(make, cells, check=True)
    assert found.gaps == []
    assert found.kept, found.live
    assert ("ok", True) in found.live.values()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "floor.png", [cell(5, "ok"), cell(4, "oom")])
    assert (tmp_path / "floor.png").read_bytes().startswith(b"\x89PNG")
