"""What results say: the committed files of perf/results, read for the sentences that quote them."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from tests.support.fences import ROOT

MIB = 1 << 20


@cache
def result(stem: str) -> Any:
    return json.loads((ROOT / f"perf/results/{stem}.json").read_text())


@cache
def measured(stem: str) -> dict[str, float]:
    return {one["name"]: one["value"] for one in result(stem)["measurements"]}


def limited() -> Iterator[tuple[str, dict[str, Any]]]:
    """What may have a limit, with the name of its result."""
    for path in sorted((ROOT / "perf/results").glob("[!.]*.json")):
        for one in result(path.stem).get("measurements", ()):
            if one.keys() >= {"limit", "kept"}:
                yield path.stem, one


def text(stem: str) -> str:
    return (ROOT / f"perf/results/{stem}.txt").read_text()


def rows(path: str) -> list[dict[str, str]]:
    with open(ROOT / path, newline="") as file:
        return list(csv.DictReader(file))


def cells(line: str) -> list[str]:
    """Of a line of a text's table, where two spaces and more are between columns."""
    return re.split(r" {2,}", line.strip())


def span(values: Iterable[float], digits: int) -> str:
    """The least and the largest; one where they look alike."""
    found = list(values)
    least, largest = f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"
    return least if least == largest else f"{least} to {largest}"
