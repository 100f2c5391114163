"""A memory budget that holds, for any program on stock PyTorch.

Inside ``with dtr_alloc.rematerialize("2GiB", device="cpu"):`` tensors come from a pool that never
passes the budget: the ones cheapest to recompute are evicted, and recomputed when next touched.
Results are bit for bit those of plain torch.
"""

import torch  # Loads libc10, which the compiled module needs.

try:
    from dtr_alloc import _core
except ImportError as error:
    raise ImportError(
        f"dtr_alloc's compiled part does not load with torch {torch.__version__}; build it again "
        "in this environment: pip install --no-build-isolation -e ."
    ) from error

if _core.torch_version != torch.__version__.split("+")[0]:
    raise ImportError(
        f"dtr_alloc was built with torch {_core.torch_version}, but torch {torch.__version__} is "
        "installed; build it again in this environment: pip install --no-build-isolation -e ."
    )

from dtr_alloc.pool import Pool
from dtr_alloc.runtime.heuristic import Heuristic
from dtr_alloc.runtime.record_trace import Recording, record_trace
from dtr_alloc.runtime.session import (
    Session,
    SessionStats,
    evict,
    is_evicted,
    materialize,
    measure,
    pin,
    rematerialize,
)
from dtr_alloc.runtime.simulate import SimulationResult, simulate
from dtr_alloc.runtime.sweep import sweep
from dtr_alloc.runtime.trace import Trace, TraceError

__version__ = "0.1.0"

__all__ = [
    "Heuristic",
    "Pool",
    "Recording",
    "Session",
    "SessionStats",
    "SimulationResult",
    "Trace",
    "TraceError",
    "allocator",
    "evict",
    "is_evicted",
    "materialize",
    "measure",
    "pin",
    "record_trace",
    "rematerialize",
    "simulate",
    "sweep",
]


def allocator(budget: int | str) -> None:
    """The allocator for ``torch.cuda.memory.change_current_allocator``. Not built yet.

    Raises:
        RuntimeError: always, for now; the text says what to use on CPU.
    """
    raise RuntimeError(
        "dtr_alloc.allocator() serves CUDA devices, and this build has no CUDA arena; on CPU use "
        f'`with dtr_alloc.rematerialize({budget!r}, device="cpu"):`'
    )
