"""What a training would cost under a budget, from what it took without one.

Its first steps were run without a budget and recorded (training_profile.py), and the trace is
simulated at each budget by the live runtime's own rules (mode ``pool``). What a step takes there is
what it takes without a budget, and what the simulation adds after the warm-up:

- operators run again, at their own times;
- the search for victims, which is the engine's own and so is simply timed;
- moving pages, at this machine's prices, which the runtime measures once a process;
- what a rematerialization takes beyond these, measured on another program
  (rematerialization_cost.py).

A slowdown is that time over a step's in plain torch. Not in it: what a smaller memory changes in
operators run once. How near all this comes is measured by perf/plan.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dtr_alloc.runtime.heuristic import Heuristic
from dtr_alloc.runtime.simulate import Budget, SimulationResult, Simulator, parse_budget
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.training_profile import Profile, after_mark

HOPELESS = 20.0
"""A simulation that recomputes more often than this is given up as thrashing."""

_PLENTY = 1 << 38  # A virtual arena has no more addresses than some multiple of it.

NEARBY = (0.99, 0.995, 1.005, 1.01)
"""Budgets that are nearly one: see `Forecast.predict`."""


@dataclass(frozen=True)
class Prediction:
    """A training under a budget, foretold.

    Attributes:
        budget_bytes: None for no budget.
        status: ``ok``, ``oom`` or ``thrash``, as `SimulationResult` has it. Where it is not ok, the
            figures below are 0.
        peak_bytes: most bytes in the pool.
        step_ns: what a step takes; `slowdown`: by what it takes in plain torch.
        evictions, rematerializations: a step.
    """

    budget_bytes: int | None
    status: str
    peak_bytes: int = 0
    step_ns: float = 0.0
    slowdown: float = 0.0
    evictions: float = 0.0
    rematerializations: float = 0.0


class Forecast:
    """A profile made ready to be asked about budgets."""

    def __init__(
        self, profile: Profile, heuristic: str | Heuristic = "dtr", around_ns: float = 0.0
    ) -> None:
        """`around_ns` is what each rematerialization takes beyond what a simulation knows."""
        items = profile.trace.instructions
        warm = items[: after_mark(items, profile.warm_marks)]
        self.profile = profile
        self.steps = max(len(profile.scope_ns), 1)
        self._heuristic = heuristic
        self._around_ns = around_ns
        self._whole = Simulator(profile.trace)
        self._warm = Simulator(Trace(warm)) if warm else None
        self.peak_bytes = self._once(None).peak_bytes

    def budget_bytes(self, budget: Budget) -> int:
        """A share of the pool's peak without a budget, or bytes.

        Raises:
            TypeError, ValueError: see `parse_budget`.
        """
        parsed = parse_budget(budget)
        return int(self.peak_bytes * parsed) if isinstance(parsed, float) else parsed

    def predict(self, budget: Budget | None) -> Prediction:
        """What the training would be like within `budget`; None for no budget.

        Raises:
            TypeError, ValueError: see `parse_budget`.
        """
        if budget is None:
            return self._once(None)
        # Near the floor a run is luck: another one, a little different, may recompute twice as
        # much. Of budgets that are nearly this one, the run in the middle counts.
        size = self.budget_bytes(budget)
        exact = self._once(size)
        if exact.status != "ok":
            return exact
        runs = [exact, *(self._once(int(size * near)) for near in NEARBY)]
        runs.sort(key=lambda run: run.slowdown if run.status == "ok" else math.inf)
        middle = runs[len(runs) // 2]
        if middle.status != "ok":
            return replace(middle, budget_bytes=size)
        return replace(middle, budget_bytes=size, peak_bytes=exact.peak_bytes)

    def _once(self, size: int | None) -> Prediction:
        whole = self._simulate(self._whole, size)
        if whole.status != "ok":
            return Prediction(size, whole.status)
        added = self._added_ns(whole)
        evictions = whole.evictions - whole.eager_evictions
        remats = whole.rematerializations
        if self._warm is not None:
            warm = self._simulate(self._warm, size)
            added = max(added - self._added_ns(warm), 0.0)
            evictions -= warm.evictions - warm.eager_evictions
            remats -= warm.rematerializations
        step_ns = (sum(self.profile.scope_ns) + added) / self.steps
        plain = self.profile.eager_ns or self.profile.scope_ns
        return Prediction(
            size,
            "ok",
            whole.peak_bytes,
            step_ns,
            step_ns * self.steps / max(sum(plain), 1),
            evictions / self.steps,
            remats / self.steps,
        )

    def smallest(self, slowdown: float = math.inf) -> Prediction | None:
        """The smallest budget, to a hundredth of the peak, that is predicted to stay under a
        slowdown, or just to be enough; None where no budget does. Found by halving: slowdown grows
        as budgets shrink, but for luck.
        """
        best, low, high = None, 0, 100
        while high - low > 1:
            middle = (low + high) // 2
            found = self.predict(middle / 100)
            if found.status == "ok" and found.slowdown <= slowdown:
                best, high = found, middle
            else:
                low = middle
        return best

    def spread(self, count: int = 6) -> list[int]:
        """So many budgets, evenly from below the peak down to the smallest that is enough."""
        floor = self.smallest()
        if floor is None or floor.budget_bytes is None:
            return []
        span = self.peak_bytes - floor.budget_bytes
        return [floor.budget_bytes + span * place // count for place in reversed(range(count))]

    def _simulate(self, simulator: Simulator, budget: int | None) -> SimulationResult:
        return simulator.run(
            _PLENTY if budget is None else budget,
            self._heuristic,
            mode="pool",
            thrash=HOPELESS,
            pin_outputs=False,
            move_ns=None if budget is None else "measured",
        )

    def _added_ns(self, result: SimulationResult) -> float:
        again = (result.total_compute - result.base_compute) * self.profile.kernel_ratio
        around = result.rematerializations * self._around_ns
        return again + around + result.search_ns + result.move_ns
