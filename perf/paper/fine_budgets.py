"""Does a little less memory cost a little more time?

A policy that decides step by step may come to other decisions for 0.1 % less memory, and recompute
several times as much (a study of DTR found 7.3 times, arXiv 2609.31250), or be refused where less
memory does. Four traces, budgets from 90 to 20 % of the peak by 0.1 %, simulated as the live
runtime decides: by the paper's heuristic, by the default, and by the best of eight, at each budget
anew.

A jump is what is recomputed at one budget over what is at the next larger one, where that is at
least a hundredth of the program's own time.

    python perf/paper/fine_budgets.py [--logs LOGS] [--jobs N] [--quick] [--out FOLDER]
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from matplotlib.figure import Figure
from study import Row, options, tell

from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS, Heuristic
from dtr_alloc.runtime.simulate.plot import short_name
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

EIGHT: tuple[Heuristic, ...] = (
    PRESETS[DEFAULT],
    replace(PRESETS[DEFAULT], staleness_exp=0.5),
    Heuristic("ancestors", orphans_first=True),
    Heuristic(staleness_exp=0.5, orphans_first=True),
    Heuristic("lineage"),
    Heuristic("lineage", staleness_exp=0.5, next_use=True),
    Heuristic(orphans_first=True),
    Heuristic(staleness_exp=0.5, next_use=True),
)
"""The default; then each that saved most, beside those before it, on our own traces, chosen among
36. There were no stepping stones then; the first two have them since."""

WAYS = ("dtr", DEFAULT, "best of eight")
TRACES = ("lstm", "resnet32", "transformer", "unet")
FROM, TO = 900, 200  # Thousandths of the peak.
WORTH = 0.01  # Of the program's own time.
THRASH = 4.0


def recomputed(simulator: Simulator, budget: int, heuristic: Heuristic, enough: float) -> float:
    """Over the program's own time; infinite where it is refused, or more than `enough`."""
    limit = min(THRASH, 1 + enough + 1e-9)
    rules = Rules(heuristic, mode="pool", thrash=limit, pin_outputs=False)
    result = simulator.run(budget, rules)
    return result.overhead - 1 if result.status == "ok" else math.inf


def curves(path: str, thousandths: Sequence[int]) -> tuple[list[float], ...]:
    """One for each of `WAYS`."""
    simulator = Simulator(path)
    peak = simulator.run(1 << 40, Rules("dtr")).peak_bytes
    paper: list[float] = []
    default: list[float] = []
    best: list[float] = []
    for thousandth in thousandths:
        budget = peak * thousandth // 1000
        paper.append(recomputed(simulator, budget, PRESETS["dtr"], math.inf))
        default.append(recomputed(simulator, budget, EIGHT[0], math.inf))
        least = default[-1]
        for candidate in EIGHT[1:]:
            least = min(least, recomputed(simulator, budget, candidate, least))
        best.append(least)
    return paper, default, best


def told(name: str, way: str, thousandths: Sequence[int], curve: list[float]) -> Row:
    """A row: the smallest budget, refusals above it, the largest jump."""
    works = [i for i, value in enumerate(curve) if math.isfinite(value)]
    refused = sum(not math.isfinite(value) for value in curve[: works[-1]])
    jumps = [
        (below / above, thousandth)
        for above, below, thousandth in zip(curve, curve[1:], thousandths[1:], strict=False)
        if above >= WORTH and math.isfinite(below)
    ]
    jump, at = max(jumps)
    return {
        "trace": name,
        "by": way,
        "smallest": f"{thousandths[works[-1]] / 10:.1f} %",
        "refused above": refused,
        "mean recomputed": round(sum(curve[i] for i in works) / len(works), 4),
        "largest jump": f"{jump:.2f}",
        "at": f"{at / 10:.1f} %",
    }


def picture(curves_of: dict[str, tuple[list[float], ...]], at: Sequence[int]) -> Figure:
    """A panel for each trace."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(2, 2, squeeze=False).flat
    shares = [thousandth / 1000 for thousandth in at]
    for panel, (name, found) in zip(panels, curves_of.items(), strict=False):
        for way, curve in zip(WAYS, found, strict=True):
            panel.plot(shares, curve, label=way, linewidth=0.8)
        panel.set(title=name, xlabel="budget / peak", ylabel="recomputed / own time")
        panel.legend()
    return figure


def main() -> None:
    """Prints the table, and writes it and the picture."""
    asked = options(__doc__, logs=True)
    logs = [path for path in asked.logs if short_name(str(path)) in TRACES] or asked.logs
    at = range(FROM, TO - 1, -100 if asked.quick else -1)
    own = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=own) as processes:
        done = processes.map(curves, [str(path) for path in logs], [at] * len(logs))
        found = dict(zip([short_name(str(path)) for path in logs], done, strict=True))
    rows = [
        told(name, way, at, curve)
        for name, of_it in found.items()
        for way, curve in zip(WAYS, of_it, strict=True)
    ]
    tell(asked.file("fine_budgets.txt"), asked.begun, rows)
    picture(found, at).savefig(asked.file("fine_budgets.png"), dpi=120)


if __name__ == "__main__":
    main()
