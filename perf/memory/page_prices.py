"""When is it right to move pages, and when to evict neighbours instead?

On a host a page costs next to nothing to move. On an H200 one of 2 MiB takes 25 us
(perf/gpu/run.py). The traces are replayed in a pool of such pages at several prices, by the default
heuristic: `ours` decides as a scope does, `always` moves whenever the bytes are there but
scattered, `never` has no pages that move and evicts windows. A cell is what was recomputed, and
what the moves took, as shares of the program's own time.

    python perf/memory/page_prices.py [--logs FOLDER] [--out perf/results]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin

from dtr_alloc import SimulationResult
from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS
from dtr_alloc.runtime.simulate.plot import short_name
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

OWN = Path(__file__).parents[1] / "traces"
PRICES = (20, 80, 200)  # Microseconds a page.
SHARES = (0.5, 0.3)  # Of the most bytes that the pool holds without a budget.
THRASH = 4.0


class Cell(NamedTuple):
    """Shares of the program's own time; infinite where the run did not finish."""

    recomputed: float
    moved: float

    @property
    def sum(self) -> float:
        return self.recomputed + self.moved

    def __str__(self) -> str:
        if self.sum == float("inf"):
            return "fails"
        return f"{self.recomputed:.3f}+{self.moved:.3f}"


def cell(result: SimulationResult, moves_ns: float) -> Cell:
    """Of a run whose moves took `moves_ns`."""
    if result.status != "ok":
        return Cell(float("inf"), float("inf"))
    recomputed = result.total_compute - result.base_compute
    return Cell(recomputed / result.base_compute, moves_ns / result.base_compute)


def rows(path: Path) -> Iterator[tuple[float, int, Cell, Cell, Cell]]:
    """Share of the peak, price, ours, always, never: for one trace."""
    simulator = Simulator(path, name=short_name(str(path)))
    pool = Rules(DEFAULT, mode="pool", thrash=THRASH)
    peak = simulator.run(1 << 38, replace(pool, pin_outputs=False)).peak_bytes
    windows = replace(PRESETS[DEFAULT], selection="window")
    for share in SHARES:
        budget = int(peak * share)
        free = simulator.run(budget, replace(pool, move_ns=1))  # So its moves_ns counts pages.
        fixed = simulator.run(budget, replace(pool, heuristic=windows, remap=False))
        for price in PRICES:
            ours = simulator.run(budget, replace(pool, move_ns=price * 1000))
            yield (
                share,
                price,
                cell(ours, ours.move_ns),
                cell(free, free.move_ns * price * 1000),
                cell(fixed, 0),
            )


def main() -> None:
    """Prints the table and writes it as text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path, help="a folder of logs, instead of our own traces")
    parser.add_argument("--quick", action="store_true", help="one trace")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    lines = [origin(), ""]
    lines += [
        f"{'trace':<16} share  us a page  {'ours':<14} {'always':<14} {'never':<14} over best"
    ]
    for path in sorted((options.logs or OWN).glob("*.log.gz"))[: 1 if options.quick else None]:
        for share, price, ours, always, never in rows(path):
            best = min(always.sum, never.sum)
            over = f"{ours.sum / best - 1:+.2f}" if best < float("inf") else "-"
            lines.append(
                f"{short_name(str(path)):<16} {share:5} {price:10}  "
                f"{ours!s:<14} {always!s:<14} {never!s:<14} {over}"
            )
    print("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "page_prices.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
