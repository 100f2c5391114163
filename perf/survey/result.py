"""How a survey writes its result: provenance, the document, and what was not called by its reason.

A result is named by the survey and the version of torch, for the tables differ between versions.
"""

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
    version = __version__.partition("+")[0]
    whole = {**provenance(), **document, "not called": not_called}
    write_json(folder / f"{name}-{version}.json", whole)
