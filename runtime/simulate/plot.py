"""Overhead against budget, one panel a trace, one curve a heuristic: the paper's figure 2.

A run that failed has no overhead: its budget is marked with a cross in a band above the curves, so
that the curve of a heuristic visibly ends where the heuristic does. Source: Kirisame et al., ICLR
2021, figure 2.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dtr_alloc.runtime.simulate.result import SimulationResult

COLUMNS = 4


def plot(
    results: Iterable[SimulationResult],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    labels: Mapping[str, str] | None = None,
) -> None:
    """Draws the results and writes the picture, in the format of the path's suffix.

    `labels` renames curves, which else have the heuristic's name, and the policy's and the link's
    where there are several. Raises ValueError where there are no results."""
    results = list(results)
    if not results:
        raise ValueError("there are no results to plot")
    curves = _curves(results, labels or {})
    traces = list(dict.fromkeys(result.trace for result in results))
    columns = min(COLUMNS, len(traces))
    rows = -(-len(traces) // columns)
    figure = Figure(figsize=(3.2 * columns + 0.6, 2.8 * rows + 0.9), layout="constrained", dpi=100)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, trace in zip(panels, traces, strict=False):
        of_trace = {
            name: [run for run in runs if run.trace == trace] for name, runs in curves.items()
        }
        _panel(panel, of_trace, short_name(trace))
    for panel in panels[len(traces) :]:
        panel.axis("off")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(
        *handles, loc="outside lower center", fontsize=9, ncols=min(len(curves), 8), frameon=False
    )
    figure.supylabel("computed, multiple of the trace", fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path)


def _curves(
    results: Sequence[SimulationResult], labels: Mapping[str, str]
) -> dict[str, list[SimulationResult]]:
    """The results of each curve, by its name."""
    policies = {result.policy for result in results}
    links = {(result.link, result.leave_by) for result in results}
    curves: dict[str, list[SimulationResult]] = {}
    for result in results:
        name = result.heuristic if len(policies) == 1 else f"{result.heuristic}, {result.policy}"
        if len(links) > 1 and result.link:
            name += f", {result.leave_by} at {result.link}"
        curves.setdefault(labels.get(name, name), []).append(result)
    return curves


def short_name(trace: str) -> str:
    """The file's name without folder and suffixes."""
    return os.path.basename(trace).removesuffix(".gz").removesuffix(".log")


def _panel(axes: Axes, curves: Mapping[str, Sequence[SimulationResult]], title: str) -> None:
    worked = [run.overhead for runs in curves.values() for run in runs if run.status == "ok"]
    top = max(worked, default=1.0)
    height = max(top - 1, 0.2)
    band, step = top + 0.06 * height, 0.05 * height
    failed = False
    for index, (name, runs) in enumerate(curves.items()):
        look: dict[str, Any] = {"color": f"C{index % 10}", "linestyle": "-" if index < 10 else "--"}
        points = sorted((_share(r), r.overhead if r.status == "ok" else math.nan) for r in runs)
        shares = [share for share, _ in points]
        overheads = [overhead for _, overhead in points]
        axes.plot(shares, overheads, label=name, marker="o", markersize=2.5, linewidth=1.1, **look)
        crosses = [share for share, overhead in points if math.isnan(overhead)]
        at = [band + step * index] * len(crosses)
        axes.plot(crosses, at, "x", color=look["color"], markersize=3.5)
        failed |= bool(crosses)
    if failed:
        _mark_failures(axes, band - step / 2, top)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("budget, share of the peak without one", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)


def _mark_failures(axes: Axes, line: float, top: float) -> None:
    """Says what the band above the curves is."""
    axes.axhline(line, color="#999999", linewidth=0.5)
    axes.annotate(
        "failed",
        (0.99, 0.985),
        xycoords="axes fraction",
        ha="right",
        va="top",
        fontsize=6,
        color="#666666",
    )
    axes.set_yticks([tick for tick in axes.get_yticks() if 1 <= tick <= top])


def _share(result: SimulationResult) -> float:
    return result.budget_bytes / max(result.baseline_peak_bytes, 1)
