"""What a bug report needs to know of an installation: the rows of `dtr-alloc info`.

Everything is asked of the thing itself: the compiled module knows its compiler, the CUDA driver its
version, the kernel its pages. Of environment variables only those are shown that change what torch
or this package does; others may hold secrets.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

import torch

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.pool.size import format_size

__all__ = ["rows"]

_PACKAGES = ("numpy", "click", "rich", "matplotlib", "optuna", "triton", "cupy", "rmm")
_VARIABLES = (
    "DTR_ALLOC_LIBCUDA",
    "DTR_ALLOC_USERFAULTFD",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TRITON_INTERPRET",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "LD_PRELOAD",
    "PYTHONPATH",
)
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def rows() -> dict[str, str]:
    """A name and a value for each line, in the order they are shown.

    Example:
        >>> rows()["dtr_alloc"] == dtr_alloc.__version__
        True
    """
    system_page = os.sysconf("SC_PAGE_SIZE")
    small, large = (format_size(_core.Pool(1, "host", space).page) for space in (1 << 20, 1 << 30))
    return {
        "dtr_alloc": dtr_alloc.__version__,
        "torch": torch.__version__,
        "built against": f"torch {_core.torch_version}, with {_core.compiler}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "platform": platform.platform(),
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{len(os.sched_getaffinity(0))} cores, torch uses {torch.get_num_threads()} threads",
        "memory": format_size(os.sysconf("SC_PHYS_PAGES") * system_page),
        "page size": f"{format_size(system_page)}, huge pages: {_huge_pages()}",
        "arena": f"host, pages of {small}; of {large} where it has 512 MiB of addresses or more",
        "moving a page": "by the kernel"
        if _core.host_pages_move()
        else "not possible: a page of 4 KiB is cleared anew instead (docs/pool.md)",
        "cuda in torch": torch.version.cuda or "none",
        "cuda allocator": "compiled in" if hasattr(_core, "CudaAllocator") else "not compiled in",
        "cuda driver": _driver(),
        "cuda devices": _devices(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _huge_pages() -> str:
    """The word in brackets of `always [madvise] never`."""
    try:
        return _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "unknown"


def _version(package: str) -> str:
    """Of what is imported by that name: the wheels of CuPy and RMM are called otherwise."""
    wheels = importlib.metadata.packages_distributions().get(package, [])
    return ", ".join(map(importlib.metadata.version, dict.fromkeys(wheels))) or "absent"


def _driver() -> str:
    """The driver that a pool on a CUDA device would use (pool/csrc/cuda/driver.cpp)."""
    path = os.environ.get("DTR_ALLOC_LIBCUDA") or "libcuda.so.1"
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return f"none: {error}"
    version = ctypes.c_int()
    if not hasattr(library, "cuDriverGetVersion"):
        return f"{path}, which does not tell its version"
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return f"{path}, which answers with an error"
    return f"{path}, CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _devices() -> str:
    if not torch.cuda.is_available():
        return "none that torch can use"
    found = (torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count()))
    return "; ".join(f"{one.name}, {format_size(one.total_memory)}" for one in found)
