"""On a device atomics add and write in any order: such results stay in memory. The fake device runs
the host's kernels, which repeat themselves, so these tests ask which results can be evicted, by the
documentation of torch.use_deterministic_algorithms, not which bits differ."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import dtr_alloc
from dtr_alloc.runtime.scope.scope import rematerialize
from tests.fake_cuda.driver import FakeCuda
from tests.support.instruments import instrumented

COUNT = 1 << 14  # Smaller integer tensors are never evicted.
X, INTEGERS = torch.linspace(0, 1, COUNT), torch.arange(COUNT)
INDEX = torch.zeros(COUNT, dtype=torch.long)
LEAF = torch.linspace(0, 1, COUNT, requires_grad=True)
IMAGE = torch.ones(1, 1, 128, 128, requires_grad=True)


@pytest.fixture(autouse=True)
def on_the_device(cuda: FakeCuda) -> Iterator[None]:
    with instrumented(on_cuda=True), rematerialize("64MiB"):
        yield
    torch.use_deterministic_algorithms(False)


def gradient_of(value: Tensor, leaf: Tensor) -> Tensor:
    """Which is differentiated again: else a backward pass is not recorded."""
    (made,) = torch.autograd.grad(value.square().sum(), leaf, create_graph=True)
    return made


STAYS: dict[str, Callable[[], Tensor]] = {
    "cumsum": lambda: X.cumsum(0),
    "scatter_add_": lambda: torch.zeros(COUNT).scatter_add_(0, INDEX, X),
    "scatter_add into given memory": lambda: torch.scatter_add(
        torch.zeros(COUNT), 0, INDEX, X, out=torch.empty(COUNT)
    ),
    "cumsum of integers as numbers": lambda: INTEGERS.cumsum(0, dtype=torch.float32),
    "cumprod": lambda: X.cumprod(0),
    "logcumsumexp": lambda: X.logcumsumexp(0),
    "the place of the k-th value": lambda: X.view(COUNT, 1).kthvalue(1, dim=1).indices,
    "index_add": lambda: torch.zeros(COUNT).index_add(0, INDEX, X),
    "a scatter that writes some elements twice": lambda: INTEGERS.scatter(0, INDEX, INTEGERS + 1),
    "scatter_reduce": lambda: torch.zeros(COUNT).scatter_reduce(0, INDEX, X, "sum"),
    "index_copy": lambda: torch.zeros(COUNT).index_copy(0, INDEX, X),
    "index_put that writes": lambda: X.index_put((INDEX,), X),
    "put_": lambda: torch.zeros(COUNT).put_(INDEX, X, accumulate=True),
    "bincount of weights": lambda: torch.bincount(INDEX, X),
    "the indices of a median": lambda: X.view(COUNT, 1).median(1).indices,
    "the gradient of gather": lambda: gradient_of(LEAF.gather(0, INDEX), LEAF),
    "the gradient of an interpolation": lambda: gradient_of(
        functional.interpolate(IMAGE, scale_factor=2, mode="bilinear"), IMAGE
    ),
    "the gradient of reflected padding": lambda: gradient_of(
        functional.pad(IMAGE, (1, 1, 1, 1), mode="reflect"), IMAGE
    ),
}
REPEATS: dict[str, Callable[[], Tensor]] = {
    "cumsum of integers": lambda: INTEGERS.cumsum(0),
    "scatter_add of integers": lambda: INTEGERS.scatter_add(0, INDEX, INTEGERS),
    "a scatter of one number": lambda: torch.zeros(COUNT).scatter(0, INDEX, 1.0),
    "index_put that accumulates": lambda: X.index_put((INDEX,), X, accumulate=True),
    "bincount": lambda: torch.bincount(INTEGERS),
    "index_select": lambda: X.index_select(0, INDEX),
    "a gradient": lambda: gradient_of(LEAF.exp(), LEAF),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_atomics_make_stays(name: str) -> None:
    assert not dtr_alloc.evict(STAYS[name]())


@pytest.mark.parametrize("name", REPEATS)
def test_what_repeats_itself_is_evicted(name: str) -> None:
    assert dtr_alloc.evict(REPEATS[name]())


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("name", ["cumsum", "scatter_add_", "index_put that writes"])
def test_deterministic_mode_orders_what_has_such_a_variant(name: str, warn_only: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    assert dtr_alloc.evict(STAYS[name]())


@pytest.mark.parametrize("name", ["scatter_reduce", "cumprod", "the gradient of reflected padding"])
def test_a_mode_that_only_warns_gives_none_to_what_has_no_such_variant(name: str) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert not dtr_alloc.evict(STAYS[name]())


def test_a_branch_on_a_routers_ties_is_not_taken_anew() -> None:
    """Experts are chosen by sums of atomics: what is computed again agrees, since those stay."""
    scores = torch.zeros(COUNT).scatter_add_(0, INDEX, X)
    chosen = int(scores.argmax())
    expert = (scores * 2).exp()
    assert dtr_alloc.evict(expert)
    assert not dtr_alloc.evict(scores)
    assert int(expert.argmax()) == chosen
