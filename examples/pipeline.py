"""Pipelined training, each process within a budget of its own.

    torchrun --standalone --nproc-per-node 2 examples/pipeline.py

Each process has half of the blocks, and hands four parts of a batch on, one after another. The
activations of all parts wait for their backward pass; under a budget they are computed again. What
is sent or received stays in memory. Comes to the bits of the same training in plain torch.
"""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import dtr_alloc

STEPS, ROWS, WIDTH, DEPTH, PARTS = 3, 256, 64, 8, 4


def make_blocks() -> nn.Module:
    """Those of this process."""
    torch.manual_seed(dist.get_rank())
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(DEPTH // 2)]
    return nn.Sequential(*layers)


def train(blocks: nn.Module) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(blocks, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, PARTS, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(ROWS, WIDTH, generator=generator)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch.cos())
        optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plain, blocks, measured = make_blocks(), make_blocks(), make_blocks()
    train(plain)
    with dtr_alloc.measure() as session:
        train(measured)
    budget = int(0.7 * session.stats().peak_bytes)
    with dtr_alloc.rematerialize(budget) as session:
        train(blocks)
    stats = session.stats()
    pairs = zip(blocks.parameters(), plain.parameters(), strict=True)
    row = {
        "rank": dist.get_rank(),
        "budget_bytes": budget,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
        "identical": all(torch.equal(one, other) for one, other in pairs),
    }
    print(json.dumps(row) + "\n", end="", flush=True)  # At once: the others print too.
    dist.barrier()  # No process ends while another still talks to it.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
