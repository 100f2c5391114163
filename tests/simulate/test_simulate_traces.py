"""The simulator against a naive one, on the traces of perf/traces: real programs that anyone has.

The paper's published logs are not in this repository (test_reference_parity.py needs them).
The model in simulation_model.py was written from the paper's text, and shares only the reading of
the log with the simulator. Both must come to the same figures, and evict the same storages in the
same order. The model keeps exact neighbourhoods by walking them, which takes it a quarter of a
minute a run. So heuristics that score by these see the first lines of a trace here, and whole
traces in the slow tests, which have the four large traces, too.
"""

from pathlib import Path

import pytest

from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace import Trace
from tests.models.simulation_model import SimulationModel
from tests.simulate.test_simulate_model import HEURISTICS, figures

TRACES = Path(__file__).parents[2] / "perf" / "traces"
SMALL = ("resnet32", "transformer", "unet", "unrolled_gan")
LARGE = ("densenet", "inception", "lstm", "treelstm")
QUICK_HEURISTICS = ("dtr", "dtr_local", "lru", "size", "eqclass_stale")
REGION_HEURISTICS = ("dtr_full", "e_star", "msps")
SHARES = (0.8, 0.6, 0.4, 0.2)
"""Budgets, of the peak without one. At the least of them runs fail, and must fail alike."""


def trace_of(name: str, lines: int | None = None) -> Trace:
    """The first instructions of a trace, or all."""
    return Trace(Trace.load(TRACES / f"{name}.log.gz").instructions[:lines])


def evicted_of(result: SimulationResult, storages: set[int]) -> list[int]:
    """What lost its content, in order; views go with their storage and are left out."""
    return [one for one, event in result.events.tolist() if event > 0 and one in storages]


def compare(trace: Trace, heuristics: tuple[str, ...]) -> list[SimulationResult]:
    """Runs both at each budget, and returns the simulator's results."""
    simulator = Simulator(trace)
    storages = {one for one, alias in enumerate(simulator.schedule.tensor_alias) if alias < 0}
    results = []
    for name in heuristics:
        for share in SHARES:
            budget = int(simulator.baseline.peak_bytes * share)
            found = simulator.run(budget, Rules(name, mode="bytes", thrash=2.0, log_events=True))
            model = SimulationModel(
                simulator.schedule, budget, HEURISTICS[name], int(simulator.baseline.compute)
            )
            model.run()
            assert figures(found) == figures(model), (name, share)
            assert evicted_of(found, storages) == model.evicted, (name, share)
            results.append(found)
    return results


@pytest.mark.parametrize("trace", SMALL)
def test_a_run_of_a_real_trace_is_that_of_the_model(trace: str) -> None:
    results = compare(trace_of(trace), QUICK_HEURISTICS)
    assert {one.status for one in results} >= {"ok", "thrash"}
    assert any(one.status == "ok" and one.rematerializations for one in results)


@pytest.mark.parametrize("trace", SMALL)
def test_the_begin_of_a_real_trace_is_that_of_the_model_where_regions_score(trace: str) -> None:
    assert any(one.rematerializations for one in compare(trace_of(trace, 600), REGION_HEURISTICS))


@pytest.mark.slow
@pytest.mark.parametrize("trace", LARGE)
def test_a_run_of_a_large_trace_is_that_of_the_model(trace: str) -> None:
    compare(trace_of(trace), QUICK_HEURISTICS)


@pytest.mark.slow
@pytest.mark.parametrize("trace", SMALL)
def test_a_run_of_a_real_trace_is_that_of_the_model_where_regions_score(trace: str) -> None:
    compare(trace_of(trace), REGION_HEURISTICS)
