"""Does a plan come true?

A round trains each workload in plain torch, recorded without a budget, and within shares of its
activation peak (DESIGN.md, "What a budget means in the demo"), in turn. From the first two a plan
is made, and compared with the rest: of the time of each step the least over the rounds counts on
both sides. It is processor time, since torch has one thread and others use the machine too. "own
rounds" is how single rounds spread: the least and the largest quotient of a round's steps and the
same round's in plain torch. "redone" are rematerializations a step, live and foretold. A peak is
foretold exactly without a budget; within one both must keep to it.

    python perf/choice/plan.py --out perf/results/plan.json | tee perf/results/plan.txt
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from fidelity import persistent_bytes
from measurement import origin, provenance, write_json
from models import MODELS

import dtr_alloc
from dtr_alloc.runtime.planning.cost import rematerialization_ns
from dtr_alloc.runtime.planning.forecast import Forecast
from dtr_alloc.runtime.planning.profile import Profile, eager_steps, recorded_steps, timed

CLOCK = time.process_time_ns
SHARES = (0.7, 0.5, 0.3)
LIMIT = 0.10
"""Of predicted by measured slowdown, less one: what is promised."""


@dataclass(frozen=True)
class Row:
    """A budget of a model, foretold and measured. Slowdowns are multiples of plain torch."""

    model: str
    share: float | None
    budget_bytes: int | None
    peak_bytes: int
    predicted_peak_bytes: int
    slowdown: float
    predicted_slowdown: float
    own_rounds: tuple[float, float]
    rematerializations: float
    predicted_rematerializations: float

    @property
    def error(self) -> float:
        """Predicted by measured slowdown, less one."""
        return self.predicted_slowdown / self.slowdown - 1

    @property
    def kept(self) -> bool:
        """Whether slowdown and peak are what a plan promises."""
        if self.budget_bytes is None:
            peak = self.predicted_peak_bytes == self.peak_bytes
        else:
            peak = max(self.predicted_peak_bytes, self.peak_bytes) <= self.budget_bytes
        return peak and abs(self.error) <= LIMIT


class Live:
    """Trainings of one model at one budget."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.step_ns: list[tuple[int, ...]] = []
        self.peak = 0
        self.rematerializations: list[float] = []

    def train(self, name: str, steps: int) -> None:
        """One from scratch, timed; the first step warms up."""
        workload = MODELS[name]()
        with dtr_alloc.rematerialize(self.budget, thrash_limit=0) as session:
            workload.step()
            before = session.stats()
            self.step_ns.append(timed(workload.step, steps - 1, CLOCK))
            after = session.stats()
        self.peak = max(self.peak, after.peak_bytes)
        again = after.rematerializations - before.rematerializations
        self.rematerializations.append(again / (steps - 1))


def compare(name: str, steps: int, rounds: int) -> list[Row]:
    """A row for no budget, and one for each share."""

    def make_step() -> Callable[[], object]:
        return MODELS[name]().step

    workload = MODELS[name]()
    with dtr_alloc.measure() as session:
        for _ in range(steps):
            workload.step()
        peak = session.stats().peak_bytes
    persistent = persistent_bytes(workload)
    lives = {None: Live(None)} | {
        share: Live(int(share * (peak - persistent)) + persistent) for share in SHARES
    }
    eager, recorded = [], []
    for _ in range(rounds):
        eager.append(eager_steps(make_step, steps, CLOCK))
        recorded.append(recorded_steps(make_step, steps, clock=CLOCK))
        for live in lives.values():
            live.train(name, steps)
    profile = Profile.of(eager, recorded)
    forecast = Forecast(profile, around_ns=rematerialization_ns())
    rows = []
    for share, live in lives.items():
        foretold = forecast.predict(live.budget)
        least = sum(map(min, zip(*live.step_ns, strict=True)))
        ratios = [sum(ns) / sum(plain) for ns, plain in zip(live.step_ns, eager, strict=True)]
        rows.append(
            Row(
                name,
                share,
                live.budget,
                live.peak,
                foretold.peak_bytes,
                least / sum(profile.eager_ns),
                foretold.slowdown,
                (min(ratios), max(ratios)),
                sorted(live.rematerializations)[rounds // 2],
                foretold.rematerializations,
            )
        )
    return rows


def main() -> int:
    """Compares all workloads; returns 1 if fewer than three of them keep the promise everywhere, or
    than all, where fewer were asked for."""
    parser = argparse.ArgumentParser(description="Plans against live runs.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: all")
    parser.add_argument("--quick", action="store_true", help="one small model, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(origin())
    print(f"beyond what is simulated: {rematerialization_ns() / 1e3:.1f} us a rematerialization\n")
    print(
        "model         budget  peak MiB  foretold  slowdown  predicted   error  own rounds  redone"
    )
    rows: list[Row] = []
    models = options.models or (["unrolled_gan"] if options.quick else list(MODELS))
    for name in models:
        made = compare(name, steps=4, rounds=2 if options.quick else options.rounds)
        rows += made
        for row in made:
            low, high = row.own_rounds
            share = "none" if row.share is None else f"{row.share}"
            exact = "exactly" if row.peak_bytes == row.predicted_peak_bytes else "within"
            print(
                f"{row.model:<13} {share:>6}  {row.peak_bytes / 2**20:>8.1f}  {exact:>8}  "
                f"{row.slowdown:>8.3f}  {row.predicted_slowdown:>9.3f}  {row.error:>+6.1%}  "
                f" {low:.2f}-{high:.2f}  {row.rematerializations:>5.0f} "
                f"{row.predicted_rematerializations:>5.0f}{'' if row.kept else '  NOT KEPT'}",
                flush=True,
            )
    kept = [
        n for n in dict.fromkeys(r.model for r in rows) if all(r.kept for r in rows if r.model == n)
    ]
    worst = max(abs(row.error) for row in rows)
    print(f"\nwithin {LIMIT:.0%} at every budget: {', '.join(kept) or 'none'}; worst {worst:.1%}")
    if options.out is not None:
        document = provenance() | {
            "rematerialization_ns": rematerialization_ns(),
            "rows": [asdict(row) | {"error": row.error, "kept": row.kept} for row in rows],
        }
        write_json(options.out, document)
    return 0 if len(kept) >= min(3, len(models)) else 1


if __name__ == "__main__":
    sys.exit(main())
