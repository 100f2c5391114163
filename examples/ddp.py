"""Data-parallel training, each process within a budget of its own.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py

Each process trains on its share of a batch, and DistributedDataParallel averages the gradients.
Collectives are never repeated: what they are given stays in memory. Afterwards each process trains
on the whole batch, alone and in plain torch, and compares the parameters bit for bit. They can be
equal because halves are exact in binary: half of one gradient and half of the other, added, is what
the average of two processes is.
"""

import json

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dtr_alloc

STEPS, ROWS, WIDTH, DEPTH = 3, 256, 64, 10


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])


def batch(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2 * ROWS, WIDTH, generator=generator)


def train(model: nn.Module, shares: list[int], scale: float) -> None:
    """`STEPS` steps on those shares of each batch, one after another."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for share in shares:
            rows = batch(step)[share * ROWS : (share + 1) * ROWS]
            (model(rows).square().mean() * scale).backward()
        optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with dtr_alloc.measure() as session:
        train(make_model(), [rank], 1.0)
    eager_peak = session.stats().peak_bytes

    model = make_model()
    parallel = DistributedDataParallel(model)
    budget = int(0.75 * eager_peak)
    with dtr_alloc.rematerialize(budget) as session:
        train(parallel, [rank], 1.0)
    stats = session.stats()
    row = {
        "rank": rank,
        "budget_bytes": budget,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
    }
    alone = make_model()
    train(alone, [0, 1], 0.5)
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    row["identical"] = all(torch.equal(one, other) for one, other in pairs)
    print(json.dumps(row) + "\n", end="", flush=True)  # At once: the others print too.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
