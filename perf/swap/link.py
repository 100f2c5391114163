"""What would a second tier of memory save, at which bandwidth?

Each trace is simulated by the live runtime's rules (mode `pool`) and its default heuristic, at
shares of its peak: what is evicted is recomputed (`drop`), goes over a link (`swap`), or whichever
takes less time (`both`). A transfer is on demand, and the program waits for it. Overhead is the
time beyond the trace's own, over that. The published logs come from an older GPU; our own traces
have the times of a CPU, beside which any link is fast.

What others published, named in the picture: POFO (Beaumont et al., NeurIPS 2021) removes a third of
recomputation's overhead by offloading, both planned ahead and overlapped; Capuchin (Peng et al.,
ASPLOS 2020) hides transfers behind operators and recomputes the rest.

    python perf/swap/link.py [--logs FOLDER] [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin

from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.heuristic import DEFAULT
from dtr_alloc.runtime.simulate.link import LeaveBy
from dtr_alloc.runtime.simulate.plot import short_name
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

OWN = Path(__file__).parents[1] / "traces"
BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
LINKS = ("2GB/s", "10GB/s", "50GB/s", "350GB/s")
"""A local disk, a slow and a fast slot for cards, a processor and a card on one board."""

TOLD = 0.3
WAYS: tuple[LeaveBy, ...] = ("both", "swap")
OTHERS = "POFO: two thirds of recomputation's overhead; Capuchin: transfers hidden"

Row = dict[str, Any]


def rows_of(path: Path, budgets: Sequence[float], links: Sequence[str]) -> Iterator[Row]:
    """One for each budget, link and way; the link "" stands for none."""
    tag = "" if path.parent == OWN else " (published)"
    simulator = Simulator(path, name=short_name(str(path)) + tag)
    asked: list[tuple[str, LeaveBy]] = [("", "drop")]
    asked += [(link, way) for link in links for way in WAYS]
    for budget in budgets:
        for link, way in asked:
            rules = Rules(DEFAULT, mode="pool", thrash=20.0, link=link or None, leave_by=way)
            result = simulator.run(Share(budget, whole=True), rules)
            yield {
                "trace": simulator.name,
                "budget": budget,
                "link": link,
                "leave_by": way,
                "status": result.status,
                "overhead": round(result.overhead - 1, 4),
                "waited": round(result.waited_ns / result.base_compute, 4),
                "out_bytes": result.swapped_out_bytes,
                "in_bytes": result.swapped_in_bytes,
                "rematerializations": result.rematerializations,
            }


def overhead(rows: Sequence[Row], **asked: object) -> float | None:
    """Of the one row that has all this; None where it did not finish."""
    (row,) = [r for r in rows if asked.items() <= r.items()]
    return float(row["overhead"]) if row["status"] == "ok" else None


def told(rows: Sequence[Row], links: Sequence[str]) -> Iterator[str]:
    """Overheads at one budget, and in how many cells the link costs time."""
    budgets = {row["budget"] for row in rows}
    at = TOLD if TOLD in budgets else min(budgets)
    names = [f"{link} {way}" for link in links for way in WAYS]
    yield f"overhead at {at:.0%} of the peak; in brackets over drop's"
    yield f"{'':<24}{'drop':>8}" + "".join(f"{name:>18}" for name in names)
    for trace in dict.fromkeys(row["trace"] for row in rows):
        drop = overhead(rows, trace=trace, budget=at, link="")
        line = f"{trace:<24}" + ("       -" if drop is None else f"{drop:>8.3f}")
        for link in links:
            for way in WAYS:
                found = overhead(rows, trace=trace, budget=at, link=link, leave_by=way)
                ratio = f"({found / drop:.2f})" if found is not None and drop else "(-)"
                line += f"{'-' if found is None else f'{found:.3f}':>11}{ratio:>7}"
        yield line
    for link in links:
        yield from _summary(rows, link)


def _summary(rows: Sequence[Row], link: str) -> Iterator[str]:
    for tag in (False, True):
        ratios, lost = [], []
        for row in rows:
            if row["link"] or ("(published)" in row["trace"]) != tag or row["status"] != "ok":
                continue
            cell = {"trace": row["trace"], "budget": row["budget"]}
            found = overhead(rows, **cell, link=link, leave_by="both")
            if found is None:
                lost.append(f"{row['trace']} at {row['budget']}")
            else:
                ratios.append((1 + found) / (1 + row["overhead"]))
        if ratios:
            worse = sum(ratio > 1.02 for ratio in ratios)
            yield (
                f"{link}, {'published logs' if tag else 'our traces'}: a step takes "
                f"{statistics.geometric_mean(ratios):.3f} of drop's time in the mean of "
                f"{len(ratios)} cells, more than 1.02 of it in {worse}, at most "
                f"{max(ratios):.2f}; refused where drop ran: {', '.join(lost) or 'none'}"
            )


def draw(rows: Sequence[Row], links: Sequence[str], path: Path) -> None:
    """Overhead against budget, a panel a trace."""
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    columns = min(4, len(traces))
    lines = -(-len(traces) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.8 * lines + 0.8), layout="constrained", dpi=100)
    panels: list[Axes] = list(figure.subplots(lines, columns, squeeze=False).flat)
    for panel, trace in zip(panels, traces, strict=False):
        for link in ("", *links):
            points = [
                (row["budget"], row["overhead"])
                for row in rows
                if row["trace"] == trace
                and (row["link"], row["leave_by"]) == (link, "both" if link else "drop")
                and row["status"] == "ok"
            ]
            if points:
                panel.plot(*zip(*points, strict=True), "-" if link else "k--", label=link or "drop")
        panel.set_title(trace, fontsize=9)
        panel.set_ylim(-0.02, 1.02)
        panel.set_xlim(0.18, 0.92)
    for panel in panels[len(traces) :]:
        panel.axis("off")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=5, frameon=False, title=OTHERS)
    figure.supxlabel("budget, share of the peak")
    figure.supylabel("time beyond the trace's own, over that")
    figure.savefig(path)


def main() -> int:
    """Runs all cells; prints the tables and writes text, CSV and PNG."""
    parser = argparse.ArgumentParser(description="What a second tier of memory would save.")
    parser.add_argument("--logs", type=Path, help="a folder of more logs, beside our own traces")
    parser.add_argument("--quick", action="store_true", help="one trace, one budget")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    paths = sorted(OWN.glob("*.log.gz"))
    if options.logs:
        paths += sorted([*options.logs.glob("*.log"), *options.logs.glob("*.log.gz")])
    if options.quick:
        paths = [OWN / "unet.log.gz"]
    budgets = (TOLD,) if options.quick else BUDGETS
    rows = [row for path in paths for row in rows_of(path, budgets, LINKS)]
    text = "\n".join([origin(), "", *told(rows, LINKS)]) + "\n"
    print(text, end="")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "link.txt").write_text(text)
    with open(options.out / "link.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, LINKS, options.out / "link.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
