"""Where does the live runtime's time go?

The paper's figure 4 profiles its prototype: recomputed operators, computing scores, the rest of the
search for a victim, and other overhead. Here, of each demo model's training step at a budget: the
program's own operators, operators run again, the search (scores included: a score takes tens of ns,
less than the clock that would time it), bookkeeping around operators, and what is left: Python,
autograd and the dispatcher, which eager has too. Shares are medians over steps of all rounds.

    python perf/paper/overhead_profile.py [--quick]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch
from matplotlib.figure import Figure
from study import options, tell, write_rows

import dtr_alloc
from dtr_alloc.demo import MODELS, Comparison, Job, Plan
from dtr_alloc.demo.train import train

PARTS = {
    "kernel_ns": "operators",
    "remat_ns": "run again",
    "search_ns": "search",
    "move_ns": "page moves",
    "bookkeeping_ns": "bookkeeping",
}
REST = "Python, autograd"
BUDGETS = (None, 0.7, 0.5, 0.3)


def activation(name: str, make: Callable[[], Job], plan: Plan) -> Comparison:
    """What eager needs: budgets are shares of it."""
    free = train(make, plan, dtr_alloc.measure)
    peak = free.stats[-1].peak_bytes
    return Comparison(name, peak, free.gradient_bytes, free.optimizer_bytes, plan.steps)


def profile(make: Callable[[], Job], plan: Plan, budget: int | None) -> dict[str, float]:
    """Milliseconds of a step, in all and of each part.

    Raises:
        torch.OutOfMemoryError: the budget is below the floor.
    """
    parts: dict[str, list[float]] = {name: [] for name in ("step", *PARTS.values(), REST)}
    for _ in range(plan.rounds):
        done = train(make, plan, partial(dtr_alloc.rematerialize, budget))
        for step in range(1, plan.steps):
            before, after = done.stats[step - 1], done.stats[step]
            spent = {n: getattr(after, k) - getattr(before, k) for k, n in PARTS.items()}
            whole = done.step_ns[step]
            for name, ns in ({"step": whole, REST: whole - sum(spent.values())} | spent).items():
                parts[name].append(ns / 1e6)
    return {name: statistics.median(values) for name, values in parts.items()}


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    plan = Plan(steps=3 if chosen.quick else 5, rounds=1 if chosen.quick else 3)
    rows: list[dict[str, object]] = []
    for name, make in list(MODELS.items())[: 2 if chosen.quick else None]:
        eager = activation(name, make, plan)
        for ratio in BUDGETS[::2] if chosen.quick else BUDGETS:
            try:
                found = profile(make, plan, None if ratio is None else eager.budget_bytes(ratio))
            except torch.OutOfMemoryError:
                continue
            shares = {part: found[part] / found["step"] for part in (*PARTS.values(), REST)}
            budget = "none" if ratio is None else f"{ratio}"
            rows.append({"model": name, "budget": budget, "step ms": found["step"]} | shares)
    short = [{k: round(v, 3) if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    tell(chosen.file("overhead_profile.txt"), chosen.begun, short)
    write_rows(chosen.file("overhead_profile.csv"), rows)
    figure = Figure(figsize=(0.55 * len(rows) + 2.5, 3.6), layout="constrained", dpi=130)
    axes = figure.subplots()
    bottom = [0.0] * len(rows)
    for part in (*PARTS.values(), REST):
        heights = [float(str(row[part])) for row in rows]
        axes.bar(range(len(rows)), heights, bottom=bottom, label=part, width=0.8)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.set_xticks(
        range(len(rows)), [f"{r['model']} {r['budget']}" for r in rows], rotation=90, fontsize=7
    )
    axes.set_ylabel("share of a step", fontsize=8)
    figure.legend(loc="outside upper center", ncols=5, fontsize=7, frameon=False)
    figure.savefig(chosen.file("overhead_profile.png"))


if __name__ == "__main__":
    main()
