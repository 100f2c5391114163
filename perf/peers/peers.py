"""What would a user do instead, and which is faster at the same memory?

The demo's models are trained by each peer, and by us under a budget that is the peer's own peak:
the bytes that it allocates beside the parameters, measured in a scope that evicts nothing. In each
round eager, the peer and we train in turn, in an order that is drawn anew, so that a machine that
slows down does so for all. Eager and the peer train twice: in our pool, which is faster than malloc
at large blocks, and without it. The first tells what recomputation costs, the second what a user
gains. A slowdown is the median over rounds of the round's median step over eager's, in processor
time; peers.json has those on the wall too. Whether the losses, gradients, parameters, buffers and
optimizer state equal eager's to the bit is checked for all. One thread.

The peers, on the modules that a user of each would choose (a block of gpt or resnet, a pair of
convolutions of unet):

- checkpoint: torch.utils.checkpoint around each block.
- checkpoint sqrt N: checkpoint_sequential, as many segments as the root of the number of blocks.
- selective: checkpoint around each block that keeps what matrix products, convolutions and
  attention computed (create_selective_checkpoint_contexts).
- compile 0.5, compile 0.3: torch.compile with that activation_memory_budget. Where that makes
  gradients wrong, as with dropout, the row says so and has no times.
- checkpoint, edited: treelstm has no blocks, its state is one recursive method; here that is
  wrapped so that every node is a checkpoint within its parent's.

save_on_cpu has no other memory to save to on a CPU, and is left to a GPU.

    python perf/peers/peers.py [--quick] [--model MODEL] [--no-compile] [--out perf/results]
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

import checkpointing
import torch
from matplotlib.figure import Figure
from measurement import origin, provenance
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torchs_budget import WRONG, gradient_error, whole

import dtr_alloc
from dtr_alloc.demo import MODELS, Job, Plan
from dtr_alloc.demo.models import BasicBlock, TransformerBlock, TreeLSTM, UNet
from dtr_alloc.demo.train import Training, train

MIB = 1 << 20
CHOSEN = ("gpt", "resnet", "unet", "treelstm")
Make = Callable[[], Job]


@dataclass
class Row:
    """A peer on a model. Slowdowns are over eager, both in our pool; None where it did not run."""

    model: str
    peer: str
    peak_bytes: int | None = None
    share: float | None = None
    """Of eager's peak beyond gradients and optimizer state: what a budget in the demo is."""
    slowdown: float | None = None
    identical: bool | None = None
    ours: float | None = None
    """Our slowdown with the peer's peak as budget."""
    plain: float | None = None
    """The peer without our pool, over eager without it."""
    ours_plain: float | None = None
    """Ours over eager without our pool."""
    ours_identical: bool | None = None
    wall: dict[str, float] = field(default_factory=dict)
    """The four slowdowns on the wall."""
    note: str = ""
    gradient_error: float | None = None
    """Of a compiled peer: from the same without a budget, relative."""


def blocks(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, UNet):
        return [*model.down, *model.merge]
    return [m for m in model.modules() if isinstance(m, BasicBlock | TransformerBlock)]


def each_block(job: Job, wrap: Callable[[list[nn.Module]], None] = checkpointing.each_block) -> Job:
    found = blocks(job.model)
    if not found:
        raise NotImplementedError("has no blocks to wrap: one recursive method computes all")
    wrap(found)
    return job


def selective(job: Job) -> Job:
    return each_block(job, checkpointing.selective)


def square_root(job: Job) -> Job:
    chain = getattr(job.model, "blocks", job.model)
    if not isinstance(chain, nn.Sequential):
        raise NotImplementedError("is no chain of modules")
    segments = math.ceil(math.sqrt(len(chain)))

    def forward(x: Tensor) -> Tensor:
        return checkpoint_sequential(list(chain), segments, x, use_reentrant=False)  # type: ignore

    chain.forward = forward  # type: ignore[method-assign]
    return job


def every_node(job: Job) -> Job:
    model = job.model
    if not isinstance(model, TreeLSTM):
        raise NotImplementedError("needs no edit")
    model.state = functools.partial(  # type: ignore[method-assign]
        checkpoint, model.state, use_reentrant=False
    )
    return job


def compiled(job: Job, budget: float) -> Job:
    if isinstance(job.model, TreeLSTM):
        raise NotImplementedError("is compiled anew for every tree")
    functorch.activation_memory_budget = budget  # Read when the first step compiles.
    return whole(job)


BUDGETS = {"compile 0.5": 0.5, "compile 0.3": 0.3}
PEERS: dict[str, Callable[[Job], Job]] = {
    "checkpoint": each_block,
    "checkpoint sqrt N": square_root,
    "selective": selective,
    **{peer: functools.partial(compiled, budget=budget) for peer, budget in BUDGETS.items()},
    "checkpoint, edited": every_node,
}


def in_pool(make: Make, plan: Plan) -> Training:
    torch.compiler.reset()
    return train(make, plan, lambda: dtr_alloc.measure(device="cpu"))


def plainly(make: Make, plan: Plan) -> Training:
    torch.compiler.reset()
    return train(make, plan, None)


def budgeted(budget: int) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: dtr_alloc.rematerialize(budget, device="cpu")


def slowdowns(ran: dict[str, Training], clock: str) -> dict[str, float]:
    """Of one round, by the names of `Row`."""
    step = {way: statistics.median(getattr(one, clock)[1:]) for way, one in ran.items()}
    found = {
        "slowdown": step["peer in pool"] / step["pool"],
        "plain": step["peer"] / step["plain"],
    }
    if "ours" in step:
        found["ours"] = step["ours"] / step["pool"]
        found["ours_plain"] = step["ours"] / step["plain"]
    return found


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of each slowdown over the rounds that have it."""
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: statistics.median(one[name] for one in rounds if name in one) for name in names}


def compare(model: str, peers: list[str], plan: Plan) -> list[Row]:
    make = MODELS[model]
    eager = in_pool(make, plan)
    fixed = eager.gradient_bytes + eager.optimizer_bytes
    activations = eager.stats[-1].peak_bytes - fixed
    draw = random.Random(model)
    rows = []
    for peer in peers:
        row = Row(model, peer)
        rows.append(row)

        def remade(peer: str = peer) -> Job:
            return PEERS[peer](make())

        if peer in BUDGETS and not isinstance(make().model, TreeLSTM):
            row.gradient_error = gradient_error(lambda: whole(make()), BUDGETS[peer])
            if row.gradient_error > WRONG:
                row.note = f"gradients are wrong: {row.gradient_error:.0%} off"
                continue
        try:
            measured = in_pool(remade, plan)
        except NotImplementedError as reason:
            row.note = str(reason)
            continue
        row.peak_bytes = measured.stats[-1].peak_bytes
        row.share = (row.peak_bytes - fixed) / activations
        processor: list[dict[str, float]] = []
        wall: list[dict[str, float]] = []
        ways: dict[str, Callable[[], Training]] = {
            "plain": functools.partial(plainly, make, plan),
            "pool": functools.partial(in_pool, make, plan),
            "peer": functools.partial(plainly, remade, plan),
            "peer in pool": functools.partial(in_pool, remade, plan),
            "ours": functools.partial(train, make, plan, budgeted(row.peak_bytes)),
        }
        for _ in range(plan.rounds):
            ran: dict[str, Training] = {}
            for way in draw.sample([*ways], len(ways)):
                try:
                    ran[way] = ways[way]()
                except torch.OutOfMemoryError as error:
                    if way != "ours":
                        raise
                    row.note = str(error)
            processor.append(slowdowns(ran, "processor_ns"))
            wall.append(slowdowns(ran, "step_ns"))
            same = {way: training.digests == ran["plain"].digests for way, training in ran.items()}
            row.identical = row.identical is not False and same["peer"]
            if "ours" in ran:
                row.ours_identical = row.ours_identical is not False and same["ours"]
        for name, value in medians(processor).items():
            setattr(row, name, value)
        row.wall = medians(wall)
        print(f"{model}, {peer}: {row.slowdown:.2f} of eager", flush=True)
    return rows


def table_of(rows: list[Row]) -> Table:
    table = Table(title="Slowdown over eager, at the peer's own peak: all in our pool; without it")
    for column in ("model", "peer"):
        table.add_column(column)
    for column in (
        "peak MiB", "share", "peer", "exact", "ours", "exact", "ours / peer",
        "peer", "ours", "ours / peer",
    ):  # fmt: skip
        table.add_column(column, justify="right")

    def yes(value: bool | None) -> str:
        return "" if value is None else "yes" if value else "no"

    for row in rows:
        if row.peak_bytes is None or row.share is None or row.slowdown is None:
            table.add_row(row.model, row.peer, "", "", row.note)
            continue
        table.add_row(
            row.model,
            row.peer,
            f"{row.peak_bytes / MIB:.1f}",
            f"{row.share:.0%}",
            f"{row.slowdown:.2f}",
            yes(row.identical),
            "refused" if row.ours is None else f"{row.ours:.2f}",
            yes(row.ours_identical),
            "" if row.ours is None else f"{row.ours / row.slowdown:.2f}",
            *("" if x is None else f"{x:.2f}" for x in (row.plain, row.ours_plain)),
            ""
            if row.ours_plain is None or row.plain is None
            else f"{row.ours_plain / row.plain:.2f}",
        )
    return table


def draw(rows: list[Row], path: Path) -> None:
    models = list(dict.fromkeys(row.model for row in rows))
    figure = Figure(figsize=(4 * len(models), 3.6), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        mine = sorted((r.share, r.ours) for r in rows if r.model == model and r.ours and r.share)
        axes.plot(*zip(*mine, strict=True), marker=".", color="black", label="dtr_alloc")
        for row in rows:
            if row.model == model and row.slowdown and row.share:
                axes.plot(row.share, row.slowdown, "o", label=row.peer)
        axes.set(title=model, xlabel="share of the activation peak", ylabel="slowdown over eager")
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, nothing compiled")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="all if not given")
    parser.add_argument("--no-compile", action="store_true", help="leave it out: it takes long")
    parser.add_argument("--out", type=Path, help="folder for peers.json, .txt and .png")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    compiles = not (options.quick or options.no_compile)
    peers = [peer for peer in PEERS if compiles or not peer.startswith("compile")]
    plan = Plan((), steps=4, rounds=1 if options.quick else 3)
    torch.set_num_threads(1)  # Two would wait for each other on a machine that is not idle.
    begin = time.monotonic()
    rows = [row for model in options.model or CHOSEN for row in compare(model, peers, plan)]
    rows = [row for row in rows if row.note != "needs no edit"]
    Console(width=120).print(table_of(rows))
    print(f"{time.monotonic() - begin:.0f} s")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        head = provenance() | {"rounds": str(plan.rounds)}
        document = json.dumps(head | {"rows": [asdict(row) for row in rows]}, indent=1)
        (options.out / "peers.json").write_text(document + "\n")
        with (options.out / "peers.txt").open("w") as file:
            print(origin(), file=file)
            print(f"# {plan.rounds} rounds of {plan.steps} steps\n", file=file)
            Console(file=file, width=120).print(table_of(rows))
        draw(rows, options.out / "peers.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
