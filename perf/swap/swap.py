"""How small can a budget be where gradients and optimizer state may go to a file, and what does it
cost?

The demo's five models train three steps at budgets that are halved between the last that ran and
the last that was refused, with swap and without. The floor is the smallest that ran, to a
hundredth. The error of the last budget that was refused with swap tells how much was read and made
by operators then, and asked for: what no swap can take. At the floor without swap, at the one with
swap and at 30 % of the activation peak (DESIGN.md, "What a budget means in the demo") the steps are
timed, in turn with steps without a budget: the median of the rounds, in processor time of one
thread. Every training must have eager's bits.

    python perf/swap/swap.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, report

import dtr_alloc
from dtr_alloc.demo import MODELS, Job
from dtr_alloc.pool.size import parse_size

STEPS = 3
SHARE = 0.3
FLOOR = 0.6
"""Of the floor without swap: what swap should reach."""
IN_USE = re.compile(
    r"MiB: (\S+ \S+) asked, .*?(\S+ \S+) are read by operators(?:.*?, (\S+ \S+) were made so far)?"
)


@dataclass(frozen=True)
class Trained:
    """What a training came to, and what its later steps took."""

    parameters: list[torch.Tensor]
    seconds: float
    stats: dtr_alloc.SessionStats | None = None


def train(make: Callable[[], Job]) -> Trained:
    torch.manual_seed(0)
    job = make()
    optimizer = job.optimizer(job.model.parameters())
    draw = torch.Generator().manual_seed(1)
    began = 0.0
    for step in range(STEPS):
        if step == 1:
            began = time.process_time()
        job.loss(job.model, job.batch(draw)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    seconds = (time.process_time() - began) / (STEPS - 1)
    return Trained([parameter.detach().clone() for parameter in job.model.parameters()], seconds)


class Model:
    """One of the demo's, and what it needs in eager execution."""

    def __init__(self, make: Callable[[], Job], folder: str) -> None:
        self._make = make
        self._swap: dict[str, Any] = {"swap": "1GiB", "swap_dir": folder, "swap_anywhere": True}
        self.eager = train(make)
        with dtr_alloc.measure() as session:
            train(make)
        self.peak = session.stats().peak_bytes
        self.kept = self._kept()
        self.refusal = ""
        """The error of the last budget that was refused."""

    def _kept(self) -> int:
        """Gradients and optimizer state."""
        job = self._make()
        optimizer = job.optimizer(job.model.parameters())
        job.loss(job.model, job.batch(torch.Generator())).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        state = (x for entry in optimizer.state.values() for x in entry.values())
        kept = [x for x in state if isinstance(x, torch.Tensor)]
        kept += [p.grad for p in job.model.parameters() if p.grad is not None]
        return sum(tensor.nbytes for tensor in kept)

    def at(self, budget: int | None, *, swap: bool) -> Trained | None:
        """Trains; None where the budget is refused."""
        try:
            with dtr_alloc.rematerialize(budget, **(self._swap if swap else {})) as session:
                done = train(self._make)
        except torch.OutOfMemoryError as error:
            self.refusal = str(error)
            return None
        if not all(map(torch.equal, done.parameters, self.eager.parameters)):
            raise AssertionError(f"budget {budget}, swap {swap}: not eager's bits")
        return Trained(done.parameters, done.seconds, session.stats())

    def floor(self, *, swap: bool) -> int:
        refused, ran = 0, self.peak
        while ran - refused > ran // 100:
            middle = (ran + refused) // 2
            if self.at(middle, swap=swap):
                ran = middle
            else:
                refused = middle
        return ran

    def in_use(self) -> int | None:
        """Bytes that operators read, had made and asked for when a budget was refused last."""
        told = IN_USE.search(self.refusal)
        sizes = [size.replace(" ", "") for size in told.groups() if size] if told else []
        return sum(parse_size(size) for size in sizes if size != "0B") or None

    def slowdown(self, budget: int, rounds: int, *, swap: bool) -> tuple[float, Trained] | None:
        """Over steps without a budget; and the last training. None where every round was refused:
        what is evicted hangs on times, so the smallest budget that ran once may not run again.
        """
        ran: list[Trained] = []
        ratios = []
        for _ in range(rounds):
            free, bounded = self.at(None, swap=False), self.at(budget, swap=swap)
            if free and bounded:
                ratios.append(bounded.seconds / free.seconds)
                ran.append(bounded)
        return (statistics.median(ratios), ran[-1]) if ran else None


def measured(name: str, folder: str, rounds: int) -> list[Measurement]:
    model = Model(MODELS[name], folder)
    without, with_swap = model.floor(swap=False), model.floor(swap=True)
    in_use = model.in_use()
    third = model.kept + int(SHARE * (model.peak - model.kept))
    found = [
        Measurement(f"{name}: floor without swap", without / 2**20, "MiB"),
        Measurement(f"{name}: floor with swap", with_swap / 2**20, "MiB"),
        Measurement(f"{name}: the one over the other", with_swap / without, "x", limit=FLOOR),
    ]
    if in_use is not None:
        found.append(Measurement(f"{name}: in use by operators below it", in_use / 2**20, "MiB"))
    for label, budget, swaps in (
        ("its floor", without, (False, True)),
        ("swap's floor", with_swap, (True,)),
        ("30 %", third, (False, True) if third >= without else (True,)),
    ):
        for swap in swaps:
            timed = model.slowdown(budget, rounds, swap=swap)
            if timed is None:
                continue
            ratio, trained = timed
            row = f"{name}: at {label}, {'swap' if swap else 'no swap'}"
            found.append(Measurement(f"{row}: step", ratio, "x"))
            stats = trained.stats
            if swap and stats:
                moved = stats.swapped_out_bytes + stats.swapped_in_bytes
                found.append(Measurement(f"{row}: moved", moved / STEPS / 2**20, "MiB/step"))
    return found


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small model, one round")
    parser.add_argument("--out", type=Path, help="folder for swap.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ["treelstm"] if options.quick else MODELS:
            found += measured(name, folder, 1 if options.quick else 5)
    return report(found, options.out / "swap.json" if options.out else None)


if __name__ == "__main__":
    sys.exit(main())
