"""Fully sharded training (FSDP2), each process within a budget of its own.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

Works on the CPU with gloo, and comes to the bits of the same training in plain torch. FSDP frees a
layer's parameters after the layer's forward pass and gathers them again for its backward pass.
That is when the layer's activations are needed, and are recomputed if they were evicted. What a
layer returns stays in memory.
"""

import json

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import dtr_alloc

STEPS, ROWS, WIDTH, DEPTH = 3, 256, 64, 8


class Block(nn.Module):
    """Two layers beside a residual connection, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return made


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(DEPTH)])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(ROWS, WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()


def local(parameter: nn.Parameter) -> Tensor:
    """What of it this process has."""
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plain, model, measured = make_model(), make_model(), make_model()
    train(plain)
    with dtr_alloc.measure() as session:
        train(measured)
    budget = int(0.5 * session.stats().peak_bytes)
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
