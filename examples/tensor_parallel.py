"""Tensor parallel training, each process within a budget of its own.

    torchrun --standalone --nproc-per-node 2 examples/tensor_parallel.py

Each process has half of the columns of one layer and half of the rows of the next. What they add up
between them is a collective, so its results stay in memory; what each process computes by itself
can be evicted. Comes to the bits of the same training in plain torch.
"""

import json

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dtr_alloc

STEPS, ROWS, WIDTH, DEPTH = 3, 256, 64, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return made


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(DEPTH)])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        batch = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def local(parameter: nn.Parameter) -> Tensor:
    """What of it this process has."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plain, model, measured = make_model(), make_model(), make_model()
    train(plain)
    with dtr_alloc.measure() as session:
        train(measured)
    budget = int(0.6 * session.stats().peak_bytes)
    with dtr_alloc.rematerialize(budget) as session:
        train(model)
    stats = session.stats()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    row = {
        "rank": dist.get_rank(),
        "budget_bytes": budget,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
        "identical": all(torch.equal(local(one), local(two)) for one, two in pairs),
    }
    print(json.dumps(row) + "\n", end="", flush=True)  # At once: the others print too.
    dist.barrier()  # No process ends while another still talks to it.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
