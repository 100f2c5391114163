"""What does recording a trace add to an operator, and how large is a trace?

Thread-CPU time per Python call in a scope without a budget, with and without a recording. Batches
of the two alternate in one scope, and the difference of the two medians counts. Making lines of
what was written down happens when the recording ends and is timed beside it, per operator.

    python perf/cost/trace_overhead.py --out perf/results/trace_overhead.json
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, report
from op_overhead import batch_ns, calls

import dtr_alloc

LIMIT_US = 2.0


def added(batches: int, count: int) -> list[Measurement]:
    """Added us per call of each operator, and at the end of a recording."""
    plain: dict[str, list[float]] = {}
    recorded: dict[str, list[float]] = {}
    ends: list[float] = []
    with dtr_alloc.rematerialize(None):
        operators = calls()
        for _ in range(batches):
            for name, call in operators.items():
                plain.setdefault(name, []).append(batch_ns(call, count))
            with dtr_alloc.record_trace():
                for name, call in operators.items():
                    recorded.setdefault(name, []).append(batch_ns(call, count))
                begin = time.thread_time_ns()
            ends.append((time.thread_time_ns() - begin) / (len(operators) * count))
    found = [
        Measurement(
            f"{name}: added",
            (statistics.median(recorded[name]) - statistics.median(plain[name])) / 1e3,
            "us",
            LIMIT_US,
        )
        for name in plain
    ]
    return [*found, Measurement("to make lines, afterwards", statistics.median(ends) / 1e3, "us")]


def size() -> Measurement:
    """Compressed bytes of a trace per operator, over steps of a small perceptron."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.log.gz"
        with dtr_alloc.rematerialize(None) as session, dtr_alloc.record_trace(path):
            for _ in range(10):
                model(torch.randn(8, 64)).sum().backward()
        return Measurement(
            "trace, compressed, per operator",
            path.stat().st_size / session.stats().operators,
            "bytes",
        )


def main() -> int:
    """Runs both measurements; returns 1 if a limit was passed."""
    parser = argparse.ArgumentParser(description="Added time per operator of a recording.")
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = added(5, 500) if options.quick else added(15, 2000)
    return report([*found, size()], options.out)


if __name__ == "__main__":
    sys.exit(main())
