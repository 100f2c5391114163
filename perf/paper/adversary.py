"""How badly can an adversary treat a heuristic?

Theorem 3.2: for any deterministic heuristic there is a graph of N operators on which it runs
Omega(N^2 / B) of them, where a planner that knows the graph runs N. The adversary sees what is in
memory. A first tensor, which always stays, has B children, and there is room for B - 1 more; so one
of the B paths that begin with the children has nothing in memory, and the next operator extends the
shortest such path, which must then be recomputed from its beginning.

The engine is the live runtime's, on addresses alone: all tensors have one granule and all operators
cost 1, the budget is B granules, and nothing is released. For comparison the same graph is run path
by path, in the same memory.

    python perf/paper/adversary.py [--quick]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from study import options, tell, write_rows

from dtr_alloc.runtime.heuristic import PRESETS, Heuristic

sys.path.append(str(Path(__file__).parents[1] / "support"))

from engine_harness import EngineHarness

GRANULE = 512
MARKERS = "ox+sd^v<>*"
DETERMINISTIC = tuple(name for name in PRESETS if name != "random")


@dataclass(frozen=True)
class Game:
    """What it came to: `operations` of the heuristic, `planned` path by path."""

    heuristic: str
    nodes: int
    room: int
    operations: int
    planned: int


class _Run:
    """An engine with room for `room` tensors, one of them the first, which is a constant."""

    def __init__(self, room: int, heuristic: Heuristic) -> None:
        native = replace(heuristic, selection="single")._native()  # No luck.
        self.engine = EngineHarness(room * GRANULE, native)
        self.first = self.engine.constant(GRANULE, 0)
        self.called = 0

    def extend(self, parent: int) -> int:
        self.called += 1
        (made,) = self.engine.call(self.called, 1, [parent], [], [GRANULE])
        return made

    def operations(self) -> int:
        return self.called + self.engine.stats().rematerializations


def play(name: str, nodes: int, room: int) -> Game:
    """The adversary builds `nodes` operators against a preset with room for `room` tensors."""
    run = _Run(room, PRESETS[name])
    paths = [[run.extend(run.first)] for _ in range(room)]
    owner = {path[0]: index for index, path in enumerate(paths)}
    present = [sum(map(run.engine.resident, path)) for path in paths]
    run.engine.take_evicted()
    for _ in range(nodes - room):
        empty = (index for index, count in enumerate(present) if count == 0)
        chosen = min(empty, key=lambda index: len(paths[index]))
        path = paths[chosen]
        path.append(run.extend(path[-1]))
        owner[path[-1]] = chosen
        for lost in run.engine.take_evicted():
            present[owner[lost]] -= owner[lost] != chosen
        present[chosen] = sum(map(run.engine.resident, path))
    planned = _Run(room, PRESETS[name])
    for path in paths:
        last = planned.first
        for _ in path:
            last = planned.extend(last)
    return Game(name, nodes, room, run.operations(), planned.operations())


def slope(games: Sequence[Game]) -> float:
    """Of log(operations) over log(N^2 / B)."""
    bound = [game.nodes**2 / game.room for game in games]
    return float(np.polyfit(np.log(bound), np.log([game.operations for game in games]), 1)[0])


def main() -> None:
    chosen = options(__doc__)
    sizes = (128, 256, 512) if chosen.quick else (256, 512, 1024, 2048)
    rooms = (4, 8) if chosen.quick else (4, 8, 16, 32)
    games = [play(name, nodes, room) for name in DETERMINISTIC for room in rooms for nodes in sizes]
    rows = []
    for name in DETERMINISTIC:
        own = [game for game in games if game.heuristic == name]
        least = min(game.operations * game.room / game.nodes**2 for game in own)
        growth = [slope([g for g in own if g.room == room]) for room in rooms]
        rows.append(
            {
                "heuristic": name,
                "slope over N^2/B": round(slope(own), 3),
                "at fixed B": f"{min(growth):.3f} to {max(growth):.3f}",
                "least B ops/N^2": round(least, 3),
                "most ops/N": round(max(game.operations / game.nodes for game in own), 1),
                "planned ops/N": max(game.planned / game.nodes for game in own),
            }
        )
    tell(chosen.file("adversary.txt"), chosen.begun, rows)
    write_rows(chosen.file("adversary.csv"), [vars(game) for game in games])
    figure = Figure(figsize=(5, 4), layout="constrained", dpi=130)
    axes = figure.subplots()
    for index, name in enumerate(DETERMINISTIC):
        own = [game for game in games if game.heuristic == name]
        axes.loglog(
            [game.nodes**2 / game.room for game in own],
            [game.operations for game in own],
            MARKERS[index % len(MARKERS)],
            markersize=4,
            color=f"C{index}",
            markerfacecolor="none",
            label=name,
        )
    ends = [min(g.nodes**2 / g.room for g in games), max(g.nodes**2 / g.room for g in games)]
    axes.loglog(ends, [end / 2 for end in ends], "--", color="#888888", label="N^2 / 2B")
    axes.set_xlabel("N^2 / B")
    axes.set_ylabel("operators run")
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(chosen.file("adversary.png"))


if __name__ == "__main__":
    main()
