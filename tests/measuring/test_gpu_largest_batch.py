"""The search for the largest batch that fits: what it tries, and how it says that it ended."""

from typing import Any

import largest
import parts_speed
import pytest


def searched(fits: int, late_after: int = 100, most: int = 4096) -> tuple[Any, list[int]]:
    tried: list[int] = []

    def attempt(batch: int) -> str:
        tried.append(batch)
        return "fits" if batch <= fits else "out of memory"

    return largest.search(attempt, 4, most, lambda: len(tried) >= late_after), tried


@pytest.mark.parametrize("fits", [0, 1, 3, 4, 5, 31, 32, 33, 100, 1000])
def test_the_largest_batch_is_found_to_a_sixteenth(fits: int) -> None:
    found, tried = searched(fits)
    assert found["ended"] == "found"
    assert found["largest"] <= fits <= found["largest"] + max(1, found["largest"] // 16)
    assert len(tried) == len(set(tried)) <= 16


def test_a_search_whose_time_is_up_names_no_largest_batch() -> None:
    found, _ = searched(100, late_after=3)
    assert found == {"largest": None, "at_least": 16, "ended": "time was up"}
    found["attempts"] = [{"batch": 16, "ended": "fits", "per_second": 9.0, "unit": "tokens"}]
    assert parts_speed.largest(found) == "at least 16 (time was up), 9 tokens/s"


def test_a_search_that_reaches_its_own_limit_says_so() -> None:
    assert searched(10**6, most=64)[0] == {
        "largest": None,
        "at_least": 64,
        "ended": "limit of the search",
    }


def test_the_line_of_a_largest_batch_says_what_stopped_the_next() -> None:
    rows = [
        {"batch": 8, "ended": "fits", "per_second": 10.0, "unit": "tokens"},
        {"batch": 9, "ended": "thrash", "error": "..."},
    ]
    found = {"largest": 8, "at_least": 8, "ended": "found", "attempts": rows}
    assert parts_speed.largest(found) == "     8, 10 tokens/s; at 9: thrash"
