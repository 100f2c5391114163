"""What a simulator executes: a trace with its names resolved, as flat arrays of integers.

A trace speaks of names, as the program does; a simulator wants tensors, operators, and what happens
to them in order. The rules between the two are those of the paper's simulator, exactly:

- Several names may be bound to one tensor. COPY binds a new one and takes a reference, RELEASE
  gives one back; the name stays bound.
- A constant is computed at no cost, from nothing, and pinned at once.
- MUTATE is copy on write: an operator that reads all its arguments and makes, for each written
  one, a new tensor as large as the *whole* storage behind it. The argument's name, and no other,
  moves to the new tensor, and gives its reference to the old one back. Views and other names keep
  the old storage.
- COPY_FROM releases the tensor that its name leaves before it takes the other.
- At the end, what is still referenced must be in memory: it is pinned, in the order in which names
  first appeared.

Names are checked here, and sums are kept within 2^60, so that who reads the arrays need not check.
About 2 us an instruction. Source: Kirisame et al., ICLR 2021, appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core
from dtr_alloc.runtime.trace.extras import TraceExtras
from dtr_alloc.runtime.trace.format import (
    NUMBER_LIMIT,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Mutate,
    Release,
    TraceError,
    line_count,
    shown,
)

Numbers: TypeAlias = npt.NDArray[np.int64]

_REGION = "compiled::"  # Begins the names of those whose results are evicted together (graph.h).

COMPUTE, GET, PIN, RELEASE, FREEZE, STEP = (
    _core.STEP_KINDS[kind] for kind in ("Compute", "Get", "Pin", "Release", "Freeze", "Step")
)
"""Kinds of step: run an operator; take a reference; bring into memory for good; give a reference
back; and for the live runtime's rules: make a tensor a constant; end an optimizer's step."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Tensors and operators, numbered in the order in which they are first computed, and steps.

    The arrays cannot be written. Those of int64, but for `kind`.

    Attributes:
        tensor_op: the operator that makes the tensor.
        tensor_alias: the tensor, an argument of that operator, whose storage it shares; or -1.
        tensor_size: bytes; 0 for one that shares.
        op_cost: nanoseconds.
        op_args: tensors, repeated if the operator is given one twice. Those of operator i are
            ``op_args[op_args_begin[i] : op_args_begin[i + 1]]``.
        op_args_begin: one entry more than there are operators.
        op_results_begin: one entry more than there are operators; operator i makes the tensors
            ``range(op_results_begin[i], op_results_begin[i + 1])``.
        op_constant: whether the operator stands for a constant of the trace (bool).
        op_name: its name in the trace.
        kind: of each step: COMPUTE, GET, PIN, RELEASE, FREEZE or STEP (int8).
        operand: of each step: the operator for COMPUTE, 0 for STEP, else the tensor.
        tensor_name: the name that the trace first bound it to.
        tensor_tracked: 1 if a live run could recompute it, 0 if not, -1 if nothing is known.
        tensor_in_place: the tensor whose storage it was written to, or -1.
        tensor_block: which of its operator's blocks it is, or -1 for the next.
        op_events_begin: one entry more than there are operators. What happened to memory inside
            operator i: kinds (`extras`) and values in the next two, from
            ``op_events_begin[i]`` on; nothing where no more is known.
        event_kind, event_value: bytes of a block allocated; which block was freed; the tensor that
            was released; bytes copied before the operator runs again. An operator without events
            allocates its fresh results in order.
    """

    tensor_op: Numbers
    tensor_alias: Numbers
    tensor_size: Numbers
    op_cost: Numbers
    op_args_begin: Numbers
    op_args: Numbers
    op_results_begin: Numbers
    op_constant: npt.NDArray[np.bool_]
    op_name: Sequence[str]
    kind: npt.NDArray[np.int8]
    operand: Numbers
    tensor_name: Sequence[str]
    tensor_tracked: Numbers
    tensor_in_place: Numbers
    tensor_block: Numbers
    op_events_begin: Numbers
    event_kind: Numbers
    event_value: Numbers

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def op_together(self) -> npt.NDArray[np.bool_]:
        """Whether all outputs of the operator are evicted together: those of a compiled region."""
        return np.array([name.startswith(_REGION) for name in self.op_name], np.bool_)

    def storages(self) -> list[int]:
        """Of each tensor the first one with its storage."""
        first: list[int] = []
        for tensor, alias in enumerate(self.tensor_alias.tolist()):
            first.append(tensor if alias < 0 else first[alias])
        return first


def resolve(instructions: Sequence[Instruction], path: str = "") -> Schedule:
    """The schedule of a trace.

    Raises:
        TypeError: what is there is no instruction.
        TraceError: a name is used that is not bound, or bound twice; a reference is taken or given
            back that nobody has; bytes or times add up to more than 2^60.
    """
    if not instructions:
        raise TraceError(path, 1, "the log is empty")
    start = next((i + 1 for i, item in enumerate(instructions) if item == Annotate("START")), 0)
    resolver = _Resolver()
    for index in range(start, len(instructions)):
        try:
            resolver.take(instructions[index])
        except _ResolveError as refused:
            line = 1 + sum(map(line_count, instructions[:index]))
            raise TraceError(path, line, str(refused)) from None
    return resolver.finish()


class _ResolveError(Exception):
    pass


def _refuse(reason: str) -> NoReturn:
    raise _ResolveError(reason)


class _Resolver:
    """Names, tensors and their references while a trace is walked."""

    def __init__(self) -> None:
        self.bound: dict[str, int] = {}
        self.storage: list[int] = []  # Of each tensor: the first tensor with its storage.
        self.references: list[int] = []  # To each tensor. Below 0: given back for another view.
        self.held: list[int] = []  # References to all tensors of the storage that begins here.
        self.tensor_op: list[int] = []
        self.tensor_alias: list[int] = []
        self.tensor_size: list[int] = []
        self.op_name: list[str] = []
        self.op_cost: list[int] = []
        self.op_constant: list[bool] = []
        self.op_args: list[int] = []
        self.op_args_begin = [0]
        self.op_results_begin = [0]
        self.kind: list[int] = []
        self.operand: list[int] = []
        self.tensor_name: list[str] = []
        self.extras = TraceExtras(_refuse, self.tensor)
        self.total_bytes = self.total_time = 0
        self.takes: dict[type, Callable[[Any], None]] = {
            Annotate: self.mark,
            Call: self.call,
            Constant: self.constant,
            Copy: self.copy,
            CopyFrom: self.copy_from,
            Mutate: self.mutate,
            Release: self.release_name,
        }

    def take(self, item: Instruction) -> None:
        take = self.takes.get(type(item))
        if take is None:
            raise TypeError(
                f"{item!r} in a trace is no instruction of dtr_alloc.runtime.trace.format"
            )
        take(item)

    def copy(self, item: Copy) -> None:
        source = self.tensor(item.source, "COPY")
        self.unbound(item.destination, "COPY")
        self.get(source, item.source)
        self.bound[item.destination] = source

    def copy_from(self, item: CopyFrom) -> None:
        source = self.tensor(item.source, "COPY_FROM")
        old = self.tensor(item.destination, "COPY_FROM")
        self.release(old, item.destination)
        self.get(source, item.source)
        self.bound[item.destination] = source

    def constant(self, item: Constant) -> None:
        self.unbound(item.name, "CONSTANT")
        made = self.compute("constant", 0, (), ((item.memory, -1),), constant=True)
        self.tensor_name.append(item.name)
        self.extras.plain(1)
        self.bound[item.name] = made
        self.step(PIN, made)

    def mark(self, item: Annotate) -> None:
        if item.text == "STEP":
            self.step(STEP, 0)
        elif item.text.startswith("FREEZE "):
            self.step(FREEZE, self.tensor(item.text.removeprefix("FREEZE "), "FREEZE"))

    def release_name(self, item: Release) -> None:
        if item.name in self.bound:
            self.release(self.bound[item.name], item.name)

    def tensor(self, name: str, reader: str) -> int:
        if name not in self.bound:
            _refuse(f"{reader} reads {shown(name)}, which no earlier line defines")
        return self.bound[name]

    def unbound(self, name: str, definer: str) -> None:
        if name in self.bound:
            _refuse(f"{definer} defines {shown(name)}, which an earlier line defines")

    def call(self, item: Call) -> None:
        reader = f"CALL {shown(item.name)}"
        args = [self.tensor(name, reader) for name in item.args]
        first = self.compute(
            item.name, item.time, args, [(made.memory, made.alias) for made in item.results]
        )
        for tensor, made in enumerate(item.results, first):
            self.unbound(made.name, reader)
            self.tensor_name.append(made.name)
            self.bound[made.name] = tensor
        sizes = [made.memory if made.alias < 0 else -1 for made in item.results]
        self.extras.operator(reader, item.extra, sizes, None)

    def mutate(self, item: Mutate) -> None:
        reader = f"MUTATE {shown(item.name)}"
        args = [self.tensor(name, reader) for name in item.args]
        written = [item.args[position] for position in item.positions]
        if len(set(written)) < len(written):
            _refuse(f"{reader} writes an argument twice")
        sizes = [self.tensor_size[self.storage[self.bound[name]]] for name in written]
        first = self.compute(item.name, item.time, args, [(size, -1) for size in sizes])
        self.tensor_name += written
        old = [self.bound[name] for name in written]
        self.extras.operator(reader, item.extra, sizes, old)
        for tensor, name in enumerate(written):
            self.bound[name] = first + tensor
            self.release(old[tensor], name)

    def compute(
        self,
        name: str,
        time: int,
        args: Sequence[int],
        results: Iterable[tuple[int, int]],
        *,
        constant: bool = False,
    ) -> int:
        """Adds an operator with results of (bytes, argument whose storage is shared or -1), and the
        step that runs it; returns the first result.
        """
        operator, first = len(self.op_cost), len(self.tensor_op)
        for memory, position in results:
            if position < 0:
                self.result(operator, memory, -1, len(self.tensor_op))
            else:
                self.result(operator, 0, args[position], self.storage[args[position]])
        made_bytes = sum(self.tensor_size[first:])
        self.total_bytes += made_bytes
        self.total_time += time
        touched = made_bytes + sum([self.tensor_size[arg] for arg in args])
        if max(self.total_bytes, touched) > NUMBER_LIMIT:
            _refuse("bytes add up to more than 2^60")
        if self.total_time > NUMBER_LIMIT:
            _refuse("times add up to more than 2^60 ns")
        self.op_name.append(name)
        self.op_cost.append(time)
        self.op_constant.append(constant)
        self.op_args += args
        self.op_args_begin.append(len(self.op_args))
        self.op_results_begin.append(len(self.tensor_op))
        self.step(COMPUTE, operator)
        return first

    def result(self, operator: int, size: int, alias: int, storage: int) -> None:
        self.tensor_op.append(operator)
        self.tensor_alias.append(alias)
        self.tensor_size.append(size)
        self.storage.append(storage)
        self.references.append(1)
        self.held.append(0)
        self.held[storage] += 1

    def get(self, tensor: int, name: str) -> None:
        if self.held[self.storage[tensor]] < 1:
            _refuse(f"the last reference to {shown(name)} is gone, and none can be taken from it")
        self.references[tensor] += 1
        self.held[self.storage[tensor]] += 1
        self.step(GET, tensor)

    def release(self, tensor: int, name: str) -> None:
        if self.held[self.storage[tensor]] < 1:
            _refuse(f"the last reference to {shown(name)} is gone, and none can be given back")
        self.references[tensor] -= 1
        self.held[self.storage[tensor]] -= 1
        self.step(RELEASE, tensor)

    def step(self, kind: int, operand: int) -> None:
        self.kind.append(kind)
        self.operand.append(operand)

    def finish(self) -> Schedule:
        for tensor in self.bound.values():
            if self.references[tensor] > 0:
                self.step(PIN, tensor)
        of_operators = ("op_cost", "op_args_begin", "op_args", "op_results_begin")
        columns = ("tensor_op", "tensor_alias", "tensor_size", *of_operators, "operand")
        return Schedule(
            op_constant=np.array(self.op_constant, np.bool_),
            op_name=self.op_name,
            kind=np.array(self.kind, np.int8),
            tensor_name=self.tensor_name,
            **{name: np.array(getattr(self, name), np.int64) for name in columns},
            **self.extras.arrays(),
        )
