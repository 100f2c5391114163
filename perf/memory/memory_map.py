"""What does fragmentation look like? Memory over time, plain dtr beside the default.

A column is the pool at one moment of a run, lowest address at the bottom. Free memory that has
pages is red: between blocks it is what fragmentation leaves unused. White has no pages: the default
has more addresses than pages, and moves pages to where a request needs them.

    python perf/memory/memory_map.py [TRACE] [--budget 0.4] [--out perf/results/memory_map.png]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.append(str(Path(__file__).parents[1] / "support"))

from fragmentation import DEFAULT, OWN, PLENTY, WAYS
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from measurement import origin

from dtr_alloc import SimulationResult
from dtr_alloc.runtime.simulate.plot import short_name
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

SHOWN = ("dtr", DEFAULT)
KINDS = {
    "no page": "white",
    "free": "#d62728",
    "may be evicted": "#9ecae1",
    "may not": "#525252",
}
PICTURES = 600
LINES = 600


def image(result: SimulationResult, addresses: int) -> npt.NDArray[np.int64]:
    """For each of `LINES` lines of addresses and each picture, what is there, as in `KINDS`."""
    pixels = np.zeros((LINES, PICTURES), np.int64)
    for picture, offset, size, kind in result.layouts.tolist():  # Pages first, then blocks.
        begin, end = (at * LINES // addresses for at in (offset, offset + size))
        pixels[begin : max(end, begin + 1), picture] = kind + 1
    return pixels


def main() -> int:
    """Draws."""
    parser = argparse.ArgumentParser(description="Memory over time, plain dtr beside the default.")
    parser.add_argument("trace", type=Path, nargs="?", help="default: densenet of ours")
    parser.add_argument("--quick", action="store_true", help="unrolled_gan, which is small")
    parser.add_argument("--budget", type=float, default=0.4, help="share of the pool's peak")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results/memory_map.png"
    )
    options = parser.parse_args()
    trace = options.trace or OWN / f"{'unrolled_gan' if options.quick else 'densenet'}.log.gz"
    simulator = Simulator(trace, name=short_name(str(trace)))
    peak = simulator.run(PLENTY, Rules("dtr", thrash=None, pin_outputs=False)).peak_bytes
    budget = int(peak * options.budget)
    figure = Figure(figsize=(11, 4.6), layout="constrained", dpi=100)
    for panel, name in zip(figure.subplots(1, len(SHOWN)), SHOWN, strict=True):
        way = WAYS[name]
        result = simulator.run(
            budget, Rules(way.heuristic, mode="pool", remap=way.remap, layouts=PICTURES)
        )
        used = int((result.layouts[:, 1] + result.layouts[:, 2]).max())
        panel.imshow(
            image(result, used),
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            cmap=ListedColormap(list(KINDS.values())),
            vmin=0,
            vmax=len(KINDS) - 1,
            extent=(0, 1, 0, used / 2**20),
        )
        told = f"{result.overhead:.3f} times computed" if result.status == "ok" else result.status
        told += f", fragmentation at a miss {result.fragmentation:.4f}"
        panel.set_title(f"{name}: {told}", fontsize=10)
        print(f"{name}: {told}")
    figure.supxlabel(f"{simulator.name} at {options.budget} of its peak: share of the run")
    figure.supylabel("address, MiB")
    patches = [Patch(facecolor=colour, edgecolor="k", label=kind) for kind, colour in KINDS.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=4, frameon=False)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, metadata={"Description": origin()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
