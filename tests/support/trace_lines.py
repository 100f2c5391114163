"""Short ways to write the lines of a log, and to look at what becomes of them."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import dtr_alloc
from dtr_alloc.runtime.heuristic import Heuristic
from dtr_alloc.runtime.trace import Trace, TraceError
from dtr_alloc.runtime.trace.schedule import COMPUTE, GET, PIN, RELEASE, Schedule

Line = dict[str, Any]


def constant(name: str, memory: int = 8) -> list[Line]:
    return [{"INSTRUCTION": "CONSTANT", "NAME": name}, memory_of(name, memory)]


def memory_of(name: str, memory: int) -> Line:
    return {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(memory)}


def alias_of(name: str, alias: int = -1) -> Line:
    return {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": str(alias)}


def call(args: str, results: str, time: int = 1, memory: int = 8, alias: int = -1) -> list[Line]:
    """A call of `op`; names are separated by blanks, and the results are alike."""
    made = results.split()
    lines: list[Line] = [
        {
            "INSTRUCTION": "CALL",
            "NAME": "op",
            "ARGS": args.split(),
            "RESULT": made,
            "TIME": str(time),
        }
    ]
    for name in made:
        lines += [memory_of(name, memory), alias_of(name, alias)]
    return lines


def mutate(args: str, *positions: int, time: int = 1) -> list[Line]:
    return [
        {
            "INSTRUCTION": "MUTATE",
            "NAME": "op_",
            "ARGS": args.split(),
            "MUTATE": list(positions),
            "TIME": str(time),
        }
    ]


def copy(destination: str, source: str) -> list[Line]:
    return [{"INSTRUCTION": "COPY", "DST": destination, "SRC": source}]


def copy_from(destination: str, source: str) -> list[Line]:
    return [{"INSTRUCTION": "COPY_FROM", "DST": destination, "SRC": source}]


def release(*names: str) -> list[Line]:
    return [{"INSTRUCTION": "RELEASE", "NAME": name} for name in names]


def annotate(text: str) -> list[Line]:
    return [{"INSTRUCTION": "ANNOTATE", "ANNOTATION": text}]


def text_of(lines: Iterable[Line]) -> str:
    return "".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)


def load(log: Path, *parts: list[Line]) -> Trace:
    log.write_text(text_of(line for part in parts for line in part))
    return Trace.load(log)


def refused(log: Path, *parts: list[Line]) -> str:
    """Line and reason of the error."""
    with pytest.raises(TraceError) as error:
        load(log, *parts)
    assert error.value.path == str(log)
    assert str(error.value) == f"{log} line {error.value.line}: {error.value.reason}"
    return f"{error.value.line}: {error.value.reason}"


def evicted(
    log: Path, budget: int, heuristic: Heuristic, *parts: list[Line], **rules: Any
) -> list[int]:
    """The tensors that a run evicts to make room, in order."""
    rules |= {"log_events": True, "pin_outputs": False}
    result = dtr_alloc.simulate(load(log, *parts), budget, heuristic, **{"mode": "bytes"} | rules)
    return [tensor for tensor, event in result.events.tolist() if event == 1]


def steps(schedule: Schedule) -> str:
    """As "c0 p0 g0 r0": operator 0 is computed; tensor 0 is pinned, gotten once more, released."""
    kinds = {COMPUTE: "c", GET: "g", PIN: "p", RELEASE: "r"}
    both = zip(schedule.kind.tolist(), schedule.operand.tolist(), strict=True)
    return " ".join(f"{kinds[kind]}{operand}" for kind, operand in both)


def args_of(schedule: Schedule) -> list[list[int]]:
    pairs = itertools.pairwise(schedule.op_args_begin.tolist())
    return [schedule.op_args[first:last].tolist() for first, last in pairs]
