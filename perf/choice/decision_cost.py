"""Does the cost of choosing a victim grow faster than the number of candidates?

A chain of operators of the same cost and size, of which so many results fit as there shall be
candidates: each operator beyond evicts one, and the simulator looks at all of them. The figure is
the time of the whole run for each score computed, so it holds the search and what keeps the
neighbourhoods up to date. Best of three runs. Candidates beyond the processor's caches cost a miss
each, which is the growth that the limit allows.

The search of a window looks at each block of the pool once. In order: the chain above, with every
fourth value evicted, so that most others are next to a missing one. Scattered: values of one to six
granules, made of two others, a quarter of them evicted and half of these back elsewhere. The least
of 400 searches.

    python perf/choice/decision_cost.py --out perf/results/decision_cost.json
"""

import argparse
import random
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("paper", "support")]

from engine_harness import EngineHarness
from linear_network import linear_schedule
from measurement import Measurement, report

from dtr_alloc.runtime.heuristic import PRESETS
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

HEURISTICS = ("dtr", "dtr_local", "lru", "size", "dtr_full", "msps")
CANDIDATES = (100, 1_000, 10_000)
GROWTH_LIMIT = 4.0
WINDOW_LIMIT_US = 5.0
"""Among 1,000 blocks; ten times that among 10,000."""
BLOCK = 512


def score_ns(heuristic: str, candidates: int, decisions: int) -> float:
    """Nanoseconds of a run for each score, with `decisions` evictions among `candidates`."""
    layers = candidates + decisions
    whole = linear_schedule(layers)
    forward = replace(whole, kind=whole.kind[:layers], operand=whole.operand[:layers])
    simulator = Simulator(forward)
    runs = [
        simulator.run(candidates, Rules(heuristic, mode="bytes", thrash=None)) for _ in range(3)
    ]
    if runs[0].evictions != decisions:
        raise RuntimeError(f"{runs[0].evictions} evictions where {decisions} were to be made")
    return min(run.wall_seconds for run in runs) * 1e9 / runs[0].evaluations


def window_us(heuristic: str, blocks: int, *, scattered: bool) -> float:
    """The least time of the search of a window for eight granules, among so many blocks."""
    draw = random.Random(0)
    budget = blocks * (4 if scattered else 1) * BLOCK
    run = EngineHarness(budget, replace(PRESETS[heuristic], selection="window")._native())
    made = [run.constant(BLOCK, 7)]
    for name in range(blocks - 1):
        inputs, size = made[-1:], BLOCK
        if scattered:
            inputs, size = [made[-1], draw.choice(made[-20:])], draw.randint(1, 6) * BLOCK
        made += run.call(name, 1000 + name * 7919 % 5000, inputs, [], [size])
    gone = draw.sample(made[1:], blocks // 4) if scattered else made[1::4]
    for result in gone:
        run.evict(result)
    for result in gone[: len(gone) // 2] if scattered else ():
        run.read(result)
    return run.time_window(8 * BLOCK, 400) / 1e3


def main() -> int:
    """Measures; returns 1 if the time of a score grows by more than caches explain."""
    parser = argparse.ArgumentParser(description="Cost of a decision among many candidates.")
    parser.add_argument("--quick", action="store_true", help="fewer candidates")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    sizes = CANDIDATES[:2] if options.quick else CANDIDATES
    found = []
    for heuristic in HEURISTICS:
        ns = [score_ns(heuristic, size, 500) for size in sizes]
        for size, each in zip(sizes, ns, strict=True):
            found.append(Measurement(f"{heuristic}: a score of {size:,}", each, "ns"))
        growth = ns[-1] / ns[0]
        found.append(Measurement(f"{heuristic}: growth", growth, "x", GROWTH_LIMIT))
    for heuristic, scattered in product(("dtr", "dtr_local"), (False, True)):
        way = f"{heuristic}, {'scattered' if scattered else 'in order'}"
        us = [window_us(heuristic, size, scattered=scattered) for size in sizes]
        for size, each in zip(sizes, us, strict=True):
            limit = WINDOW_LIMIT_US * size / 1_000 if size >= 1_000 else None
            found.append(Measurement(f"{way}: a window among {size:,}", each, "us", limit))
        growth = us[-1] / us[-2] * sizes[-2] / sizes[-1]
        found.append(Measurement(f"{way}: growth for each block", growth, "x", GROWTH_LIMIT))
    return report(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
