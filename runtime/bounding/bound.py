"""How far is a policy from the best that any could do, at a budget? A proven bound and a best find.

From below: no policy needs less than `lower`; needs.py says by which rules, knapsack.py and
stages.py prove it. From above: `best_found` is a setting of our own policy (search.py). What lies
between is what nobody knows; where they meet, the setting is the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from dtr_alloc.pool.size import LARGEST_BUDGET
from dtr_alloc.runtime.bounding.knapsack import least_again_ns
from dtr_alloc.runtime.bounding.needs import Needs, needs_of
from dtr_alloc.runtime.bounding.search import Setting, anneal, presets, run
from dtr_alloc.runtime.bounding.stages import Proof, check_solver, prove
from dtr_alloc.runtime.heuristic import PRESETS, name_of
from dtr_alloc.runtime.simulate.simulator import Budget, Simulator, Traced

SECONDS = 10.0
"""For the proof, and as long again for the search."""

SAME = 1e-5
"""Overheads that differ by less are told as the same: the solver's tolerance, ten times."""


@dataclass(frozen=True)
class Bound:
    """What any policy needs at a budget, and what ours do. Times are told as overheads: the time of
    all operators that run, those run again included, by that of each once.

    Attributes:
        trace: its name.
        budget_bytes, baseline_peak_bytes: as `SimulationResult` has them.
        base_ns: of all operators of the trace, each once.
        floor_bytes: no policy can run the program in less: what cannot be recomputed, and an
            operator's own arguments, results and temporaries, at the worst moment.
        knapsack: the quick bound; infinite where the budget is below the floor.
        lower: the best bound that was proven: no policy has a smaller overhead.
        method: what proved it.
        solved: whether `lower` is the optimum of Checkmate's formulation as stages.py has it, with
            a stage for each operator that is short of room. No plan need attain that.
        by_policy: the overhead of each preset, None where its run failed.
        best_found: the setting with the least overhead that was found, or None.
        smallest_found_bytes: with ``floor=True``, the smallest budget tried in which a preset ran.
    """

    trace: str
    budget_bytes: int
    baseline_peak_bytes: int
    base_ns: int
    floor_bytes: int
    knapsack: float
    lower: float
    method: str
    solved: bool
    by_policy: Mapping[str, float | None] = field(repr=False)
    best_found: Setting | None
    smallest_found_bytes: int | None = None

    @property
    def gap(self) -> float | None:
        """By how much of the bound the best found can still be improved at most; None where nothing
        was found."""
        if self.best_found is None or self.best_found.overhead is None:
            return None
        return self.best_found.overhead / self.lower - 1

    @property
    def optimal(self) -> bool:
        """Whether the best found is the optimum: nothing better is possible for any policy."""
        return self.gap is not None and self.gap <= SAME

    def as_dict(self) -> dict[str, Any]:
        """The attributes, `gap` and `optimal`, as JSON has them: None for an infinite bound."""
        row = asdict(self) | {"gap": self.gap, "optimal": self.optimal}
        row["best_found"] = self.best_found and vars(self.best_found) | {
            "heuristic": name_of(self.best_found.heuristic)
        }
        return {name: None if value == math.inf else value for name, value in row.items()}


class Bounder:
    """A trace made ready to be asked about many budgets."""

    def __init__(self, trace: Traced, name: str = "") -> None:
        """Raises TypeError, TraceError and OSError as `Simulator` does."""
        self.simulator = Simulator(trace, name)
        self.needs: Needs = needs_of(self.simulator.schedule)

    def at(self, budget: Budget, floor: bool = False, seconds: float = SECONDS) -> Bound:
        """See `bound`."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds is {seconds!r}; a bound takes 0 or more")
        if seconds:
            check_solver()
        size = self.simulator.budget_bytes(budget)
        settings = presets(self.simulator, size)  # Refuses what mode pool cannot replay.
        base = max(self.simulator.baseline.compute, 1)
        quick, lower, proof, best = math.inf, math.inf, None, None
        if size >= self.needs.floor_bytes:
            least = Proof(least_again_ns(self.needs, size), "knapsack")
            proof = self._better(least, size, seconds)
            quick, lower = 1 + least.again_ns / base, 1 + proof.again_ns / base
            best = anneal(self.simulator, size, settings, lower * (1 + SAME), seconds)
        return Bound(
            trace=self.simulator.name,
            budget_bytes=size,
            baseline_peak_bytes=self.simulator.baseline.peak_bytes,
            base_ns=self.simulator.baseline.compute,
            floor_bytes=self.needs.floor_bytes,
            knapsack=quick,
            lower=lower,
            method="floor" if proof is None else proof.method,
            solved=proof is not None and proof.solved,
            by_policy={str(one.heuristic): one.overhead for one in settings},
            best_found=best,
            smallest_found_bytes=self.smallest_found if floor else None,
        )

    def _better(self, quick: Proof, budget: int, seconds: float) -> Proof:
        found = prove(self.needs, budget, seconds) if seconds else None
        if found is None or (found.again_ns < quick.again_ns and not found.solved):
            return quick
        return replace(found, again_ns=max(found.again_ns, quick.again_ns))

    @cached_property
    def smallest_found(self) -> int | None:
        """The smallest budget in which a preset runs, to half a percent, by halving between the
        floor and what the program takes without a budget; None where none was found."""
        found: int | None = None
        for name in PRESETS:
            found = self._smaller(name, found)
        return found

    def _smaller(self, name: str, than: int | None) -> int | None:
        """The smallest budget in which the preset runs, if it is below `than`; else `than`."""

        def works(budget: int) -> bool:
            return run(self.simulator, budget, name, "eager").overhead is not None

        low, high = max(self.needs.floor_bytes, 1), than or self.simulator.baseline.peak_bytes
        if works(low):
            return low
        while than is None and not works(high):  # The pool's peak has temporaries, too.
            high = 2 * max(high, low)
            if high > LARGEST_BUDGET // 2:
                return None
        if than is not None and not works(than - than // 200):
            return than
        while high - low > max(low // 200, 512):
            middle = (low + high) // 2
            low, high = (low, middle) if works(middle) else (middle, high)
        return high


def bound(trace: Traced, budget: Budget, floor: bool = False, seconds: float = SECONDS) -> Bound:
    """How much recomputation any policy needs at a budget, and how near the known ones come.

    The rules are those of mode ``pool``: see `dtr_alloc.runtime.bounding.needs` for what they are,
    and for what is left out so that the bound stays one.

    Args:
        trace, budget: as for `simulate`. For many budgets of one trace see `Bounder`.
        floor: looks for the smallest budget in which a preset runs, too.
        seconds: for the proof, and as long again for the search. With 0 the quick bound and the
            presets are all, in milliseconds and without SciPy.

    Raises:
        ValueError: `seconds` is negative or not finite, or of a budget or trace as `simulate`
            raises it in mode ``pool``.
        TypeError: of a trace or a budget, as `simulate` raises it.
        ImportError: SciPy is missing, and `seconds` is not 0.
        TraceError, OSError: the log cannot be read (`Trace.load`).

    Example:
        Two results of 1 KiB are needed again at the end, and with the third there is room for only
        two. One of them must be made twice, at best the cheaper:

        >>> from dtr_alloc import Trace
        >>> from dtr_alloc.runtime.trace.format import Call, Result
        >>> trace = Trace((
        ...     Call("f", (), (Result("a", 1024, -1),), 10),
        ...     Call("g", (), (Result("b", 1024, -1),), 30),
        ...     Call("h", (), (Result("c", 2048, -1),), 10),
        ...     Call("k", ("a", "b"), (Result("d", 0, -1),), 50),
        ... ))
        >>> found = bound(trace, 3072, seconds=0)
        >>> found.lower, found.best_found.overhead, found.optimal, found.floor_bytes
        (1.1, 1.1, True, 2048)
    """
    return Bounder(trace).at(budget, floor, seconds)
