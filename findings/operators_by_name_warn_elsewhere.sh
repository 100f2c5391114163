#!/usr/bin/env bash
# Guess: what an operator in C++ warns of is a Python warning, which a program's filters see.
# Truth: up to torch 2.14 only where torch's own functions call it. Called as torch.ops.aten.std, as
# every operator of a library is called, it writes to stderr past the filters, so that "error" stops
# nothing. From 2.15 on it is a Python warning there too, and "error" stops the program.
# Seen: torch 2.14.1 and 2.15.0 on a CPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import warnings

import torch

CALLS = {
    "torch.std": torch.std,
    "torch.ops.aten.std": torch.ops.aten.std,
    "torch.ops.aten.std.default": torch.ops.aten.std.default,
}
print(torch.__version__.partition("+")[0])
for name, call in CALLS.items():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            print(f"{name}: {call(torch.ones(1)).item()}")
        except UserWarning:
            print(f"{name}: stopped")
PROGRAM
for version in 2.14.1 2.15.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q "torch==$version" numpy==2.4.6
  "$folder/$version/bin/python" "$folder/program.py" 2>/dev/null >>"$folder/seen"
done
diff - "$folder/seen" <<'SEEN'
2.14.1
torch.std: stopped
torch.ops.aten.std: nan
torch.ops.aten.std.default: nan
2.15.0
torch.std: stopped
torch.ops.aten.std: stopped
torch.ops.aten.std.default: stopped
SEEN
