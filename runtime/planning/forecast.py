"""What a training would cost under a budget, from what it took without one.

Its first steps were run without a budget and recorded (profile.py), and the trace is simulated at
each budget by the live runtime's own rules (mode ``pool``). What a step takes there is what it
takes without a budget, and what the simulation adds after the warm-up:

- operators run again, each at the least time that it took;
- the search for victims, which is the engine's own and so is simply timed;
- moving pages, at this machine's prices, which the runtime measures once a process;
- what a rematerialization takes beyond these, measured on another program (cost.py);
- transfers over a link, where there is one.

A slowdown is that time over a step's in plain torch. Not in it: what a smaller memory changes in
operators run once. How near all this comes is measured by perf/choice/plan.py.
"""

from __future__ import annotations

import math
import operator
import statistics
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.heuristic import DEFAULT, Heuristic
from dtr_alloc.runtime.planning.profile import Profile, after_mark
from dtr_alloc.runtime.simulate.link import Linked
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import live
from dtr_alloc.runtime.simulate.simulator import Budget, Simulator, parse_budget
from dtr_alloc.runtime.trace import Trace

_COMPUTED = 0  # In SimulationResult.events.
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
        evictions, rematerializations, moved_bytes: a step. The last ones go over a link or come
            back.
    """

    budget_bytes: int | None
    status: str
    peak_bytes: int = 0
    step_ns: float = 0.0
    slowdown: float = 0.0
    evictions: float = 0.0
    rematerializations: float = 0.0
    moved_bytes: float = 0.0


class Forecast:
    """A profile made ready to be asked about budgets."""

    def __init__(
        self,
        profile: Profile,
        heuristic: str | Heuristic = DEFAULT,
        around_ns: float = 0.0,
        link: Linked = None,
    ) -> None:
        """`around_ns` is what each rematerialization takes beyond what a simulation knows."""
        self.profile = profile
        self._rules = replace(live(heuristic), move_ns=None, log_events=True, link=link)
        self._around_ns = around_ns
        self._rounds = [self._ready(trace) for trace in profile.traces]
        self.peak_bytes = self._once(None).peak_bytes

    def budget_bytes(self, budget: Budget) -> int:
        """Of a share, the pool's peak without a budget counts. Raises TypeError or ValueError as
        `parse_budget` does."""
        parsed = parse_budget(budget)
        if not isinstance(parsed, Share):
            return parsed
        return max(parsed.of(self.peak_bytes, self._rounds[0][0].stays_bytes), 1)

    def predict(self, budget: Budget | None) -> Prediction:
        """What the training would be like within `budget`; None for no budget. Raises TypeError or
        ValueError as `parse_budget` does."""
        if budget is None:
            return self._once(None)
        # A run is luck: what operators cost is measured while others use the machine, and near the
        # floor a little less memory may mean twice as much recomputation. Of runs by the costs that
        # each round measured, and at budgets that are nearly this one, that in the middle counts.
        size = self.budget_bytes(budget)
        exact = self._once(size)
        if exact.status != "ok":
            return exact
        others = enumerate(NEARBY, start=1)
        runs = [exact, *(self._once(int(size * near), number) for number, near in others)]
        runs.sort(key=lambda run: run.slowdown if run.status == "ok" else math.inf)
        middle = runs[len(runs) // 2]
        if middle.status != "ok":
            return replace(middle, budget_bytes=size)
        return replace(middle, budget_bytes=size, peak_bytes=exact.peak_bytes)

    def _once(self, size: int | None, number: int = 0) -> Prediction:
        """By the costs of a round."""
        simulator, warm_up = self._rounds[number % len(self._rounds)]
        whole = self._simulate(simulator, size)
        if whole.status != "ok":
            return Prediction(size, whole.status)
        figures = self._figures(whole)
        if warm_up is not None:
            warm = self._figures(self._simulate(warm_up, size))
            figures = tuple(map(operator.sub, figures, warm))
        added_ns, *counts = (figure / self.profile.traced_steps for figure in figures)
        step_ns = statistics.mean(self.profile.scope_ns) + max(added_ns, 0.0)
        base_ns = self.profile.base_ns or self.profile.eager_ns or self.profile.scope_ns
        slowdown = step_ns / statistics.mean(base_ns)
        return Prediction(size, "ok", whole.peak_bytes, step_ns, slowdown, *counts)

    def smallest(self, slowdown: float = math.inf) -> Prediction | None:
        """The smallest budget, to a hundredth of the peak, that is predicted to stay under a
        slowdown, or just to be enough; None where no budget does. Found by halving: slowdown grows
        as budgets shrink, but for luck.
        """
        best, low, high = None, 0, 101
        while high - low > 1:
            middle = (low + high) // 2
            found = self.predict(Share(middle / 100, whole=True))
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
        if budget is None:
            return simulator.run(_PLENTY, self._rules)
        return simulator.run(budget, replace(self._rules, move_ns="measured"))

    def _ready(self, trace: Trace) -> tuple[Simulator, Simulator | None]:
        """The whole, and the warm-up, if there is one."""
        items = trace.instructions
        warm = items[: after_mark(items, self.profile.warm_marks)]
        return Simulator(trace), Simulator(Trace(warm)) if warm else None

    def _figures(self, result: SimulationResult) -> tuple[float, ...]:
        """The time that is added, evictions, rematerializations, and bytes moved."""
        again = self._again_ns(result.events) * self.profile.kernel_ratio
        around = result.rematerializations * self._around_ns
        return (
            again + around + result.search_ns + result.move_ns + result.waited_ns,
            result.evictions - result.eager_evictions,
            result.rematerializations,
            result.swapped_out_bytes + result.swapped_in_bytes,
        )

    def _again_ns(self, events: npt.NDArray[np.int64]) -> int:
        """The least times of the operators run again. Each is in the events by what it brought
        back: one or several of its results, in order."""
        tensors = events[events[:, 1] == _COMPUTED, 0]
        if not len(tensors):
            return 0
        begins = self._rounds[0][0].schedule.op_results_begin
        operators = np.searchsorted(begins, tensors, side="right") - 1
        more = (operators[1:] == operators[:-1]) & (tensors[1:] > tensors[:-1])
        return int(self.profile.least_ns[operators[np.append(True, ~more)]].sum())
