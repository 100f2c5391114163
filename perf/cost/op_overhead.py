"""What does interception add to an operator, and how large is a record?

Thread-CPU time per Python call, in a scope without a budget against plain eager. Batches of the
two alternate, so that a machine that slows down does so for both, and the difference of the two
medians counts. Results are dropped at once, so the figure holds both making a record and freeing
it. Inputs are themselves results of recorded operators. Beside it: the same in the first steps of
a scope, which are written down for the advice in errors; the pool without recording, whose memory
may be faster than malloc's; a scope whose memory stays torch's, where recording and counting are
all that is added; and what a TorchDispatchMode adds that does nothing but call the operator, the
way that programs in Python intercept.

The size of a record is the growth of the process over a chain of additions whose intermediates are
dropped and whose recipes are kept by the chain's end, divided by the number of additions.

    python perf/cost/op_overhead.py --out perf/results/op_overhead.json
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, end_first_steps, report, rss_bytes
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from dtr_alloc import Session

LIMITS_US = {"add, 256 elements": 0.5, "view": 0.15}
RECORD_LIMIT_BYTES = 960  # With its row among the candidates, and its place in the tape.


def calls() -> dict[str, Callable[[], object]]:
    """The operators to time, on inputs made here: in a scope these are recorded values."""
    ones = torch.ones(256) * 1
    twos = torch.ones(256) * 2
    few = torch.ones(8) * 1
    matrix = torch.ones(64, 64) * 1
    rows = torch.ones(16, 64) * 1
    bias = torch.ones(64) * 1
    ten = [torch.ones(256) * n for n in range(10)]
    target = torch.zeros(256) * 1
    return {
        "add, 256 elements": lambda: torch.add(ones, twos),
        "add, 8 elements (too small to record)": lambda: torch.add(few, few),
        "mul by a number": lambda: torch.mul(ones, 2.5),
        "view": lambda: matrix.view(32, 128),
        "transpose": lambda: matrix.t(),
        "slice": lambda: matrix[2:9],
        "mm, 16x64x64": lambda: torch.mm(rows, matrix),
        "linear, 16x64x64": lambda: F.linear(rows, matrix, bias),
        "cat of 10": lambda: torch.cat(ten),
        "dropout": lambda: F.dropout(ones, 0.1),
        "_foreach_add of 10": lambda: torch._foreach_add(ten, 1.0),
        "add_ (in place)": lambda: target.add_(1.0),
    }


class Empty(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every call on."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


def batch_ns(call: Callable[[], object], count: int) -> float:
    """Thread-CPU ns per call over `count` calls, after a few that warm up."""
    for _ in range(min(100, count)):
        call()
    begin = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - begin) / count


def overheads(batches: int, count: int) -> list[Measurement]:
    """Added us per call of each operator, in the order of `calls`."""
    scopes: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "eager": nullcontext,
        "added": lambda: dtr_alloc.rematerialize(None, device="cpu"),
        "added in the first steps": lambda: dtr_alloc.rematerialize(None, device="cpu"),
        "added by the pool alone": dtr_alloc.measure,
        "added where memory is torch's": lambda: dtr_alloc.rematerialize("1TiB", memory="torch"),
        "added by an empty TorchDispatchMode": Empty,
    }
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(batches):
        for scope, make in scopes.items():
            with make():
                if scope not in ("eager", "added in the first steps"):
                    end_first_steps()
                for name, call in calls().items():
                    times.setdefault((name, scope), []).append(batch_ns(call, count))
    found = []
    for name in calls():
        base = statistics.median(times[name, "eager"])
        found.append(Measurement(f"{name}: eager", base / 1e3, "us"))
        for scope in list(scopes)[1:]:
            added = (statistics.median(times[name, scope]) - base) / 1e3
            limit = LIMITS_US.get(name) if scope == "added" else None
            found.append(Measurement(f"{name}: {scope}", added, "us", limit))
    return found


def record_bytes(length: int) -> Measurement:
    """Growth of the process per record, over a chain of `length` additions of 1 KiB tensors that
    the program keeps; what it grows by without recipes is taken off."""

    def growth(scope: AbstractContextManager[Session]) -> tuple[int, int]:
        with scope as session:
            y = torch.ones(256)
            chain = [torch.zeros(256) + y]

            def extend(count: int) -> None:
                for _ in range(count):
                    chain.append(chain[-1] + y)

            extend(60_000)  # Beyond what is recorded for errors to tell of.
            gc.collect()
            before, records = rss_bytes(), session.stats().records
            extend(length)
            return rss_bytes() - before, session.stats().records - records

    recorded, made = growth(dtr_alloc.rematerialize(None, device="cpu"))
    plain, _ = growth(dtr_alloc.measure())
    if made < length:
        print(f"only {made} of {length} records are kept: the figure is the process's growth")
    return Measurement(
        "record, two inputs", (recorded - plain) / length, "bytes", RECORD_LIMIT_BYTES
    )


def main() -> int:
    """Runs both measurements; returns 1 if a limit was passed."""
    parser = argparse.ArgumentParser(description="Added time per operator, bytes per record.")
    parser.add_argument("--quick", action="store_true", help="fewer batches and records")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = record_bytes(30_000 if options.quick else 300_000)  # First: on a fresh heap.
    found = overheads(5, 500) if options.quick else overheads(25, 2000)
    return report([*found, record], options.out)


if __name__ == "__main__":
    sys.exit(main())
