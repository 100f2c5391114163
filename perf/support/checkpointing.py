"""Checkpointing as a user of it would write it: each block of a model, whole or selectively.

It is what a program is compared with that has the same memory and no dtr_alloc. Whole: a block
keeps its input, and runs again in the backward pass. Selective: what matrix products, convolutions
and attention computed is kept, and the rest runs again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

aten = torch.ops.aten
DEAR = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_fused_attention_overrideable.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}


def _keep_the_dear(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in DEAR else CheckpointPolicy.PREFER_RECOMPUTE


def each_block(blocks: Iterable[nn.Module], **options: Any) -> None:
    """Makes each of the blocks a checkpoint."""
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **options)


def selective(blocks: Iterable[nn.Module]) -> None:
    """The same, but what is dear to compute is kept."""
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_the_dear)
    each_block(blocks, context_fn=contexts)
