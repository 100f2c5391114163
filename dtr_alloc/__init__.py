"""A memory budget that holds, for any program on stock PyTorch.

After ``torch.cuda.memory.change_current_allocator(dtr_alloc.allocator("8GiB"))``, or inside
``with dtr_alloc.rematerialize("2GiB", device="cpu"):``, tensors come from a pool that never passes
the budget: the ones cheapest to recompute are evicted, and recomputed when next touched.
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
from dtr_alloc.pool.cupy import cupy_allocator, rmm_resource
from dtr_alloc.runtime.bounding.bound import Bound, bound
from dtr_alloc.runtime.heuristic import Heuristic
from dtr_alloc.runtime.planning.forecast import Prediction
from dtr_alloc.runtime.planning.plan import Plan, plan
from dtr_alloc.runtime.scope.cuda_allocator import Allocator, allocator
from dtr_alloc.runtime.scope.record import Recording, record_trace
from dtr_alloc.runtime.scope.scope import join_scope, measure, rematerialize
from dtr_alloc.runtime.scope.session import (
    Session,
    SessionStats,
    evict,
    is_evicted,
    materialize,
    pin,
)
from dtr_alloc.runtime.scope.steps import OutlierBatchWarning, Step
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.simulator import simulate
from dtr_alloc.runtime.simulate.sweep import sweep
from dtr_alloc.runtime.trace import Trace, TraceError
from dtr_alloc.runtime.tuning.tune import tune

__version__ = "0.1.0"

__all__ = [
    "Allocator",
    "Bound",
    "Heuristic",
    "OutlierBatchWarning",
    "Plan",
    "Pool",
    "Prediction",
    "Recording",
    "Session",
    "SessionStats",
    "SimulationResult",
    "Step",
    "Trace",
    "TraceError",
    "allocator",
    "bound",
    "cupy_allocator",
    "evict",
    "is_evicted",
    "join_scope",
    "materialize",
    "measure",
    "pin",
    "plan",
    "record_trace",
    "rematerialize",
    "rmm_resource",
    "simulate",
    "sweep",
    "tune",
]
