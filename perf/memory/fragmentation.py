"""What does fragmentation cost, and what helps against it?

Every run is in one kind of pool, with budgets as shares of the most bytes that the pool would hold
without one. Where blocks lie where they lie (no page is ever moved) it compares victims chosen one
by one (`dtr`, looking at all candidates), with a bonus for free neighbours (`megengine`: the terms
that MegEngine added, on the paper's neighbourhoods; `no count` is without the penalty for what was
recomputed, which MegEngine lost in 2021 unnoticed; `as published` has its own sets, and its costs,
which are bytes), and windows (`window`; `two-ended` keeps cheap blocks apart from the rest).
`+ remap` is the same with pages that move, which is what a scope's arena does, and `default` is all
that a scope does. `bytes` is the paper's simulator, which knows neither fragmentation nor the
temporaries of kernels.
Fragmentation at a miss is 1 - largest hole / free bytes; what is free after a miss was evicted and
not used. Figures over cells are for budgets of 0.9 to 0.1.

    python perf/memory/fragmentation.py [--logs FOLDER] [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin

from dtr_alloc import Heuristic, SimulationResult
from dtr_alloc.runtime import heuristic
from dtr_alloc.runtime.heuristic import PRESETS
from dtr_alloc.runtime.simulate.plot import short_name
from dtr_alloc.runtime.simulate.rules import Clock, Placement, Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

OWN = Path(__file__).parents[1] / "traces"
BUDGETS = tuple(tenth / 10 for tenth in range(9, 0, -1))
DTR = replace(PRESETS["dtr"], selection="single")
WINDOW = replace(DTR, selection="window")
MEGENGINE = replace(PRESETS["megengine"], selection="single")
PUBLISHED = replace(PRESETS["megengine_published"], selection="single")


class Way(NamedTuple):
    """Whom to evict, whether pages move, and where blocks go."""

    heuristic: Heuristic
    remap: bool = False
    placement: Placement = "best_fit"
    clock: Clock = "wall"


WAYS = {
    "dtr": Way(DTR),
    "megengine as published": Way(PUBLISHED, clock="logical"),
    "megengine": Way(MEGENGINE),
    "megengine, no count": Way(replace(MEGENGINE, recompute_penalty=1)),
    "window": Way(WINDOW),
    "window, two-ended": Way(WINDOW, placement="two_ended"),
    "dtr + remap": Way(DTR, remap=True),
    "megengine as published + remap": Way(PUBLISHED, remap=True, clock="logical"),
    "megengine + remap": Way(MEGENGINE, remap=True),
    "window + remap": Way(WINDOW, remap=True),
    "window, two-ended + remap": Way(WINDOW, remap=True, placement="two_ended"),
    "default": Way(PRESETS[heuristic.DEFAULT], remap=True),
}
DEFAULT = "default"
PLENTY = 1 << 38


def cells(path: Path, budgets: Sequence[float]) -> dict[tuple[str, float], SimulationResult]:
    """A result for each way and budget of one trace; the ways "bytes" and "bytes - 2 %" are the
    paper's simulator, at the budget and at one 2 % smaller."""
    simulator = Simulator(path, name=short_name(str(path)))
    peak = simulator.run(PLENTY, Rules("dtr", thrash=None, pin_outputs=False)).peak_bytes
    found = {}
    for share in budgets:
        budget = int(peak * share)
        for name, way in WAYS.items():
            rules = Rules(
                way.heuristic,
                mode="pool",
                remap=way.remap,
                placement=way.placement,
                clock=way.clock,
            )
            found[name, share] = simulator.run(budget, rules)
        found["bytes", share] = simulator.run(budget, Rules(DTR, mode="bytes"))
        found["bytes - 2 %", share] = simulator.run(int(budget * 0.98), Rules(DTR, mode="bytes"))
    return found


def recomputed(result: SimulationResult) -> float:
    """Time of operators run again, as a share of the time of all."""
    return (result.total_compute - result.base_compute) / result.base_compute


def summary(
    results: dict[tuple[str, float, str], SimulationResult],
) -> list[dict[str, object]]:
    """A row for each way, over all cells."""
    rows: list[dict[str, object]] = []
    for way in (*WAYS, "bytes"):
        mine = {key: r for key, r in results.items() if key[0] == way}
        ok = {key: r for key, r in mine.items() if r.status == "ok"}
        missed = [r for r in mine.values() if r.misses]
        # Beside plain dtr in the same pool, where both work, at half the peak and below.
        pairs = [
            (recomputed(r), recomputed(plain))
            for (_, share, trace), r in ok.items()
            if share <= 0.5 and (plain := results["dtr", share, trace]).status == "ok"
        ]
        ratios = [math.log(ours / plain) for ours, plain in pairs if ours > 0 and plain > 0]
        rows.append(
            {
                "way": way,
                "feasible": f"{len(ok)} of {len(mine)}",
                "recomputed": sum(map(recomputed, ok.values())) / len(ok),
                "to dtr at <= 0.5": math.exp(sum(ratios) / len(ratios)) if ratios else math.nan,
                "fragmentation": _mean([r.fragmentation for r in missed]),
                "free after": _mean([r.free_after for r in missed]),
                "wasted": sum(r.wasted_bytes for r in missed)
                / max(sum(r.evicted_bytes for r in missed), 1),
                "us a miss": _mean([r.search_ns / r.misses / 1e3 for r in missed]),
            }
        )
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def against_bytes(results: dict[tuple[str, float, str], SimulationResult]) -> list[str]:
    """The default beside the paper's simulator: overhead at equal budget, and feasibility beside a
    budget 2 % smaller."""
    gaps = {}
    lost = []
    for (way, share, trace), mine in results.items():
        if way != DEFAULT:
            continue
        paper = results["bytes", share, trace]
        if mine.status == "ok" == paper.status:
            gaps[trace, share] = mine.overhead / paper.overhead - 1
        if mine.status != "ok" == results["bytes - 2 %", share, trace].status:
            lost.append(f"{trace} at {share}: {mine.status}")
    worst = max(gaps, key=gaps.__getitem__)
    return [
        f"{DEFAULT} against bytes at equal budget: {100 * _mean(list(gaps.values())):+.2f} % "
        f"in the mean of {len(gaps)} cells, "
        f"worst {worst[0]} at {worst[1]}: {100 * gaps[worst]:+.1f} %",
        "feasible in bytes at a budget 2 % smaller and not in the pool: "
        f"{', '.join(lost) or 'none'}",
    ]


def against_dtr(results: dict[tuple[str, float, str], SimulationResult]) -> list[str]:
    """The default beside plain dtr in the same pool, where that is feasible."""
    computed, again = {}, {}
    lost = []
    for (way, share, trace), plain in results.items():
        if way != "dtr" or plain.status != "ok":
            continue
        mine = results[DEFAULT, share, trace]
        if mine.status != "ok":
            lost.append(f"{trace} at {share}: {mine.status}")
            continue
        computed[trace, share] = mine.overhead / plain.overhead
        if plain.overhead > 1:
            again[trace, share] = recomputed(mine) / recomputed(plain)
    lines = [f"feasible with dtr and not with the default: {', '.join(lost) or 'none'}"]
    for what, ratios in (("all that is computed", computed), ("what is recomputed", again)):
        worst = max(ratios, key=ratios.__getitem__)
        lines.append(
            f"{DEFAULT} against dtr, {what}: at most {ratios[worst]:.4f} of it, in {worst[0]} at "
            f"{worst[1]}, of {len(ratios)} cells"
        )
    return lines


def draw(results: dict[tuple[str, float, str], SimulationResult], path: Path) -> None:
    """Overhead against budget, a panel a trace."""
    traces = list(dict.fromkeys(trace for _, _, trace in results))
    columns = min(4, len(traces))
    rows = -(-len(traces) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.8 * rows + 0.6), layout="constrained", dpi=100)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, trace in zip(panels, traces, strict=False):
        for way in (*WAYS, "bytes"):
            points = sorted(
                (share, r.overhead)
                for (name, share, of), r in results.items()
                if (name, of) == (way, trace) and r.status == "ok"
            )
            one_by_one = way == "dtr" or way.startswith("megengine")
            style = "k:" if way == "bytes" else "--" if one_by_one else "-"
            panel.plot(*zip(*points, strict=True), style, label=way) if points else None
        panel.set_title(trace, fontsize=9)
        panel.set_ylim(0.98, 2.02)
        panel.set_xlim(0.08, 0.92)
    for panel in panels[len(traces) :]:
        panel.axis("off")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
    figure.supxlabel("budget, share of the pool's peak")
    figure.supylabel("computed, multiple of the trace")
    figure.savefig(path)


def main() -> int:
    """Runs all cells; prints the tables and writes CSV and PNG."""
    parser = argparse.ArgumentParser(description="What fragmentation costs, and what helps.")
    parser.add_argument("--logs", type=Path, help="a folder of more logs, beside our own traces")
    parser.add_argument("--quick", action="store_true", help="two traces, three budgets")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    paths = sorted(OWN.glob("*.log.gz"))
    if options.logs:
        paths += sorted([*options.logs.glob("*.log"), *options.logs.glob("*.log.gz")])
    if options.quick:
        paths = paths[:2]
    results: dict[tuple[str, float, str], SimulationResult] = {}
    for path in paths:
        tag = "" if path.parent == OWN else " (published)"
        for (way, share), result in cells(
            path, (0.7, 0.5, 0.3) if options.quick else BUDGETS
        ).items():
            results[way, share, short_name(str(path)) + tag] = result
    rows = summary(results)
    lines = [origin(), "", "  ".join(f"{name:>30}" for name in rows[0])]
    for row in rows:
        shown = (f"{value:.4f}" if isinstance(value, float) else value for value in row.values())
        lines.append("  ".join(f"{value:>30}" for value in shown))
    lines += [*against_bytes(results), *against_dtr(results)]
    print("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "fragmentation.txt").write_text("\n".join(lines) + "\n")
    with open(options.out / "fragmentation.csv", "w", newline="") as file:
        writer = csv.writer(file)
        names = ("status", "overhead", "misses", "fragmentation", "free_after", "evicted_bytes")
        writer.writerow(("trace", "way", "budget", *names, "wasted_bytes", "search_ns"))
        for (way, share, trace), r in results.items():
            values = [getattr(r, name) for name in (*names, "wasted_bytes", "search_ns")]
            writer.writerow((trace, way, share, *values))
    draw(results, options.out / "fragmentation.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
