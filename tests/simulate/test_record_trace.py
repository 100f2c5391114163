"""What a recording says, and that the simulator decides by it as the live runtime does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fidelity import compare
from models import MODELS
from torch import Tensor

import dtr_alloc
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.format import Annotate, Call, Constant, Instruction, Mutate, Release

KIB = 256
"""Elements of float32 in a KiB."""


def recorded(program: Any) -> list[Instruction]:
    with dtr_alloc.rematerialize(None, clock="logical"), dtr_alloc.record_trace() as recording:
        program()
    assert recording.trace is not None
    assert recording.trace.instructions[0] == Annotate("START")
    return list(recording.trace.instructions[1:])


def called(instructions: list[Instruction]) -> list[str]:
    return [item.name for item in instructions if isinstance(item, (Call, Mutate))]


def test_an_operator_is_a_call_with_its_bytes_and_cost() -> None:
    def program() -> None:
        x = torch.ones(KIB)
        y = x.exp()
        del x
        del y

    ones, exp, release_x, release_y = recorded(program)
    assert isinstance(ones, Call)
    assert (ones.name, ones.args, ones.time) == ("aten::ones", (), 1024)
    assert [(made.name, made.memory, made.alias) for made in ones.results] == [("x1", 1024, -1)]
    assert isinstance(exp, Call)
    assert (exp.name, exp.args, exp.time) == ("aten::exp", ("x1",), 2048)
    assert exp.extra == {"tracked": [1]}
    assert (release_x, release_y) == (Release("x1"), Release("x2"))


def test_what_lies_outside_the_pool_is_a_constant_of_no_bytes() -> None:
    weight = torch.ones(KIB)

    def program() -> None:
        weight.exp()

    constant, exp, release = recorded(program)
    assert constant == Constant("x1", 0)
    assert isinstance(exp, Call)
    assert exp.args == ("x1",)
    assert release == Release("x2")


def test_a_write_in_place_keeps_the_name() -> None:
    def program() -> None:
        x = torch.ones(KIB)
        x.add_(x)

    _, add, release = recorded(program)
    assert isinstance(add, Mutate)
    assert (add.name, add.args, add.positions) == ("aten::add_.Tensor", ("x1", "x1"), (0,))
    assert add.extra == {"tracked": [1]}
    assert release == Release("x1")


def test_a_view_is_no_operator_and_its_storage_has_one_name() -> None:
    def program() -> None:
        x = torch.ones(KIB)
        x.view(16, 16).t().exp()

    assert called(recorded(program)) == ["aten::ones", "aten::exp"]


def test_what_an_operator_allocates_for_itself_is_told_in_order() -> None:
    def program() -> None:
        torch.ones(KIB, dtype=torch.float64).sort()

    items = recorded(program)
    sort = next(item for item in items if isinstance(item, Call) and "sort" in item.name)
    values, indices = sort.results
    assert (values.memory, indices.memory) == (2048, 2048)
    allocated = [event for event in sort.extra.get("memory", ["a2048", "a2048"]) if event[0] == "a"]
    freed = [event for event in sort.extra.get("memory", []) if event[0] == "f"]
    assert len(allocated) - len(freed) == 2


def test_an_empty_tensor_that_an_operator_writes_is_no_copy() -> None:
    def program() -> None:
        torch.nn.functional.rrelu(torch.empty(0, 64), training=True)

    assert "aten::rrelu_with_noise" in called(recorded(program))


def test_an_operator_without_a_tensor_for_a_result_gets_one_of_no_bytes() -> None:
    def program() -> None:
        torch.ones(KIB).sum().item()

    items = recorded(program)
    read = next(item for item in items if isinstance(item, Call) and "scalar" in item.name)
    assert [(made.name, made.memory) for made in read.results] == [("y1", 0)]
    assert items[items.index(read) + 1] == Release("y1")


def test_results_that_cannot_be_recomputed_are_marked() -> None:
    weight = torch.ones(KIB, requires_grad=True)

    def program() -> None:
        weight.exp().sum().backward()  # type: ignore[no-untyped-call]
        weight.grad = None

    calls = {item.name: item for item in recorded(program) if isinstance(item, Call)}
    assert calls["aten::exp"].extra["tracked"] == [1]
    assert calls["aten::sum"].extra["tracked"] == [0]  # Four bytes.
    assert calls["aten::mul.Tensor"].extra["tracked"] == [0]  # The gradient of exp.


def test_raw_access_and_optimizer_steps_are_told() -> None:
    weight = torch.ones(KIB, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def program() -> None:
        y = weight * 2
        y.detach().numpy()
        y.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    marks = [item.text for item in recorded(program) if isinstance(item, Annotate)]
    assert marks in (["FREEZE x2", "STEP"], ["FREEZE x3", "STEP"])


def test_what_an_operator_lets_go_is_released_in_it_and_after_it() -> None:
    kept: list[Tensor] = []

    @torch.library.custom_op("dtr_record::clear", mutates_args=())
    def clear(x: Tensor) -> Tensor:
        kept.clear()
        return x.clone()

    def program() -> None:
        kept.append(torch.ones(KIB))
        clear(torch.ones(KIB))

    items = recorded(program)
    call = next(item for item in items if isinstance(item, Call) and "clear" in item.name)
    assert "x1" in call.extra["memory"]
    assert items[items.index(call) + 1] == Release("x1")


def test_the_memory_that_an_operator_takes_from_its_argument_lasts_until_it_is_over() -> None:
    def program() -> None:
        x, y = torch.ones(KIB), torch.ones(2 * KIB)
        x.set_(y)  # type: ignore[call-overload]

    items = recorded(program)
    assert isinstance(items[2], Mutate)
    assert (items[2].args, items[2].extra) == (("x1", "x2"), {"tracked": [0]})
    assert items[3:] == [Release("x1"), Release("x2")]


def test_a_tensor_that_an_operator_had_kept_and_returns_has_its_old_name() -> None:
    kept: list[Tensor] = []

    @torch.library.custom_op("dtr_record::pop", mutates_args=())
    def pop(x: Tensor) -> Tensor:
        return kept.pop()

    def program() -> None:
        kept.append(torch.ones(KIB))
        dtr_alloc.pin(kept[0])
        pop(torch.ones(KIB)).exp()

    items = recorded(program)
    exp = next(item for item in items if isinstance(item, Call) and item.name == "aten::exp")
    assert exp.args == ("x1",)
    assert not [item for item in items if isinstance(item, Constant)]


def test_a_large_constant_that_an_operator_writes_beside_a_value_is_in_no_recipe() -> None:
    """Nor would it be where nothing is recorded by recipes."""
    exponent = torch.zeros(128 * KIB, dtype=torch.int32)

    def program() -> None:
        x = torch.ones(128 * KIB)
        torch.frexp(x, out=(x.clone(), exponent))

    for scope in (dtr_alloc.rematerialize(None), dtr_alloc.measure()):
        with scope, dtr_alloc.record_trace() as recording:
            program()
        assert recording.trace is not None
        (frexp,) = (item for item in recording.trace.instructions if isinstance(item, Mutate))
        assert frexp.extra["tracked"] == [0, 0]


def test_an_eviction_is_told_of_what_an_operator_without_results_wrote() -> None:
    with dtr_alloc.rematerialize(None), dtr_alloc.record_trace() as recording:
        x = torch.ones(KIB).exp()
        torch._amp_foreach_non_finite_check_and_unscale_([x], torch.zeros(1), torch.ones(1))
        assert dtr_alloc.evict(x)
    assert recording.evictions.tolist() == [[2, 1]]


def test_evictions_of_what_was_there_before_a_recording_are_not_told() -> None:
    with dtr_alloc.rematerialize(None):
        x = torch.ones(KIB).exp()
        with dtr_alloc.record_trace() as recording:
            for _ in range(3):
                made = x.sin()
                assert dtr_alloc.evict(x)
                assert dtr_alloc.evict(made)
    assert len(recording.evictions) == 3


def test_a_recording_opens_a_scope_of_its_own_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "step.log.gz"
    with dtr_alloc.record_trace(path) as recording:
        torch.ones(KIB).exp()
    assert recording.trace is not None
    assert called(list(recording.trace.instructions)) == ["aten::ones", "aten::exp"]
    assert dtr_alloc.Trace.load(path) == recording.trace


def test_recordings_do_not_nest() -> None:
    with (
        dtr_alloc.record_trace(),
        pytest.raises(RuntimeError, match="a trace is being recorded already"),
        dtr_alloc.record_trace(),
    ):
        pass


def test_an_operator_that_raises_leaves_nothing_behind() -> None:
    def program() -> None:
        x = torch.ones(KIB)
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
        x.exp()

    assert called(recorded(program)) == ["aten::ones", "aten::exp"]


def test_the_same_program_gives_the_same_trace_whatever_is_evicted() -> None:
    def program() -> None:
        x = torch.ones(64 * KIB)
        kept = [x.exp() for _ in range(6)]
        sum(kept).sum().item()  # type: ignore[union-attr]

    plain = recorded(program)
    with (
        dtr_alloc.rematerialize("450KiB", clock="logical") as session,
        dtr_alloc.record_trace() as recording,
    ):
        program()
    assert recording.trace is not None
    assert list(recording.trace.instructions[1:]) == plain
    assert len(recording.evictions) == session.stats().evictions > 0


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_trace_without_a_budget_has_the_programs_peak_to_the_byte(name: str) -> None:
    workload = MODELS[name](scale=0.25)
    with dtr_alloc.rematerialize(None) as session, dtr_alloc.record_trace() as recording:
        workload.step()
        peak = session.stats().peak_bytes
    assert recording.trace is not None
    result = Simulator(recording.trace).run("4GiB", Rules(mode="pool", pin_outputs=False))
    assert (result.status, result.peak_bytes) == ("ok", peak)
    assert (result.rematerializations, result.evictions) == (0, result.eager_evictions)


@pytest.mark.parametrize("name", ["resnet32", "transformer", "treelstm"])
def test_the_simulator_decides_as_the_live_runtime_storage_by_storage(name: str) -> None:
    rows = compare(name, scale=0.25, steps=2)
    assert [row["identical"] for row in rows] == [True] * 4
    assert all(row["evictions"] for row in rows[1:])


@pytest.mark.parametrize(
    "heuristic", ["dtr_full", "dtr_local", "lru", "size", "msps", "e_star", "megengine", "random"]
)
def test_it_does_so_with_every_heuristic(heuristic: str) -> None:
    rows = compare("unet", scale=0.25, steps=1, heuristic=heuristic)
    assert [row["identical"] for row in rows] == [True] * 4
    assert rows[1]["evictions"]


def test_a_second_recording_in_a_scope_shares_no_name_with_the_first() -> None:
    with dtr_alloc.rematerialize("400KiB", clock="logical"):
        with dtr_alloc.record_trace() as first:
            early = [torch.ones(64 * KIB).exp() for _ in range(2)]
        with dtr_alloc.record_trace() as second:
            late = [early[0].sin() for _ in range(4)]
        del late
    assert first.trace is not None
    assert second.trace is not None
    names = {item.name for item in first.trace.instructions if isinstance(item, Release)}
    calls = [item for item in second.trace.instructions if isinstance(item, Call)]
    made = {result.name for call in calls for result in call.results}
    assert made
    assert not made & {
        r.name for c in first.trace.instructions if isinstance(c, Call) for r in c.results
    }
    assert not names & made
    assert {f"x{name}" for name, _ in second.evictions.tolist()} <= made
