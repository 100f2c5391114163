"""The blocks in Paddle, with its recompute: `python in_paddle.py TOOL` prints the answers.

Paddle's operators take no generator, and its autocast does nothing on the CPU: neither is asked.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import paddle
from blocks.answers import BLOCKS, QUESTIONS, ROWS, WIDTH, Run, report
from paddle import nn
from paddle.distributed.fleet.utils import recompute

Call = Callable[[Any, Any], Any]
TOOLS: dict[str, Callable[[Any], Call]] = {
    "recompute": lambda block: functools.partial(recompute, block),
    "hooks": lambda block: functools.partial(recompute, block, use_reentrant=False),
}


class Block(nn.Layer):  # type: ignore[misc]
    """A residual block. `extra` is an input that needs no gradient."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.BatchNorm1D(2 * WIDTH)
        self.dropout = nn.Dropout(0.3 if question == "random" else 0.0)
        self.last = nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("count", paddle.ones([1]))
        self.calls = 0

    def forward(self, x: Any, extra: Any) -> Any:
        self.calls += 1
        if self.question == "write":
            x.scale_(0.5)
        if self.question == "write_constant":
            x = x + extra.scale_(0.5)
        y = nn.functional.gelu(self.norm(self.first(x)))
        if self.question == "random":
            y = self.dropout(y + paddle.rand(y.shape))
        if self.question == "buffer":
            self.count.add_(paddle.ones([1]))
            y = y * self.count
        return x + self.last(y)


def train(tool: str, question: str, with_tool: bool) -> Run:
    paddle.seed(0)
    stem, blocks = nn.Linear(WIDTH, WIDTH), [Block(question) for _ in range(BLOCKS)]
    calls = [TOOLS[tool](block) if with_tool else block for block in blocks]
    parameters = [p for one in (stem, *blocks) for p in one.parameters() if p.trainable]
    optimizer = paddle.optimizer.SGD(0.1, parameters=parameters)
    data = paddle.randn([ROWS, WIDTH])
    run = Run()
    for _ in range(2):
        x = stem(data)
        for call in calls:
            before, x = x, call(x, paddle.ones([ROWS, WIDTH]))
            if question == "write_later":
                with paddle.no_grad():
                    before.scale_(0.5)
        loss = x.square().mean()
        loss.backward()
        run.losses.append(loss.numpy())
        run.gradients += [p.grad.numpy() for p in parameters]
        state = str(paddle.get_rng_state()[0]).split()[4:]  # An address stands before.
        run.generators.append(np.array(state, np.uint64))
        run.buffers += [block.count.numpy() for block in blocks]
        run.mean = blocks[0].norm._mean.numpy() if run.mean is None else run.mean
        optimizer.step()
        optimizer.clear_grad()
    run.calls = sum(block.calls for block in blocks)
    return run


if __name__ == "__main__":
    unasked = ("noise", "generator", "autocast", "func")
    asked = [one for one in QUESTIONS if one not in unasked]
    report(functools.partial(train, sys.argv[1]), asked)
