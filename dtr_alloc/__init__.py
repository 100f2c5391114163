"""A memory budget that holds, for any program on stock PyTorch.

After ``torch.cuda.memory.change_current_allocator(dtr_alloc.allocator("8GiB"))``, or inside
``with dtr_alloc.rematerialize("2GiB", device="cpu"):``, tensors come from a pool that never passes
the budget: the ones cheapest to recompute are evicted, and recomputed when next touched.
Results are bit for bit those of plain torch.
"""

import sysconfig
from pathlib import Path

import torch  # Loads libc10, which the compiled module needs.

# A module of another torch loads as a rule, and takes a dispatch key and the CPU's allocator before
# it fails. So what it was built for is compared first (setup.py). A wheel has a module for each
# minor release, of which patches do not change the C++ interface, and for each kind.
_release, _kind = torch.__version__.split("+")[0], "CUDA" if torch.version.cuda else "CPU"
_minor, _here = ".".join(_release.split(".")[:2]), f"torch {_release} {_kind}"
_note = f"_core{sysconfig.get_config_var('EXT_SUFFIX').removesuffix('.so')}.built_for"
_modules = {
    f"torch {note.read_text().strip()}": note.parent
    for pattern in (_note, f"native/*/{_note}")
    for note in Path(__file__).parent.glob(pattern)
    if note.with_suffix(".so").exists()
}
if not _modules:
    raise ImportError(
        "dtr_alloc has no compiled part here: pip install --no-build-isolation -e . in its folder"
    )
_whole = _release.replace(".", "").isdigit()  # A nightly build is of no release.
_built = _here if _here in _modules or not _whole else f"torch {_minor} {_kind}"
if _built not in _modules:
    _served = ", ".join(sorted(name.removeprefix("torch ") for name in _modules))
    raise ImportError(
        f"dtr_alloc is built for torch {_served}, and {_here} is installed: install what it is "
        "built for, or build dtr_alloc again for this one: pip install --no-build-isolation "
        "--no-deps --force-reinstall FOLDER, with the folder of its source (-e FOLDER for a "
        "checkout)"
    )
if _modules[_built] != Path(__file__).parent:
    __path__.append(str(_modules[_built]))
try:
    from dtr_alloc import _core

    if _core.torch_version.split(".")[:2] != _release.split(".")[:2]:
        raise ImportError(f"it is of torch {_core.torch_version}")
except ImportError as error:
    raise ImportError(
        f"dtr_alloc is built for {_built}, which is installed, but its compiled part does not load "
        f"({error}): build it again: pip install --no-build-isolation --no-deps --force-reinstall "
        "FOLDER, with the folder of its source (-e FOLDER for a checkout)"
    ) from error

from dtr_alloc.pool import Pool
from dtr_alloc.pool.cupy import cupy_allocator, rmm_resource
from dtr_alloc.runtime.bounding.bound import Bound, bound
from dtr_alloc.runtime.heuristic import Heuristic
from dtr_alloc.runtime.planning.forecast import Prediction
from dtr_alloc.runtime.planning.plan import Plan, plan
from dtr_alloc.runtime.scope.by_hand import evict, is_evicted, materialize, pin
from dtr_alloc.runtime.scope.cuda_allocator import Allocator, allocator
from dtr_alloc.runtime.scope.record import Recording, record_trace
from dtr_alloc.runtime.scope.scope import join_scope, measure, rematerialize
from dtr_alloc.runtime.scope.session import Session, current_session
from dtr_alloc.runtime.scope.session_stats import SessionStats
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
    "current_session",
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
