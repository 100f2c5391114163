"""A step is what the program does with a batch, with one optimizer or with several."""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import dtr_alloc
from dtr_alloc import OutlierBatchWarning
from tests.support.threads import in_threads

BATCHES = 5


@contextmanager
def scope(budget: str | None = None) -> Iterator[dtr_alloc.Session]:
    torch.manual_seed(0)
    with dtr_alloc.rematerialize(budget) as session:
        yield session


def chain(layers: int = 6) -> nn.Sequential:
    return nn.Sequential(*[part for _ in range(layers) for part in (nn.Linear(64, 64), nn.Tanh())])


def loss(model: nn.Module, rows: int = 64) -> torch.Tensor:
    return model(torch.ones(rows, 64)).square().mean()  # type: ignore[no-any-return]


def backward(model: nn.Module, rows: int = 64) -> None:
    loss(model, rows).backward()  # type: ignore[no-untyped-call]


def in_backward(model: nn.Module) -> None:
    """Has an optimizer for each parameter, which steps as soon as the gradient is there."""
    for parameter in model.parameters():
        optimizer = torch.optim.AdamW([parameter])

        def step(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]


def test_optimizers_that_step_one_after_another_end_one_step() -> None:
    model = chain()
    parts = [torch.optim.SGD(part.parameters()) for part in model if isinstance(part, nn.Linear)]
    with scope() as session:
        for _ in range(BATCHES):
            backward(model)
            for part in parts:
                part.step()
            for part in parts:
                part.zero_grad()
    assert session.steps == BATCHES


def test_optimizers_that_step_within_a_backward_pass_end_one_step_when_it_is_over() -> None:
    model = chain()
    in_backward(model)
    with scope() as session:
        for batch in range(BATCHES):
            value = loss(model)
            assert session.steps == batch
            value.backward()  # type: ignore[no-untyped-call]
    assert session.steps == BATCHES


def test_backward_passes_of_two_threads_that_take_turns_are_one_step_each() -> None:
    turn = threading.Barrier(2)

    def work(model: nn.Module) -> None:
        for _ in range(BATCHES):
            backward(model)

    def wait(_: torch.Tensor) -> None:
        turn.wait(60)

    models = chain(), chain()
    for model in models:
        in_backward(model)
        for parameter in model.parameters():
            hook: Any = parameter.register_post_accumulate_grad_hook
            hook(wait)
    with scope() as session:
        in_threads(*(partial(work, model) for model in models))
    assert session.steps == 2 * BATCHES


def test_a_backward_pass_that_failed_is_no_step_and_the_next_one_is() -> None:
    model = chain()
    in_backward(model)

    def fail(_: torch.Tensor) -> None:
        raise ArithmeticError

    with scope() as session:
        hook: Any = next(model.parameters()).register_hook
        first = hook(fail)
        with pytest.raises(ArithmeticError):
            backward(model)
        assert session.steps == 0
        first.remove()
        backward(model)
    assert session.steps == 1


def test_programs_that_work_between_two_optimizers_have_two_steps_a_batch() -> None:
    generator, critic = chain(), chain()
    optimizers = {model: torch.optim.SGD(model.parameters()) for model in (generator, critic)}
    with scope() as session:
        for _ in range(BATCHES):
            for model, optimizer in optimizers.items():
                backward(model)
                optimizer.step()
                optimizer.zero_grad()
    assert session.steps == 2 * BATCHES


def test_the_same_optimizer_ends_a_step_each_time() -> None:
    model = chain()
    optimizer = torch.optim.SGD(model.parameters())
    with scope() as session:
        backward(model)
        for _ in range(BATCHES):
            optimizer.step()
    assert session.steps == BATCHES


@pytest.mark.parametrize("by_name", [False, True])
def test_what_closures_do_is_the_programs_work(by_name: bool) -> None:
    models = chain(), chain()
    optimizers = [torch.optim.LBFGS(model.parameters(), max_iter=2) for model in models]
    with scope() as session:
        for _ in range(BATCHES):
            for model, optimizer in zip(models, optimizers, strict=True):

                def closure(model: nn.Module = model) -> float:
                    model.zero_grad()
                    value = loss(model)
                    value.backward()  # type: ignore[no-untyped-call]
                    return float(value.detach())

                step: Any = optimizer.step  # Which torch leaves untyped.
                step(closure=closure) if by_name else step(closure)
    assert session.steps == 2 * BATCHES


@pytest.mark.parametrize("make", [in_backward, lambda model: None])
def test_a_budget_that_each_batch_passes_is_no_odd_batch(make: Callable[[nn.Module], None]) -> None:
    model = chain()
    make(model)
    parts = [torch.optim.SGD(part.parameters()) for part in model if isinstance(part, nn.Linear)]
    with warnings.catch_warnings(), scope("500KiB") as session:
        warnings.simplefilter("error", OutlierBatchWarning)
        for _ in range(BATCHES):
            backward(model, 256)
            for part in parts:
                part.step()
                part.zero_grad()
        assert session.stats().evictions > 0
    assert session.steps == BATCHES


def test_an_odd_batch_is_told_where_its_backward_pass_was_called() -> None:
    model = chain()
    in_backward(model)
    with scope("2MiB") as session:
        for _ in range(4):
            backward(model)
        with pytest.warns(OutlierBatchWarning, match="step 5 of an optimizer") as told:
            backward(model, 1024)
        assert [step.number for step in session.costliest_steps()] == [5]
    assert told[0].filename == __file__
