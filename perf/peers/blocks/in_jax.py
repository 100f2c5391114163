"""The blocks in JAX, with jax.checkpoint: `python in_jax.py` prints the answers.

State is an argument and a result here, keys too, and arrays are never written. So there is nothing
to ask of generators and of writes; what a second run of a block computes could differ all the same.
A program is compiled, as JAX's users do. XLA merges the second run of an unrolled network with the
first, so the blocks are a loop, `scan`, in which it stays: the compiled loops' matrix products are
counted.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from blocks.answers import BLOCKS, ROWS, WIDTH, Run, report


def block(question: str, x: Any, state: dict[str, Any]) -> tuple[Any, tuple[Any, Any]]:
    """A residual block; beside its result the running mean and the count after it."""
    y = x @ state["first"]
    mean = y.mean(0)
    y = (y - mean) / jnp.sqrt(y.var(0) + 1e-5)
    y = jax.nn.gelu(y)
    count = state["count"] + 1
    if question == "random":
        noise, drops = jax.random.split(state["key"])
        y = y + jax.random.uniform(noise, y.shape)
        y = jnp.where(jax.random.bernoulli(drops, 0.7, y.shape), y / 0.7, 0)
    if question == "buffer":
        y = y * count
    return x + y @ state["last"], (0.9 * state["mean"] + 0.1 * mean, count)


def train(question: str, with_tool: bool) -> Run:
    keys = jax.random.split(jax.random.key(0), 5)
    weights = {
        "first": 0.2 * jax.random.normal(keys[0], (BLOCKS, WIDTH, 2 * WIDTH)),
        "last": 0.2 * jax.random.normal(keys[1], (BLOCKS, 2 * WIDTH, WIDTH)),
    }
    means, counts = jnp.zeros((BLOCKS, 2 * WIDTH)), jnp.ones(BLOCKS)
    data = jax.random.normal(keys[2], (ROWS, WIDTH))

    def loss_of(weights: Any, means: Any, counts: Any, keys: Any) -> Any:
        def run(x: Any, state: Any) -> Any:
            return block(question, x, state)

        state = weights | {"mean": means, "count": counts, "key": keys}
        x, kept = jax.lax.scan(jax.checkpoint(run) if with_tool else run, data, state)
        return jnp.square(x).mean(), kept

    step = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    run = Run()
    for number in range(2):
        drawn = jax.random.split(keys[3 + number], BLOCKS)
        (loss, (means, counts)), gradients = step(weights, means, counts, drawn)
        run.losses.append(np.asarray(loss))
        run.gradients += [np.asarray(one) for one in jax.tree.leaves(gradients)]
        run.buffers.append(np.asarray(counts))
        run.mean = np.asarray(means[0]) if run.mean is None else run.mean
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
    compiled = step.lower(weights, means, counts, drawn).compile().as_text()
    run.calls = len(re.findall(r" dot\(", compiled))
    return run


if __name__ == "__main__":
    report(train, ["random", "statistics", "buffer"])
