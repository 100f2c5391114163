"""What a trace asks of any policy: which values it reads when, and what must be in memory then.

A bound has to hold for every policy, so it must not know how ours decides. This file walks a trace
once, by the rules of mode ``pool`` (runtime/csrc/simulator/live_simulation.h), and keeps what no
policy can change:

- an operator runs once in its place, with all its arguments in memory until it ends, beside the
  blocks that it has allocated by then, temporaries too, each rounded up to 512 bytes;
- what cannot be recomputed is in memory as long as the program holds it;
- every other value may go at any time, and comes back only by its operator's being run again.

Where the rules are stricter than this, the bound is lower than it could be, never too high: a
replay needs no memory here beyond what it reads at some time; blocks never lie in the way of each
other; a constant that the program let go takes no memory, though recipes may read it; and a
released value can always be recomputed. What the program still holds at its end need not be there.

The memory of an operator is that of its worst moment, and the largest of them is the floor: below
it no policy could run the program. About 3 us an operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dtr_alloc.runtime.trace.extras import ALLOCATED, FREED
from dtr_alloc.runtime.trace.extras import RELEASED as RELEASED_WITHIN
from dtr_alloc.runtime.trace.schedule import COMPUTE, FREEZE, GET, RELEASE, Schedule

GRANULE = 512
"""The pool rounds each block up to a multiple of these bytes (dtr_alloc/pool/csrc/units.h)."""

SMALLEST_VALUE = 512
"""Smaller results are constants (runtime/csrc/engine/rules.h)."""


@dataclass
class Needs:
    """A trace as its bound sees it. Operators are numbered as in the schedule.

    Attributes:
        cost: nanoseconds of each operator.
        fixed: bytes that are in memory at each operator's worst moment whatever the policy: its
            arguments, its blocks, and what cannot be recomputed.
        reads: the values that each operator reads, the first time and again, without those that
            cannot be recomputed.
        wanted: the same, and the values that must be in memory before the operator begins because
            they are made constant then. One entry more than there are operators, for the end.
        made: the operator that makes each value.
        size: of each value, in bytes of the pool.
        constant_from: the operator from which on the value cannot be recomputed any more, so that
            a bound has nothing to ask of it; the number of operators where there is none.
    """

    cost: npt.NDArray[np.int64]
    fixed: npt.NDArray[np.int64]
    reads: list[list[int]]
    wanted: list[list[int]]
    made: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    constant_from: npt.NDArray[np.int64]

    @property
    def floor_bytes(self) -> int:
        """The smallest budget in which any policy could run the program."""
        return int(self.fixed.max(initial=0))


def rounded(size: int) -> int:
    """As the pool has it."""
    return -(-size // GRANULE) * GRANULE


def needs_of(schedule: Schedule) -> Needs:
    """Walks the schedule."""
    return _Walk(schedule).run()


@dataclass
class _Content:
    """What a storage holds: a value, or a constant (-1)."""

    size: int
    value: int


@dataclass
class _Walk:
    """The program's side of a live simulation: who holds what, without any budget."""

    schedule: Schedule
    constants: int = 0  # Bytes that cannot be recomputed and that the program holds.
    contents: dict[int, _Content] = field(default_factory=dict)  # By the storage's first tensor.
    pending: list[int] = field(default_factory=list)  # Made constant since the last operator.

    def run(self) -> Needs:
        schedule = self.schedule
        operators, tensors = len(schedule.op_cost), len(schedule.tensor_op)
        self.alias = schedule.tensor_alias.tolist()
        self.sizes = schedule.tensor_size.tolist()
        self.in_place = schedule.tensor_in_place.tolist()
        self.tracked = (schedule.tensor_tracked != 0) & (schedule.tensor_size >= SMALLEST_VALUE)
        self.roots = schedule.storages()
        self.references = [0] * tensors
        self.fixed = np.zeros(operators, np.int64)
        self.reads: list[list[int]] = [[] for _ in range(operators)]
        self.wanted: list[list[int]] = [[] for _ in range(operators + 1)]
        self.made: list[int] = []
        self.value_size: list[int] = []
        self.constant_from: list[int] = []
        self.now = 0
        for kind, operand in zip(schedule.kind.tolist(), schedule.operand.tolist(), strict=True):
            self.step(kind, operand)
        self.wanted[operators] = self.pending
        return Needs(
            schedule.op_cost,
            self.fixed,
            self.reads,
            self.wanted,
            np.array(self.made, np.int64),
            np.array(self.value_size, np.int64),
            np.minimum(np.array(self.constant_from, np.int64), operators),
        )

    def step(self, kind: int, operand: int) -> None:
        if kind == COMPUTE:
            self.compute(operand)
            self.now = operand + 1
        elif kind == GET:
            self.references[self.roots[operand]] += 1
        elif kind == RELEASE:
            root = self.roots[operand]
            self.references[root] -= 1
            if self.references[root] == 0:
                self.let_go(root, {})
        elif kind == FREEZE:
            self.freeze(self.contents.get(self.roots[operand]))

    def let_go(self, root: int, values: dict[int, _Content]) -> int:
        """The program's last reference is gone. Returns the bytes that go with it: of a constant,
        or of one of the `values` that an operator reads."""
        content = self.contents.pop(root, None)
        if content is not None and content.value < 0:
            self.constants -= content.size
            return content.size
        read = values.pop(root, None)
        return 0 if read is None else read.size

    def freeze(self, content: _Content | None) -> None:
        if content is None or content.value < 0:
            return
        self.pending.append(content.value)
        self.constant_from[content.value] = self.now
        content.value = -1
        self.constants += content.size

    def compute(self, operator: int) -> None:
        schedule = self.schedule
        made = range(*schedule.op_results_begin[operator : operator + 2].tolist())
        for tensor in made:
            self.references[self.roots[tensor]] += 1
        values = self.values_read(operator)
        self.reads[operator] = sorted(content.value for content in values.values())
        self.wanted[operator] = sorted({*self.reads[operator], *self.pending})
        self.pending = []
        stored = [tensor for tensor in made if self.alias[tensor] < 0]
        self.fixed[operator] = self.most_bytes(operator, stored, values)
        for tensor in stored:
            self.adopt(operator, tensor)

    def values_read(self, operator: int) -> dict[int, _Content]:
        """By their storages, those of the operator's arguments that can be recomputed."""
        begin, end = self.schedule.op_args_begin[operator : operator + 2].tolist()
        roots = {self.roots[tensor] for tensor in self.schedule.op_args[begin:end].tolist()}
        there = {root: self.contents[root] for root in roots if root in self.contents}
        return {root: content for root, content in there.items() if content.value >= 0}

    def most_bytes(self, operator: int, stored: list[int], values: dict[int, _Content]) -> int:
        """At the worst moment of a first run. Arguments and constants that the program lets go
        while it runs count until then."""
        begin, end = self.schedule.op_events_begin[operator : operator + 2].tolist()
        now = self.constants + sum(content.size for content in values.values())
        if begin == end:
            fresh = (tensor for tensor in stored if self.in_place[tensor] < 0)
            return now + sum(rounded(self.sizes[tensor]) for tensor in fresh)
        most, blocks = now, []
        kinds = self.schedule.event_kind[begin:end].tolist()
        numbers = self.schedule.event_value[begin:end].tolist()
        for kind, number in zip(kinds, numbers, strict=True):
            if kind == ALLOCATED:
                blocks.append(rounded(number))
                now += blocks[-1]
            elif kind == FREED:
                now -= blocks[number]
            elif kind == RELEASED_WITHIN:
                now -= self.let_go(self.roots[number], values)
            most = max(most, now)
        return most

    def adopt(self, operator: int, tensor: int) -> None:
        """A result is there: new bytes, or what was written to an argument's."""
        size, constant = rounded(self.sizes[tensor]), not self.tracked[tensor]
        if self.in_place[tensor] >= 0:
            old = self.contents.pop(self.roots[self.in_place[tensor]], None)
            if old is None:
                return
            size = old.size
            if old.value < 0:  # The constant itself, with another content.
                self.contents[tensor] = old
                return
        if constant or self.schedule.op_constant[operator]:
            self.contents[tensor] = _Content(size, -1)
            self.constants += size
            return
        self.contents[tensor] = _Content(size, len(self.made))
        self.made.append(operator)
        self.value_size.append(size)
        self.constant_from.append(len(self.schedule.op_cost))
