"""The score on a CUDA device: one kernel, compiled ahead of time, and its definition.

- `least_of_tiles.ptx` is the kernel as the runtime uses it. An engine with many candidates launches
  it (`runtime/csrc/policy/device_scorer.h`).
- `ahead` reads that file for `dtr_alloc.cuda`, and makes it anew after a change.
- `_kernels` is the kernel's source, in Triton. The runtime needs no Triton.
- `reference` is the score in plain torch, on the `columns.Columns` of some candidates. Tests
  compare the kernel and the C++ scorer with it.
- `launch` launches the source on torch tensors, on a GPU or in Triton's interpreter. Only tests
  call it.
"""
