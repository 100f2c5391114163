"""Which values go to the swap's file when memory is full, and that each comes back as it was."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import Heuristic
from tests.support.exactness import bits, chain, grad_of
from tests.support.swap_programs import ROWS, WIDTH, adamw, equal, gradient, make_model

pytestmark = pytest.mark.usefixtures("folder")
MIB = 1 << 20


def test_what_is_not_recorded_leaves_memory_and_comes_back() -> None:
    expected = gradient()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB"):
        made = gradient()
        assert dtr_alloc.evict(made)
        assert dtr_alloc.is_evicted(made)
        assert torch.equal(made, expected)


def test_what_was_written_meanwhile_is_what_comes_back() -> None:
    expected = gradient().mul_(3).add_(1)
    with dtr_alloc.rematerialize("64MiB", swap="64MiB"):
        made = gradient()
        dtr_alloc.evict(made)
        made.mul_(3)
        dtr_alloc.evict(made)
        made.add_(1)
        assert dtr_alloc.evict(made)
        assert torch.equal(made, expected)


def test_a_recipe_reads_what_was_there_before_it_was_written() -> None:
    expected = gradient().exp()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        made = gradient()
        derived = made.exp()
        dtr_alloc.evict(made)
        made.zero_()
        dtr_alloc.evict(derived)
        session.release()
        assert torch.equal(derived, expected)
        assert not made.any()


def test_a_recipe_reads_what_the_program_has_let_go() -> None:
    expected = gradient().exp()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        derived = gradient().exp()
        session.release()
        assert session.stats().live_bytes < derived.nbytes
        assert torch.equal(derived, expected)
        session.check()


def test_what_is_written_through_a_pointer_is_never_moved_again() -> None:
    with dtr_alloc.rematerialize("64MiB", swap="64MiB"):
        made = gradient()
        derived = made.exp()
        expected = bits(derived)
        dtr_alloc.evict(made)
        array = made.numpy()
        array[:] = 1
        made.mul_(2)
        assert not dtr_alloc.evict(made)
        assert (array == 2).all()
        dtr_alloc.evict(derived)
        assert torch.equal(bits(derived)[2], expected[2])


def written_often() -> list[Tensor]:
    """The chain of its recipes is given up at the sixteenth write."""
    x = torch.linspace(0, 1, 1 << 16)
    for _ in range(20):
        x.mul_(1.01)
    return [x]


def carried_on() -> list[Tensor]:
    """Of a value that rests on 256 that are gone the recipe is given up when it is read."""
    kept = []
    for steps in range(250, 260):
        x = torch.linspace(0, 1, 1 << 16)
        for _ in range(steps):
            x = x * 1.001
        kept += [x, x + 1]
    return kept


def made_from_what_was_written() -> list[Tensor]:
    """A constant is about to be written, and what was made from it is worth less than a copy."""
    constant = torch.linspace(0, 1, 1 << 17).numpy()
    x = torch.from_numpy(constant)
    made = x[: 1 << 16] * 2
    x.zero_()
    return [made]


def state_of_adagrad() -> list[Tensor]:
    """It is made by a recorded operator, and written by one that is not."""
    model = make_model()
    optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.1)
    model(torch.ones(ROWS, WIDTH)).square().mean().backward()
    optimizer.step()
    sums = [state["sum"] for state in optimizer.state.values()]
    return [one for one in sums if one.nbytes >= 16 << 10]


def state_that_was_loaded() -> list[Tensor]:
    model = make_model()
    optimizer = adamw(model.parameters())
    model(torch.ones(ROWS, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    return [one for one in moments if one.nbytes >= 16 << 10]


@pytest.mark.parametrize(
    "make",
    [
        written_often,
        carried_on,
        made_from_what_was_written,
        state_of_adagrad,
        state_that_was_loaded,
    ],
)
def test_what_lost_its_recipe_may_still_leave_memory(make: Callable[[], list[Tensor]]) -> None:
    expected = make()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        found = make()
        assert all(map(dtr_alloc.evict, found))
        assert equal(found, expected)
        session.check()


def test_what_was_made_from_inputs_that_are_gone_may_leave_memory() -> None:
    def run() -> list[Tensor]:
        kept = []
        for step in range(30):
            batch = torch.from_numpy(numpy.full((256, 256), step, numpy.float32))
            kept.append(batch[:128] * 3)
        return kept

    expected = run()
    with dtr_alloc.rematerialize("2MiB", swap="64MiB") as session:
        found = run()
        session.check()
        assert session.stats().swapped_out_bytes > 0
        assert equal(found, expected)
        del found


def test_what_an_operator_that_failed_was_to_write_may_leave_memory_again() -> None:
    expected = gradient()
    with dtr_alloc.rematerialize("64MiB", swap="8MiB") as session:
        made = gradient()
        with pytest.raises(RuntimeError, match="size of tensor"):
            made.add_(torch.ones(3))
        assert dtr_alloc.evict(made)
        assert torch.equal(made, expected)
        session.check()


def test_release_writes_what_cannot_be_recomputed() -> None:
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        made = [gradient(), gradient()]
        session.release()
        assert all(map(dtr_alloc.is_evicted, made))
        assert session.stats().swapped_out_bytes == 2 * made[0].nbytes


def test_what_only_a_recipe_kept_goes_with_it_while_pages_are_cleared() -> None:
    """What was made from each lies on another page, and goes to the file, which ends its recipe."""
    torch.manual_seed(0)
    factor = torch.randn(4096, 64)
    with dtr_alloc.rematerialize("300MiB", swap="64MiB") as session:  # Its pages have 2 MiB.
        between, made, expected = [], [], []
        for n in range(24):
            large = torch.full((64, 4096), float(n))
            between.append(torch.ones(7 << 17))  # 3.5 MiB.
            made.append(large @ factor)
            expected.append(made[-1].tolist())
            del large
        session.release()
        assert [one.tolist() for one in made] == expected
        between.clear()
        session.resize("6MiB")
        assert session._core.pool_stats().committed <= 6 * MIB
        session.check()
        session.resize("300MiB")
        assert [one.tolist() for one in made] == expected


def test_what_is_dear_to_recompute_goes_to_the_file_instead() -> None:
    expected = dear()
    with dtr_alloc.rematerialize("12MiB", swap="64MiB") as session:
        made = dear()
        others = chain(250)
        assert dtr_alloc.is_evicted(made)
        assert torch.equal(made, expected)
        del others
    assert session.stats().swapped_in_bytes >= made.nbytes


def by_cost(budget: int | str) -> AbstractContextManager[dtr_alloc.Session]:
    """A scope in which what is cheapest to recompute goes first."""
    cost = Heuristic("full", size_exp=0, staleness_exp=0, selection="single")
    return dtr_alloc.rematerialize(budget, heuristic=cost, swap="64MiB", clock="logical")


def test_what_went_to_the_file_is_no_neighbour_of_what_it_was_made_from() -> None:
    with by_cost(int(2.5 * MIB)) as session:
        large = torch.ones(8, MIB // 16)
        small = large.sum(0)
        other = torch.zeros(MIB // 8)
        assert dtr_alloc.is_evicted(small)
        assert session.stats().swapped_out_bytes == small.nbytes
        session.check()
        del other
        assert float(small[0]) == 8.0
        session.check()


def test_what_went_to_the_file_is_a_neighbour_of_what_was_made_from_it() -> None:
    with by_cost("64MiB") as session:
        large = torch.ones(8, MIB // 16)
        small = large.sum(0)
        made = large * small
        session.resize(session.stats().live_bytes - 1)
        assert dtr_alloc.is_evicted(small)
        assert session.stats().swapped_out_bytes == small.nbytes
        session.check()
        del made


def dear() -> Tensor:
    """256 KiB that take a matrix product of 2 GFLOP."""
    torch.manual_seed(0)
    return torch.randn(256, 4096) @ torch.randn(4096, 256)


def test_lists_are_gone_through_item_by_item_where_they_would_fill_the_budget() -> None:
    def run() -> list[Tensor]:
        x = [torch.linspace(0, n, 1 << 16) for n in range(8)]
        y = list(torch._foreach_mul(x, 2))
        torch._foreach_addcdiv_(y, x, torch._foreach_add(x, 1), value=0.5)
        torch._foreach_mul_(y, [float(n) for n in range(8)])
        return y

    expected = run()
    with torch.no_grad(), dtr_alloc.rematerialize("3MiB", swap="64MiB") as session:
        found = run()
        assert equal(found, expected)
    assert session.stats().largest_operator_bytes < 1 * MIB


def test_lists_of_other_lengths_are_the_errors_that_they_are() -> None:
    with torch.no_grad(), dtr_alloc.rematerialize("3MiB", swap="64MiB"):
        x = [torch.linspace(0, n, 1 << 16) for n in range(8)]
        with pytest.raises(RuntimeError, match="must have the same number of tensors"):
            torch._foreach_add_(x, [torch.ones(1 << 16)])
        assert x[1][-1] == 1


def test_a_trace_is_not_recorded_of_a_scope_with_swap(folder: Path) -> None:
    scope = dtr_alloc.rematerialize("64MiB", swap="8MiB")
    with (
        scope,
        pytest.raises(RuntimeError, match="a trace does not tell what was swapped"),
        dtr_alloc.record_trace(folder / "trace.log"),
    ):
        pass


def test_a_chrome_trace_shows_what_went_out_and_in(folder: Path) -> None:
    with dtr_alloc.rematerialize("64MiB", swap="8MiB", events=True) as session:
        made = gradient()
        dtr_alloc.evict(made)
        made.sum()
        dtr_alloc.evict(made)  # The file has it.
    session.export_chrome_trace(folder / "run.json")
    events = json.loads((folder / "run.json").read_text())["traceEvents"]
    spans = [(one["name"], one["args"]["bytes"]) for one in events if one["ph"] == "X"]
    assert spans == [("swap out", made.nbytes), ("swap in", made.nbytes), ("swap in", made.nbytes)]


def test_what_an_operator_of_another_library_makes_stays_also_where_nothing_is_recorded() -> None:
    """Nobody but the library knows who has its address."""

    @torch.library.custom_op("dtr_swapped::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            made.append(doubled(gradient.contiguous()))
            return gradient * 2

    made: list[Tensor] = []
    with dtr_alloc.rematerialize("64MiB", swap="8MiB"):
        x = torch.ones(1 << 16, requires_grad=True)
        Doubles.apply(x).sum().backward()  # type: ignore[no-untyped-call]
        assert dtr_alloc.evict(grad_of(x))
        assert not dtr_alloc.evict(made[0])
