"""Programs of several processes, each run plainly, under `measure` and under budgets, by torchrun.

    torchrun --standalone --nproc-per-node 2 tests/support/sharded_programs.py [name [share ...]]

Prints a line of JSON for each program and process: the budget, what was recomputed, whether every
gradient and parameter is the plain run's to the bit, and how many collectives both made.
"""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import dtr_alloc

STEPS, ROWS, WIDTH, DEPTH = 3, 256, 64, 6
Run = Callable[[], list[Tensor]]


class Block(nn.Module):
    """A block as transformers have it, with dropout."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = nn.functional.gelu(self.up(self.norm(x)))
        made: Tensor = x + self.down(nn.functional.dropout(hidden, 0.1))
        return made


def make_blocks(depth: int = DEPTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(depth)])


def batch(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    return torch.randn(ROWS, WIDTH, generator=generator)


def same_batch(step: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def state(model: nn.Module) -> list[Tensor]:
    found = []
    for parameter in model.parameters():
        found += [local(parameter).detach()]
        found += [] if parameter.grad is None else [local(parameter.grad)]
    return found


def train(model: nn.Module, of_step: Callable[[int], Tensor] = batch) -> list[Tensor]:
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(of_step(step)).square().mean().backward()
        optimizer.step()
    return state(model)


def ddp(**options: Any) -> Run:
    model = DistributedDataParallel(make_blocks(), **options)
    return lambda: train(model)


def ddp_no_sync() -> Run:
    """Gradients of two batches are added up, and averaged with the second's backward."""
    model = DistributedDataParallel(make_blocks())

    def run() -> list[Tensor]:
        torch.manual_seed(7)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(2):
                with nullcontext() if part else model.no_sync():
                    model(batch(2 * step + part)).square().mean().backward()
            optimizer.step()
        return state(model)

    return run


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def fsdp2(**options: Any) -> Run:
    """Parameters are gathered for each block's forward and backward pass, and freed in between."""
    model = make_blocks()
    for module in (*model, model):
        fully_shard(module, mesh=mesh(), **options)
    return lambda: train(model)


def tensor_parallel() -> Run:
    model = make_blocks()
    for block in model:
        parallelize_module(block, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return lambda: train(model, same_batch)


def sequence_parallel() -> Run:
    model = make_blocks()
    for block in model:
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0), use_local_output=False),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        }
        parallelize_module(block, mesh(), plan)
    part = [Shard(0)]
    return lambda: train(model, lambda step: distribute_tensor(same_batch(step), mesh(), part))


def pipeline(schedule: type[ScheduleGPipe] | type[Schedule1F1B]) -> Run:
    """Each process has half of the blocks; four parts of a batch are on their way at once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    blocks = make_blocks(2 * world)[2 * rank : 2 * rank + 2]

    def run() -> list[Tensor]:
        torch.manual_seed(7)
        stage = PipelineStage(blocks, rank, world, torch.device("cpu"))
        plan = schedule(stage, 4, loss_fn=lambda made, target: (made - target).square().mean())
        optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
        losses: list[Tensor] = []
        for step in range(STEPS):
            optimizer.zero_grad()
            first = (same_batch(step),) if rank == 0 else ()
            target = same_batch(step + 9)
            plan.step(*first, target=target, losses=losses) if rank else plan.step(*first)
            optimizer.step()
        return [*state(blocks), *losses]

    return run


# Each with the budget that it trains in, a share of a plain run's peak: gradients and optimizer
# state included.
PROGRAMS: dict[str, tuple[Callable[[], Run], float]] = {
    "ddp": (ddp, 0.55),
    "ddp, static_graph": (lambda: ddp(static_graph=True), 0.55),
    "ddp, gradient_as_bucket_view": (lambda: ddp(gradient_as_bucket_view=True), 0.5),
    "ddp, both": (lambda: ddp(static_graph=True, gradient_as_bucket_view=True), 0.55),
    "ddp, no_sync": (ddp_no_sync, 0.55),
    "fsdp2": (fsdp2, 0.4),
    "tensor parallel": (tensor_parallel, 0.5),
    "sequence parallel": (sequence_parallel, 0.5),
    "pipeline, GPipe": (lambda: pipeline(ScheduleGPipe), 0.5),
    "pipeline, 1F1B": (lambda: pipeline(Schedule1F1B), 0.65),
}


def collectives_of(run: Run) -> tuple[list[Tensor], int]:
    """What it computes, and how many collectives that took. Sending and receiving are none."""
    group: Any = dist.distributed_c10d._get_default_group()
    before = group._get_sequence_number_for_group()
    return run(), group._get_sequence_number_for_group() - before


def row_of(name: str, share: float) -> dict[str, object]:
    make, _ = PROGRAMS[name]
    expected, plain = collectives_of(make())
    run = make()
    with dtr_alloc.measure() as measured:
        run()
    run = make()
    budget = int(share * measured.stats().peak_bytes)
    with dtr_alloc.rematerialize(budget) as session:
        found, collectives = collectives_of(run)
    stats = session.stats()
    pairs = zip(expected, found, strict=True)
    return {
        "program": name,
        "rank": dist.get_rank(),
        "eager_peak_bytes": measured.stats().peak_bytes,
        "budget_bytes": budget,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
        "collectives": [plain, collectives],
        "identical": len(found) > 0 and all(torch.equal(one, other) for one, other in pairs),
    }


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    given = [float(share) for share in sys.argv[2:]]
    for name in sys.argv[1:2] or PROGRAMS:
        for share in given or [PROGRAMS[name][1]]:
            print(json.dumps(row_of(name, share)) + "\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
