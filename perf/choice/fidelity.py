"""Does the simulator decide as the live runtime does?

Each workload is recorded once without a budget, then trained under shares of its activation peak
(DESIGN.md, "What a budget means in the demo") with the logical clock, and its trace is simulated
under the same budgets. Compared are the evictions, storage by storage and version by version, the
operators run again, and the peak; without a budget, the peak to the byte. Three of the workloads
also follow a tape, by two heuristics.

    python perf/choice/fidelity.py --out perf/results/fidelity.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import provenance, write_json
from models import MODELS, Workload

import dtr_alloc
from dtr_alloc import Heuristic
from dtr_alloc.runtime.heuristic import DEFAULT, name_of
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

BUDGETS = (0.7, 0.5, 0.3)
UNLIMITED = 1 << 36
TAPE = Heuristic("ancestors", staleness_exp=0.7, next_use=True)
FOLLOWS_TAPE = ("resnet32", "transformer", "treelstm")


def train(
    name: str, budget: int | None, scale: float, steps: int, heuristic: str | Heuristic
) -> tuple[dtr_alloc.Recording, dtr_alloc.SessionStats, Workload]:
    """A training from scratch, recorded."""
    workload = MODELS[name](scale=scale)
    with (
        dtr_alloc.rematerialize(
            budget, clock="logical", heuristic=heuristic, thrash_limit=0
        ) as session,
        dtr_alloc.record_trace() as recording,
    ):
        for _ in range(steps):
            workload.step()
    return recording, session.stats(), workload


def persistent_bytes(workload: Workload) -> int:
    """Gradients and optimizer state, as the pool rounds them."""
    tensors = [p.grad for m in workload.modules for p in m.parameters() if p.grad is not None]
    for optimizer in workload.optimizers:
        for values in optimizer.state.values():
            tensors += [value for value in values.values() if torch.is_tensor(value)]
    return sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)


def simulated_evictions(simulator: Simulator, result: SimulationResult) -> list[tuple[int, int]]:
    """As `Recording.evictions` has them: the number of a name, and its in-place version."""
    schedule = simulator.schedule
    versions: list[int] = []
    for before in schedule.tensor_in_place.tolist():
        versions.append(versions[before] + 1 if before >= 0 else 0)
    return [
        (int(schedule.tensor_name[tensor].removeprefix("x")), versions[tensor])
        for tensor, event in result.events.tolist()
        if event == 1
    ]


def compare(
    name: str, scale: float, steps: int, heuristic: str | Heuristic = "dtr"
) -> list[dict[str, object]]:
    """A row for no budget and one for each budget."""
    recording, stats, workload = train(name, None, scale, steps, heuristic)
    assert recording.trace is not None
    simulator = Simulator(recording.trace)

    def simulate(budget: int) -> SimulationResult:
        rules = Rules(heuristic, mode="pool", thrash=None, log_events=True, pin_outputs=False)
        return simulator.run(budget, rules)

    unlimited = simulate(UNLIMITED)
    rows: list[dict[str, object]] = [
        {
            "model": name,
            "heuristic": name_of(heuristic),
            "budget": None,
            "peak_bytes": stats.peak_bytes,
            "simulated_peak_bytes": unlimited.peak_bytes,
            "evictions": 0,
            "identical": unlimited.peak_bytes == stats.peak_bytes
            and unlimited.evictions == unlimited.eager_evictions,
        }
    ]
    persistent = persistent_bytes(workload)
    for share in BUDGETS:
        budget = int(share * (stats.peak_bytes - persistent)) + persistent
        again, live, _ = train(name, budget, scale, steps, heuristic)
        result = simulate(budget)
        evictions = [tuple(pair) for pair in again.evictions.tolist()]
        rows.append(
            {
                "model": name,
                "heuristic": name_of(heuristic),
                "budget": share,
                "peak_bytes": live.peak_bytes,
                "simulated_peak_bytes": result.peak_bytes,
                "evictions": len(evictions),
                "rematerializations": live.rematerializations,
                "identical": evictions == simulated_evictions(simulator, result)
                and live.rematerializations == result.rematerializations
                and live.peak_bytes == result.peak_bytes
                and again.trace == recording.trace,
            }
        )
    return rows


def main() -> int:
    """Compares all workloads; returns 1 if a decision differs."""
    parser = argparse.ArgumentParser(description="The simulator against the live runtime.")
    parser.add_argument("--quick", action="store_true", help="one step instead of three")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    steps = 1 if options.quick else 3
    runs: list[tuple[str, str | Heuristic]] = [(name, "dtr") for name in MODELS] + [
        (name, heuristic) for name in FOLLOWS_TAPE for heuristic in (TAPE, DEFAULT)
    ]
    for name, heuristic in runs:
        made = compare(name, 1.0, steps, heuristic)
        rows += made
        for row in made:
            share = "no budget" if row["budget"] is None else f"{row['budget']}"
            verdict = "identical" if row["identical"] else "DIFFERENT"
            decides = "tape" if heuristic == TAPE else heuristic
            print(
                f"{name:<13} {decides:<9} {share:<9} {row['evictions']:>6,} evictions, "
                f"peak {row['peak_bytes']:>12,} bytes: {verdict}",
                flush=True,
            )
    if options.out is not None:
        write_json(options.out, provenance() | {"rows": rows})
    print(f"{sum(bool(row['identical']) for row in rows)} of {len(rows)} runs are identical")
    return 0 if all(row["identical"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
