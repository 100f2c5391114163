"""Do other people's models train and generate exactly under a budget, and what does it cost?

Nine architectures of the transformers library (models/hugging_face.py) make three AdamW steps,
plainly and with the library's own activation checkpoints, at 70 and 40 % of the activation peak
(DESIGN.md, "What a budget means in the demo"), the peak being the one of the program that is run:
with checkpoints, the lower one that those leave. Losses, gradients, parameters, buffers and
optimizer state are compared bit for bit with eager.

Five of them also generate with a key-value cache, three layers deep: the likeliest token, a random
one, and by beams. Tokens and the scores before each are compared. Here a budget is a share of the
peak of the call. What holds it up is the cache, and the cache is bad to evict: each token reads all
of it, and what is in it can be recomputed only by running the model over all tokens before. So the
budgets are larger, and one that is too small is expected to be refused, for lack of memory or for
thrash above 20 times. The table has those rows.

    python perf/cost/hugging_face.py [--quick] [--model gpt2] [--out perf/results]
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin, provenance, write_json
from models.hugging_face import HUGGING_FACE
from rich.console import Console
from torch import Tensor

import dtr_alloc
from dtr_alloc.demo import Comparison, Plan, Row, compare, table
from dtr_alloc.demo.report import figures
from dtr_alloc.demo.train import infeasible, label

BUDGETS = (0.7, 0.4)
GENERATING_BUDGETS = (0.9, 0.7, 0.4)
GENERATING_LAYERS = 3
PROMPTS = 32
NEW_TOKENS = 12
THRASH_LIMIT = 20.0

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True},
    "beams": {"do_sample": False, "num_beams": 2},
}


@dataclass(frozen=True)
class Generation:
    """A call of `generate`: digests of the tokens and of all scores, ns, and the session's
    figures."""

    digests: dict[str, str]
    ns: int
    stats: dtr_alloc.SessionStats | None


def trainings(name: str, plan: Plan) -> Iterator[Comparison]:
    """A model's trainings: plain, and with checkpoints where it can have them."""
    architecture = HUGGING_FACE[name]
    for checkpoint in (False, True) if architecture.checkpoints else (False,):
        make = partial(architecture.job, name, checkpoint=checkpoint)
        yield compare(f"{name}{' ckpt' if checkpoint else ''}", make, plan)


def generate(
    name: str, way: str, scope: Callable[[], AbstractContextManager[Any]] | None
) -> Generation:
    """One call, from scratch, inside `scope()`.

    Raises torch.OutOfMemoryError where the budget is too small.
    """
    gc.collect()
    torch.manual_seed(0)
    model = HUGGING_FACE[name].build(GENERATING_LAYERS).eval()
    scores = hashlib.sha256()

    def see(_: Tensor, values: Tensor) -> Tensor:
        scores.update(values.numpy().tobytes())
        return values

    with nullcontext() if scope is None else scope() as session:
        begin = time.perf_counter_ns()
        tokens = model.generate(
            **HUGGING_FACE[name].prompt(PROMPTS, torch.Generator().manual_seed(0)),
            **WAYS[way],
            max_new_tokens=NEW_TOKENS,
            use_cache=True,
            logits_processor=[see],
        )
        ns = time.perf_counter_ns() - begin
    digests = {"tokens": str(tokens.tolist()), "scores": scores.hexdigest()}
    return Generation(digests, ns, None if session is None else session.stats())


def generations(name: str, way: str, plan: Plan) -> Comparison:
    """Generates eagerly, without a budget and at each; then in turn, for the times."""
    eager = generate(name, way, None)
    measured = generate(name, way, dtr_alloc.measure)
    assert measured.stats is not None
    result = Comparison(f"{name} {way}", measured.stats.peak_bytes, 0, 0, steps=1)
    result.differences = _differences(eager, measured)
    for ratio in (None, *plan.budgets):
        budget = None if ratio is None else result.budget_bytes(ratio)
        try:
            found = generate(name, way, _scope(budget))
        except torch.OutOfMemoryError as error:
            result.rows.append(infeasible(ratio, budget, error))
            continue
        assert found.stats is not None
        result.rows.append(
            Row(
                ratio,
                budget,
                peak_bytes=found.stats.peak_bytes,
                evictions=found.stats.evictions,
                rematerializations=found.stats.rematerializations,
                differences=_differences(eager, found),
            )
        )
    _add_times(result, plan, partial(generate, name, way), eager)
    return result


def _add_times(
    result: Comparison,
    plan: Plan,
    call: Callable[[Callable[[], AbstractContextManager[Any]] | None], Generation],
    eager: Generation,
) -> None:
    eager_ns: list[int] = []
    found: dict[int, list[Generation]] = {n: [] for n, r in enumerate(result.rows) if r.feasible}
    for _ in range(plan.rounds):
        eager_ns.append(call(None).ns)
        for n in list(found):
            row = result.rows[n]
            try:
                generation = call(_scope(row.budget_bytes))
            except torch.OutOfMemoryError as error:  # So near the floor that it is luck.
                result.rows[n] = infeasible(row.ratio, row.budget_bytes, error)
                del found[n]
                continue
            row.differences = sorted({*row.differences, *_differences(eager, generation)})
            found[n].append(generation)
    result.step_ms = statistics.median(eager_ns) / 1e6
    for n, calls in found.items():
        row, total = result.rows[n], sum(generation.ns for generation in calls)
        stats = [generation.stats for generation in calls if generation.stats is not None]
        row.step_ms = statistics.median(generation.ns for generation in calls) / 1e6
        row.slowdown = statistics.median(
            generation.ns / ns for generation, ns in zip(calls, eager_ns, strict=True)
        )
        row.peak_bytes = max(row.peak_bytes, *(s.peak_bytes for s in stats))
        row.remat_share = sum(s.remat_ns for s in stats) / total
        row.search_share = sum(s.search_ns for s in stats) / total
        row.move_share = sum(s.move_ns for s in stats) / total
        row.bookkeeping_share = sum(s.bookkeeping_ns for s in stats) / total


def _scope(budget: int | None) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: dtr_alloc.rematerialize(budget, thrash_limit=THRASH_LIMIT)


def _differences(eager: Generation, other: Generation) -> list[str]:
    return [name for name, digest in eager.digests.items() if other.digests[name] != digest]


def failures(trained: list[Comparison], generated: list[Comparison]) -> list[str]:
    """A sentence for each promise that was not kept: bits and budgets, and in training both budgets
    within reach. A generation may be refused.
    """
    found = []
    for comparison in trained + generated:
        ran = [row for row in comparison.rows if row.feasible]
        found += replace(comparison, rows=ran).failures()
    found += [
        f"{comparison.model} {label(row.ratio)}: refused"
        for comparison in trained
        for row in comparison.rows
        if not row.feasible
    ]
    return found


def main() -> int:
    """Runs all that is asked for; returns 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(description="The transformers library's models.")
    parser.add_argument("--quick", action="store_true", help="one small model, one round")
    parser.add_argument("--model", action="append", choices=list(HUGGING_FACE), help="default: all")
    parser.add_argument("--out", type=Path, help="folder for hugging_face.json and .txt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if options.quick else 2
    ways = ["greedy"] if options.quick else list(WAYS)
    names = options.model or (["whisper"] if options.quick else list(HUGGING_FACE))
    plan = Plan(BUDGETS, steps=3, rounds=rounds)
    generating = Plan(GENERATING_BUDGETS, steps=1, rounds=rounds)
    trained: list[Comparison] = []
    generated: list[Comparison] = []
    console = Console()
    with console.status("") as status:
        for name in names:
            status.update(f"{name} trains")
            trained += trainings(name, plan)
            for way in ways if HUGGING_FACE[name].generates else ():
                status.update(f"{name} generates: {way}")
                generated.append(generations(name, way, generating))
    broken = failures(trained, generated)
    show(console, trained, generated, broken)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "hugging_face.txt").open("w") as file:
            print(f"{origin()}, transformers {transformers.__version__}\n", file=file)
            show(Console(file=file, width=110), trained, generated, broken)
        document = provenance() | {
            "transformers": transformers.__version__,
            "failures": broken,
            "trained": [figures(comparison) for comparison in trained],
            "generated": [figures(comparison) for comparison in generated],
        }
        write_json(options.out / "hugging_face.json", document)
    return 1 if broken else 0


def show(
    console: Console, trained: list[Comparison], generated: list[Comparison], broken: list[str]
) -> None:
    """The tables, what was refused and why, and what is wrong."""
    console.print("Three AdamW steps; a row's budget is a share of the activation peak")
    console.print(table(trained))
    if not all(HUGGING_FACE[c.model.split()[0]].checkpoints for c in trained):
        console.print("resnet: the library has no activation checkpoints for it\n")
    console.print(f"{NEW_TOKENS} tokens for {PROMPTS} prompts; a share of the call's peak")
    console.print(table(generated))
    for comparison in trained + generated:
        for row in comparison.rows:
            if not row.feasible:
                console.print(f"{comparison.model} {label(row.ratio)}: {row.error}\n")
    for failure in broken:
        console.print(f"NOT KEPT: {failure}")
    checked = [row for c in trained + generated for row in c.rows if row.feasible]
    console.print(f"{sum(row.identical for row in checked)} of {len(checked)} runs identical")


if __name__ == "__main__":
    sys.exit(main())
