"""What does a budget cost where the blocks of a model are compiled?

Each block of a GPT, a ResNet and, where the transformers library is installed, a Llama is compiled
by `backend="dtr_alloc"`. The base is the same compiled model without a budget, in our pool
(`dtr_alloc.measure()`). Beside it run budgets, and torch's own way to save memory in compiled code:
the whole model compiled by Inductor with an `activation_memory_budget`. Its peak, measured in our
pool, is then our budget, so that both have the same memory: for the blocks as they are, and for
blocks or the whole model compiled by our backend with the same `activation_memory_budget`. The
whole has a thousandth more, as on resnet it needs 28 KiB more. Torch's gradients are compared with
those of the whole model without a budget: where they are wrong, as with dropout, the row says so
and has no time.

Budgets are shares of the activation peak, as in the demo: the base's peak beyond gradients and
optimizer state. The smallest budget is found by bisection, to a hundredth, raised until it trains
as often as it is timed, and told as a share of the base's whole peak too. In each round all ways
run in turn. A slowdown is the median over rounds of the round's median step over the base's, in
processor time; the first step, which compiles, does not count. Whether the losses, gradients,
parameters, buffers and optimizer state equal the base's to the bit (of the whole model, those of
the same without a budget) is checked for all budgets. One thread.

    python perf/cost/compiled.py [--quick] [--model MODEL] [--out perf/results]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin, provenance, write_json
from torch import nn
from torch._functorch import config as functorch
from torchs_budget import WRONG, gradient_error, whole

import dtr_alloc
from dtr_alloc.demo import Job, Plan
from dtr_alloc.demo.models import BasicBlock, TransformerBlock, gpt, resnet
from dtr_alloc.demo.train import Training, train

MIB = 1 << 20
BUDGETS = (0.7, 0.5, 0.3)
TORCHS = (0.5,)
Make = Callable[[], Job]


@dataclass
class Row:
    """One way to train a model. Slowdowns are over the base; None where it did not run."""

    model: str
    way: str
    budget_bytes: int | None = None
    peak_bytes: int | None = None
    slowdown: float | None = None
    identical: bool | None = None
    rematerializations: int = 0
    note: str = ""
    gradient_error: float | None = None
    """Of torch's ways: from the same without a budget, relative."""


@dataclass(frozen=True)
class Model:
    """`make` makes a new one; `blocks` are the types of module that are compiled."""

    make: Make
    blocks: tuple[type[nn.Module], ...]

    def by_block(self, share: float = 1.0) -> Job:
        job = self.make()
        options = {"activation_memory_budget": share} if share < 1 else None
        for module in job.model.modules():
            if isinstance(module, self.blocks):
                module.compile(backend="dtr_alloc", options=options)
        return job

    def whole(self, backend: str = "inductor", **options: Any) -> Job:
        return whole(self.make(), backend, **options)


def models(quick: bool) -> dict[str, Model]:
    if quick:
        return {"gpt": Model(lambda: gpt(layers=2), (TransformerBlock,))}
    size = {"layers": 8, "width": 256, "length": 256, "texts": 8}
    picture = {"blocks": 3, "width": 32, "side": 48}
    found = {
        "gpt": Model(lambda: gpt(**size), (TransformerBlock,)),
        "gpt, no dropout": Model(lambda: gpt(**size, dropout=0.0), (TransformerBlock,)),
        "resnet": Model(lambda: resnet(**picture), (BasicBlock,)),
    }
    if importlib.util.find_spec("transformers"):
        from models.hugging_face import HUGGING_FACE
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        llama = HUGGING_FACE["llama"]
        found["llama"] = Model(lambda: llama.job("llama"), (LlamaDecoderLayer,))
    return found


def run(
    make: Make, steps: int, scope: Callable[[], AbstractContextManager[Any]] = dtr_alloc.measure
) -> Training:
    torch.compiler.reset()
    return train(make, Plan((), steps=steps), scope)


def budgeted(budget: int) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: dtr_alloc.rematerialize(budget, device="cpu")


def smallest(make: Make, base: Training, fixed: int, steps: int, rounds: int) -> int:
    """Bytes of the smallest budget found that trains as often as it will be timed."""
    activations = base.stats[-1].peak_bytes - fixed

    def bytes_of(percent: int) -> int:
        return int(activations * percent // 100 + fixed)

    def trains(percent: int) -> bool:
        try:
            run(make, steps, budgeted(bytes_of(percent)))
        except torch.OutOfMemoryError:
            return False
        return True

    low, high = 0, 100
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if trains(middle) else (middle, high)
    while high < 100 and not all(trains(high) for _ in range(rounds)):
        high += 1
    return bytes_of(high)


def compare(name: str, model: Model, rounds: int, steps: int, quick: bool) -> list[Row]:
    """A row for each way, the base first."""
    base = run(model.by_block, steps)
    fixed = base.gradient_bytes + base.optimizer_bytes
    activations = base.stats[-1].peak_bytes - fixed
    ways: dict[str, tuple[Make, int | None, float | None]] = {
        "no budget": (model.by_block, None, None)
    }
    errors: dict[str, float] = {}
    for share in BUDGETS[:1] if quick else BUDGETS:
        ways[f"at {share:.0%}"] = (model.by_block, int(share * activations) + fixed, None)
    for share in TORCHS:
        functorch.activation_memory_budget = share
        peak = run(model.whole, 2).stats[-1].peak_bytes
        functorch.activation_memory_budget = 1.0
        way = f"torch's {share}"
        errors[way] = gradient_error(model.whole, share)
        ways[way] = (model.whole, None, share)
        ways[f"ours, as torch's {share}"] = (model.by_block, peak, None)
        ways[f"{share} in ours, as torch's"] = (partial(model.by_block, share), peak, None)
        ours = partial(model.whole, "dtr_alloc", activation_memory_budget=share)
        ways[f"{share} in ours, whole"] = (ours, peak + peak // 1000, None)
    if not quick:
        least = smallest(model.by_block, base, fixed, steps, rounds)
        ways["smallest"] = (model.by_block, least, None)
    runs: dict[str, list[Training]] = {way: [] for way in ways}
    notes = {way: "wrong gradients" for way, error in errors.items() if error > WRONG}
    for turn in range(rounds):
        first = turn % len(ways)
        for way in [*ways, *ways][first : first + len(ways)]:
            if way in errors and way in notes:
                continue
            make, budget, share_of_torch = ways[way]
            print(f"{name}, round {turn + 1} of {rounds}, {way}", file=sys.stderr)
            functorch.activation_memory_budget = share_of_torch or 1.0
            try:
                scope = dtr_alloc.measure if budget is None else budgeted(budget)
                runs[way].append(run(make, steps, scope))
            except torch.OutOfMemoryError:
                notes[way] = "refused"
            finally:
                functorch.activation_memory_budget = 1.0
    rows = []
    for way, (make, budget, _) in ways.items():
        one = row(name, way, budget, runs[way], runs["no budget"], notes.get(way, ""))
        if way.endswith("whole") and runs[way]:
            right = run(make, steps).digests
            one.identical = all(each.digests == right for each in runs[way])
        rows.append(replace(one, gradient_error=errors.get(way)))
    return rows


def row(
    model: str, way: str, budget: int | None, mine: list[Training], base: list[Training], note: str
) -> Row:
    if note or not mine:
        return Row(model, way, budget, note=note)

    def step(training: Training) -> float:
        return statistics.median(training.processor_ns[1:])

    return Row(
        model,
        way,
        budget,
        max(one.stats[-1].peak_bytes for one in mine),
        statistics.median(step(a) / step(b) for a, b in zip(mine, base, strict=True)),
        all(one.digests == base[0].digests for one in mine),
        max(one.stats[-1].rematerializations for one in mine),
    )


def table(rows: list[Row]) -> str:
    """The rows as text: MiB, ratios, and the budget's share of the peak without one."""
    head = ("model", "way", "budget", "peak", "of peak", "step", "bits", "gradients", "recomputed")
    lines = ["{:<15} {:<20} {:>8} {:>8} {:>8} {:>15} {:>6} {:>11} {:>10}".format(*head)]
    whole = {one.model: one.peak_bytes for one in rows if one.way == "no budget"}
    for one in rows:
        budget, peak = (
            "-" if size is None else f"{size / MIB:,.1f}"
            for size in (one.budget_bytes, one.peak_bytes)
        )
        most = one.budget_bytes or one.peak_bytes
        base = whole[one.model]
        share = f"{most / base:.3f}" if most and base else "-"
        step = one.note or f"{one.slowdown:.2f}"
        same = "" if one.identical is None else "same" if one.identical else "other"
        error = "" if one.gradient_error is None else f"{one.gradient_error:.1e} off"
        lines.append(
            f"{one.model:<15} {one.way:<20} {budget:>8} {peak:>8} {share:>8} {step:>15} "
            f"{same:>6} {error:>11} {one.rematerializations:>10,}"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs all; returns 1 where a result was not the base's or a budget was passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model, one budget, one round")
    parser.add_argument("--model", action="append", help="all if not given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write compiled.json and .txt here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch")
    torch.set_num_threads(1)  # Two would wait for each other on a machine that is not idle.
    rounds, steps = (1, 2) if options.quick else (options.rounds, 4)
    rows: list[Row] = []
    with torch._dynamo.config.patch(recompile_limit=64):  # A ResNet has many shapes of block.
        for name, model in models(options.quick).items():
            if not options.model or name in options.model:
                rows += compare(name, model, rounds, steps, options.quick)
    print(table(rows))
    if options.out:
        write_json(
            options.out / "compiled.json", provenance() | {"rows": [asdict(one) for one in rows]}
        )
        (options.out / "compiled.txt").write_text(f"{origin()}\n\n{table(rows)}\n")
    ours = [one for one in rows if one.budget_bytes is not None and one.peak_bytes is not None]
    kept = all(
        one.identical and one.peak_bytes <= one.budget_bytes  # type: ignore[operator]
        for one in ours
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
