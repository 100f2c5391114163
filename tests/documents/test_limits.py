"""Limits that a measurement misses: perf/README.md names each of them, with its figure.

A result says of each measurement whether it is within its limit. `make figures` goes on where one
is missed, so nobody sees it unless a document tells.
"""

import re

from tests.support.fences import ROOT
from tests.support.result_files import limited


def told() -> list[tuple[str, ...]]:
    """The rows of the table: script, what, limit, measured, unit, what is known."""
    _, _, after = (ROOT / "perf/README.md").read_text().partition("## Limits that are missed\n")
    rows = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\)(.*)\|$", after.partition("\n## ")[0], re.M)
    return [(script, *(cell.strip() for cell in cells.split("|")[1:])) for script, cells in rows]


def test_the_table_names_exactly_the_limits_that_are_missed_with_their_figures() -> None:
    missed = [
        (name, m["name"], f"{m['limit']:.3f}", f"{m['value']:.3f}", m["unit"])
        for name, m in limited()
        if not m["kept"]
    ]
    assert sorted(row[:5] for row in told()) == sorted(missed)


def test_each_row_of_the_table_says_what_is_known() -> None:
    for row in told():
        assert len(row) == 6, row
        assert row[5], row


def test_a_result_says_of_each_limit_whether_it_is_kept() -> None:
    assert sum(m["limit"] is not None for _, m in limited()) > 40
    for name, m in limited():
        kept = m["limit"] is None or m["value"] <= m["limit"]
        assert m["kept"] == kept, f"{name}: {m['name']}"
