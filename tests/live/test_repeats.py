"""What an operator makes differently in each run stays in memory. Several threads that add to one
element do so in any order, and the last bits tell."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import comes_back

COUNT = 1_000_000


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def index() -> Tensor:
    return torch.randint(0, 1000, (COUNT,), generator=torch.Generator().manual_seed(0))


def numbers() -> Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(1))


def gradient(pick: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of what is picked from a tensor by it, which is differentiated again."""

    def of(x: Tensor, i: Tensor) -> Tensor:
        leaf, weight = x.detach().requires_grad_(), numbers().requires_grad_()
        (made,) = torch.autograd.grad((pick(leaf, i) * weight).sum(), leaf, create_graph=True)
        return made

    return of


ADDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_put_": lambda x, i: x.clone().index_put_((i,), numbers(), accumulate=True),
    "index_put": lambda x, i: x.index_put((i,), numbers(), accumulate=True),
    "_unsafe_index_put": lambda x, i: torch._unsafe_index_put(x, (i,), numbers(), accumulate=True),
    "put_": lambda x, i: x.clone().put_(i, numbers(), accumulate=True),
    "put": lambda x, i: x.put(i, numbers(), accumulate=True),
    "a gradient of indices": gradient(lambda x, i: x[i]),
    "a gradient of take": gradient(Tensor.take),
}


@pytest.mark.parametrize("name", ADDED)
def test_with_two_threads_a_sum_at_indices_keeps_the_bits_that_it_was_made_with(
    name: str, threads: Callable[[int], None]
) -> None:
    threads(2)
    with dtr_alloc.rematerialize("256MiB"):
        made = ADDED[name](torch.zeros(1000), index())
        first = made.detach().clone()
        for _ in range(8):
            dtr_alloc.evict(made)
            assert torch.equal(made, first)


def test_of_values_for_one_place_the_written_one_stays(threads: Callable[[int], None]) -> None:
    threads(2)
    values = torch.randn(1, 64, 128, 128).to(memory_format=torch.channels_last)
    places = torch.randint(0, 1000, (1, 64, 128, 128))
    with dtr_alloc.rematerialize("256MiB"):
        made = torch.ops.aten.max_unpool2d(values, places, [64, 64])
        assert not dtr_alloc.evict(made)
        threads(1)
        made = torch.ops.aten.max_unpool2d(values, places, [64, 64])
        assert dtr_alloc.evict(made)


def test_a_deterministic_mode_that_only_warns_gives_no_order_to_what_has_no_such_variant(
    threads: Callable[[int], None],
) -> None:
    threads(2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    values, places = torch.randn(1, 64, 128, 128), torch.zeros(1, 64, 128, 128).long()
    with dtr_alloc.rematerialize("256MiB"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.ops.aten.max_unpool2d(values, places, [64, 64])
        assert not dtr_alloc.evict(made)
        assert dtr_alloc.evict(ADDED["index_put"](torch.zeros(1000), index()))


@pytest.mark.parametrize("way", ["one thread", "deterministic"])
@pytest.mark.parametrize("name", ["index_put_", "index_put", "put_", "put"])
def test_where_it_repeats_itself_it_is_evicted_and_recomputed(
    name: str, way: str, threads: Callable[[int], None]
) -> None:
    threads(1 if way == "one thread" else 2)
    torch.use_deterministic_algorithms(way == "deterministic")
    with dtr_alloc.rematerialize("256MiB"):
        made = ADDED[name](torch.zeros(1000), index())
        threads(2)
        torch.use_deterministic_algorithms(False)
        for _ in range(4):
            assert comes_back(made)


@pytest.mark.parametrize("name", ["index_put_", "put"])
def test_without_sums_they_are_recomputed(name: str, threads: Callable[[int], None]) -> None:
    threads(2)
    with dtr_alloc.rematerialize("256MiB"):
        x, i = torch.zeros(1000), torch.randperm(1000)
        made = x.put(i, x + 1) if name == "put" else x.clone().index_put_((i,), x + 1)
        assert dtr_alloc.evict(made)
        assert torch.equal(made, torch.ones(1000))


CALLS: list[int] = []


@torch.library.custom_op("dtr_repeats::differs_where_large", mutates_args=())
def differs_where_large(x: Tensor) -> Tensor:
    CALLS.append(x.numel())
    return x + (len(CALLS) if x.numel() > 10_000 else 0)


def test_debug_mode_runs_an_operator_twice_again_when_its_arguments_have_grown() -> None:
    with dtr_alloc.rematerialize("256MiB", debug=True):
        differs_where_large(torch.ones(1000))
        differs_where_large(torch.ones(1001))
        with pytest.raises(RuntimeError, match="differs_where_large made other bytes"):
            differs_where_large(torch.ones(20_000))
    assert CALLS == [1000, 1000, 1001, 20_000, 20_000]


def test_debug_mode_allows_a_buffer_that_is_filled_part_by_part() -> None:
    x = torch.randn(8, 1000)
    with dtr_alloc.rematerialize("64MiB", debug=True):
        del_soon = x.exp().sin()  # Memory that the buffer gets has old content.
        del del_soon
        filled = torch.empty(8, 1000)
        for i in range(8):
            filled[torch.tensor([i])] = x[i : i + 1].exp()
        assert torch.equal(filled, x.exp())


@pytest.mark.skipif(not _core.sees_raw_access, reason="before torch 2.13 a new buffer stays")
def test_debug_mode_compares_what_fills_a_new_buffer() -> None:
    with dtr_alloc.rematerialize("64MiB", debug=True) as session:
        torch.empty(300_000).normal_()
        assert session._core.stats().verified == 1


def test_debug_mode_runs_torchs_operators_twice_too() -> None:
    with dtr_alloc.rematerialize("256MiB", debug=True) as session:
        x = torch.ones(1000)
        for _ in range(3):
            x = x.sin()
        assert session._core.stats().verified == 2  # ones, sin
