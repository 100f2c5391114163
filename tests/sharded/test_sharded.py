"""Programs of two processes under budgets: what DistributedDataParallel, tensor parallelism and
pipelines compute is plain torch's to the bit, by as many collectives."""

import re
from functools import cache
from typing import Any

import pytest

from dtr_alloc import _core
from tests.support.fences import ROOT
from tests.support.sharded_programs import PROGRAMS
from tests.support.two_processes import two_processes


@cache
def rows() -> dict[tuple[str, int], dict[str, Any]]:
    """All programs in one run: to start two processes takes longer than what they compute."""
    found = two_processes(ROOT / "tests/support/sharded_programs.py")
    return {(row["program"], row["rank"]): row for row in found}


@pytest.mark.skipif(not _core.sees_raw_access, reason="torch before 2.13: more stays in memory")
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_processes_compute_what_they_compute_without_a_budget(name: str) -> None:
    for rank in range(2):
        row = rows()[name, rank]
        assert row["identical"]
        assert row["peak_bytes"] <= row["budget_bytes"] < row["eager_peak_bytes"]
        assert row["rematerializations"] > 0
        plain, within = row["collectives"]
        assert plain == within
        assert plain > 0 or name.startswith("pipeline")  # That sends and receives.


def test_a_thread_that_waits_for_another_process_lets_other_threads_go_on() -> None:
    rows = two_processes(ROOT / "tests/support/two_groups.py")
    assert [row["sums"] for row in rows] == [[2048.0, 2048.0]] * 2


def test_the_page_tells_the_budgets_that_are_tried_here() -> None:
    page = (ROOT / "docs/ecosystem.md").read_text()
    told = dict(re.findall(r"\| `([^`]+)` \|.*\| (\d+) \|", page))
    assert told == {name: f"{100 * share:.0f}" for name, (_, share) in PROGRAMS.items()}
