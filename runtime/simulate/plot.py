"""Overhead against budget, one panel a trace, one curve a heuristic: the paper's figure 2.

A run that failed has no overhead: its budget is marked with a cross in a band above the curves, so
that the curve of a heuristic visibly ends where the heuristic does. Source: Kirisame et al., ICLR
2021, figure 2.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

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
    traces = list(dict.fromkeys(result.trace for result in results))
    policies = {result.policy for result in results}
    links = {(result.link, result.leave_by) for result in results}

    def curve(result: SimulationResult) -> str:
        name = result.heuristic if len(policies) == 1 else f"{result.heuristic}, {result.policy}"
        if len(links) > 1 and result.link:
            name += f", {result.leave_by} at {result.link}"
        return (labels or {}).get(name, name)

    names = list(dict.fromkeys(curve(result) for result in results))
    columns = min(COLUMNS, len(traces))
    rows = -(-len(traces) // columns)
    figure = Figure(figsize=(3.2 * columns + 0.6, 2.8 * rows + 0.9), layout="constrained", dpi=100)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, trace in zip(panels, traces, strict=False):
        by_name = {
            name: [r for r in results if (r.trace, curve(r)) == (trace, name)] for name in names
        }
        _panel(panel, by_name, short_name(trace))
    for panel in panels[len(traces) :]:
        panel.axis("off")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(
        *handles, loc="outside lower center", fontsize=9, ncols=min(len(names), 8), frameon=False
    )
    figure.supylabel("computed, multiple of the trace", fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path)


def short_name(trace: str) -> str:
    """The file's name without folder and suffixes."""
    return os.path.basename(trace).removesuffix(".gz").removesuffix(".log")


def _panel(axes: Axes, curves: Mapping[str, Sequence[SimulationResult]], title: str) -> None:
    every = [result for results in curves.values() for result in results]
    top = max((r.overhead for r in every if r.status == "ok"), default=1.0)
    band = top + 0.06 * max(top - 1, 0.2)
    step = 0.05 * max(top - 1, 0.2)
    failed = False
    for index, (name, results) in enumerate(curves.items()):
        colour = f"C{index % 10}"
        style = "-" if index < 10 else "--"
        points = sorted((_share(r), r.overhead if r.status == "ok" else math.nan) for r in results)
        axes.plot(
            *zip(*points, strict=True) if points else ([], []),
            style,
            color=colour,
            label=name,
            marker="o",
            markersize=2.5,
            linewidth=1.1,
        )
        crosses = [_share(r) for r in results if r.status != "ok"]
        axes.plot(crosses, [band + step * index] * len(crosses), "x", color=colour, markersize=3.5)
        failed |= bool(crosses)
    if failed:
        axes.axhline(band - step / 2, color="#999999", linewidth=0.5)
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
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("budget, share of the peak without one", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)


def _share(result: SimulationResult) -> float:
    return result.budget_bytes / max(result.baseline_peak_bytes, 1)
