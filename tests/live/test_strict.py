"""Libraries that choose an algorithm by its workspace, as cuDNN does, take another where they are
refused it, whose last bits differ. A replay has the room of the first run, for which the operator
that waits gives up other arguments. Where even so the budget lacks it, a strict scope raises, and
tells a budget that has it."""

import contextlib
import threading
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc

MIB = 1 << 20
WORKSPACE = 8 * MIB


CHOSEN: dict[tuple[int, ...], bool] = {}
"""Whether each thread takes a workspace for a shape: it keeps to that, as with cuDNN."""


def workspace_for(*shape: int) -> Tensor | None:
    made: Tensor | None = None
    key = (threading.get_ident(), *shape)
    if CHOSEN.get(key, True):
        with contextlib.suppress(torch.OutOfMemoryError):
            made = torch.empty(WORKSPACE, dtype=torch.uint8)
    CHOSEN[key] = made is not None
    return made


@torch.library.custom_op("planned::product", mutates_args=())
def planned(a: Tensor, b: Tensor) -> Tensor:
    """With a workspace it is summed at once, without in two halves."""
    made = a.new_empty(a.shape[0], b.shape[1])
    workspace = workspace_for(*a.shape, *b.shape)
    if workspace is not None:
        return torch.mm(a, b, out=made)
    half = a.shape[1] // 2
    torch.mm(a[:, :half], b[:half], out=made)
    return made.addmm_(a[:, half:], b[half:])


def differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return planned(gradient, b.t()), planned(a.t(), gradient)


planned.register_autograd(
    differentiate, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@pytest.fixture(autouse=True)
def start_again() -> None:
    CHOSEN.clear()


class Network(nn.Module):
    """Four layers down and four up, each of which reads what its mate on the way down made."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.layers[:4]:
            x = torch.tanh(planned(x, layer))
            kept.append(x)
        for layer in self.layers[4:]:
            x = torch.tanh(planned(x + kept.pop(), layer))
        return x


def trained() -> list[Tensor]:
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    x = torch.randn(4096, 64)
    for _ in range(3):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()
    return [layer.detach().clone() for layer in network.layers]


def test_a_budget_that_strict_tells_of_runs_exact() -> None:
    with dtr_alloc.measure():
        expected = trained()
    CHOSEN.clear()
    refused = pytest.raises(torch.OutOfMemoryError, match="strict=True")
    with refused as told, dtr_alloc.rematerialize("12MiB", strict=True):
        trained()
    budget: int = told.value.suggested_budget  # type: ignore[attr-defined]
    CHOSEN.clear()
    with dtr_alloc.rematerialize(budget, strict=True) as session:
        found = trained()
    assert all(map(torch.equal, found, expected))
    assert session.stats().rematerializations > 0


def test_without_strict_the_same_budget_gives_other_bits() -> None:
    expected = trained()
    CHOSEN.clear()
    with dtr_alloc.rematerialize("12MiB"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trained()
    assert not all(map(torch.equal, found, expected))


def by_operator(session: dtr_alloc.Session, given: list[Tensor]) -> Tensor:
    return torch.add(*given)


def by_compiled_code(session: dtr_alloc.Session, given: list[Tensor]) -> Tensor:
    (made,) = session._core.holding(given, [], False, 7, lambda: (torch.add(*given),))
    assert isinstance(made, Tensor)
    return made


@pytest.mark.parametrize("add", [by_operator, by_compiled_code])
def test_a_replay_has_the_workspace_of_the_first_run(
    add: Callable[[dtr_alloc.Session, list[Tensor]], Tensor],
) -> None:
    """Of 14 MiB it takes 12, which are not there while the sum's other argument is."""
    torch.manual_seed(0)
    a, b = torch.randn(1024, 512), torch.randn(512, 1024)
    expected = planned(a, b) + 7
    with dtr_alloc.rematerialize("14MiB", strict=True) as session:
        made = planned(a, b)
        given = [torch.full_like(made, 7), made]
        assert dtr_alloc.evict(made)
        found = add(session, given)
        assert session.stats().rematerializations == 2  # The other one, too.
        assert torch.equal(found, expected)
        session.check()
        given.clear()
        del made, found


@pytest.mark.parametrize("operator", ["double", "add.Tensor", "choose_qparams_optimized"])
def test_what_would_go_on_without_raises_and_nothing_is_lost(operator: str) -> None:
    @torch.library.custom_op(f"modest_{uuid.uuid4().hex}::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(WORKSPACE, dtype=torch.uint8)
        return x * 2

    x = torch.randn(1024)
    with dtr_alloc.rematerialize("32MiB", strict=True) as session:
        made = double(x)
        session.resize("2MiB")
        assert dtr_alloc.evict(made)
        with pytest.raises(torch.OutOfMemoryError, match=r"strict=True: \S+::double asked") as told:
            if operator == "double":
                double(x)
            elif operator == "add.Tensor":
                made + 1
            else:  # A composite, which reads by a pointer.
                torch.choose_qparams_optimized(made, 1024, 200, 0.16, 8)
        error: Any = told.value
        assert WORKSPACE <= error.needed < WORKSPACE + MIB
        assert error.operator.endswith(f"::{operator}")
        assert dtr_alloc.is_evicted(made)
        assert not torch.zeros(1).any()  # And no warning comes of what the error told.
        session.check()
        session.resize(error.needed + MIB)
        again = made + double(x)
        assert torch.equal(again, 4 * x)
        session.check()
        del made, again


@pytest.mark.parametrize("strict", [False, True])
def test_a_scopes_end_that_lifts_the_budget_tells_of_it(strict: bool) -> None:
    told = pytest.warns(UserWarning, match="planned::product asked for 8.00 MiB")
    with told, dtr_alloc.rematerialize("32MiB", strict=strict) as session:
        made = planned(torch.randn(64, 64), torch.randn(64, 64))
        session.resize("2MiB")
        assert dtr_alloc.evict(made)
    assert made.isfinite().all()


@pytest.mark.filterwarnings("ignore:planned")
@pytest.mark.parametrize("strict", [False, True])
def test_debug_mode_tells_of_a_second_run_that_went_on_without(strict: bool) -> None:
    a, b = torch.randn(1024, 512), torch.randn(512, 1024)
    with dtr_alloc.rematerialize("14MiB", strict=strict, debug=True) as session:
        refused: Any = pytest.raises(torch.OutOfMemoryError, match="strict=True")
        with refused if strict else contextlib.nullcontext():
            planned(a, b)  # Again beside its first result, which leaves no room.
        assert "product went on without it" in session.summary()


def test_an_allocator_that_watches_no_operator_refuses_strict() -> None:
    with pytest.raises(ValueError, match="strict with rematerialize=False"):
        dtr_alloc.allocator("64MiB", rematerialize=False, strict=True)
