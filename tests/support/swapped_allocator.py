"""Programs whose CUDA allocator is ours, on the fake driver.

The allocator is for a whole process and for good, so each program runs in one of its own. No GPU is
there: torch refuses its tensors, but its statistics, snapshot and the requests of other libraries
go through.
"""

import json
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from dtr_alloc import _core
from tests.support.own_process import printed

with_cuda = pytest.mark.skipif(
    not hasattr(_core, "CudaAllocator"), reason="torch or this build has no CUDA"
)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

PRELUDE = """
import ctypes, json, os, torch, dtr_alloc
from dtr_alloc import _core
MIB = 1 << 20
def swap(budget="64MiB", **options):
    allocator = dtr_alloc.allocator(budget, **options)
    torch.cuda.memory.change_current_allocator(allocator)
    return allocator
def driver():
    return ctypes.CDLL(os.environ["DTR_ALLOC_LIBCUDA"])
def refused(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None
"""


def tell(program: str) -> Any:
    """What the program printed last, as JSON; its driver is the fixture `cuda`'s."""
    whole, folder = PRELUDE + textwrap.dedent(program), Path(tempfile.gettempdir())
    return json.loads(printed(whole, cwd=folder, PYTHONWARNINGS="error").splitlines()[-1])
