#!/usr/bin/env bash
# Guess: a DLPack consumer calls the tensor's __dlpack__, which a program can watch, and which
# refuses a tensor that requires gradients.
# Truth: tvm_ffi.from_dlpack takes torch's C functions from Tensor.__dlpack_c_exchange_api__ and
# calls no Python method. It takes parameters too. A write through it leaves _version as it was, so
# that a backward pass reads the overwritten result and raises nothing.
# Seen: torch 2.13.0 with apache-tvm-ffi 0.1.15 and 0.1.15.post2 (0.1.15 was yanked).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 apache-tvm-ffi==0.1.15.post2 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import numpy as np
import torch
import tvm_ffi

calls = []
for name in ("__dlpack__", "__dlpack_device__", "data_ptr", "numpy", "detach"):

    def watched(self, *args, _name=name, _whole=getattr(torch.Tensor, name), **kwargs):
        calls.append(_name)
        return _whole(self, *args, **kwargs)

    setattr(torch.Tensor, name, watched)

weight = torch.zeros(8, requires_grad=True)
try:
    np.from_dlpack(weight)
except BufferError:
    print(f"numpy: refused, after {calls}")
calls.clear()
array = np.from_dlpack(tvm_ffi.from_dlpack(weight))
print(f"tvm_ffi: taken, after {calls}")
result = weight.exp()  # Its gradient is computed from itself.
np.from_dlpack(tvm_ffi.from_dlpack(result))[:] = 100
result.sum().backward()
print(f"version {result._version}, gradient {weight.grad[0]:.0f}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
numpy: refused, after ['__dlpack__']
tvm_ffi: taken, after []
version 0, gradient 100
SEEN
