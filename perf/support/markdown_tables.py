"""A table of a document: its cells, and the results that they are from. perf/tables.py draws it."""

from collections.abc import Sequence
from typing import NamedTuple

Row = Sequence[str]


class Table(NamedTuple):
    """`sources` are paths of results below the root; `about` takes the place of what they tell of
    themselves."""

    head: Row
    rows: Sequence[Row]
    sources: Sequence[str]
    about: str = ""


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
