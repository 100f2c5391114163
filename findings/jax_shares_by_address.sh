#!/usr/bin/env bash
# Guess: jax.dlpack.from_dlpack either always shares a CPU tensor's memory, or always copies it,
# since jax's arrays never change.
# Truth: it shares where the tensor begins at a multiple of 64, and copies where not, without a
# word. Where it shares, a later write in torch changes the jax array. So what a program sees
# depends on whether it passes x or x[1:].
# Seen: jax 0.10.2 with torch 2.13.0 on the CPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 jax==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import jax
import torch

for first in (0, 4, 8, 16):
    tensor = torch.zeros(64)[first : first + 16]
    array = jax.dlpack.from_dlpack(tensor)
    tensor.fill_(7)
    address = tensor.data_ptr() % 64
    print(f"address % 64 is {address}: after torch wrote 7, jax reads {array[0]:.0f}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
address % 64 is 0: after torch wrote 7, jax reads 7
address % 64 is 16: after torch wrote 7, jax reads 0
address % 64 is 32: after torch wrote 7, jax reads 0
address % 64 is 0: after torch wrote 7, jax reads 7
SEEN
