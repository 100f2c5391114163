#!/usr/bin/env bash
# Guess: equal numbers in equal layouts give equal bits, wherever they lie in memory.
# Truth: a matrix times a vector, and a linear layer on one row, depend on the address modulo 16. A
# weight that safetensors loaded lies at any multiple of 4, and its clone at a multiple of 64, so
# the two give other bits. A linear layer on two rows, sums and softmax do not depend on it.
# Seen: torch 2.13.0 (MKL) on x86-64 with AVX-512, one thread: about 390 of 513 results differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 safetensors==0.8.0 packaging==26.3 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import os
import tempfile

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(0)
weight, x = torch.randn(513, 255), torch.randn(2, 255)
ways = {
    "weight @ x": lambda w: w @ x[0],
    "one row": lambda w: F.linear(x[:1], w),
    "two rows": lambda w: F.linear(x, w),
    "sum": lambda w: w.sum(1),
    "softmax": lambda w: w.softmax(1),
}
folder = tempfile.mkdtemp()
for before in (1, 2):  # Floats that lie before the weight in the file.
    path = os.path.join(folder, f"{before}.safetensors")
    save_file({"a": torch.zeros(before), "weight": weight}, path)
    loaded = load_file(path)["weight"]
    assert torch.equal(loaded, weight)
    same = [name for name, f in ways.items() if torch.equal(f(loaded), f(loaded.clone()))]
    print(f"address % 16 is {loaded.data_ptr() % 16}; its clone gives the same: {', '.join(same)}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
address % 16 is 12; its clone gives the same: two rows, sum, softmax
address % 16 is 0; its clone gives the same: weight @ x, one row, two rows, sum, softmax
SEEN
