"""Training in less than what nobody can recompute: that goes to a file when memory is full."""

import gc
import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc.demo import MODELS
from tests.support.instruments import instrumented
from tests.support.swap_programs import (
    KINDS,
    adamw,
    equal,
    floor,
    gradient,
    make_model,
    train,
    train_within_two_thirds,
)
from tests.support.threads import in_threads

pytestmark = pytest.mark.usefixtures("folder")
MIB = 1 << 20


@pytest.mark.parametrize("memory", ["pool", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_trains_in_less_than_its_state(kind: str, memory: Any) -> None:
    scope = partial(dtr_alloc.rematerialize, swap="64MiB", memory=memory)
    assert "swapped out" in train_within_two_thirds(scope, KINDS[kind]).summary()


def test_without_swap_that_budget_is_refused() -> None:
    budget = floor(adamw) * 2 // 3
    with pytest.raises(torch.OutOfMemoryError), dtr_alloc.rematerialize(budget):
        train(make_model())


def test_where_there_is_a_swap_no_advice_is_from_a_simulation_which_would_know_of_none() -> None:
    layer = torch.nn.Linear(512, 512)
    optimizer = adamw(layer.parameters())

    def step(rows: int) -> None:
        layer(torch.ones(rows, 512)).exp().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with dtr_alloc.rematerialize("8MiB", swap="64MiB"):
        step(256)
        step(256)
        with pytest.raises(torch.OutOfMemoryError, match="may need more: dtr-alloc plan"):
            step(8192)


@pytest.mark.parametrize(("name", "budget"), [("resnet", 12), ("gpt", 12), ("unet", 16)])
def test_a_model_trains_exactly_where_recomputing_alone_is_refused(name: str, budget: int) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        job = MODELS[name]()
        optimizer = job.optimizer(job.model.parameters())
        draw = torch.Generator().manual_seed(1)
        for _ in range(2):
            job.loss(job.model, job.batch(draw)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        return list(job.model.parameters())

    expected = run()
    with pytest.raises(torch.OutOfMemoryError), dtr_alloc.rematerialize(budget * MIB):
        run()
    gc.collect()
    with dtr_alloc.rematerialize(budget * MIB, swap="256MiB") as session:
        found = run()
    assert equal(found, expected)
    assert session.stats().swapped_in_bytes > 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_cudnn_init_dropout_state", (0.5, True, 0)),
        ("_cudnn_rnn_flatten_weight", ([torch.ones(4)], 4, 1, 2, 1, 0, 1, False, False)),
    ],
)
def test_what_code_touches_that_nobody_sees_stays_where_it_is(name: str, arguments: Any) -> None:
    """cuDNN advances the state of its dropout where it lies, and torch takes the address of a
    recurrent layer's weights. Here is no cuDNN."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl(name, lambda *_, **__: torch.ones(1 << 15), "CPU")  # type: ignore[no-untyped-call]
    try:
        with dtr_alloc.rematerialize("1MiB", swap="64MiB"):
            made = getattr(torch.ops.aten, name)(*arguments)
            assert dtr_alloc.evict(torch.ones(1 << 15) + 1)
            assert not dtr_alloc.evict(made)
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def test_threads_of_backward_swap_as_well() -> None:
    scope = partial(dtr_alloc.rematerialize, swap="64MiB", clock="logical")
    with instrumented(swap_always=True):
        session = train_within_two_thirds(scope)
    assert session.stats().records == 0


def test_a_tensor_is_not_settled_while_another_thread_writes_a_part_of_it() -> None:
    """A reader of the other part finds that its recipe has grown too long. Had it moved the tensor
    to the swap, whose copy is made before a write, its result could not be computed again."""
    half = 1 << 13
    expected = torch.full((half,), 402.0)
    for _ in range(5):
        with dtr_alloc.rematerialize("1GiB", swap="64MiB") as session:
            made = [torch.ones(8 * half)]
            for _ in range(199):
                made.append(made.pop() + 1)
            tensor, wide = made[0][: 2 * half] + 1, torch.ones(1 << 14, half)
            read: list[Tensor] = []

            def write(tensor: Tensor = tensor, wide: Tensor = wide) -> None:
                torch.sum(wide, dim=0, out=tensor[:half])

            def drop_and_read(
                tensor: Tensor = tensor, made: list[Tensor] = made, read: list[Tensor] = read
            ) -> None:
                time.sleep(0.005)  # Most often in the middle of the write.
                made.clear()
                read.append(tensor[half:] * 2)

            in_threads(write, drop_and_read)
            dtr_alloc.evict(read[0])
            assert torch.equal(read[0], expected)
            session.check()
            read.clear()


def test_a_tensor_whose_memory_is_taken_as_another_thread_reads_it_is_read_as_it_was() -> None:
    """The reader waits for the turn, as it brings its other argument back, and holds the tensor
    then. Who takes the memory has the turn before. Pauses make that order likely."""
    expected = gradient(1 << 18)
    for _ in range(20):
        with dtr_alloc.rematerialize("512MiB", swap="64MiB") as session:
            taken, other, wide = gradient(1 << 18), torch.ones(1 << 18).exp(), torch.ones(1 << 25)
            dtr_alloc.evict(other)
            made: list[Tensor] = []

            def write(tensor: Tensor = wide) -> None:
                tensor.add_(1).sqrt_()

            def read(a: Tensor = taken, b: Tensor = other, made: list[Tensor] = made) -> None:
                time.sleep(0.003)
                made.append(a * b)

            def take(tensor: Tensor = taken) -> None:
                time.sleep(0.006)
                tensor.numpy()

            in_threads(write, read, take)
            dtr_alloc.evict(made[0])
            assert torch.equal(made[0], expected * torch.ones(1 << 18).exp())
            session.check()
            made.clear()
