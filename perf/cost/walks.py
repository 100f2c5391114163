"""What takes longer where the program keeps more tensors?

Beside so many kept results of 1 KiB: opening a scope (the tensors outlived the one before), leaving
it (they become ordinary), an operator, the end of a step, and a write beside results of NumPy's
arrays. In a budget that the results fill, each operator evicts one: as usual, as the first of a
step, and as the first after a change of tape, where the step is another than predicted. Then one
evicts many. Results are of nothing, of one tensor that is kept, or of one that was dropped.
Microseconds of processor time: of rounds the median of their medians.

The walks of the C++ that may be long: over what, and when. Where a last part says so, the walk ends
early, or is no longer than what changed.

    Selector::choose_among_all, fill: candidates; a victim; 2 % of the time, then a sample
    choose_waiting, waiting_bytes: candidates; a victim when nothing else is left
    Needs::catch_up: candidates, the step's accesses; the first victim of a step or tape
    Needs::least_behind: values made from one; its first use after catch_up; one of them comes back
    Lineages::forget_ahead, leads_on: values made from one; it is lost, comes back or is dropped
    Histories::resting_on: values made from a constant; a write to it, a victim;
        it ends where more than the constant's size rests on it
    Histories::walk, Orphans::next: recipes, orphans; a use, a victim; 256 of them
    cheapest_window: blocks; a victim of "window", or on a device
    Holes::best_fit, site_after_moves: holes without pages; a request when all pages are taken
    Constants::over: constants in no library's memory; a write to a library's storage
    shed_sometimes: constants; their number has doubled; what changed
    Needs::due: values in a device's swap; an operator, if one is needed soon
    TraceRecorder::untrack: copies of constants; a tensor dies in measure()'s first steps
    commit: the program's values; a scope ends; what changed
    return_all: the same, for each missing one; a fork
    evictable_bytes, clear_pages: candidates, blocks; a smaller budget

    python perf/cost/walks.py [--quick] [--out perf/results/walks.json]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, end_first_steps, report

import dtr_alloc

Times = defaultdict[str, list[float]]
ITEMS = 256  # Of 4 bytes.
STEPS = 32


def us(act: Callable[[], object], times: int = 1) -> float:
    begin = time.process_time_ns()
    for _ in range(times):
        act()
    return (time.process_time_ns() - begin) / times / 1e3


def ender() -> Callable[[], object]:
    """Of a step; without a gradient, it writes nothing."""
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step


def roomy(count: int, found: Times) -> None:
    written, arrays = torch.ones(ITEMS), np.ones((count, ITEMS), np.float32)
    kept: list[list[Tensor]] = []
    for _ in range(2):
        scope = dtr_alloc.rematerialize(None)
        opening = us(scope.__enter__)
        end_first_steps()
        sources = [torch.from_numpy(array) for array in arrays]
        kept.append([source + 1 for source in sources])
        found["a write, beside arrays"].append(us(lambda: written.add_(1), 100))
        found["an operator"].append(us(lambda: written + 1, 1000))
        end = ender()
        for _ in range(STEPS):
            torch.add(written, written)  # Without work, an optimizer's step ends none.
            found["the end of a step"].append(us(end))
        found["leaving a scope"].append(us(partial(scope.__exit__, None, None, None)))
    found["opening a scope"].append(opening)


def full(count: int, found: Times, of: str) -> None:
    """Of four steps one reads its argument twice, as no other tape does."""
    source = torch.ones(ITEMS)
    with dtr_alloc.rematerialize(count * ITEMS * 4) as session:
        end_first_steps()
        base = torch.ones(ITEMS) * 1  # Of constants a tape knows nothing.
        if of == "nothing":
            kept = [torch.full((ITEMS,), float(number)) for number in range(count)]
        else:
            kept = [(base if of == "one kept" else source) + number for number in range(count)]
        del source
        end = ender()
        for step in range(STEPS):
            other, changed = (base, " of a new tape") if step % 4 == 3 else (1, "")
            for which in (" of a new step", changed, "", "", "", ""):
                took = us(
                    partial(lambda kept, *two: kept.append(torch.add(*two)), kept, base, other)
                )
                if step >= STEPS // 2:  # Both tapes are known by now.
                    found[f"an eviction{which}, all made of {of}"].append(took)
            end()
        before = session.stats().evictions
        took = us(partial(torch.empty, 128 * ITEMS)) / (session.stats().evictions - before)
        found[f"an eviction of many at once, all made of {of}"].append(took)
        del kept  # Leaving the scope would bring all of them back.


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer tensors")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts = (500, 5000) if options.quick else (1000, 100_000)
    figures: Times = defaultdict(list)
    for count in counts * (1 if options.quick else 5):
        found: Times = defaultdict(list)
        roomy(count, found)
        for of in ("nothing", "one kept", "one dropped"):
            full(count, found, of)
        for name, times in found.items():
            figures[f"{name}, beside {count:,}"].append(statistics.median(times))
    measured = [Measurement(name, statistics.median(each), "us") for name, each in figures.items()]
    return report(measured, options.out)


if __name__ == "__main__":
    sys.exit(main())
