"""How a survey writes its result: provenance, the document, and what was not called by its reason.

A result is named by the survey and the version of torch, for the tables differ between versions.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from measurement import provenance, write_json
from torch import __version__


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


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}-{__version__.partition('+')[0]}.json"
