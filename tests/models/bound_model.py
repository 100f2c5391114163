"""Small random programs, and the least that any policy could recompute in them, by trying all.

A program is a list of operators on numbered values. The search knows which values are in memory,
and tries everything at each point: to lose a value, to run an earlier operator again, to go on. It
is written from the rules in words and shares nothing with the bound, nor with the simulator. Where
the rules leave something open it takes what is best for the policy: an operator run again may bring
back one of its results alone, needs no temporaries, and may write in place where it did.

Sizes are counts of the pool's granules of 512 bytes.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Annotate, Call, Instruction, Mutate, Release, Result

GRANULE = 512

Choice = Callable[[int], int]
"""A number below the one given."""


@dataclass(frozen=True)
class Operator:
    """`made`: its results; those in `constant` can never be recomputed. `over`: the value in whose
    memory its one result is written, or -1. `temporary`: granules that it needs only while it runs.
    `dropped`: what the program lets go when it has run. One without results only makes its argument
    constant from then on."""

    args: tuple[int, ...]
    made: tuple[int, ...]
    constant: frozenset[int]
    cost: int
    over: int = -1
    temporary: int = 0
    dropped: tuple[int, ...] = ()

    def frozen(self) -> frozenset[int]:
        """What can't be recomputed once it has run, and could before."""
        return self.constant if self.made else frozenset(self.args)


@dataclass(frozen=True)
class Program:
    """Operators, and the granules of each value."""

    operators: tuple[Operator, ...]
    size: tuple[int, ...]

    def trace(self) -> Trace:
        """As a log of the live runtime would have it."""
        names: dict[int, str] = {}
        lines: list[Instruction] = []
        for number, operator in enumerate(self.operators):
            args = tuple(names[value] for value in operator.args)
            if not operator.made:
                lines += [Annotate(f"FREEZE {name}") for name in args]
            elif operator.over >= 0:
                (made,) = operator.made
                names[made] = names.pop(operator.over)
                place = operator.args.index(operator.over)
                extra = {"tracked": [int(made not in operator.constant)]}
                lines.append(Mutate(f"f{number}_", args, (place,), operator.cost, extra))
            else:
                names |= {value: f"x{value}" for value in operator.made}
                lines.append(Call(f"f{number}", args, self._results(operator), operator.cost,
                                  self._extra(operator)))  # fmt: skip
            lines += [Release(names.pop(value)) for value in operator.dropped]
        return Trace(tuple(lines))

    def _results(self, operator: Operator) -> tuple[Result, ...]:
        # Not round, but for what would be too small to be recomputed.
        sizes = [max(self.size[value] * GRANULE - value, GRANULE) for value in operator.made]
        return tuple(Result(f"x{v}", s, -1) for v, s in zip(operator.made, sizes, strict=True))

    def _extra(self, operator: Operator) -> dict[str, object]:
        extra: dict[str, object] = {
            "tracked": [int(value not in operator.constant) for value in operator.made]
        }
        if operator.temporary:
            sizes = [result.memory for result in self._results(operator)]
            extra["memory"] = [f"a{operator.temporary * GRANULE}", *(f"a{s}" for s in sizes), "f0"]
            extra["blocks"] = [1 + place for place in range(len(sizes))]
        return extra


def random_program(operators: int, choose: Choice) -> Program:
    """Up to so many operators; constants, writes in place, temporaries and drops among them."""
    size: list[int] = []
    held: list[int] = []
    constants: set[int] = set()
    found: list[Operator] = []
    for _ in range(operators):
        late = [max(choose(len(held)), choose(len(held))) for _ in range(choose(4) if held else 0)]
        args = tuple(dict.fromkeys(held[place] for place in late))
        over = args[0] if args and choose(5) == 0 and args[0] not in constants else -1
        first = len(size)
        if over >= 0:
            size.append(size[over])
            held.remove(over)
        else:
            size += [1 + choose(4) for _ in range(1 + (choose(3) == 0))]
        made = tuple(range(first, len(size)))
        fixed = frozenset(value for value in made if choose(6) == 0)
        held += made
        constants |= fixed
        temporary = 1 + choose(3) if over < 0 and choose(5) == 0 else 0
        dropped = tuple(value for value in held if choose(5) == 0)
        held = [value for value in held if value not in dropped]
        found.append(Operator(args, made, fixed, choose(6), over, temporary, dropped))
        for value in held:
            if choose(20) == 0 and value not in constants:
                constants.add(value)
                found.append(Operator((value,), (), frozenset(), 0))
    return Program(tuple(found), tuple(size))


State = tuple[int, frozenset[int]]


class Search:
    """The least time of recomputation within a budget, by Dijkstra's algorithm over all states: the
    next operator, and which values that can be lost are in memory."""

    def __init__(self, program: Program, budget: int) -> None:
        """`budget` in granules."""
        self.operators, self.size, self.budget = program.operators, program.size, budget
        self.producer = {v: o for o, op in enumerate(self.operators) for v in op.made}
        # Of each operator, and of the end: what cannot be recomputed by then, and its granules.
        self.constant: list[frozenset[int]] = []
        self.fixed: list[int] = []
        constant: set[int] = set()
        held: set[int] = set()
        for operator in self.operators:
            self._keep(constant, held)
            constant |= operator.frozen()
            if operator.over >= 0:
                held.discard(operator.over)
            held |= set(operator.made)
            held -= set(operator.dropped)
        self._keep(constant, held)

    def _keep(self, constant: set[int], held: set[int]) -> None:
        self.constant.append(frozenset(constant))
        self.fixed.append(sum(self.size[value] for value in constant & held))

    def least(self) -> int | None:
        """None where no policy can run the program."""
        best: dict[State, int] = {(0, frozenset()): 0}
        queue: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
        while queue:
            spent, minus, values = heapq.heappop(queue)
            state = -minus, frozenset(values)
            if spent > best[state]:
                continue
            if state[0] == len(self.operators):
                return spent
            for cost, following in self._following(*state):
                if spent + cost < best.get(following, 1 << 60):
                    best[following] = spent + cost
                    there = tuple(sorted(following[1]))
                    heapq.heappush(queue, (spent + cost, -following[0], there))
        return None

    def _fits(self, at: int, there: frozenset[int], more: int = 0) -> bool:
        return self.fixed[at] + sum(self.size[v] for v in there) + more <= self.budget

    def _following(self, at: int, there: frozenset[int]) -> Iterator[tuple[int, State]]:
        for value in there:
            yield 0, (at, there - {value})
        for operator in self.operators[:at]:
            needed = set(operator.args) - self.constant[at]
            if not needed <= there:
                continue
            lost = [v for v in operator.made if v not in there and v not in self.constant[at]]
            for value in lost:
                if self._fits(at, there | {value}):
                    yield operator.cost, (at, there | {value})
                if operator.over in there:
                    yield operator.cost, (at, there - {operator.over} | {value})
            if len(lost) > 1 and self._fits(at, there | set(lost)):
                yield operator.cost, (at, there | set(lost))
        yield from self._onward(at, there)

    def _onward(self, at: int, there: frozenset[int]) -> Iterator[tuple[int, State]]:
        operator = self.operators[at]
        if not set(operator.args) - self.constant[at] <= there:
            return
        after = there
        if operator.over >= 0:
            after = after - {operator.over} | (set(operator.made) - operator.constant)
        else:
            fresh = sum(self.size[value] for value in operator.made)
            if not self._fits(at, there, fresh + operator.temporary):
                return
            after = after | (set(operator.made) - operator.constant)
        yield 0, (at + 1, after - operator.frozen())
