"""The blocks in MindSpore, with cell.recompute(): `python in_mindspore.py` prints the answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import mindspore
import numpy as np
from blocks.answers import BLOCKS, QUESTIONS, ROWS, WIDTH, Run, report
from mindspore import Parameter, Tensor, nn, ops


class Block(nn.Cell):  # type: ignore[misc]
    """A residual block. `extra` is an input that needs no gradient."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question
        self.first = nn.Dense(WIDTH, 2 * WIDTH)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.dropout = nn.Dropout(p=0.3 if question == "random" else 0.0)
        self.last = nn.Dense(2 * WIDTH, WIDTH)
        self.count = Parameter(Tensor(np.ones(1, np.float32)), requires_grad=False)
        self.calls = 0

    def construct(self, x: Any, extra: Any) -> Any:
        self.calls += 1
        if self.question == "write":
            x.copy_(0.5 * x)
        if self.question == "write_constant":
            x = x + extra.copy_(0.5 * extra)
        y = self.dropout(ops.gelu(self.norm(self.first(x))))
        if self.question == "noise":
            y = y + ops.rand(*y.shape)
        if self.question == "buffer":
            y = y * ops.assign_add(self.count, 1)
        return x + self.last(y)


def train(question: str, with_tool: bool) -> Run:
    mindspore.set_seed(0)
    mindspore.manual_seed(0)
    stem, blocks = nn.Dense(WIDTH, WIDTH), nn.CellList([Block(question) for _ in range(BLOCKS)])
    for block in blocks if with_tool else ():
        block.recompute()
    parameters = [*stem.trainable_params(), *blocks.trainable_params()]
    optimizer = nn.SGD(parameters, 0.1)
    data = ops.randn(ROWS, WIDTH)
    for cell in (stem, *blocks):
        cell.set_train()
    run = Run()

    def loss_of(data: Any) -> Any:
        x = stem(data)
        for block in blocks:
            before, x = x, block(x, ops.ones((ROWS, WIDTH)))
            if question == "write_later":
                before.copy_(0.5 * before)
        return x.square().mean()

    step = mindspore.value_and_grad(loss_of, None, parameters)
    for _ in range(2):
        loss, gradients = step(data)
        run.losses.append(loss.asnumpy())
        run.gradients += [one.asnumpy() for one in gradients]
        run.generators.append(mindspore.get_rng_state().asnumpy())
        run.buffers += [block.count.asnumpy().copy() for block in blocks]
        run.mean = blocks[0].norm.moving_mean.asnumpy().copy() if run.mean is None else run.mean
        optimizer(gradients)
    run.calls = sum(block.calls for block in blocks)
    return run


if __name__ == "__main__":
    unasked = ("generator", "autocast", "func")
    report(train, [one for one in QUESTIONS if one not in unasked])
