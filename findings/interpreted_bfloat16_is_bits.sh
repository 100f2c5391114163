#!/usr/bin/env bash
# Guess: Triton's interpreter (TRITON_INTERPRET=1) computes in bfloat16 as a compiled kernel does,
# or refuses, as its documentation says that it does not support bfloat16.
# Truth: it keeps bfloat16 as 16-bit integers, and adds, negates and sums these: 1 + 1 is 1.7e38,
# the negative of 1 is -4, and 512 ones sum to 0. A cast from float32 cuts bits off, and does not
# round. Nothing warns. Loads, stores, comparisons and casts to float32 are right, so a kernel that
# casts before it computes is wrong in the last bits of what it stores only.
# Seen: triton 3.6.0 and 3.8.0 with torch 2.13.0 and numpy 2.4.6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --no-deps triton==3.8.0
# The interpreter reads a kernel's source, which must be a file.
cat >"$folder/program.py" <<'PROGRAM'
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, size: tl.constexpr):
    a = tl.load(x + tl.arange(0, size))
    tl.store(out, tl.sum(a))
    tl.store(out + 1, tl.sum(a.to(tl.float32)))
    tl.store(out + 2 + tl.arange(0, size), a + a)
    tl.store(out + 2 + size + tl.arange(0, size), -a)


@triton.jit
def cast(x, out, size: tl.constexpr):
    tl.store(out + tl.arange(0, size), tl.load(x + tl.arange(0, size)).to(tl.bfloat16))


ones, out = torch.ones(512, dtype=torch.bfloat16), torch.zeros(2048, dtype=torch.bfloat16)
kernel[(1,)](ones, out, 512)
print(f"sum of 512 ones {out[0]:g}, in float32 {out[1]:g}")
print(f"1 + 1 = {out[2]:.1e}, -(1) = {out[514]:g}")
cast[(1,)](torch.tensor([1.007]), out, 1)
print(f"1.007 is {out[0]:.4f}, by torch {torch.tensor(1.007).bfloat16():.4f}")
PROGRAM
TRITON_INTERPRET=1 "$folder/venv/bin/python" "$folder/program.py" >"$folder/seen"
diff - "$folder/seen" <<'SEEN'
sum of 512 ones 0, in float32 512
1 + 1 = 1.7e+38, -(1) = -4
1.007 is 1.0000, by torch 1.0078
SEEN
