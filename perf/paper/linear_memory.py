"""What is in memory while a linear network runs forward and backward?

The paper's picture of the linear network: time in operators to the right, layers upward; light
where the layer's activation is in memory, dark red where its gradient is. Checkpoints, evenly
spaced, show as long lines, and recomputation between them as triangles. By lemma A.1 the forward
pass leaves no gap longer than 2 (N - 2) / (B - 1) under e*.

    python perf/paper/linear_memory.py [--quick]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from linear_network import linear_schedule
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from study import options, tell, write_rows

from dtr_alloc import SimulationResult
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

COMPUTED = 0  # The first kind of event.
ABSENT, FORWARD, BACKWARD = range(3)


@dataclass(frozen=True)
class Picture:
    """One run. `state` has a row for each layer and a column for each operator that ran."""

    layers: int
    budget: int
    result: SimulationResult
    state: npt.NDArray[np.int8]

    @property
    def forward_pass(self) -> int:
        """How many operators the forward pass took."""
        return self.layers  # None of them is run again: each reads the one before.

    def largest_gap(self) -> int:
        """The longest run of layers that are not in memory after the forward pass."""
        present = np.flatnonzero(self.state[:, self.forward_pass - 1] == FORWARD)
        edges = np.concatenate([[-1], present, [self.layers]])
        return int(np.diff(edges).max()) - 1


def picture(layers: int, budget: int, heuristic: str) -> Picture:
    """Runs a linear network and keeps what was in memory after each operator."""
    simulator = Simulator(linear_schedule(layers))
    result = simulator.run(budget, Rules(heuristic, mode="bytes", thrash=None, log_events=True))
    now = np.zeros(layers, np.int8)
    columns: list[npt.NDArray[np.int8]] = []
    for tensor, event in result.events.tolist():
        layer = tensor if tensor < layers else 2 * layers - 1 - tensor
        kind = FORWARD if tensor < layers else BACKWARD
        if event == COMPUTED:
            now[layer] = kind
            columns.append(now.copy())
        elif now[layer] == kind:
            now[layer] = ABSENT
    return Picture(layers, budget, result, np.stack(columns, axis=1))


def main() -> None:
    chosen = options(__doc__)
    layers = 64 if chosen.quick else 200
    root, log = math.ceil(2 * math.sqrt(layers)), math.ceil(math.log2(layers))
    runs = [("e_star", root), ("dtr", root), ("dtr_local", root), ("dtr", log)]
    pictures = [picture(layers, budget, heuristic) for heuristic, budget in runs]
    figure = Figure(figsize=(4.4 * len(runs), 3.4), layout="constrained", dpi=130)
    rows, events = [], []
    for axes, drawn in zip(figure.subplots(1, len(runs)), pictures, strict=True):
        result = drawn.result
        axes.imshow(
            drawn.state,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            cmap=ListedColormap(["#16161d", "#f2c14e", "#c8352b"]),
            vmin=ABSENT,
            vmax=BACKWARD,
        )
        axes.axvline(drawn.forward_pass, color="#ffffff", linewidth=0.8)
        axes.set_title(f"{result.heuristic}, {drawn.budget} of {layers} fit", fontsize=9)
        axes.set_xlabel("operators run", fontsize=8)
        axes.set_ylabel("layer", fontsize=8)
        rows.append(
            {
                "heuristic": result.heuristic,
                "layers": layers,
                "budget": drawn.budget,
                "run again / N": result.rematerializations / layers,
                "largest gap": drawn.largest_gap(),
                "lemma A.1": 2 * (layers - 2) / (drawn.budget - 1),
            }
        )
        events += [
            {"heuristic": result.heuristic, "budget": drawn.budget, "tensor": tensor, "event": kind}
            for tensor, kind in result.events.tolist()
        ]
    tell(chosen.file("linear_memory.txt"), chosen.begun, rows)
    write_rows(chosen.file("linear_memory.csv"), events)
    figure.savefig(chosen.file("linear_memory.png"))


if __name__ == "__main__":
    main()
