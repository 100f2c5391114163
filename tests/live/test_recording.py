"""What is recorded, what is not, and what recipes keep."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support.exactness import exact, scope
from tests.support.own_process import printed

MIB = 1 << 20


def test_batch_norm_in_eval_mode_holds_on_to_no_batch() -> None:
    with dtr_alloc.rematerialize("16MiB") as session, torch.no_grad():
        norm = nn.BatchNorm2d(64).eval()
        for _ in range(100):
            x = torch.empty(16, 64, 8, 8)
            x.numpy()[:] = 1
            norm(x)
        del x
        assert session.stats().live_bytes < MIB


@pytest.mark.parametrize("use", [lambda weight: weight * 2, lambda weight: weight[0].item()])
def test_a_step_that_raised_is_over_at_the_next_operator_with_gradients(
    use: Callable[[Tensor], object],
) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise ValueError("broken")

    weight = nn.Parameter(torch.randn(1000))
    with scope(None):
        with pytest.raises(ValueError, match="broken"):
            Broken([weight], lr=0.1).step()
        use(weight)
        with torch.no_grad():
            y = torch.randn(1000).exp()
        assert dtr_alloc.evict(y)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_step_is_not_recorded_but_its_closure_is(by_name: bool) -> None:
    made = {}

    class Optimizer(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            with torch.enable_grad():
                result = closure()
            made["state"] = torch.ones(1000).exp()
            return result

    def closure() -> Tensor:
        with torch.no_grad():
            made["evaluated"] = torch.ones(1000).exp()
        return (weight * 2).sum()

    weight = nn.Parameter(torch.randn(1000))
    with scope(None):
        optimizer = Optimizer([weight], lr=0.1)
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        made["after"] = torch.ones(1000).exp()
        assert loss.item() == (weight * 2).sum().item()
        assert {name: dtr_alloc.evict(tensor) for name, tensor in made.items()} == {
            "evaluated": True,
            "state": False,
            "after": True,
        }


def test_a_write_to_one_of_two_arrays_that_lie_end_to_end_is_none_to_the_other() -> None:
    array = np.ones((2, 64, 64), np.float32)
    halves = torch.from_numpy(array[0]), torch.from_numpy(array[1])
    for read, written in (halves, halves[::-1]):
        with dtr_alloc.rematerialize("4MiB"):
            y = read.exp()
            written.add_(1)
            assert dtr_alloc.evict(y)


@exact
def test_slices_of_one_array_may_lie_over_each_other_and_be_written() -> Iterator[Tensor]:
    """Slices of all sizes, each a storage of its own. The tensors made of them keep old content."""
    random, array, made = np.random.default_rng(0), np.ones(1 << 14, np.float32), []
    for sizes in 2 ** random.integers(1, 14, (100, 2)):
        begins = random.integers(0, array.size - sizes)
        read, written = (
            torch.from_numpy(array[begin:][:size])
            for begin, size in zip(begins, sizes, strict=True)
        )
        made.append(torch.outer(read[:128], torch.ones(128)))
        written.mul_(1.5)
    yield from made


@exact
def test_a_recipe_reads_the_old_content_of_what_it_writes_beside_results() -> Iterator[Tensor]:
    x, on = torch.randn(64, 64), torch.ones(1).long()
    low, high, scale = torch.zeros(1), torch.ones(1), torch.ones(1)
    observe = torch.ops.aten._fused_moving_avg_obs_fq_helper
    zero = torch.zeros(1, dtype=torch.int32)
    for factor in (1, 2, 3):
        yield observe(x * factor, on, on, low, high, scale, zero, 0.5, 0, 255, -1)[0]
    yield from (low, high, scale)


@pytest.mark.parametrize("items", [4, 31])
def test_a_small_operand_may_make_a_large_result(items: int) -> None:
    """A recipe is kept for what is worth evicting, which broadcasting may make of little."""
    with dtr_alloc.rematerialize(None) as session:
        row, column = torch.ones(1, items), torch.arange(items, dtype=torch.float32).view(-1, 1)
        table = row + column
        assert dtr_alloc.evict(table) == (items == 31)
        assert torch.equal(table, column.expand(items, items) + 1)
        assert session.stats().evictions == (items == 31)


@pytest.mark.parametrize(
    ("count", "items", "evictable"), [(16, 127, False), (16, 128, True), (15, 100, True)]
)
def test_what_is_smaller_than_the_records_of_all_that_it_is_made_of_stays(
    count: int, items: int, evictable: bool
) -> None:
    with dtr_alloc.rematerialize(None):
        small = [torch.ones(items) for _ in range(count)]
        assert dtr_alloc.evict(torch.stack(small)) == evictable
        assert dtr_alloc.evict(torch.stack([one.expand(100, items) for one in small]))
        diagonal = torch.block_diag(*small)  # type: ignore[no-untyped-call]
        assert dtr_alloc.evict(diagonal)


@pytest.mark.parametrize(("items", "evictable"), [(1023, False), (1024, True)])
def test_random_numbers_are_worth_a_recipe_where_they_weigh_more_than_the_generators_state(
    items: int, evictable: bool
) -> None:
    with dtr_alloc.rematerialize(None):
        assert dtr_alloc.evict(torch.rand(items)) == evictable
        assert dtr_alloc.evict(torch.ones(items).bernoulli_()) == evictable
        assert dtr_alloc.evict(torch.rand(items).sin())


def test_attention_on_the_cpu_draws_nothing_whatever_its_tag_says() -> None:
    with dtr_alloc.rematerialize(None):
        x = torch.rand(1, 1, 8, 64).sin()  # 2 KiB.
        assert dtr_alloc.evict(nn.functional.scaled_dot_product_attention(x, x, x))
        with pytest.raises(RuntimeError, match="dropout"):
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.1)


VARYING = """
import torch, dtr_alloc
x = torch.rand(1000)
with dtr_alloc.rematerialize(None):
    for size in (10, 10, 1000, 1000, 1000):
        print(dtr_alloc.evict(x.masked_select(torch.arange(1000) < size)))
"""


def test_what_was_too_small_is_expected_to_be_so_again_until_it_once_is_not() -> None:
    assert printed(VARYING).split() == ["False", "False", "False", "True", "True"]
