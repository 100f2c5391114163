"""The simulator against a naive one, every heuristic, decision by decision: on random logs and on
traces of real programs. The model is written from the paper's text and shares only the reading of a
log."""

import graphlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dtr_alloc.runtime import heuristic as heuristics
from dtr_alloc.runtime.heuristic import ABLATIONS, Heuristic
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import Policy, Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import (
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Mutate,
    Release,
    Result,
)
from dtr_alloc.runtime.trace.schedule import RELEASE, Schedule
from tests.models.simulation_model import SimulationModel

SMALL = ((0, 1, 2, 2, 3, 8), (0, 1, 1, 2, 5, 40))
LARGE = (
    (0, 2**31 - 1, 2**31, 2**31 + 1, 2**33, 2**40 + 3),
    (0, 10**9, 10**9 + 1, 2 * 10**9 + 1, 10**12 + 39, 2**41),
)
"""Bytes and nanoseconds: some that give many ties, and some whose products need more than the 53
bits of a double.
"""

PRESETS = {name: one for name, one in heuristics.PRESETS.items() if not one.next_use}
"""The paper's simulator has no steps that a tape could follow."""

Choice = Callable[[int], int]
"""A number below the one given."""


def random_trace(
    length: int, choose: Choice, *, only_held: bool = False, large: bool = False
) -> Trace:
    """A log of `length` instructions: arguments that come twice or were released (not with
    `only_held`), views of views, of what is evicted, and beside fresh results, results of no bytes,
    writes to views.
    """
    sizes, times = LARGE if large else SMALL
    bound: list[str] = []
    tensor: dict[str, int] = {}  # Of each name; `held` has the references to a tensor's storage.
    storage: list[int] = []
    references: list[int] = []
    held: list[int] = []
    lines: list[Instruction] = []

    def fresh(shared: int = -1) -> str:
        storage.append(len(storage) if shared < 0 else storage[shared])
        references.append(1)
        held.append(0)
        held[storage[-1]] += 1
        return f"x{len(storage) - 1}"

    def bind(name: str) -> None:
        bound.append(name)
        tensor[name] = len(storage) - 1

    def some(count: int) -> list[str]:  # Late names rather than early ones.
        names = [name for name in bound if is_held(name) or not only_held]
        late = [max(choose(len(names)), choose(len(names))) for _ in range(count if names else 0)]
        return [names[place] for place in late]

    def hold(name: str, by: int = 1) -> None:
        references[tensor[name]] += by
        held[storage[tensor[name]]] += by

    def is_held(name: str) -> bool:  # By this name's tensor, or by a view or base of it.
        return held[storage[tensor[name]]] > 0 and (references[tensor[name]] > 0 or not only_held)

    for _ in range(length):
        kind = choose(16) if bound else 15
        if kind < 8:
            args = some(choose(4))
            results = []
            for _ in range(1 + max(0, choose(5) - 2)):
                alias = choose(len(args)) if args and choose(4) == 0 else -1
                name = fresh(-1 if alias < 0 else tensor[args[alias]])
                results.append(Result(name, sizes[choose(6)], alias))
            lines.append(Call("op", tuple(args), tuple(results), times[choose(6)]))
            for number, made in enumerate(results, len(storage) - len(results)):
                bound.append(made.name)
                tensor[made.name] = number
        elif kind < 12:
            names = [name for name in bound if is_held(name)]
            if names:
                name = names[choose(len(names))]
                hold(name, -1)
                lines.append(Release(name))
        elif kind == 12:
            args = some(1 + choose(3))
            written = [
                position
                for position, name in enumerate(args)
                if args.index(name) == position and is_held(name) and choose(2)
            ]
            owners = [storage[tensor[args[position]]] for position in written]
            if written and len(set(owners)) == len(owners):
                lines.append(Mutate("op_", tuple(args), tuple(written), times[choose(6)]))
                for position in written:
                    hold(args[position], -1)
                    fresh()
                    tensor[args[position]] = len(storage) - 1
        elif kind == 13:
            for source in filter(is_held, some(1)):
                hold(source)
                name = f"c{len(lines)}"
                bound.append(name)
                tensor[name] = tensor[source]
                lines.append(Copy(name, source))
        elif kind == 14:
            source, name = some(2) or ("", "")
            same = source and storage[tensor[source]] == storage[tensor[name]]
            if name and is_held(name) and held[storage[tensor[source]]] >= (2 if same else 1):
                hold(name, -1)
                hold(source)
                tensor[name] = tensor[source]
                lines.append(CopyFrom(name, source))
        else:
            name = fresh()
            bind(name)
            lines.append(Constant(name, sizes[choose(6)]))
    if choose(4):  # Else what is held at the end must be brought back.
        for name in bound:
            while references[tensor[name]] > 0 and held[storage[tensor[name]]] > 0:
                hold(name, -1)
                lines.append(Release(name))
    return Trace(tuple(lines))


@st.composite
def traces(draw: st.DrawFn, only_held: bool = False) -> Trace:
    choose = draw(st.randoms(use_true_random=False)).randrange
    large = not only_held and draw(st.booleans())
    return random_trace(draw(st.integers(1, 60)), choose, only_held=only_held, large=large)


def figures(run: SimulationResult | SimulationModel) -> dict[str, object]:
    return {
        "status": run.status,
        "peak": run.peak_bytes,
        "compute": run.total_compute,
        "evictions": run.evictions,
        "eager": run.eager_evictions,
        "rematerializations": run.rematerializations,
        "collateral": run.collateral,
    }


def figures_of_model(
    schedule: Schedule, budget: int, heuristic: Heuristic, limit: int | None, releases: bool = True
) -> dict[str, object]:
    model = SimulationModel(schedule, budget, heuristic, limit, releases)
    model.run()
    return figures(model)


def budget_of(simulator: Simulator, share: int) -> int:
    """`share` eighths of what is needed without a budget, at least 1."""
    return max(1, simulator.baseline.peak_bytes * share // 8)


HEURISTICS = {
    name: heuristic
    for name, heuristic in (PRESETS | ABLATIONS).items()
    if heuristic.selection != "random" and heuristic.neighbourhood != "megengine"
}
"""What the model knows: MegEngine's sets are in engine_model.py."""


@pytest.mark.parametrize("name", HEURISTICS)
@settings(max_examples=80, deadline=None)
@given(trace=traces(), share=st.integers(2, 9), thrash=st.sampled_from([None, 2.0, 3.5]))
def test_a_run_is_that_of_the_model(
    name: str, trace: Trace, share: int, thrash: float | None
) -> None:
    simulator = Simulator(trace)
    budget = budget_of(simulator, share)
    limit = None if thrash is None else int(simulator.baseline.compute * (thrash - 1))
    expected = figures_of_model(simulator.schedule, budget, HEURISTICS[name], limit)
    assert figures(simulator.run(budget, Rules(name, mode="bytes", thrash=thrash))) == expected


@settings(max_examples=150, deadline=None)
@given(trace=traces(), share=st.integers(2, 9), name=st.sampled_from(sorted(HEURISTICS)))
def test_a_run_that_ignores_releases_is_that_of_a_log_without_them(
    trace: Trace, share: int, name: str
) -> None:
    simulator = Simulator(trace)
    budget = budget_of(simulator, share)
    expected = figures_of_model(simulator.schedule, budget, HEURISTICS[name], None, releases=False)
    assert figures(simulator.run(budget, Rules(name, "ignore", "bytes", None))) == expected
    schedule = simulator.schedule
    kept = schedule.kind != RELEASE
    without = replace(schedule, kind=schedule.kind[kept], operand=schedule.operand[kept])
    run = Simulator(without).run(budget, Rules(name, mode="bytes", thrash=None))
    assert figures(run) == expected


def of_storages(schedule: Schedule) -> dict[int, set[int]]:
    """For each storage those that it was made from."""
    root: list[int] = []
    for tensor, alias in enumerate(schedule.tensor_alias.tolist()):
        root.append(tensor if alias < 0 else root[alias])
    begins, args = schedule.op_args_begin.tolist(), schedule.op_args.tolist()
    made_from: dict[int, set[int]] = {one: set() for one in root}
    for tensor, op in enumerate(schedule.tensor_op.tolist()):
        read = {root[arg] for arg in args[begins[op] : begins[op + 1]]}
        made_from[root[tensor]] |= read - {root[tensor]}
    return made_from


def has_cycle(made_from: dict[int, set[int]]) -> bool:
    """As views may make one."""
    try:
        graphlib.TopologicalSorter(made_from).prepare()
    except graphlib.CycleError:
        return True
    return False


@settings(max_examples=300, deadline=None)
@given(
    trace=traces(only_held=True),
    share=st.integers(2, 9),
    name=st.sampled_from(sorted(HEURISTICS)),
    releases=st.booleans(),
)
def test_orphans_go_first_as_in_the_model(
    trace: Trace, share: int, name: str, releases: bool
) -> None:
    simulator = Simulator(trace)
    assume(not has_cycle(of_storages(simulator.schedule)))
    budget = budget_of(simulator, share)
    heuristic = replace(HEURISTICS[name], orphans_first=True)
    expected = figures_of_model(simulator.schedule, budget, heuristic, None, releases)
    policy: Policy = "eager" if releases else "ignore"
    assert figures(simulator.run(budget, Rules(heuristic, policy, "bytes", None))) == expected


POLICIES: tuple[Policy, ...] = ("eager", "banish", "ignore")


@settings(max_examples=300, deadline=None)
@given(
    trace=traces(only_held=True),
    share=st.integers(2, 9),
    name=st.sampled_from(sorted(PRESETS)),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 3),
    pool=st.booleans(),
)
def test_no_run_passes_its_budget_and_the_same_run_comes_to_the_same(
    trace: Trace, share: int, name: str, policy: Policy, seed: int, pool: bool
) -> None:
    simulator = Simulator(trace)
    budget = budget_of(simulator, share) * (512 if pool else 1)
    heuristic = replace(PRESETS[name], seed=seed)
    rules = Rules(heuristic, policy, "pool" if pool else "bytes")
    result = simulator.run(budget, rules)
    assert result.peak_bytes <= budget
    again = simulator.run(budget, rules)
    assert replace(again, wall_seconds=0.0, search_ns=0) == replace(
        result, wall_seconds=0.0, search_ns=0
    )
    if result.status == "ok":
        ran_once = sum(simulator.schedule.op_cost.tolist())
        assert result.total_compute >= ran_once == result.base_compute


# The traces of perf/traces, which anyone has. The paper's own logs are not in this repository
# (test_reference_parity.py needs them). The model walks exact neighbourhoods, a quarter of a minute
# a run: so heuristics that score by these see the first lines of a trace here, and whole traces in
# the slow tests, which have the four large traces, too.


TRACES = Path(__file__).parents[2] / "perf" / "traces"
SMALL_TRACES = ("resnet32", "transformer", "unet", "unrolled_gan")
LARGE_TRACES = ("densenet", "inception", "lstm", "treelstm")
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


@pytest.mark.parametrize("trace", SMALL_TRACES)
def test_a_run_of_a_real_trace_is_that_of_the_model(trace: str) -> None:
    results = compare(trace_of(trace), QUICK_HEURISTICS)
    assert {one.status for one in results} >= {"ok", "thrash"}
    assert any(one.status == "ok" and one.rematerializations for one in results)


@pytest.mark.parametrize("trace", SMALL_TRACES)
def test_the_begin_of_a_real_trace_is_that_of_the_model_where_regions_score(trace: str) -> None:
    assert any(one.rematerializations for one in compare(trace_of(trace, 600), REGION_HEURISTICS))


@pytest.mark.slow
@pytest.mark.parametrize("trace", LARGE_TRACES)
def test_a_run_of_a_large_trace_is_that_of_the_model(trace: str) -> None:
    compare(trace_of(trace), QUICK_HEURISTICS)


@pytest.mark.slow
@pytest.mark.parametrize("trace", SMALL_TRACES)
def test_a_run_of_a_real_trace_is_that_of_the_model_where_regions_score(trace: str) -> None:
    compare(trace_of(trace), REGION_HEURISTICS)
