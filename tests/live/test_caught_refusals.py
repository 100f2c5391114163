"""An operator that is refused memory, catches the error and goes on, as cuDNN does by an algorithm
whose last bits may differ: nobody would know, so it is told. Where cuDNN finds no algorithm at all,
its own error is told what was refused."""

import contextlib
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from tests.fake_cuda.driver import FakeCuda
from tests.support.instruments import instrumented

GIB = 1 << 30
WARNING = r"double asked for 4096\.00 MiB, was refused it, and went on with less memory\. "
Operator = Callable[[Tensor], Tensor]
T = TypeVar("T")


def ask_in_vain(bytes_: int) -> None:
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(bytes_, dtype=torch.uint8)


@pytest.fixture
def stubborn() -> Operator:
    """Doubles, and asks for workspaces of up to 4 GiB without which it can do."""

    @torch.library.custom_op(f"stubborn_{uuid.uuid4().hex}::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        ask_in_vain(4 * GIB)
        ask_in_vain(GIB)
        return x * 2

    return double


def told_of(run: Callable[[], T], capfd: pytest.CaptureFixture[str]) -> tuple[T, str]:
    """What it makes, and all warnings. Before 2.15 torch hands those of operators written in Python
    to the terminal."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made = run()
    return made, capfd.readouterr().err + "".join(str(one.message) for one in warned)


def evicted_and_out_of_reach(session: dtr_alloc.Session, stubborn: Operator, x: Tensor) -> Tensor:
    """What stubborn made when there was memory, in a budget that has less now."""
    y = stubborn(x)
    session.resize("32MiB")
    assert dtr_alloc.evict(y)
    return y


def test_an_operator_that_goes_on_without_memory_is_told_of_once(
    stubborn: Operator, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.ones(1024)
    with dtr_alloc.rematerialize("32MiB") as session:
        found, said = told_of(lambda: [stubborn(x), stubborn(x)], capfd)
        assert all(torch.equal(one, x * 2) for one in found)
        assert len(re.findall(WARNING, said)) == 1
        assert re.search(r"start again with a budget of at least 4\d\d\d\.\d\d MiB", said)
        row = next(line for line in session.summary().splitlines() if line.startswith("refused"))
        assert "4 GiB" in row
        assert "double went on without it" in row
        session.check()
        del found


def test_of_a_device_is_told_what_it_has_and_not_what_it_has_not(
    cuda: FakeCuda, stubborn: Operator, capfd: pytest.CaptureFixture[str]
) -> None:
    cuda.set_capacity(2 * GIB)
    x = torch.ones(1024)
    with instrumented(on_cuda=True), dtr_alloc.rematerialize("32MiB") as session:
        y, said = told_of(lambda: stubborn(x), capfd)
        assert "double asked for 1024.00 MiB" in said
        assert re.search(r"start again with a budget of at least 10\d\d\.\d\d MiB", said)
        assert torch.equal(y, x * 2)
        row = next(line for line in session.summary().splitlines() if line.startswith("refused"))
        assert "1 GiB" in row
        session.check()
        del y


def test_no_budget_is_advised_for_more_than_the_device_has(cuda: FakeCuda) -> None:
    cuda.set_capacity(2 * GIB)
    with instrumented(on_cuda=True), dtr_alloc.rematerialize("32MiB"):
        with pytest.raises(torch.OutOfMemoryError) as refused:
            torch.empty(4 * GIB, dtype=torch.uint8)
        assert re.search(
            r"no budget helps\n  asked: 4096\.00 MiB\n  at most possible here: 2048\.00 MiB\n",
            str(refused.value),
        )
        assert "aise the budget" not in str(refused.value)


def test_so_is_one_that_is_refused_when_it_is_recomputed(stubborn: Operator) -> None:
    x = torch.ones(1024)
    with dtr_alloc.rematerialize("5GiB") as session:
        y = evicted_and_out_of_reach(session, stubborn, x)
        with pytest.warns(UserWarning, match=WARNING):
            z = y + 1
        assert torch.equal(z, x * 2 + 1)
        session.check()
        del y, z


def test_where_no_operator_follows_the_end_of_the_scope_tells(stubborn: Operator) -> None:
    x = torch.ones(1024)
    told = pytest.warns(UserWarning, match=WARNING)
    with told as warned, dtr_alloc.rematerialize("5GiB") as session:
        y = evicted_and_out_of_reach(session, stubborn, x)
    assert warned[0].filename == __file__
    assert torch.equal(y, x * 2)


def test_where_a_warning_is_an_error_the_program_goes_on_after_it(stubborn: Operator) -> None:
    x = torch.ones(1024)
    with dtr_alloc.rematerialize("5GiB") as session, warnings.catch_warnings():
        y = evicted_and_out_of_reach(session, stubborn, x)
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=WARNING):
            y + 1
        z = y + 1
        assert torch.equal(z, x * 2 + 1)
        session.check()
        del y, z


def test_an_error_that_reaches_the_program_is_no_secret() -> None:
    with dtr_alloc.rematerialize("32MiB") as session:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(4 * GIB, dtype=torch.uint8)
        x = torch.ones(1024) + 1
        assert "refused" not in session.summary()
        del x


@pytest.fixture
def broken() -> Iterator[Operator]:
    """Does without, and then fails in torch: it promised to return nothing."""
    make: Any = torch.library.Library  # It has no types.
    library = make(f"broken_{uuid.uuid4().hex}", "DEF")
    library.define("nothing(Tensor x) -> ()")

    def nothing(x: Tensor) -> Tensor:
        ask_in_vain(4 * GIB if x.numel() > 1 else 0)
        return x

    library.impl("nothing", nothing, "CPU")
    yield getattr(torch.ops, library.ns).nothing.default
    library._destroy()


def test_another_error_of_an_operator_is_told_what_was_refused_before(broken: Operator) -> None:
    with dtr_alloc.rematerialize("32MiB"):
        with pytest.raises(RuntimeError, match="to return None") as failed:
            broken(torch.ones(1024))
        assert "dtr_alloc had refused the operator 4096.00 MiB" in str(failed.value)
        assert "raise the budget to at least 4" in str(failed.value)
        with pytest.raises(RuntimeError, match="to return None") as failed:
            broken(torch.ones(1))
        assert "refused" not in str(failed.value)


def test_an_error_is_not_told_what_an_operator_before_was_refused(stubborn: Operator) -> None:
    array = np.ones(1024, np.float32)
    with dtr_alloc.rematerialize("32MiB", debug=True) as session:
        x = torch.from_numpy(array)
        made = x + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # From 2.15 on it would be an error here.
            stubborn(torch.ones(4))
        assert "went on without it" in session.summary()
        array[0] = 2
        with pytest.raises(RuntimeError, match="debug mode") as failed:
            x + 2
        assert "refused" not in str(failed.value)
        del made


def test_a_machine_that_is_full_is_told_without_a_budget_that_would_do(cuda: FakeCuda) -> None:
    """Though a budget would have done for what the operator asked for first. It is a compiled
    graph, whose errors reach us with their kind."""
    cuda.set_capacity(64 << 20)

    def run(given: list[Tensor]) -> list[Tensor]:
        ask_in_vain(60 << 20)
        return [given[0] * torch.ones(40 << 18)]

    region = _core.CompiledRegion("greedy", results=1, written=[], random=False)
    with instrumented(on_cuda=True), dtr_alloc.rematerialize("48MiB"):
        x = torch.ones(1)
        cuda.set_others(40 << 20)
        with pytest.raises(torch.OutOfMemoryError) as refused:
            region([x], run)
        assert "; another budget does not help\n" in str(refused.value)
