"""The blocks in Keras on torch, each made in a RematScope: `python in_keras.py` prints the answers.

The global random numbers here are Keras's own seed, which dropout and unseeded draws advance. A
SeedGenerator is the explicit generator.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from blocks.answers import BLOCKS, QUESTIONS, ROWS, WIDTH, Array, Run, report
from keras import layers


class Block(layers.Layer):  # type: ignore[misc]
    """A residual block. `extra` is an input that needs no gradient."""

    def __init__(self, question: str, name: str) -> None:
        super().__init__(name=name)
        self.question = question
        self.first = layers.Dense(2 * WIDTH)
        self.norm = layers.BatchNormalization(momentum=0.9)
        self.dropout = layers.Dropout(0.3, seed=1)
        self.last = layers.Dense(WIDTH)
        self.generator = keras.random.SeedGenerator(2)
        self.count = self.add_weight(shape=(), initializer="ones", trainable=False)
        self.calls = 0

    def call(self, x: Any, extra: Any) -> Any:
        self.calls += 1
        if self.question == "write":
            x.mul_(0.5)
        if self.question == "write_constant":
            x = x + extra.mul_(0.5)
        y = keras.activations.gelu(self.norm(self.first(x), training=True))
        if self.question == "random":
            y = self.dropout(y + keras.random.uniform(y.shape), training=True)
        if self.question == "generator":
            y = y + keras.random.uniform(y.shape, seed=self.generator)
        if self.question == "buffer":
            self.count.assign_add(1.0)
            y = y * self.count
        return x + self.last(y)


def raw(value: Any) -> Array:
    return value.detach().clone().numpy()


def train(question: str, with_tool: bool) -> Run:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    names = [f"block_{n}" for n in range(BLOCKS)]
    stem = layers.Dense(WIDTH)
    with keras.RematScope("list_of_layers" if with_tool else None, layer_names=names):
        blocks = [Block(question, name) for name in names]
    data = torch.randn(ROWS, WIDTH)
    global_seed = keras.src.random.seed_generator.global_seed_generator()
    run = Run()
    for _ in range(2):
        x = stem(data)
        with torch.autocast("cpu", torch.bfloat16, enabled=question == "autocast"):
            for block in blocks:
                before, x = x, block(x, torch.ones(ROWS, WIDTH))
                if question == "write_later":
                    with torch.no_grad():
                        before.mul_(0.5)
        loss = x.square().mean()
        loss.backward()
        variables = [v for layer in (stem, *blocks) for v in layer.trainable_variables]
        run.losses.append(raw(loss))
        run.gradients += [raw(v.value.grad) for v in variables]
        seeds = [seed for b in blocks for seed in (b.generator, b.dropout.seed_generator)]
        run.generators += [raw(seed.state.value) for seed in (global_seed, *seeds)]
        run.buffers += [raw(block.count.value) for block in blocks]
        run.mean = raw(blocks[0].norm.moving_mean.value) if run.mean is None else run.mean
        with torch.no_grad():
            for variable in variables:
                variable.value.sub_(0.1 * variable.value.grad)
                variable.value.grad = None
    run.calls = sum(block.calls for block in blocks)
    return run


if __name__ == "__main__":
    unasked = ("noise", "func")
    report(train, [one for one in QUESTIONS if one not in unasked])
