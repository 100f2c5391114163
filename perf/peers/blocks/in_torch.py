"""The blocks in PyTorch, with each tool for it: `python in_torch.py TOOL` prints the answers.

A tool is a function that gives a block another way to be called. dtr_alloc leaves the blocks as
they are, and has a scope around the steps. A tool is imported where it is used, since each
environment has one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import torch
from blocks.answers import BLOCKS, QUESTIONS, ROWS, WIDTH, Array, Run, report
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints

Call = Callable[[Tensor, Tensor], Tensor]
BUDGET = 0.7
"""Of the peak that dtr_alloc measures."""


class Block(nn.Module):
    """A residual block. `extra` is an input that needs no gradient."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        # func.grad admits no writes to what a network keeps.
        self.norm = nn.BatchNorm1d(2 * WIDTH, track_running_stats=question != "func")
        self.last = nn.Linear(2 * WIDTH, WIDTH)
        self.generator = torch.Generator().manual_seed(1)
        self.count = torch.ones(())
        self.calls = 0

    def forward(self, x: Tensor, extra: Tensor) -> Tensor:
        self.calls += 1
        if self.question == "write":
            x.mul_(0.5)
        if self.question == "write_constant":
            x = x + extra.mul_(0.5)
        y = nn.functional.gelu(self.norm(self.first(x)))
        if self.question == "random":
            y = nn.functional.dropout(y + torch.rand_like(y), 0.3)
        if self.question == "generator":
            y = y * (torch.rand(y.shape, generator=self.generator) > 0.3)
        if self.question == "buffer":
            y = y * self.count.add_(1)
        return x + self.last(y)


def dtr_alloc(block: Block) -> Call:
    return block


def checkpoint(block: Block, **options: Any) -> Call:
    return functools.partial(checkpoints.checkpoint, block, use_reentrant=False, **options)


def reentrant(block: Block) -> Call:
    return functools.partial(checkpoints.checkpoint, block, use_reentrant=True)


def selective(block: Block, saved: Any = torch.ops.aten.addmm.default) -> Call:
    contexts = checkpoints.create_selective_checkpoint_contexts
    return checkpoint(block, context_fn=functools.partial(contexts, [saved]))


def selective_noise(block: Block) -> Call:
    return selective(block, torch.ops.aten.rand_like.default)


def torch_remat(block: Block, **options: Any) -> Call:
    import torch_remat

    return torch_remat.checkpoint(region_name="block", **options)(block)


class GlobalNumbers:
    """A hook for torch_remat, as its readme tells how to write one."""

    def snapshot(self) -> Tensor:
        return torch.get_rng_state()

    def restore(self, state: Tensor) -> None:
        torch.set_rng_state(state)


def torch_remat_hook(block: Block) -> Call:
    return torch_remat(block, recompute_state_hooks=(GlobalNumbers(),))


def wrapper(block: Block) -> Call:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return checkpoint_wrapper(block)


def save_on_cpu(block: Block) -> Call:
    def call(x: Tensor, extra: Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return block(x, extra)

    return call


def fairscale(block: Block) -> Call:
    from fairscale.nn.checkpoint import checkpoint_wrapper

    return checkpoint_wrapper(block)


def deepspeed(block: Block) -> Call:
    from deepspeed import checkpointing

    return functools.partial(checkpointing.checkpoint, block)


def deepspeed_non_reentrant(block: Block) -> Call:
    from deepspeed import checkpointing

    return functools.partial(checkpointing.non_reentrant_checkpoint, block)


def torchgpipe(block: Block) -> Call:
    from torchgpipe import GPipe

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, inputs: tuple[Tensor, Tensor]) -> Any:
            return self.block(*inputs)

    pipe = GPipe(nn.Sequential(Stage()), [1], devices=["cpu"], chunks=1, checkpoint="always")
    return lambda x, extra: pipe((x, extra))


def transformers(block: Block) -> Call:
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_layers import GradientCheckpointingLayer

    class Layer(GradientCheckpointingLayer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor, extra: Tensor) -> Any:
            return self.block(x, extra)

    class Model(PreTrainedModel):  # type: ignore[misc]
        supports_gradient_checkpointing = True

        def __init__(self) -> None:
            super().__init__(PretrainedConfig())
            self.layer = Layer()

    model = Model()
    model.activation_checkpointing_enable()
    return model.train().layer


def add_adapters(blocks: list[Block]) -> None:
    """What peft does to a model: its own parameters are frozen, and new ones beside them train."""
    from peft import LoraConfig, get_peft_model

    for block in blocks:
        get_peft_model(block, LoraConfig(target_modules=["first", "last"]))


TOOLS: dict[str, Callable[[Block], Call]] = {
    one.__name__: one
    for one in (
        dtr_alloc, checkpoint, reentrant, selective, selective_noise, torch_remat,
        torch_remat_hook, wrapper, save_on_cpu, fairscale, deepspeed, deepspeed_non_reentrant,
        torchgpipe, transformers,
    )
}  # fmt: skip


def raw(tensor: Tensor) -> Array:
    return tensor.detach().clone().numpy()


def steps(tool: str, question: str, with_tool: bool) -> Run:
    torch.manual_seed(0)
    stem, blocks = nn.Linear(WIDTH, WIDTH), [Block(question) for _ in range(BLOCKS)]
    if tool == "transformers":
        add_adapters(blocks)
    calls = [TOOLS[tool](block) if with_tool else block for block in blocks]
    every = [*stem.parameters(), *(p for block in blocks for p in block.parameters())]
    parameters = [one for one in every if one.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    data = torch.randn(ROWS, WIDTH)
    run = Run()

    def loss_of(data: Tensor) -> Tensor:
        x = stem(data)  # In float32: a block that runs without autocast finds no mixed types.
        with torch.autocast("cpu", torch.bfloat16, enabled=question == "autocast"):
            for call in calls:
                before, x = x, call(x, torch.ones(ROWS, WIDTH))
                if question == "write_later":
                    with torch.no_grad():
                        before.mul_(0.5)
        return x.square().mean()

    for _ in range(2):
        if question == "func":
            run.gradients.append(raw(torch.func.grad(loss_of)(data)))
            continue
        optimizer.zero_grad()
        loss = loss_of(data)
        loss.backward()
        run.losses.append(raw(loss))
        run.gradients += [raw(p.grad) for p in parameters if p.grad is not None]
        run.generators += [raw(torch.get_rng_state())]
        run.generators += [raw(block.generator.get_state()) for block in blocks]
        run.buffers += [raw(block.count) for block in blocks]
        if run.mean is None:
            run.mean = raw(blocks[0].norm.running_mean)  # type: ignore[arg-type]
        optimizer.step()
    run.calls = sum(block.calls for block in blocks)
    return run


def train(tool: str, question: str, with_tool: bool) -> Run:
    """Two steps, under dtr_alloc within a budget, which is a share of what they take without."""
    if tool != "dtr_alloc" or not with_tool:
        return steps(tool, question, with_tool)
    import dtr_alloc

    def within(scope: AbstractContextManager[Any]) -> tuple[Run, Any]:
        with scope as session:
            run = steps(tool, question, with_tool)
        return run, session.stats()

    _, measured = within(dtr_alloc.measure(device="cpu"))
    budget = int(BUDGET * measured.peak_bytes)
    run, stats = within(dtr_alloc.rematerialize(budget, device="cpu"))
    assert stats.rematerializations, "nothing was evicted"
    run.calls += stats.rematerializations
    return run


if __name__ == "__main__":
    torch.set_num_threads(2)
    report(functools.partial(train, sys.argv[1]), [one for one in QUESTIONS if one != "noise"])
