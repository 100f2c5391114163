#!/usr/bin/env bash
# Guess: with activation_memory_budget below 1 a compiled model recomputes a dropout with the mask
# of its forward pass, as torch.utils.checkpoint does, so that only time is paid.
# Truth: the backward graph draws another mask. The loss is the same, and gradients are off by 15 %.
# Nothing warns. Without dropout they are equal (https://github.com/pytorch/pytorch/issues/190758).
# Seen: torch 2.13.0, backends aot_eager_decomp_partition (below, as it needs no compiler) and
# inductor, on the CPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import torch
import torch._functorch.config as functorch
from torch import nn

torch.set_num_threads(1)


def train(budget, dropout):
    torch.compiler.reset()
    functorch.activation_memory_budget = budget
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(dropout)) for _ in range(4)]
    model = nn.Sequential(*blocks)
    compiled = torch.compile(model, backend="aot_eager_decomp_partition")
    loss = compiled(torch.randn(32, 64)).square().mean()
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


for dropout in (0.0, 0.1):
    loss, gradients = train(1.0, dropout)
    other_loss, others = train(0.3, dropout)
    off = float((others - gradients).norm() / gradients.norm())
    print(f"dropout {dropout}: loss equal {torch.equal(loss, other_loss)}, gradients {off:.0%} off")
PROGRAM
diff - "$folder/seen" <<'SEEN'
dropout 0.0: loss equal True, gradients 0% off
dropout 0.1: loss equal True, gradients 15% off
SEEN
