"""CuPy and torch on one budget: an array of CuPy's may evict a tensor of torch's.

    python examples/cupy_beside_torch.py

Needs a GPU, a CUDA build of torch that dtr_alloc was built against, and CuPy.
"""

import importlib.util
import sys

import torch

import dtr_alloc


def missing() -> str | None:
    """What this needs and the machine does not have."""
    if not torch.cuda.is_available():
        return "no GPU that torch can use"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    return None


def main() -> dict[str, object]:
    import cupy

    allocator = dtr_alloc.allocator("64MiB")  # Before torch's first use of the GPU.
    torch.cuda.memory.change_current_allocator(allocator)
    cupy.cuda.set_allocator(dtr_alloc.cupy_allocator(allocator))

    seed = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    kept = [seed * factor for factor in range(12)]  # 4 MiB each.
    array = cupy.ones(6 << 20, dtype=cupy.float32)  # 24 MiB: some of them must go.
    sums = [float(tensor.sum()) for tensor in kept]
    expected = [float((seed * factor).sum()) for factor in range(12)]
    assert allocator.session is not None
    stats = allocator.session.stats()
    return {
        "identical": sums == expected and float(array.sum()) == array.size,
        "budget_bytes": 64 << 20,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
    }


if __name__ == "__main__":
    if reason := missing():
        sys.exit(f"not run: {reason}")
    print(main())
