"""How many records does a heuristic look at?

The paper's figure 11: an access is a score computed, or a storage visited to compute it or to keep
what it needs, such as a region or an evicted class, up to date. Machines and languages do not
matter to it. Runs that failed count up to their end, and are drawn hollow.

    python perf/paper/accesses.py [--logs LOGS] [--quick]
"""

from __future__ import annotations

from matplotlib.figure import Figure
from study import BUDGETS, options, ratio, tell, write_rows

HEURISTICS = ("dtr_full", "dtr", "dtr_local")


def main() -> None:
    chosen = options(__doc__, logs=True)
    budgets = BUDGETS[::3] if chosen.quick else BUDGETS
    results = chosen.sweep(HEURISTICS, budgets)
    traces = list(dict.fromkeys(result.trace for result in results))
    columns, high = min(4, len(traces)), -(-len(traces) // 4)
    figure = Figure(figsize=(3.2 * columns, 2.8 * high), layout="constrained", dpi=100)
    panels = list(figure.subplots(high, columns, squeeze=False).flat)
    for panel in panels[len(traces) :]:
        panel.axis("off")
    rows: list[dict[str, object]] = []
    for panel, trace in zip(panels, traces, strict=False):
        row: dict[str, object] = {"trace": trace}
        for index, name in enumerate(HEURISTICS):
            curve = sorted(
                (r for r in results if (r.trace, r.heuristic) == (trace, name)), key=ratio
            )
            done = [r for r in curve if r.status == "ok"]
            row[name] = max((r.accesses for r in done), default=0)
            row[f"a score, {name}"] = sum(r.accesses for r in curve) / max(
                sum(r.evaluations for r in curve), 1
            )
            colour = f"C{index}"
            panel.semilogy(
                [*map(ratio, curve)], [max(r.accesses, 1) for r in curve], color=colour, label=name
            )
            for results_of, fill in (
                (done, colour),
                ([r for r in curve if r not in done], "white"),
            ):
                points = [(ratio(r), max(r.accesses, 1)) for r in results_of]
                panel.plot(
                    *zip(*points, strict=True) if points else ([], []),
                    "o",
                    markersize=3.5,
                    color=colour,
                    markerfacecolor=fill,
                )
        rows.append(row)
        panel.set_title(trace, fontsize=9)
        panel.tick_params(labelsize=7)
        panel.set_xlabel("budget, share of the peak without one", fontsize=7)
    panels[0].set_ylabel("storages visited", fontsize=8)
    panels[0].legend(fontsize=7, frameon=False)
    told = "Storages visited, at most, in a run that was not cut off; and for each score"
    tell(chosen.file("accesses.txt"), chosen.begun, rows, told)
    write_rows(
        chosen.file("accesses.csv"),
        [
            {
                "trace": r.trace,
                "heuristic": r.heuristic,
                "ratio": ratio(r),
                "status": r.status,
                "evaluations": r.evaluations,
                "accesses": r.accesses,
            }
            for r in results
        ],
    )
    figure.savefig(chosen.file("accesses.png"))


if __name__ == "__main__":
    main()
