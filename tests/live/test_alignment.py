"""Copies that recipes read begin where the original did, since kernels add up in another order
elsewhere: a weight in a mapped file or a row of NumPy's may begin at any address."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support.exactness import assert_exact
from tests.support.switch_programs import unaligned

READ: dict[str, Callable[[Tensor], Tensor]] = {
    "linear on one row": lambda w: nn.functional.linear(torch.ones(1, 255).cos(), w),
    "mv": lambda w: torch.mv(w, torch.ones(255).cos()),
    "mm with one column": lambda w: torch.mm(w, torch.ones(255, 1).cos()),
    "mm with one row": lambda w: torch.mm(torch.ones(1, 513).cos(), w),
    "bmm with one column": lambda w: torch.bmm(w[None], torch.ones(1, 255, 1).cos()),
    "dot": lambda w: torch.dot(w.flatten(), w.flatten()).repeat(513),
}


def at(remainder: int, *shape: int) -> Tensor:
    made = unaligned(torch.randn(shape, generator=torch.Generator().manual_seed(0)), remainder)
    assert made.data_ptr() % 64 == remainder
    return made


@pytest.mark.parametrize("remainder", [0, 4, 8, 12, 20, 60])
@pytest.mark.parametrize("name", READ)
def test_a_recipe_that_reads_a_copy_of_a_constant_has_the_bits_of_the_original(
    name: str, remainder: int
) -> None:
    weight = at(remainder, 513, 255)
    old = weight.clone()

    def program() -> list[Tensor]:
        weight.copy_(old)
        made = READ[name](weight)
        # It rests on the weight, and a copy of that is smaller.
        large = made.flatten() * torch.ones(4096, 1).cos()
        weight.mul_(0.5)
        dtr_alloc.evict(made)
        dtr_alloc.evict(large)
        return [made, large]

    assert_exact(program)


@pytest.mark.parametrize("remainder", [4, 20])
def test_a_constant_so_small_that_the_recipe_keeps_it_begins_there_too(remainder: int) -> None:
    rows, small = torch.randn(2000, 4), at(remainder, 4)
    assert_exact(lambda: [torch.mv(rows.cos(), small), rows.sin() @ small])


@pytest.mark.parametrize("remainder", [4, 20])
def test_what_an_operator_writes_begins_there_too_when_it_runs_again(remainder: int) -> None:
    matrix = torch.randn(64, 64)

    def program() -> list[Tensor]:
        written = at(remainder, 64)  # Outside of the pool.
        written.addmv_(matrix, matrix[0])
        return [written * torch.ones(64, 1), written]

    assert_exact(program)
