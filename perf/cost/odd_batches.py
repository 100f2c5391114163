"""Does a run of random lengths get through under a cap, and which steps pay for it?

The demo's GPT trains for 10,000 steps on texts of 16 to 512 characters, the lengths drawn evenly.
The cap is what the 95th percentile of them needs: one step in twenty does not fit. Each step is
taken five ways: in plain eager, and in a scope whose memory is a pool's or torch's own, with the
cap and with a budget that no step reaches. A scope lasts for a hundred steps, then another way
takes the same steps, in an order that is drawn anew for each hundred. After it all five models must
have the same bits.

Processor time of the steps that needed evictions, and of the others, over the same steps with the
budget that none reaches: the median of the hundreds, since a machine's mood lasts for seconds, and
by it whole runs differed by 3 %. Optimizer state is made before the scopes, so the cap holds
activations and gradients. A small model, since each step is taken five times: some forty minutes.

    python perf/cost/odd_batches.py [--quick] [--steps 10000] [--out perf/results/odd_batches.json]
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, end_first_steps, report

import dtr_alloc
from dtr_alloc.demo.models import gpt
from dtr_alloc.runtime.scope.scope import Memory

SHORTEST, LONGEST = 16, 512
TEXTS = 1
SHARE = 0.95
CHUNK = 100  # Steps of one scope.
ROOM = 4  # Times the cap: more than any step needs.

small_gpt = partial(gpt, layers=3, width=64, texts=TEXTS, length=LONGEST)


class Program:
    """A model in training; of each step its time and what was evicted for it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.job = small_gpt()
        self.optimizer = self.job.optimizer(self.job.model.parameters())
        self.nanoseconds: list[int] = []
        self.evicted: list[int] = []
        self.step(0, SHORTEST)  # Makes the optimizer's state.

    def step(self, number: int, length: int) -> None:
        torch.manual_seed(number)  # Of dropout and of the text.
        text = torch.randint(256, (TEXTS, length + 1))
        self.job.loss(self.job.model, text).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, first: int, lengths: list[int], session: dtr_alloc.Session | None) -> None:
        for number, length in enumerate(lengths, start=first):
            before = session.stats().evicted_bytes if session else 0
            began = time.process_time_ns()
            self.step(number, length)
            self.nanoseconds.append(time.process_time_ns() - began)
            after = session.stats().evicted_bytes if session else 0
            self.evicted.append(after - before)

    def state(self) -> list[torch.Tensor]:
        return list(self.job.model.parameters())


@contextmanager
def scope(memory: Memory, budget: int) -> Iterator[dtr_alloc.Session]:
    with dtr_alloc.rematerialize(budget, memory=memory) as session:
        end_first_steps()
        yield session


def cap_of(lengths: list[int]) -> int:
    """The bytes that a step of the 95th percentile needs."""
    program = Program()
    with dtr_alloc.measure() as session:
        program.step(1, sorted(lengths)[int(SHARE * len(lengths))])
    return session.stats().peak_bytes


def run(steps: int) -> tuple[dict[str, Program], int, bool]:
    """The five programs, the cap, and whether they had the same bits after each chunk."""
    draw = random.Random(0)
    lengths = [draw.randint(SHORTEST, LONGEST) for _ in range(steps)]
    cap = cap_of(lengths)
    ways: dict[str, Callable[[], AbstractContextManager[dtr_alloc.Session | None]]] = {
        "eager": nullcontext,
        "pool": lambda: scope("pool", ROOM * cap),
        "pool, capped": lambda: scope("pool", cap),
        "torch": lambda: scope("torch", ROOM * cap),
        "torch, capped": lambda: scope("torch", cap),
    }
    programs = {name: Program() for name in ways}
    same = True
    names = list(ways)
    for first in range(0, steps, CHUNK):
        draw.shuffle(names)
        for name in names:
            with ways[name]() as session:
                programs[name].steps(first + 1, lengths[first : first + CHUNK], session)
        expected = programs["eager"].state()
        for program in programs.values():
            same = same and all(map(torch.equal, program.state(), expected))
    return programs, cap, same


def measurements(programs: dict[str, Program], cap: int, same: bool) -> list[Measurement]:
    plain = programs["eager"].nanoseconds
    found = [
        Measurement("steps", len(plain), ""),
        Measurement("cap", cap / 2**20, "MiB"),
        Measurement("models that differ from eager's", 0 if same else 1, "", limit=0),
    ]
    for memory in "pool", "torch":
        free, capped = (programs[way].nanoseconds for way in (memory, f"{memory}, capped"))
        evicted = programs[f"{memory}, capped"].evicted
        odd = [n for n, size in enumerate(evicted) if size]
        usual = [n for n, size in enumerate(evicted) if not size]
        slowest = max((capped[n] / free[n] for n in odd), default=0)
        each = sum(evicted) / 2**20 / max(len(odd), 1)
        found += [
            Measurement(f"{memory}: steps that needed evictions", len(odd), ""),
            Measurement(f"{memory}: evicted in each of them", each, "MiB"),
            Measurement(f"{memory}: those over no cap", over(free, capped, odd), "x", limit=2),
            Measurement(f"{memory}: the slowest of them", slowest, "x"),
            Measurement(
                f"{memory}: others over no cap", over(free, capped, usual), "x", limit=1.01
            ),
            Measurement(f"{memory}: all, no cap over eager", over(plain, free), "x"),
            Measurement(f"{memory}: all, cap over eager", over(plain, capped), "x"),
        ]
    return found


def over(base: list[int], ran: list[int], some: list[int] | None = None) -> float:
    """The time that some steps took in a run, over theirs in another: the median of the chunks."""
    steps = range(len(base)) if some is None else some
    ratios = []
    for _, chunk in itertools.groupby(steps, key=lambda n: n // CHUNK):
        of_chunk = list(chunk)
        ratios.append(sum(ran[n] for n in of_chunk) / sum(base[n] for n in of_chunk))
    return statistics.median(ratios) if ratios else 0


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 steps")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="step .* of an optimizer did not fit")
        found = run(200 if options.quick else options.steps)
    return report(measurements(*found), options.out)


if __name__ == "__main__":
    sys.exit(main())
