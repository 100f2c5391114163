"""What fails inside nested recomputations, under a budget that all of them fill: the request or the
operator fails, and nothing else does. No lock is left, and every tensor reads as before."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc.runtime.scope.session import Session
from tests.support.exactness import bits, same, scope

KIB64 = 1 << 14  # Elements of four bytes.
BUDGET = (1 << 20) + 8192


def factors() -> list[Tensor]:
    return [torch.full((KIB64,), 1 + i / 7) for i in range(16)]


def product(side: list[Tensor]) -> Tensor:
    """Each factor is an argument on the way, and waits while what is before it is recomputed."""
    total = side[0].exp()
    for factor in side:
        total = total * factor
    return total


def chain() -> list[Tensor]:
    tensors = [torch.ones(KIB64).exp()]
    while len(tensors) < 24:
        tensors.append((tensors[-1] * 1.01).sin() + tensors[len(tensors) // 2])
    return tensors


def work() -> list[Tensor]:
    side = factors()
    return [*side, product(side), *chain()]


def test_a_deep_recomputation_gives_up_what_it_needs_later_only() -> None:
    expected = bits(product(factors()))
    with dtr_alloc.rematerialize(BUDGET, clock="logical") as session:
        side = factors()
        total = product(side)
        dtr_alloc.evict(total)
        for factor in side:  # 16 of 64 KiB: no room for a 17th, and each is an argument on the way.
            dtr_alloc.materialize(factor)
        assert not any(map(dtr_alloc.is_evicted, side))
        assert same(bits(total), expected)
        session.check()
        assert session.stats().peak_bytes <= BUDGET
        del side, total, factor


def read_after(fail: Callable[[Session], None]) -> int:
    """Reads each result, all evicted, with a failure on the way, then without. How many failed."""
    expected = [bits(tensor) for tensor in work()]
    failed = 0
    with scope(BUDGET) as session:
        tensors = work()
        for tensor, content in zip(tensors, expected, strict=True):
            for other in tensors:
                dtr_alloc.evict(other)
            fail(session)
            try:
                dtr_alloc.materialize(tensor)
            except (torch.OutOfMemoryError, RuntimeError):
                failed += 1
            session._core.fail_allocation(0)
            session.check()
            assert same(bits(tensor), content)
        assert session.stats().peak_bytes <= BUDGET
        session.check()
        del tensors, tensor, other
    return failed


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 13, 21])
def test_any_request_of_a_nested_recomputation_may_fail(k: int) -> None:
    assert read_after(lambda session: session._core.fail_allocation(k)) > 0


@contextmanager
def fragile() -> Iterator[list[int]]:
    """sinc adds one here. Of its runs, the one fails with which the list counts down to 0."""
    left = [0]
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def add_one(x: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("this run fails")
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That there was a kernel.
        library.impl("sinc", add_one, "CPU")  # type: ignore[no-untyped-call]
    try:
        yield left
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def test_any_operator_of_a_nested_recomputation_may_fail() -> None:
    def summed() -> list[Tensor]:
        tensors = [torch.ones(KIB64).exp()]
        while len(tensors) < 20:
            ready = tensors[-1].sinc()
            tensors.append(ready * 0.5 + tensors[len(tensors) // 2])
        return tensors

    with fragile() as left:
        expected = [bits(tensor) for tensor in summed()]
        failed = 0
        for k in range(1, 20):
            with scope(BUDGET) as session:
                tensors = summed()
                for tensor in tensors:
                    dtr_alloc.evict(tensor)
                left[0] = k
                try:
                    dtr_alloc.materialize(tensors[-1])
                except RuntimeError as error:
                    assert "this run fails" in str(error)
                    failed += 1
                left[0] = 0
                session.check()
                for tensor, content in zip(tensors, expected, strict=True):
                    assert same(bits(tensor), content)
                session.check()
                del tensors, tensor
        assert failed > 8


def test_results_of_empty_that_nobody_used_are_freed() -> None:
    with scope("4MiB") as session:
        for _ in range(100):
            torch.empty(KIB64)
        session.check()
        assert session.stats().live_bytes == 0


def test_what_an_operator_that_failed_was_to_write_is_an_ordinary_tensor() -> None:
    """Of which torch may make a copy that is made when it is written."""
    with scope("4MiB") as session:
        x = torch.ones(1000) + 1
        with pytest.raises(RuntimeError, match="size of tensor"):
            x.add_(torch.ones(3))
        copy = torch.ops.aten._lazy_clone(x)
        copy.add_(1)
        x.mul_(2)
        assert float(x[0]) == 4
        assert float(copy[0]) == 3
        session.check()
