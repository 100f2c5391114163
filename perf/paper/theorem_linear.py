"""How many operators does a linear network of N layers run again?

Theorem 3.1 says O(N) with room for 2 sqrt(N) tensors under e*, so that the count over N is bounded.
With room for log2(N) there is no theorem; the count is fitted with a N log2 N, and with a power of
N for comparison. Besides the presets runs the paper's score with the root of the staleness, which
the 2 sqrt(N) bound suits better: evenly spaced checkpoints are not less useful for being old.

Heuristics with exact regions take time that grows faster than the count, and stop at fewer layers;
`seconds` is one run, on one core.

    python perf/paper/theorem_linear.py [--quick]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from linear_network import linear_schedule
from matplotlib.figure import Figure
from study import options, tell, write_rows

from dtr_alloc.runtime.heuristic import Heuristic, name_of
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

BOUNDS = {
    "2 sqrt N": lambda layers: math.ceil(2 * math.sqrt(layers)),
    "log2 N": lambda layers: math.ceil(math.log2(layers)),
}
SLOWER_CLOCK = Heuristic(staleness_exp=0.5)
MOST_LAYERS: dict[str, dict[str | Heuristic, int]] = {
    "2 sqrt N": {"dtr": 65_536, SLOWER_CLOCK: 65_536, "dtr_full": 8_192, "e_star": 8_192},
    "log2 N": {"dtr": 65_536, SLOWER_CLOCK: 65_536, "dtr_full": 4_096, "e_star": 1_024},
}


@dataclass(frozen=True)
class Count:
    """One run."""

    bound: str
    heuristic: str
    layers: int
    budget: int
    again: int
    seconds: float


def label(heuristic: str | Heuristic) -> str:
    return "dtr, staleness ^ 0.5" if heuristic == SLOWER_CLOCK else name_of(heuristic)


def count(bound: str, heuristic: str | Heuristic, layers: int) -> Count:
    """Runs a linear network within the bound.

    Raises:
        RuntimeError: the run failed.
    """
    budget = BOUNDS[bound](layers)
    result = Simulator(linear_schedule(layers)).run(
        budget, Rules(heuristic, mode="bytes", thrash=None)
    )
    if result.status != "ok":
        raise RuntimeError(f"{layers} layers in {budget}: {result.status}")
    again, seconds = result.rematerializations, result.wall_seconds
    return Count(bound, label(heuristic), layers, budget, again, seconds)


def log_factor(counts: Sequence[Count]) -> tuple[float, float]:
    """The a of a N log2 N, by least squares of the logarithms, and the largest relative error."""
    layers = np.array([one.layers for one in counts], float)
    again = np.array([one.again for one in counts], float)
    shape = layers * np.log2(layers)
    factor = float(np.exp(np.mean(np.log(again / shape))))
    return factor, float(np.max(np.abs(again / (factor * shape) - 1)))


def exponent(counts: Sequence[Count]) -> float:
    """The slope of log(count) over log(N)."""
    layers, again = [one.layers for one in counts], [one.again for one in counts]
    return float(np.polyfit(np.log(layers), np.log(again), 1)[0])


def main() -> None:
    chosen = options(__doc__)
    most = 1024 if chosen.quick else 65_536
    counts = []
    for bound, heuristics in MOST_LAYERS.items():
        for heuristic, limit in heuristics.items():
            layers = 64
            while layers <= min(limit, most):
                counts.append(count(bound, heuristic, layers))
                layers *= 2
    rows = [
        {
            "bound": one.bound,
            "heuristic": one.heuristic,
            "N": one.layers,
            "budget": one.budget,
            "run again": one.again,
            "/ N": round(one.again / one.layers, 4),
            "/ N log2 N": round(one.again / one.layers / math.log2(one.layers), 4),
            "seconds": round(one.seconds, 4),
        }
        for one in counts
    ]
    fits = []
    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=130)
    for axes, bound in zip(figure.subplots(1, 2), BOUNDS, strict=True):
        for name in dict.fromkeys(one.heuristic for one in counts):
            curve = [c for c in counts if (c.bound, c.heuristic) == (bound, name)]
            factor, error = log_factor(curve)
            last = curve[-1]
            fits.append(
                f"{bound}, {name}: {last.again / last.layers:.3f} N at N = {last.layers:,};"
                f" {factor:.3f} N log2 N within {error:.0%}; N^{exponent(curve):.3f}"
            )
            axes.semilogx(
                [c.layers for c in curve],
                [c.again / c.layers for c in curve],
                "o-",
                base=2,
                markersize=3,
                linewidth=1.1,
                label=name,
            )
        axes.set_title(f"room for {bound}", fontsize=10)
        axes.set_xlabel("layers N", fontsize=8)
        axes.set_ylabel("run again / N", fontsize=8)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7, frameon=False)
    tell(chosen.file("theorem_linear.txt"), chosen.begun, rows, *fits)
    write_rows(chosen.file("theorem_linear.csv"), rows)
    figure.savefig(chosen.file("theorem_linear.png"))


if __name__ == "__main__":
    main()
