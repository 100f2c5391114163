"""What does a scope over torch's own memory cost while the budget is never reached?

The demo's five models train in four ways, in an order that is drawn anew for each round: in plain
eager, in a scope whose memory is torch's own, and in a pool with recording and without, where no
operator is looked at. No way evicts anything. Recording costs what the pool with it takes over the
pool without; a guest should cost that and at most a hundredth more, over plain eager. Processor
time of one thread: of each round the median step, over the other way's in the same round; the
median of the rounds of several processes. On shared cores single rounds differ by a tenth and more,
and the medians of two runs by some hundredths: one run does not show that the limit holds.

Malloc is told to keep what it has. Otherwise it gives memory back and takes it again, for 2,000
page faults in one process and 50,000 in the next, and they decide the figure.

    python perf/guest.py [--quick] [--out perf/results/guest.json]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measurement import Measurement, end_first_steps, report

import dtr_alloc
from dtr_alloc.demo import MODELS, Job

KEEP = "glibc.malloc.mmap_threshold=2147483648:glibc.malloc.trim_threshold=8589934592"
PLENTY = "16GiB"
MORE = 0.01
STEPS = 6
PROCESSES, ROUNDS = 5, 4


@contextmanager
def pool_alone() -> Iterator[None]:
    """Eager in the pool. Its memory goes by the thread, which stays in the scope."""
    interception = torch._C._parse_dispatch_key("Fake")
    assert interception is not None
    keys = torch._C.DispatchKeySet(interception)
    with dtr_alloc.measure():
        end_first_steps()
        with torch._C._ExcludeDispatchKeyGuard(keys):
            yield


Way = Callable[[], AbstractContextManager[Any]]
WAYS: dict[str, Way] = {
    "eager": nullcontext,
    "guest": partial(dtr_alloc.rematerialize, PLENTY, memory="torch"),
    "recorded": partial(dtr_alloc.rematerialize, None),
    "pool": pool_alone,
}


class Program:
    """A model in training, the same for all ways."""

    def __init__(self, make: Callable[[], Job]) -> None:
        torch.manual_seed(0)
        self._job = make()
        self._optimizer = self._job.optimizer(self._job.model.parameters())
        self._batch = self._job.batch(torch.Generator().manual_seed(1))
        self.step()  # Makes the optimizer's state.

    def step(self) -> None:
        self._job.loss(self._job.model, self._batch).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()

    def seconds(self, way: Way) -> float:
        """The median step."""
        took = []
        with way() as session:
            if session is not None:
                end_first_steps()
            for _ in range(STEPS):
                began = time.process_time()
                self.step()
                took.append(time.process_time() - began)
        return statistics.median(took[1:])


def ratios(name: str, rounds: int, seed: int) -> list[tuple[float, float]]:
    """What recording costs over the pool alone, and a guest over plain eager, in each round."""
    torch.set_num_threads(1)
    program = Program(MODELS[name])
    draw = random.Random(seed)
    names = list(WAYS)
    found = []
    for _ in range(rounds):
        draw.shuffle(names)
        took = {way: program.seconds(WAYS[way]) for way in names}
        found.append((took["recorded"] / took["pool"], took["guest"] / took["eager"]))
    return found


def measured(name: str, processes: int, rounds: int) -> list[Measurement]:
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        each = [pool.apply(ratios, (name, rounds, seed)) for seed in range(processes)]
    recording, guest = zip(*(one for found in each for one in found), strict=True)
    added = [more - less for less, more in zip(recording, guest, strict=True)]
    return [
        Measurement(f"{name}: recording, over the pool without", statistics.median(recording), "x"),
        Measurement(f"{name}: a guest over plain eager", statistics.median(guest), "x"),
        Measurement(f"{name}: the one more than the other", statistics.median(added), "", MORE),
    ]


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model, one round")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if os.environ.get("GLIBC_TUNABLES") != KEEP:  # Read once, as a process begins.
        os.environ["GLIBC_TUNABLES"] = KEEP
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(1)
    found = []
    for name in ["resnet"] if options.quick else MODELS:
        found += measured(name, 1, 1) if options.quick else measured(name, PROCESSES, ROUNDS)
    return report(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
