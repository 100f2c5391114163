"""Runs a part of a database with a progress bar, and keeps what came out in one JSON file.

The whole takes tens of minutes, so it runs in parts, and each part's figures are stored under its
name with the commit and the C++ that they are of. The totals are sums over the parts that ran with
this torch. The file's own `code` names one state of the C++ only where all parts are of it.
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from measurement import provenance, write_json
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.conformance.cases import DATABASES, PARTS, cases
from tests.conformance.comparison import Tally, compare

RESULTS = Path(__file__).parents[2] / "perf" / "results" / "conformance.json"
OF_A_PART = ("commit", "code")


def compare_with_progress(database: str, part: int, most: int) -> tuple[Tally, float]:
    """The tally over one part, and the seconds it took."""
    tally, begin = Tally(), time.perf_counter()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[failures]} failures"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        chosen = cases(database, part)
        name = f"{database} {part + 1}/{PARTS}"
        task = progress.add_task(name, total=len(chosen), failures=0)
        for case in chosen:
            compare(case, tally, most)
            progress.update(task, advance=1, failures=len(tally.failures))
    return tally, time.perf_counter() - begin


def record(database: str, part: int, most: int, tally: Tally, seconds: float) -> None:
    """Stores a part's figures in place of those that it had."""
    stored: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    parts = stored.get("parts", {}) if stored.get("torch") == torch.__version__ else {}
    about = provenance()
    figures = {**vars(tally), "most_samples_of_a_case": most, "seconds": round(seconds, 1)}
    parts[f"{database} {part}"] = figures | {key: about[key] for key in OF_A_PART}
    document = {
        **about,
        "torch": torch.__version__,  # With what it was built for, unlike the version of a package.
        "command": 'make test-all ARGS="-k test_every_case_is_exact"',
        "code": " or ".join(sorted({figures.get("code", "unknown") for figures in parts.values()})),
        "totals": {d: _total(d, parts) for d in DATABASES},
        "parts": dict(sorted(parts.items())),
    }
    write_json(RESULTS, document)


def _total(database: str, parts: dict[str, Any]) -> dict[str, Any]:
    mine = [figures for name, figures in parts.items() if name.split()[0] == database]
    total: dict[str, Any] = {"parts_run": f"{len(mine)} of {PARTS}"}
    for figures in mine:
        for name, figure in figures.items():
            if isinstance(figure, dict):
                total[name] = dict(Counter(total.get(name, {})) + Counter(figure))
            elif isinstance(figure, list):
                total[name] = total.get(name, 0) + len(figure)
            elif name not in ("most_samples_of_a_case", *OF_A_PART):
                total[name] = round(total.get(name, 0) + figure, 1)
    return total
