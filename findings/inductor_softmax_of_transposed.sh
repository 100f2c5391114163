#!/usr/bin/env bash
# Guess: what Inductor compiles has the gradients of eager mode but for rounding.
# Truth: the gradient of a softmax over a transposed copy, between two other functions, is another
# one. With 64 rows it is off by more than its own largest item, with 16 it is right. No random
# number, no budget and no option has part in it, and nothing warns.
# Seen: torch 2.13.0 on an x86_64 CPU. On 2.15.0 all are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import torch

torch.set_num_threads(1)


def gradient(function, rows):
    torch.compiler.reset()
    torch.manual_seed(0)
    x = torch.randn(rows, rows, requires_grad=True)
    return torch.autograd.grad(function(x).square().mean(), x)[0]


FUNCTIONS = {
    "of a copy": lambda x: x.t().contiguous().tanh().softmax(-1).tanh(),
    "with nothing behind": lambda x: x.t().contiguous().tanh().softmax(-1),
    "not transposed": lambda x: x.tanh().softmax(0).tanh(),
}
for name, function in FUNCTIONS.items():
    for rows in (16, 64):
        right = gradient(function, rows)
        found = gradient(torch.compile(function), rows)
        off = float((found - right).abs().max() / right.abs().max())
        print(f"{name}, {rows} rows:", "right" if off < 1e-4 else "wrong")
PROGRAM
diff - "$folder/seen" <<'SEEN'
of a copy, 16 rows: right
of a copy, 64 rows: wrong
with nothing behind, 16 rows: right
with nothing behind, 64 rows: right
not transposed, 16 rows: right
not transposed, 64 rows: right
SEEN
