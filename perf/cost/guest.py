"""What does a scope over torch's own memory cost while the budget is never reached?

The demo's five models train in four ways: in plain eager, in a scope whose memory is torch's own,
and in a pool with recording and without, where no operator is looked at. No way evicts anything.
Recording costs what the pool with it takes over the pool without; a guest should cost that and at
most a hundredth more, over plain eager.

Processor time of one thread. Each way runs in a process of its own, as a user's program does,
because a way leaves malloc's heap in pieces for the next one. The four processes are there at the
same time and take turns, a step each, in an order that is drawn anew for each turn. So a machine
that is slower for some seconds is so for all of them. A ratio is the median over the turns.

Where memory happens to lie differs from process to process, and moves a ratio by some hundredths.
So a model's figure is the median over a dozen such foursomes, with the quarters beside it, and the
limit is for the mean of the models.

Malloc is told to keep what it has. Otherwise it gives memory back and takes it again, for 2,000
page faults in one process and 50,000 in the next, and they decide the figure.

    python perf/cost/guest.py [--quick] [--out perf/results/guest.json]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, end_first_steps, report

import dtr_alloc
from dtr_alloc.demo import MODELS, Job

KEEP = "glibc.malloc.mmap_threshold=2147483648:glibc.malloc.trim_threshold=8589934592"
PLENTY = "16GiB"
MORE = 0.01
STEPS, ROUNDS = 8, 12


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


scopes = ExitStack()  # That this process never leaves.
running: Callable[[], None]  # What this process runs in its turns.


def begin(name: str, way: str) -> None:
    """Opens the way's scope in this process, for good, and trains three steps, not counted."""
    global running
    torch.set_num_threads(1)
    program = Program(MODELS[name])
    session = scopes.enter_context(WAYS[way]())
    if session is not None:
        end_first_steps()
    running = program.step
    for _ in range(3):
        running()


def step_seconds() -> float:
    """The processor time of the next step in this process."""
    began = time.process_time()
    running()
    return time.process_time() - began


def turns(name: str, steps: int, draw: random.Random) -> list[dict[str, float]]:
    """The seconds of each way's step in each turn."""
    fresh = partial(ProcessPoolExecutor, 1, multiprocessing.get_context("spawn"), begin)
    with ExitStack() as processes:
        ways = {way: processes.enter_context(fresh((name, way))) for way in WAYS}
        wait([one.submit(step_seconds) for one in ways.values()])  # Until all have begun.
        return [
            {
                way: ways[way].submit(step_seconds).result()
                for way in draw.sample([*WAYS], len(WAYS))
            }
            for _ in range(steps)
        ]


def measured(name: str, rounds: int, steps: int) -> tuple[list[Measurement], float]:
    """A model's figures, and by how much a guest adds more than recording does."""
    draw = random.Random(name)
    foursomes = [turns(name, steps, draw) for _ in range(rounds)]

    def over(one: str, other: str) -> list[float]:
        return [median(turn[one] / turn[other] for turn in run) for run in foursomes]

    eager = median(median(turn["eager"] for turn in run) for run in foursomes)
    recording, guest = over("recorded", "pool"), over("guest", "eager")
    more = [one - other for one, other in zip(guest, recording, strict=True)]
    quarters = quantiles(more, n=4) if rounds > 1 else more * 3
    found = [
        Measurement(f"{name}: plain eager", eager * 1e3, "ms"),
        Measurement(f"{name}: recording, over the pool without", median(recording), "x"),
        Measurement(f"{name}: a guest over plain eager", median(guest), "x"),
        Measurement(f"{name}: the one more than the other", median(more), ""),
        Measurement(f"{name}: a quarter of the processes below", quarters[0], ""),
        Measurement(f"{name}: a quarter of the processes above", quarters[2], ""),
    ]
    return found, median(more)


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model, one round, few steps")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if os.environ.get("GLIBC_TUNABLES") != KEEP:  # Read once, as a process begins.
        os.environ["GLIBC_TUNABLES"] = KEEP
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(1)
    found, adds = [], []
    for name in ["resnet"] if options.quick else MODELS:
        of_model, more = measured(name, *((1, 5) if options.quick else (ROUNDS, STEPS)))
        found += of_model
        adds.append(more)
    found.append(Measurement("mean: the one more than the other", fmean(adds), "", MORE))
    return report(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
