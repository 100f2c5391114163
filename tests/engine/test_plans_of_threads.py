"""Operators that choose how they compute and remember the choice for each thread, as cuDNN does.

A stand-in adds numbers up in one order or the other. By its rule, which is cuDNN's without
`benchmark`, every thread chooses the same order for the same shape. By its timing, which is cuDNN's
with it, each thread finds an order of its own. The backward pass runs in another thread here, as it
does for tensors of a CUDA device, so that is where evicted results are recomputed. What
docs/exactness.md says of such operators is held here; cuDNN itself is asked in tests/gpu.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import dtr_alloc
from tests.support.threads import in_threads


class Plans(threading.local):
    """Shape to whether numbers are added up from the last to the first."""

    def __init__(self) -> None:
        self.backwards: dict[torch.Size, bool] = {}


class StandIn:
    """Takes the place of aten::cumsum, as only torch's own operators are run again."""

    def __init__(self) -> None:
        self.benchmark = False
        self.plans = Plans()
        self.home = threading.get_ident()
        self.searches = 0

    def cumsum(self, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        """Over the columns, [rows, columns]."""
        assert (dim, dtype) == (1, None)
        if x.shape not in self.plans.backwards:
            self.searches += 1
            elsewhere = threading.get_ident() != self.home
            self.plans.backwards[x.shape] = self.benchmark and elsewhere
        sums = []
        for end in range(1, x.shape[1] + 1):
            columns = list(x[:, :end].unbind(1))
            if self.plans.backwards[x.shape]:
                columns.reverse()
            sums.append(functools.reduce(torch.add, columns))
        return torch.stack(sums, 1)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made = StandIn()
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That a kernel is overridden.
        library.impl("cumsum", made.cumsum, "CPU")  # type: ignore[no-untyped-call]
    yield made
    library._destroy()  # type: ignore[no-untyped-call]


def summed() -> Tensor:
    """What the stand-in makes of numbers whose order counts."""
    return torch.tensor([[1.0, 1e8, 3.0, -1e8, 0.5, 7.0]]).repeat(1024, 1).cumsum(1)


def backward_in_another_thread(before: Callable[[Tensor], object]) -> Tensor:
    """Gradient of a factor of the sums, which is the sums. `before` is done with them in between
    the passes, in the thread of the first."""
    with dtr_alloc.rematerialize("64MiB"):
        factor = torch.ones(1024, 6, requires_grad=True)
        y = summed()
        loss = (factor * y).sum()
        before(y)
        in_threads(lambda: loss.backward())  # type: ignore[no-untyped-call]
        assert factor.grad is not None
        return factor.grad.clone()


def evicted(y: Tensor) -> None:
    assert dtr_alloc.evict(y)


def evicted_and_back(y: Tensor) -> None:
    assert dtr_alloc.evict(y)
    dtr_alloc.materialize(y)


def test_the_order_counts(stand_in: StandIn) -> None:
    stand_in.benchmark = True
    found = []
    expected = summed()
    in_threads(lambda: found.append(summed()), join=False)
    assert not torch.equal(found[0], expected)


def test_by_a_rule_a_replay_in_another_thread_chooses_anew_and_alike(stand_in: StandIn) -> None:
    expected = summed()
    assert torch.equal(backward_in_another_thread(evicted), expected)
    assert stand_in.searches == 2


def test_by_timing_what_another_thread_recomputes_may_differ(stand_in: StandIn) -> None:
    stand_in.benchmark = True
    expected = summed()
    assert not torch.equal(backward_in_another_thread(evicted), expected)
    assert stand_in.searches == 2


@pytest.mark.parametrize("before", [dtr_alloc.is_evicted, dtr_alloc.pin, evicted_and_back])
def test_what_is_in_memory_or_recomputed_where_it_was_made_is_exact_by_timing_too(
    stand_in: StandIn, before: Callable[[Tensor], object]
) -> None:
    stand_in.benchmark = True
    expected = summed()
    assert torch.equal(backward_in_another_thread(before), expected)
    assert stand_in.searches == 1
