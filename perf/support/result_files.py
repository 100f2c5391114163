"""What results say: the committed files of perf/results, read for tables and tests."""

import csv
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@cache
def result(stem: str) -> Any:
    return json.loads((ROOT / f"perf/results/{stem}.json").read_text())


@cache
def measured(stem: str) -> dict[str, float]:
    return {one["name"]: one["value"] for one in result(stem)["measurements"]}


def limited() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each measurement that may have a limit, with the name of its result."""
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
    """The cells of a line of a text's table, which are two or more spaces apart."""
    return re.split(r" {2,}", line.strip())
