"""The score on a CUDA device: one kernel, compiled ahead of time.

- `least_of_tiles.ptx` is the kernel as the runtime uses it. An engine with many candidates launches
  it (`runtime/csrc/policy/device_scorer.h`).
- `ahead` reads that file for the CUDA allocator, and makes it anew after a change.
- `_kernels` is the kernel's source, in Triton. The runtime needs no Triton.

Its definition in plain torch is `tests/kernels/reference.py`. Tests compare the kernel and the C++
scorer with it.
"""
