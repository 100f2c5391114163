"""Shows what the demo found: a table, demo.json for programs, demo.png for the eye."""

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.table import Table

from dtr_alloc.demo.train import Comparison, Plan, Row, label, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 1 << 20
HEADINGS = [
    "budget\nMiB",
    "peak\nMiB",
    "step\nms",
    "over\npool",
    "over\nplain",
    "evicted\n/step",
    "redone\n/step",
    "redo\ntime",
    "search\ntime",
    "iden-\ntical",
]
EAGER_COLOUR = "#b8bcc4"
BUDGET_COLOURS = ["#2166ac", "#e08214", "#b2182b", "#1b7837", "#762a83", "#35978f"]


def table(comparisons: list[Comparison]) -> Table:
    """A rich table: per model a row for eager, one for eager in the pool, and one per budget.

    Counts are per step, bytes in MiB. "over pool" and "over plain" are processor time over that of
    eager in the pool and of plain eager.
    """
    out = Table(box=box.SIMPLE_HEAD, padding=0)
    out.add_column("", no_wrap=True)
    for heading in HEADINGS:
        out.add_column(heading, justify="right", no_wrap=True)
    for comparison in comparisons:
        peak = f"{comparison.peak_bytes / MIB:.1f}"
        out.add_row(comparison.model, *[""] * len(HEADINGS))
        out.add_row(" eager", "", "", f"{comparison.step_ms:.1f}")
        out.add_row(" in the pool", "", peak, f"{comparison.pool_step_ms:.1f}")
        for row in comparison.rows:
            out.add_row(f" {label(row.ratio)}", *_cells(row, comparison.steps))
        out.add_section()
    return out


def _cells(row: Row, steps: int) -> list[str]:
    budget = "" if row.budget_bytes is None else f"{row.budget_bytes / MIB:.1f}"
    if not row.feasible:
        floor = "?" if row.floor_bytes is None else f"{row.floor_bytes / MIB:.1f}"
        return [budget, f"floor {floor}"]
    return [
        budget,
        f"{row.peak_bytes / MIB:.1f}",
        f"{row.step_ms:.1f}",
        f"{row.slowdown:.2f}",
        f"{row.slowdown_plain:.2f}",
        f"{row.evictions / steps:.0f}",
        f"{row.rematerializations / steps:.0f}",
        f"{row.remat_share:.1%}",
        f"{row.search_share:.1%}",
        "yes" if row.identical else "[bold red]no[/]",
    ]


def write_json(path: Path, comparisons: list[Comparison], plan: Plan) -> None:
    """Writes all that the table shows and more, but for the timelines. Bytes are exact, counts are
    per training.
    """
    failures = [failure for comparison in comparisons for failure in comparison.failures()]
    document = {
        "version": 1,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "seed": plan.seed,
        "steps": plan.steps,
        "rounds": plan.rounds,
        "ok": not failures,
        "failures": failures,
        "models": [figures(comparison) for comparison in comparisons],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def figures(comparison: Comparison) -> dict[str, Any]:
    """One model as JSON takes it: all but the timelines, bytes exact, counts per training."""
    return {
        "model": comparison.model,
        "peak_bytes": comparison.peak_bytes,
        "activation_bytes": comparison.activation_bytes,
        "gradient_bytes": comparison.gradient_bytes,
        "optimizer_bytes": comparison.optimizer_bytes,
        "step_ms": comparison.step_ms,
        "pool_step_ms": comparison.pool_step_ms,
        "identical_in_pool": not comparison.differences,
        "runs": list(map(_run, comparison.rows)),
    }


def _run(row: Row) -> dict[str, Any]:
    measured = vars(row).copy()
    del measured["timeline"]
    ratio, differences = measured.pop("ratio"), measured.pop("differences")
    verdict = {"identical": row.identical, "differences": differences}
    return {"budget_ratio": ratio, **measured, **verdict}


def draw(path: Path, comparisons: list[Comparison]) -> None:
    """Draws a panel per model: pool bytes live over the operators of one step, eager and at each
    budget, with the budgets as dashed lines.
    """
    from matplotlib.figure import Figure

    columns = min(3, len(comparisons))
    rows = -(-len(comparisons) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows + 0.7), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, squeeze=False)
    panels: list[Axes] = list(grid.flat)
    for axes, comparison in zip(panels, comparisons, strict=False):
        _panel(axes, comparison)
    ratios = _ratios(*comparisons)
    swatch = Figure().subplots()
    handles: list[Any] = [swatch.fill_between([0, 1], [0, 1], color=EAGER_COLOUR)]
    handles += [swatch.plot([], color=_colour(ratios, ratio))[0] for ratio in ratios]
    handles.append(swatch.plot([], color="#444444", linestyle="--", linewidth=0.9)[0])
    names = ["eager", *(f"{percent(ratio)} of the activation peak" for ratio in ratios), "budget"]
    for axes in panels[len(comparisons) :]:
        axes.axis("off")
    if len(panels) > len(comparisons):
        panels[-1].legend(handles, names, loc="center", frameon=False)
    else:
        figure.legend(
            handles, names, loc="outside lower center", ncols=min(3, len(names)), frameon=False
        )
    figure.suptitle("Pool bytes live during one training step", x=0.01, ha="left", fontsize=12)
    figure.savefig(path)


def _ratios(*comparisons: Comparison) -> list[float]:
    """The budgets, largest first."""
    rows = [row for comparison in comparisons for row in comparison.rows]
    return sorted({row.ratio for row in rows if row.ratio is not None}, reverse=True)


def _colour(ratios: list[float], ratio: float) -> str:
    return BUDGET_COLOURS[ratios.index(ratio) % len(BUDGET_COLOURS)]


def _panel(axes: "Axes", comparison: Comparison) -> None:
    ratios = _ratios(comparison)
    if comparison.timeline is not None:
        bytes_live = comparison.timeline / MIB
        axes.fill_between(range(len(bytes_live)), bytes_live, color=EAGER_COLOUR, linewidth=0)
    notes = []
    for row in comparison.rows:
        if row.ratio is None or row.budget_bytes is None:
            continue
        colour = _colour(ratios, row.ratio)
        axes.axhline(row.budget_bytes / MIB, color=colour, linestyle="--", linewidth=0.9)
        if row.timeline is not None:
            axes.plot(row.timeline / MIB, color=colour, linewidth=1.0)
            notes.append(f"{percent(row.ratio)}: {row.slowdown:.2f}x time")
        else:
            notes.append(f"{percent(row.ratio)}: below the floor")
    axes.set_title(comparison.model, loc="left", fontsize=11, fontweight="bold")
    axes.set_title(" · ".join(notes), loc="right", fontsize=7.5, color="#444444")
    axes.set_xlim(left=0)
    axes.set_ylim(0, comparison.peak_bytes / MIB * 1.06)
    axes.set_ylabel("MiB")
    axes.set_xlabel("operators")
    axes.spines[["top", "right"]].set_visible(False)
