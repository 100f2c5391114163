"""A lower bound by linear or integer programming: Checkmate's formulation, made a bound.

Moments cut the program into stages; at most there is one for each operator, its worst moment
(needs.py). For each stage i two things are asked of a policy, each a variable of 0 or 1:
``held[i, v]``, whether value v is in memory at the stage's moment, and ``again[i, o]``, whether
operator o is run again before the next moment. What any run of the program fulfils:

- at a moment, what is held fits beside what must be there; the arguments of its operator are held;
- what is held at the next moment was held at this one, or made or made again since;
- what the program reads in a stage was held at its moment, or made or made again in it;
- an operator that is run again reads each of its arguments by the same rule.

So each run gives a point that keeps these rules and whose cost, the sum over ``again``, is no more
than what the run recomputed: an operator run again twice within a stage counts once. The least cost
over all points is a bound for every policy. Fewer moments, values left out because they are small
(they count as held, without bytes), and fractions between 0 and 1 only add points: the bound gets
lower and stays one. Checkmate's own optimum can be above it, for Checkmate also asks that memory
suffices between two operators that are run again within a stage.

Of a linear program the solver's word is not taken. Any nonnegative weights of the rules give a
bound (weak duality), which is computed here from the solver's weights, as Neumaier and Shcherbina
do. Of an integer program the solver's dual bound is taken, less a millionth of the trace's time.

Sources: Checkmate (Jain et al., MLSys 2020), section 4; Neumaier and Shcherbina, Mathematical
Programming 99, 2004; the solver is HiGHS (Huangfu and Hall 2018) in SciPy.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from dtr_alloc.runtime.bounding.knapsack import pressing
from dtr_alloc.runtime.bounding.needs import Needs

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Weights: TypeAlias = "npt.NDArray[np.float64]"

SINGLE_MOMENTS = 24
"""How many are tried alone."""

FEW_MOMENTS = (2, 3, 4, 6, 8)
"""And so many together, with fractions."""

MOST_COLUMNS = 40_000
"""Of an integer program that is tried though a smaller one was not solved."""

FEW_VALUES, LEFT_OUT = 300, 0.01
"""Of a program of more values the smallest are left out that have this share of all bytes."""

TOLERANCE = 1e-6
"""What is taken off a dual bound of the solver's, as a share of the trace's time."""


@dataclass(frozen=True)
class Proof:
    """Nanoseconds of recomputation that every policy needs, and what says so: `solved` where the
    bound is the optimum of the formulation itself, with one stage for each operator."""

    again_ns: int
    method: str
    solved: bool = False


def check_solver() -> None:
    """Raises ImportError where SciPy is missing."""
    if importlib.util.find_spec("scipy") is None:
        raise ImportError(
            "the bound's linear programs are solved by SciPy: pip install 'dtr-alloc[bound]', or "
            "ask for the quick bound alone with seconds=0"
        )


def prove(needs: Needs, budget: int, seconds: float) -> Proof | None:
    """The best bound that is proven in about so many seconds; None where there was no time for any.
    The budget must not be below the floor.

    Fractions can do a little of a recomputation in each stage, so linear programs of many stages
    give less; they tell quickly what one moment or a few are worth. Integer programs give more with
    more stages, and take longer: they get the time that is left, fewest stages first.
    """
    end = time.monotonic() + seconds
    short = pressing(needs, budget, len(needs.cost))
    if not len(short):
        return Proof(0, "all fits", True)
    best: Proof | None = None
    first = int(short[0])
    for moment in pressing(needs, budget, SINGLE_MOMENTS).tolist():
        if time.monotonic() >= end:  # To write a program down takes time, too.
            return best
        found = _program(needs, budget, [moment]).relaxed(end - time.monotonic())
        if _better(best, found) is not best:
            best, first = found, moment
    for count in FEW_MOMENTS:
        if time.monotonic() >= end:
            return best
        chosen = sorted({first, *pressing(needs, budget, count).tolist()})
        best = _better(best, _program(needs, budget, chosen).relaxed(end - time.monotonic()))
    return _without_fractions(needs, budget, short.tolist(), first, best, end)


def _without_fractions(
    needs: Needs, budget: int, short: list[int], first: int, best: Proof | None, end: float
) -> Proof | None:
    """The best bound of `best` and of integer programs of more and more stages, to all in `short`.
    Where one is not solved in its time, the last one follows at once, if it is not too large."""
    last_is_small = 2 * len(short) * len(needs.made) <= MOST_COLUMNS
    count = 1
    while time.monotonic() < end:
        every = count >= len(short)
        few = set(pressing(needs, budget, count).tolist())
        program = _program(needs, budget, short if every else sorted({first, *few}))
        halved = last_is_small and not every
        found, solved = program.whole((end - time.monotonic()) / (2 if halved else 1))
        if found is not None:
            best = _better(best, replace(found, solved=solved and every))
        if every or not (solved or last_is_small):
            break
        count = 2 * count if solved else len(short)
    return best


def _program(needs: Needs, budget: int, moments: list[int]) -> _Program:
    """Without the smallest values, where there are many."""
    sizes = np.sort(needs.size)
    together = np.cumsum(sizes)
    least = int(sizes[np.searchsorted(together, LEFT_OUT * together[-1])])
    return _Program(needs, budget, moments, least if len(sizes) > FEW_VALUES else 0)


def _better(one: Proof | None, other: Proof | None) -> Proof | None:
    if one is None or other is None:
        return one or other
    return other if (other.again_ns, other.solved) > (one.again_ns, one.solved) else one


class _Program:
    """The rules for some moments, as rows of at most so much."""

    def __init__(self, needs: Needs, budget: int, moments: list[int], least: int) -> None:
        """`least`: values of fewer bytes are left out."""
        self._needs, self._budget = needs, budget
        self._moments = moments
        self._asked = needs.size >= least
        self._base = max(int(needs.cost.sum()), 1)
        self._costs: list[float] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._factors: list[float] = []
        self._most: list[float] = []
        self._stages()

    @property
    def _matrix(self) -> csr_array:
        from scipy.sparse import csr_array

        shape = (len(self._most), len(self._costs))
        return csr_array((self._factors, (self._rows, self._columns)), shape=shape)

    def relaxed(self, seconds: float) -> Proof | None:
        """With fractions; None where the time did not do."""
        weights = self.weights(seconds)
        if weights is None:
            return None
        again_ns = max(math.ceil(self.certified(weights) * self._base), 0)
        return Proof(again_ns, f"linear program, {len(self._moments)} stages")

    def weights(self, seconds: float) -> Weights | None:
        """Of the rules, as the solver has them; None where the time did not do."""
        from scipy.optimize import linprog

        if seconds <= 0:
            return None
        if not self._most:
            return np.zeros(0)
        found = linprog(
            self._costs,
            self._matrix,
            self._most,
            bounds=(0, 1),
            method="highs",
            options={"time_limit": seconds},
        )
        return None if found.status != 0 else np.maximum(-found.ineqlin.marginals, 0)

    def certified(self, weights: Weights) -> float:
        """The bound that weights prove, as a share of the trace's time: for x within 0 and 1 and
        ``matrix @ x <= most``, ``costs @ x`` is at least ``costs @ x + weights @ (matrix @ x -
        most)``, whose least value over all x is known term by term."""
        if not self._most:
            return 0.0
        matrix, costs, most = self._matrix, np.array(self._costs), np.array(self._most)
        proven = np.minimum(costs + matrix.T @ weights, 0).sum() - weights @ most
        # What floating point may be off by: its unit for each term of the largest sum.
        terms = np.abs(costs).sum() + (abs(matrix).T @ weights).sum() + weights @ np.abs(most)
        return float(proven - 1e-15 * len(costs) * terms)

    def whole(self, seconds: float) -> tuple[Proof | None, bool]:
        """Without fractions; and whether that is the program's optimum."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        method = f"integer program, {len(self._moments)} stages"
        if seconds <= 0:
            return None, False
        if not self._most:
            return Proof(0, method), True
        found = milp(
            self._costs,
            integrality=np.ones(len(self._costs)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(self._matrix, ub=self._most),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        bound = found.mip_dual_bound
        if bound is None or not math.isfinite(bound):
            return None, False
        again_ns = max(math.ceil((bound - TOLERANCE) * self._base), 0)
        return Proof(again_ns, method), bool(found.status == 0)

    def _stages(self) -> None:
        needs, end = self._needs, len(self._needs.cost)
        later: set[int] = set()  # What is of use from the next moment on.
        held_after: dict[int, int] = {}
        for moment in reversed(self._moments):
            stage = _Stage(moment, set(needs.reads[moment]))
            wanted = {value for values in needs.wanted[moment + 1 : end + 1] for value in values}
            read = self._open(wanted, moment)
            later = self._closed(self._open(later, moment) | read, moment)
            self._variables(stage, later - stage.there)
            self._memory(stage)
            for value in read - stage.there:
                self._row([], self._sources(stage, value), -1.0)
            for operator, column in stage.again.items():
                self._requires(stage, column, self._open(needs.reads[operator], moment))
            for value, column in held_after.items():
                if needs.made[value] < moment:
                    self._requires(stage, column, {value})
            end, held_after = moment, stage.held

    def _variables(self, stage: _Stage, values: set[int]) -> None:
        """Whether each value is held, and whether what makes it is run again."""
        for value in values:
            stage.held[value] = self._column(0.0)
            operator = int(self._needs.made[value])
            if operator not in stage.again:
                cost = float(self._needs.cost[operator]) / self._base
                stage.again[operator] = self._column(cost)

    def _open(self, values: Iterable[int], moment: int) -> set[int]:
        """Those that a policy may have lost at the moment."""
        needs = self._needs
        made, constant_from = needs.made, needs.constant_from
        return {v for v in values if self._asked[v] and made[v] < moment < constant_from[v]}

    def _closed(self, values: set[int], moment: int) -> set[int]:
        """With all that they rest on."""
        found, walk = set(values), list(values)
        while walk:
            rests_on = self._needs.reads[self._needs.made[walk.pop()]]
            more = self._open(set(rests_on) - found, moment)
            found |= more
            walk += more
        return found

    def _sources(self, stage: _Stage, value: int) -> list[int]:
        """A value is there in a stage where one of these is 1."""
        return [stage.held[value], stage.again[int(self._needs.made[value])]]

    def _requires(self, stage: _Stage, column: int, values: set[int]) -> None:
        """Where the variable is 1, each value is there in the stage."""
        for value in values - stage.there:
            self._row([column], self._sources(stage, value), 0.0)

    def _memory(self, stage: _Stage) -> None:
        room = self._budget - int(self._needs.fixed[stage.moment])
        sizes = self._needs.size[list(stage.held)]
        if int(sizes.sum()) <= room:
            return
        self._rows += [len(self._most)] * len(sizes)
        self._columns += stage.held.values()
        self._factors += (sizes / self._budget).tolist()
        self._most.append(room / self._budget)

    def _column(self, cost: float) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def _row(self, more: list[int], less: list[int], most: float) -> None:
        self._rows += [len(self._most)] * (len(more) + len(less))
        self._columns += [*more, *less]
        self._factors += [1.0] * len(more) + [-1.0] * len(less)
        self._most.append(most)


@dataclass
class _Stage:
    """`there`: the arguments of its operator. The columns of its variables, by value and by
    operator."""

    moment: int
    there: set[int]
    held: dict[int, int] = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)
