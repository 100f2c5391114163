"""While a recomputation has changed a switch of the process, no operator of another thread runs,
and no Python code; and no thread waits for another for ever."""

import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import dtr_alloc
from tests.live.test_switches import in_float64, number_of_threads, without_onednn
from tests.support.threads import in_threads

__all__ = ["number_of_threads"]  # For each test here, too.


def meanwhile(others: Callable[[], object], *, count: int, work: Callable[[], object]) -> None:
    """Does what others do again and again, in so many threads, until the work is done."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            others()

    def run() -> None:
        try:
            work()
        finally:
            done.set()

    in_threads(*[repeat] * count, run)


def test_no_operator_of_another_thread_sees_what_a_recomputation_switches() -> None:
    x, weight = torch.randn(2, 8, 24, 24), torch.randn(8, 8, 3, 3)
    expected = F.conv2d(x, weight)
    with without_onednn():
        by_hand = F.conv2d(x, weight)
    assert not torch.equal(expected, by_hand)

    def computes() -> None:
        assert torch.equal(F.conv2d(x, weight), expected)

    with dtr_alloc.rematerialize("64MiB") as session:
        with without_onednn():
            made = [F.conv2d(x, weight) for _ in range(4)]

        def reads() -> None:
            for i in range(5000):
                dtr_alloc.evict(made[i % 4])
                assert torch.equal(made[i % 4], by_hand)

        meanwhile(computes, count=2, work=reads)
        session.check()


def test_python_code_of_another_thread_sees_no_switch_of_a_recomputation() -> None:
    def looks() -> None:
        assert torch.get_default_dtype() == torch.float32
        assert torch.tensor([1.5]).dtype == torch.float32

    with dtr_alloc.rematerialize("64MiB"):
        x = torch.arange(1_000_000)
        with in_float64():
            made = [x / 7 for _ in range(4)]

        def reads() -> None:
            for i in range(20):
                dtr_alloc.evict(made[i % 4])
                dtr_alloc.materialize(made[i % 4])

        meanwhile(looks, count=2, work=reads)


WAITING: list[Callable[[], object]] = []


def waiting() -> torch.library.Library:
    """Has an operator `dtr_waits::waits` that calls what is in WAITING, and is not recorded."""
    library = torch.library.Library("dtr_waits", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("waits(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]

    def waits(x: Tensor) -> Tensor:
        for call in WAITING:
            call()
        return x.clone()

    library.impl("waits", waits, "CPU")  # type: ignore[no-untyped-call]
    return library


def test_an_operator_that_waits_for_its_turn_is_not_waited_for() -> None:
    """Its kernel reads an evicted tensor, while another thread recomputes by another switch."""
    library = waiting()
    inside, go_on = threading.Event(), threading.Event()
    with dtr_alloc.rematerialize("64MiB"):
        x = torch.ones(5000)
        with in_float64():
            made = x.long() / 3
        other = x * 2.0
        dtr_alloc.evict(made)
        dtr_alloc.evict(other)
        WAITING[:] = [inside.set, lambda: go_on.wait(0.5), other.numpy]

        def reads() -> None:
            inside.wait()
            dtr_alloc.materialize(made)
            go_on.set()

        in_threads(lambda: torch.ops.dtr_waits.waits(torch.ones(5000)), reads)
        assert made.dtype == torch.float64
    WAITING.clear()
    library._destroy()  # type: ignore[no-untyped-call]


def test_a_sum_in_any_order_stays_though_another_thread_recomputes_deterministically() -> None:
    index = torch.randint(0, 1000, (500_000,), generator=torch.Generator().manual_seed(0))
    updates = torch.randn(500_000, generator=torch.Generator().manual_seed(1))

    def sums() -> None:
        torch.set_num_threads(2)
        for _ in range(12):
            made = torch.zeros(1000).index_put_((index,), updates, accumulate=True)
            first = made.clone()
            dtr_alloc.evict(made)
            assert torch.equal(made, first)

    with dtr_alloc.rematerialize("256MiB"):
        x = torch.ones(100_000)
        torch.use_deterministic_algorithms(True)
        made = [x.sin().cumsum(0) for _ in range(4)]
        torch.use_deterministic_algorithms(False)

        def reads() -> None:
            for one in made:
                dtr_alloc.evict(one)
                dtr_alloc.materialize(one)

        meanwhile(reads, count=1, work=sums)
