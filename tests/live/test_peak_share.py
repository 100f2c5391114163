"""A budget that is a share of the activation peak: set by the first step, exact, and told."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import dtr_alloc
from dtr_alloc.runtime.simulate.simulator import Simulator

ROWS, WIDTH, LAYERS = 512, 64, 8


def train(scope: Any, rows: tuple[int, ...] = (ROWS,) * 3) -> tuple[Any, Any, int, list[int]]:
    """The session, the parameters, the bytes of gradients and of Adam's state, and each step's
    peak. It trains in the scope what was made before it."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)])
    optimizer = torch.optim.Adam(net.parameters())
    peaks = []
    with scope as session:
        for count in rows:
            optimizer.zero_grad()
            net(torch.randn(count, WIDTH)).square().mean().backward()
            optimizer.step()
            peaks.append(session.stats().peak_bytes)
            session.reset_peak()
    kept = [p.grad for p in net.parameters()]
    kept += [t for state in optimizer.state.values() for t in state.values()]
    bytes_ = sum(-(-t.nbytes // 512) * 512 for t in kept if t is not None)
    return session, [p.detach() for p in net.parameters()], bytes_, peaks


@pytest.mark.parametrize("memory", ["pool", "torch"])
@pytest.mark.parametrize("within", [None, "3MiB"])
def test_the_first_step_sets_the_share_and_what_stays(memory: Any, within: str | None) -> None:
    _, plain, stays, peaks = train(dtr_alloc.measure())
    session, ours, *_ = train(dtr_alloc.rematerialize("60%", within=within, memory=memory))
    budget = session.stats().budget_bytes
    assert budget == pytest.approx(0.6 * (max(peaks) - stays) + stays, rel=0.02)
    assert session.stats().peak_bytes <= budget
    assert session.stats().evictions > 0
    assert all(map(torch.equal, plain, ours))
    assert "that must stay: " in session.summary()


def test_what_a_closure_computes_is_no_part_of_the_optimizers_step() -> None:
    """Lightning calls optimizers so."""
    budgets = []
    for in_closure in (False, True):
        net = layers(LAYERS, WIDTH)
        optimizer = torch.optim.Adam(net.parameters())

        def closure(net: nn.Module = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = net(torch.randn(ROWS, WIDTH)).square().mean()
            torch.autograd.backward(loss)
            return loss

        with dtr_alloc.rematerialize("60%") as session:
            for _ in range(3):
                if in_closure:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
        assert session.stats().evictions > 0
        budgets.append(session.stats().budget_bytes)
    assert budgets[1] == pytest.approx(budgets[0], rel=0.02)


def test_a_second_step_that_needs_more_sets_the_budget_once_more() -> None:
    rows = (ROWS,), (ROWS, 2 * ROWS), (ROWS, ROWS, ROWS + ROWS // 2)
    sessions = [train(dtr_alloc.rematerialize("60%"), counts)[0] for counts in rows]
    budgets = [session.stats().budget_bytes for session in sessions]
    assert budgets[1] > 1.5 * budgets[0]
    assert budgets[2] == pytest.approx(budgets[0], rel=0.01)  # A third step sets nothing.


def layers(count: int, width: int = 512) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)])


def step(loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    torch.autograd.backward(loss)
    for optimizer in optimizers:
        optimizer.step()


def little_but_state() -> Iterator[torch.Tensor]:
    """Parameters, gradients and state of 32 MiB, activations of 1."""
    net = layers(8)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        step(net(torch.randn(64, 512)).square().mean(), optimizer)
    yield from net.parameters()


def averaged_after_the_first_step() -> Iterator[torch.Tensor]:
    net = layers(4)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    averages: list[torch.Tensor] = []
    for _ in range(3):
        step(net(torch.randn(512, 512)).square().mean(), optimizer)
        averages = averages or [p.detach().clone() for p in net.parameters()]
        torch._foreach_lerp_(averages, [p.detach() for p in net.parameters()], 0.1)
    yield from averages


def two_optimizers_in_a_row(steps: int = 3) -> Iterator[torch.Tensor]:
    """The state of the second is larger than all activations."""
    wide, net = layers(12), layers(2)
    optimizers = torch.optim.SGD(net.parameters()), torch.optim.Adam(wide.parameters())
    for _ in range(steps):
        step(net(wide(torch.randn(256, 512))).square().mean(), *optimizers)
    yield from (*net.parameters(), *wide.parameters())


def two_optimizers_in_turn() -> Iterator[torch.Tensor]:
    """The state of the second does not fit beside its gradients in what the first step showed."""
    makes, judges = layers(4), layers(4, 128)
    first, second = (torch.optim.Adam(net.parameters()) for net in (judges, makes))
    for _ in range(3):
        made = makes(torch.randn(512, 512))
        step(judges(made.detach()[:, :128]).mean(), first)
        step(judges(made[:, :128]).mean(), second)
    yield from (*makes.parameters(), *judges.parameters())


@pytest.mark.parametrize(
    "program",
    [
        little_but_state,
        averaged_after_the_first_step,
        two_optimizers_in_a_row,
        two_optimizers_in_turn,
    ],
)
def test_what_must_stay_is_in_the_budget_whenever_the_first_two_steps_make_it(
    program: Callable[[], Iterator[torch.Tensor]],
) -> None:
    with dtr_alloc.measure() as free:
        torch.manual_seed(0)
        plain = list(program())
    with dtr_alloc.rematerialize("60%") as session:
        torch.manual_seed(0)
        ours = list(program())
        peak = session.stats().peak_bytes
    assert all(map(torch.equal, plain, ours))
    assert peak <= 1.05 * free.stats().peak_bytes


def test_the_budget_holds_from_the_second_step_on_where_optimizers_step_in_a_row() -> None:
    with dtr_alloc.rematerialize("60%") as session:
        kept = list(two_optimizers_in_a_row(1))
    needed = 5 * sum(p.nbytes for p in kept)  # With gradients, state, and what Adam makes besides.
    assert 0.7 * needed < (session.stats().budget_bytes or 0) < needed


def test_a_budget_that_the_program_sets_itself_stays() -> None:
    net = layers(LAYERS, WIDTH)
    optimizer = torch.optim.Adam(net.parameters())
    with dtr_alloc.rematerialize("60%", within="64MiB") as session:
        for number in range(3):
            net(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            if number == 0:
                session.resize("32MiB")
        assert session.stats().budget_bytes == 32 << 20


def test_a_program_without_an_optimizers_step_is_told_so() -> None:
    with (
        pytest.warns(UserWarning, match=r"no step of an optimizer has ended.*Give bytes"),
        dtr_alloc.rematerialize("60%", within="1GiB") as session,
    ):
        torch.ones(1000).exp()
    assert session.stats().budget_bytes == 1 << 30
    assert "60%   no step of an optimizer has ended" in session.summary()


def test_a_trace_tells_what_stays_as_the_scope_does() -> None:
    with dtr_alloc.record_trace() as recording:
        _, _, stays, _ = train(contextlib.nullcontext(Mock()))
    assert recording.trace is not None
    simulator = Simulator(recording.trace)
    found, peak = simulator.stays_bytes, simulator.baseline.peak_bytes
    assert found == pytest.approx(stays, rel=0.3)  # And the parameters, made inside.
    assert found > stays
    assert simulator.budget_bytes("50%") == int(0.5 * (peak - found)) + found


@pytest.mark.parametrize(
    ("budget", "more", "message"),
    [
        ("1GiB", {"within": "2GiB"}, "within '2GiB' is what the first step has where"),
        ("60%", {"swap": "1GiB"}, "budget 60% with swap: with one, nothing must stay"),
        (0.6, {}, 'budget 0.6 is a byte at most: a share is written "60%"'),
        (1.0, {}, 'budget 1.0 is a byte at most: a share is written "100%"'),
        (float("nan"), {}, "budget nan is not a size"),
    ],
)
def test_what_is_no_share_is_refused(budget: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), dtr_alloc.rematerialize(budget, **more):
        raise AssertionError("opened")


def test_a_float_of_bytes_is_a_budget() -> None:
    with dtr_alloc.rematerialize(0.6 * (1 << 20)) as session:
        pass
    assert session.stats().budget_bytes == int(0.6 * (1 << 20))
