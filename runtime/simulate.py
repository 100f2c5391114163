"""What the engine would have done: a trace replayed at any budget, without tensors.

The decisions are those of the live runtime's own engine; only the executor differs. Mode ``bytes`` is
the paper's simulator, decision by decision: memory is a number, every record is kept, views are
operators of their own, and the score has no epsilon. Mode ``pool`` is the live runtime: blocks of an
address range, so that fragmentation shows; views are free; records go when nothing can ask for them.
About 0.1 us a score. Source: Kirisame et al., ICLR 2021, section 4.2 and appendices C and D.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic, resolve
from dtr_alloc.runtime.schedule import Schedule
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.size import parse_size

Mode = Literal["bytes", "pool"]
Policy = Literal["eager", "banish", "ignore"]

THRASH = 2.0
"""A run stops when it has computed this often as much as without a budget (appendix D)."""


@dataclass(frozen=True)
class Baseline:
    """A trace without a budget.

    Attributes:
        peak_bytes: the most that was held at once, what is released going at once.
        compute: nanoseconds of all operators.
        constant_bytes: of everything that was not computed.
        largest_operator_bytes: the most that one operator reads and makes.
    """

    peak_bytes: int
    compute: int
    constant_bytes: int
    largest_operator_bytes: int


@dataclass(frozen=True)
class SimulationResult:
    """What a run under a budget came to.

    Attributes:
        status: ``ok``; ``oom``, nothing was left to evict; ``thrash``, recomputation passed the
            limit. Figures of a run that failed are those at its end.
        budget_bytes, baseline_peak_bytes, peak_bytes: the budget, and the most bytes held without
            and with it.
        base_compute: nanoseconds of all operators of the trace, each once.
        total_compute: with those run again.
        overhead: their quotient.
        evictions: storages that lost their content, `eager_evictions` of them because the program
            let them go.
        rematerializations: operators run again; `collateral`: other results they brought back.
        evaluations, accesses: scores computed, and those plus the records visited for them.
        wall_seconds: what the simulation took.
        events: rows (tensor, event) in order, event 0 for computed, 1 evicted, 2 let go; empty
            unless asked for.
    """

    trace: str
    heuristic: str
    mode: str
    policy: str
    status: str
    budget_bytes: int
    baseline_peak_bytes: int
    base_compute: int
    total_compute: int
    overhead: float
    evictions: int
    eager_evictions: int
    rematerializations: int
    collateral: int
    peak_bytes: int
    evaluations: int
    accesses: int
    wall_seconds: float
    events: npt.NDArray[np.int64] = field(repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """All but the events, for JSON and CSV."""
        row = asdict(self)
        del row["events"]
        return row


class Simulator:
    """A trace made ready: its columns and its baseline are computed once for many runs."""

    def __init__(self, trace: Trace | Schedule, name: str = "") -> None:
        schedule = trace.schedule() if isinstance(trace, Trace) else trace
        self.name = name or getattr(trace, "path", "")
        self.schedule = schedule
        self._columns = _core.Columns(
            tensor_size=schedule.tensor_size,
            tensor_alias=schedule.tensor_alias,
            op_cost=schedule.op_cost,
            op_constant=schedule.op_constant.astype(np.int64),
            op_args_begin=schedule.op_args_begin,
            op_args=schedule.op_args,
            op_results_begin=schedule.op_results_begin,
            kind=schedule.kind.astype(np.int64),
            operand=schedule.operand,
        )
        self.baseline = Baseline(*self._columns.baseline())

    def budget_bytes(self, budget: float | str) -> int:
        """A float is a share of the baseline's peak, an int bytes, a text either ("0.5", "8GiB").

        Raises:
            ValueError: it is negative or no number.
        """
        if isinstance(budget, str):
            try:
                budget = float(budget) if "." in budget else parse_size(budget)
            except ValueError:
                budget = parse_size(budget)
        if not 0 <= budget < 2**62:
            raise ValueError(f"budget {budget!r} is not a share of the peak or a number of bytes")
        if isinstance(budget, float):
            return int(self.baseline.peak_bytes * budget)
        return budget

    def run(
        self,
        budget: float | str,
        heuristic: str | Heuristic = "dtr",
        policy: Policy = "eager",
        mode: Mode = "bytes",
        thrash: float | None = THRASH,
        log_events: bool = False,
    ) -> SimulationResult:
        """See `simulate`."""
        chosen = resolve(heuristic)
        if policy not in ("eager", "banish", "ignore"):
            raise ValueError(f'policy {policy!r} is not one of "eager", "banish", "ignore"')
        if mode not in ("bytes", "pool"):
            raise ValueError(f'mode {mode!r} is not "bytes" or "pool"')
        if thrash is not None and not thrash > 1:
            raise ValueError(f"thrash is {thrash!r}; it is a multiple of the base time, above 1")
        paper = mode == "bytes"
        if paper and chosen.selection == "sample":
            chosen = replace(chosen, selection="single")
        size = self.budget_bytes(budget)
        limit = int(self.baseline.compute * (thrash - 1)) if thrash else 0
        began = time.perf_counter()
        counts = _core.simulate(
            self._columns,
            budget=size,
            pool=not paper,
            heuristic=chosen._native(epsilon=0 if paper else 1),
            policy=getattr(_core.Policy, policy),
            live_rules=not paper or policy == "banish",
            remat_limit=limit,
            log_events=log_events,
        )
        wall = time.perf_counter() - began
        remat = counts.pop("remat_compute")
        total = counts["base_compute"] + remat
        base = max(self.baseline.compute, 1)
        names = {preset: name for name, preset in PRESETS.items()}
        return SimulationResult(
            trace=self.name,
            heuristic=heuristic if isinstance(heuristic, str) else names.get(chosen, repr(chosen)),
            mode=mode,
            policy=policy,
            budget_bytes=size,
            baseline_peak_bytes=self.baseline.peak_bytes,
            total_compute=total,
            overhead=(self.baseline.compute + remat) / base,
            wall_seconds=wall,
            events=counts.pop("events").reshape(-1, 2),
            **counts,
        )
