"""A recipe that reads a layer's parameters is of one version of them: those that FSDP2 had gathered
when it was recorded. What was computed from another version is never recomputed, and what a scope
leaves behind that only such a recipe would make says so."""

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support.sharded_layers import (
    gradients,
    make_model,
    needs_torchs_word,
    one_process,
    plain_step,
    releasing,
    sharded,
    taken_from,
)
from tests.support.sharded_programs import WIDTH

pytestmark = needs_torchs_word


@pytest.fixture(autouse=True, scope="module")
def a_group() -> Iterator[None]:
    with one_process():
        yield


@torch.no_grad()
def double(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        parameter.mul_(2)


# Torch counts neither a write through `data` nor a fused optimizer's step.
CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "counted": lambda model: double(model.parameters()),
    "data": lambda model: double(parameter.data for parameter in model.parameters()),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True).step(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_recipe_never_reads_parameters_of_another_version(change: str) -> None:
    model = make_model()
    taken = taken_from(model)
    with dtr_alloc.rematerialize("64MiB") as session:
        plain_step(model, 0).backward()  # type: ignore[no-untyped-call]
        loss = plain_step(model, 1)
        CHANGES[change](model)
        session.release()
        with pytest.raises(RuntimeError, match="resized behind PyTorch's dispatcher, as FSDP"):
            loss.backward()  # type: ignore[no-untyped-call]
        del loss
        taken.clear()


def test_parameters_that_stayed_gathered_are_of_the_version_that_was_gathered() -> None:
    """A step of the optimizer changes the shards alone: what is gathered is of the step before."""
    model: Any = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.set_reshard_after_backward(False)
    with dtr_alloc.rematerialize("64MiB") as session:
        plain_step(model, 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        loss = plain_step(model, 1)
        session.release()
        with pytest.raises(RuntimeError, match="as FSDP does"):
            loss.backward()  # type: ignore[no-untyped-call]
        del loss


def test_signs_that_change_in_threes_are_seen() -> None:
    """The conjugates of quaternions: a sum that shifts and multiplies words may miss them."""

    class Turn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turns = nn.Parameter(torch.randn(256, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.turns.t()).square() @ torch.ones(256, WIDTH)

    torch.manual_seed(0)
    model = sharded([Turn(), nn.Linear(WIDTH, WIDTH)])
    with dtr_alloc.rematerialize("64MiB") as session:
        loss = model(torch.randn(512, 4)).square().mean()
        with torch.no_grad():
            next(model.parameters()).to_local()[:, 1:].neg_()  # type: ignore[attr-defined]
        session.release()
        with pytest.raises(RuntimeError, match="as FSDP does"):
            loss.backward()
        del loss


def test_the_error_of_the_body_tells_what_the_scope_leaves_unreadable() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="the program's own") as raised:  # noqa: SIM117
        with dtr_alloc.rematerialize("64MiB") as session:
            loss = plain_step(model, 0)
            session.release()
            raise ValueError("the program's own")
    del loss
    notes = getattr(raised.value, "__notes__", None)  # From Python 3.11 on.
    assert notes is None or "as FSDP does" in notes[0]
    raised.value.__traceback__ = None
    gc.collect()


def test_a_graph_that_outlives_its_scope_says_so_and_what_else_lives_on_does() -> None:
    model = make_model()
    rematerialize = dtr_alloc.rematerialize("64MiB")
    session = rematerialize.__enter__()
    other = torch.ones(1000).exp()
    loss = plain_step(model, 0)
    last = torch.ones(1000).sin()
    session.release()
    with pytest.raises(RuntimeError, match="as FSDP does"):
        rematerialize.__exit__(None, None, None)
    assert other.sum() > 2718
    assert last.sum() > 841
    del loss


def test_what_is_in_memory_stays_there_when_parameters_change() -> None:
    """Also where all that may go does, once the others are gathered."""
    plain, model = make_model(), make_model()
    torch.manual_seed(7)
    expected = plain_step(plain, 0)
    double(plain.parameters())
    expected.backward()  # type: ignore[no-untyped-call]
    torch.manual_seed(7)
    taken = taken_from(model)
    with dtr_alloc.rematerialize("64MiB") as session:
        loss = plain_step(model, 0)
        double(model.parameters())
        taken.pop().register_hook(releasing(session))  # type: ignore[no-untyped-call]
        loss.backward()  # type: ignore[no-untyped-call]
    assert all(map(torch.equal, gradients(model), gradients(plain)))
