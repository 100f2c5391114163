"""Recording what a program does as a trace.

The runtime keeps raw records of what it sees anyway; when the recording ends, a trace is made of
them (from_records.py). What the trace does not show: threads outside the scope, and memory that is
not the pool's, such as parameters made before it (constants of no bytes). About 0.3 us an operator
while it runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import numpy.typing as npt

from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.run_script import Elsewhere, run_script, scopes_of_scripts
from dtr_alloc.runtime.scope.scope import rematerialize
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.from_records import trace_of


class Recording:
    """What ``record_trace`` gives; filled when its body ends.

    Attributes:
        trace: the trace, or None before.
        evictions: what was evicted, to make room or by `dtr_alloc.evict`, in order: rows of a
            name's number (``x7`` is 7) and how often it had been written in place, shape
            (evictions, 2).
    """

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self.evictions: npt.NDArray[np.int64] = np.zeros((0, 2), np.int64)


@contextmanager
def record_trace(path: str | os.PathLike[str] | None = None) -> Iterator[Recording]:
    """Records the body as a trace, and writes it to `path`, compressed if that ends in ``.gz``.

    Inside ``rematerialize`` it records that scope. Beside ``dtr_alloc.allocator`` it records what
    runs on the device whose tensors are evicted, with the times that the device took. Else it opens
    a scope without a budget, in which nothing is evicted.

    Raises:
        RuntimeError: a trace is being recorded already, or no memory was asked of the allocator so
            far.
        OSError: the file cannot be written; the trace is in the recording all the same.

    Example:
        >>> import torch
        >>> with record_trace() as recording:
        ...     y = torch.ones(1000).exp()
        >>> recording.trace.schedule().op_name
        ['aten::ones', 'aten::exp']
    """
    recording = Recording()
    opened = rematerialize(None) if current.scope() is None else nullcontext()
    with opened, recorded(recording):
        yield recording
    if path is not None and recording.trace is not None:
        recording.trace.save(path)


@contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """Fills `recording` with what the body does in the scope that is open."""
    core = current.session()
    if core is None:
        raise RuntimeError(
            "a trace is of the device's operators, and no memory of it was asked for yet: record "
            "once the model is there"
        )
    core.start_trace()
    try:
        yield
    finally:
        records, operators, evictions = core.take_trace()
        recording.evictions = evictions.reshape(-1, 2)
        recording.trace = trace_of(records.tolist(), operators)


def trace_script(
    script: str,
    args: Sequence[str],
    path: str | os.PathLike[str],
    clock: str = "wall",
    *,
    module: bool = False,
) -> tuple[int, int, str]:
    """Runs a Python script as `python script args` would, or a module, and writes its trace, also
    of a script that fails; returns its exit code, how many operators were recorded, and what it did
    where no trace sees it. A traceback goes to stderr. Scopes that the script opens are not: all of
    it is in one, without a budget.
    """
    recording, elsewhere = Recording(), Elsewhere()
    path = os.path.abspath(path)  # The script may change the folder.
    with (
        rematerialize(None, clock=clock) as session,
        recorded(recording),
        scopes_of_scripts(lambda *_, **__: nullcontext(session), closable=False),
        elsewhere.watch(),
    ):
        code = run_script(script, args, module=module)
    assert recording.trace is not None
    recording.trace.save(path)
    operators = int((~recording.trace.schedule().op_constant).sum())
    return code, operators, str(elsewhere)
