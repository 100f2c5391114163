#!/usr/bin/env bash
# Guess: torch.set_float32_matmul_precision is for CUDA and changes nothing on the CPU; or else,
# where the CPU has bfloat16 instructions, "medium" gives bfloat16's precision.
# Truth: "medium" sends products from some 200 rows and columns on to oneDNN instead of MKL, and
# oneDNN has no faster kernel for it without AMX. The bits are others, and the precision is
# float32's: thousands of times bfloat16's. "high" changes nothing.
# Seen: torch 2.13.0 on an AMD EPYC with AVX512_BF16 and without AMX. The first line tells the
# machine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import torch

with open("/proc/cpuinfo") as about:
    flags = next(line for line in about if line.startswith("flags")).split()
print(f"avx512_bf16: {'avx512_bf16' in flags}, amx_bf16: {'amx_bf16' in flags}")
torch.manual_seed(0)
for size in (64, 512):
    a, b = torch.randn(size, size), torch.randn(size, size)
    right = a.double() @ b.double()
    rough = float((a.bfloat16() @ b.bfloat16() - right).abs().max())
    highest = a @ b
    for precision in ("high", "medium"):
        torch.set_float32_matmul_precision(precision)
        product = a @ b
        torch.set_float32_matmul_precision("highest")
        same = torch.equal(product, highest)
        fine = float((product - right).abs().max()) < rough / 1000
        print(f"{size}, {precision}: bits of highest: {same}, as fine as float32: {fine}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
avx512_bf16: True, amx_bf16: False
64, high: bits of highest: True, as fine as float32: True
64, medium: bits of highest: True, as fine as float32: True
512, high: bits of highest: True, as fine as float32: True
512, medium: bits of highest: False, as fine as float32: True
SEEN
