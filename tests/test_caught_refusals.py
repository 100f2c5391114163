"""An operator that is refused memory, catches the error and goes on: cuDNN takes another algorithm
then, whose results may differ in the last bits from those of a run with more memory. Nobody would
know, so it is told."""

import re
import uuid
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dtr_alloc

WARNING = r"went on without 4096\.00 MiB that it asked for and the budget has not: "
Operator = Callable[[Tensor], Tensor]


@pytest.fixture
def stubborn() -> Operator:
    """Doubles, and asks for a workspace of 4 GiB without which it can do."""
    name = f"stubborn_{uuid.uuid4().hex}::double"

    @torch.library.custom_op(name, mutates_args=())
    def double(x: Tensor) -> Tensor:
        try:
            torch.empty(4 << 30, dtype=torch.uint8)
        except torch.OutOfMemoryError:
            return x * 2
        return x + x

    return double


def test_an_operator_that_goes_on_without_memory_is_told_of_once(
    stubborn: Operator, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.ones(1024)
    with dtr_alloc.rematerialize("32MiB") as session:
        found = [stubborn(x), stubborn(x)]
        assert torch.equal(found[0], x * 2)
        assert torch.equal(found[1], x * 2)
        # Torch hands warnings of operators that are written in Python to the terminal.
        said = capfd.readouterr().err
        assert len(re.findall(WARNING, said)) == 1
        assert "raise the budget to at least 4096.0" in said
        row = next(line for line in session.summary().splitlines() if line.startswith("refused"))
        assert "4 GiB" in row
        assert "double went on without it" in row
        session.check()
        del found


def evicted_and_out_of_reach(session: dtr_alloc.Session, stubborn: Operator, x: Tensor) -> Tensor:
    """What stubborn made when there was memory, in a budget that has less now."""
    y = stubborn(x)
    session.resize("32MiB")
    assert dtr_alloc.evict(y)
    return y


def test_so_is_one_that_is_refused_when_it_is_recomputed(stubborn: Operator) -> None:
    x = torch.ones(1024)
    with dtr_alloc.rematerialize("5GiB") as session:
        y = evicted_and_out_of_reach(session, stubborn, x)
        with pytest.warns(UserWarning, match=WARNING):
            z = y + 1
        assert torch.equal(z, x * 2 + 1)
        session.check()
        del y, z


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


def test_an_error_that_reaches_the_program_is_no_secret(stubborn: Operator) -> None:
    with dtr_alloc.rematerialize("32MiB") as session:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(4 << 30, dtype=torch.uint8)
        x = torch.ones(1024) + 1
        assert "refused" not in session.summary()
        del x
