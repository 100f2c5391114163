"""How a survey writes its result: provenance, the document, and what was not called by its reason.

A result is named by the survey and the version of torch, for the tables differ between versions.
A survey of all operators takes an hour. With --fresh it calls those alone that no committed result
names, of whatever version: what a release added, or what an older one still had.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from measurement import provenance, write_json
from torch import __version__

# What the surveys call their lists of operators.
_LISTS = ("repeat", "right", "called, with inputs that nothing evicts", "of all that were called")


def write(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Writes the result of a survey to `folder`."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for operator, reason in sorted(document.pop("not called", {}).items()):
        reasons[reason].append(operator)
    not_called = {
        reason: {"number": len(names), "operators": " ".join(names)}
        for reason, names in sorted(reasons.items())
    }
    write_json(_path(folder, name), {**provenance(), **document, "not called": not_called})


def read(folder: Path, name: str) -> dict[str, Any]:
    """The document that write() was given; empty where there is none of this torch."""
    path = _path(folder, name)
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    reasons = document.get("not called", {})
    document["not called"] = {
        operator: reason for reason, row in reasons.items() for operator in row["operators"].split()
    }
    return document


def surveyed(folder: Path, name: str) -> set[str]:
    """The operators that a result of any torch names: as called, or as not called and why."""
    found: set[str] = set()
    for path in folder.glob(f"{name}-*.json"):
        document = json.loads(path.read_text())
        found |= {row["operator"] for key in ("rows", "differ") for row in document.get(key, [])}
        for key in _LISTS:
            found |= set(document.get(key, "").split())
        for row in document["not called"].values():
            found |= set(row["operators"].split())
    return found


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}-{__version__.partition('+')[0]}.json"
