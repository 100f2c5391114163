"""A call of compiled code is an operator on the tape, and its time counts once."""

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc.runtime.scope.session import Session
from tests.fake_cuda.driver import FakeCuda
from tests.support.exactness import scope
from tests.support.instruments import instrumented
from tests.support.taped_programs import ELEMENTS, Program
from tests.support.taped_programs import scope as taped

empty_strided_cpu: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cpu")  # noqa: B009
MIB = 1 << 20
NAP = 0.02  # Seconds.
_within: list[Callable[[], Any]] = []


@torch.library.custom_op("dtr_costs::calls", mutates_args=())
def calls(x: Tensor) -> Tensor:
    _within[-1]()
    return x.sin()


calls.register_fake(torch.empty_like)


def code(
    session: Session,
    read: list[Tensor],
    written: tuple[int, ...] = (),
    run: Callable[[], Any] = list,
    name: int = 0,
) -> None:
    session._core.holding(read, list(written), False, name, run)


def nap() -> None:
    time.sleep(NAP)


@pytest.mark.parametrize("written", [(), (0,)], ids=["reads", "writes"])
@pytest.mark.parametrize("late", [0, 1])
def test_of_two_values_the_one_that_it_is_given_later_goes(
    late: int, written: tuple[int, ...]
) -> None:
    x, program = torch.randn(512, 512), Program()
    with scope(int(2.5 * MIB)) as session:
        for _ in range(4):
            made = [x.exp(), x.sin()]
            room = x.cos()  # Of three of 1 MiB each one has to go.
            gone = [dtr_alloc.is_evicted(value) for value in made]
            del room
            for which in (1 - late, late):
                code(session, [made[which]], written)
            program.end_step()
            del made
    assert gone == [late == 0, late == 1]


def test_nothing_that_it_is_given_goes_to_bring_back_the_rest() -> None:
    x, program = torch.linspace(0, 1, ELEMENTS), Program()
    with taped(3.5) as session:
        for _ in range(5):
            read, written, needed = x.exp(), x.sin(), x.cos()
            assert dtr_alloc.evict(written)
            other = x.tan()
            before = session.stats().rematerializations
            code(session, [read, written], (1,))
            again = session.stats().rematerializations - before
            assert needed.sum() + other.sum() > 0
            assert torch.equal(written, x.sin())
            program.end_step()
            del read, written, needed, other
        assert again == 1


def test_where_what_it_reads_does_not_fit_nothing_becomes_a_constant() -> None:
    with scope(int(2.5 * MIB)) as session:
        given = [torch.full((512, 512), i / 7).exp() for i in range(3)]
        resident = [dtr_alloc.is_evicted(value) for value in given].index(False)
        with pytest.raises(torch.OutOfMemoryError):
            code(session, given, (resident,))
        assert all(dtr_alloc.is_evicted(value) or dtr_alloc.evict(value) for value in given)
        session.check()
        del given


def foretold(within: Callable[[Session, Tensor], Any]) -> int:
    """Of the operators of eight steps; in each other one `calls` is run again."""
    x, program = torch.linspace(0, 1, ELEMENTS), Program()
    with scope(None) as session:
        for number in range(8):
            first = x.exp()
            _within[:] = [functools.partial(within, session, first)]
            value = calls(first)
            if number % 2:
                assert dtr_alloc.evict(value)
            shown = value + 1
            program.end_step()
            _within.clear()
            del value, shown, first
        return session._core.stats().foretold


def test_within_an_operator_it_is_none_of_its_own() -> None:
    """Nor where the operator is run again, which is not foretold."""
    assert foretold(lambda session, x: code(session, [x])) == foretold(lambda _, x: None) > 0


def test_where_it_is_given_nothing_of_ours_nothing_is_foretold_of_it() -> None:
    program, x = Program(), torch.ones(4)
    with scope(None) as session:
        for _ in range(4):
            code(session, [x])
            program.end_step()
        assert session._core.stats().foretold == 0


# ---- Its time, of which none may count twice: the sum is at most what has passed


def counted(session: Session, run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that count as the program's work or the policy's, and all that passed."""

    def sum_of() -> int:
        stats = session._core.stats()
        return int(stats.base_cost + stats.remat_ns + stats.search_ns)

    before, start = sum_of(), time.perf_counter()
    run()
    return (sum_of() - before) / 1e9, time.perf_counter() - start


def test_a_call_within_a_call_counts_once() -> None:
    def inner() -> None:
        code(session, [], run=nap, name=2)
        nap()

    with dtr_alloc.rematerialize(None) as session:
        code(session, [], run=inner, name=1)  # The first time is not looked at.
        sum_, passed = counted(session, lambda: code(session, [], run=inner, name=1))
    assert 2 * NAP <= sum_ <= passed


def test_operators_that_it_runs_count_once() -> None:
    def operators() -> None:
        _within[:] = [nap]
        calls(torch.ones(ELEMENTS))
        nap()

    with dtr_alloc.rematerialize(None) as session:
        code(session, [], run=operators)
        sum_, passed = counted(session, lambda: code(session, [], run=operators))
    assert NAP <= sum_ <= passed


def test_a_call_within_an_operator_counts_once() -> None:
    with dtr_alloc.rematerialize(None) as session:
        _within[:] = [lambda: code(session, [], run=nap)]
        x = torch.ones(ELEMENTS)
        calls(x)
        sum_, passed = counted(session, lambda: calls(x))
    assert NAP <= sum_ <= passed


def test_the_search_for_memory_is_none_of_its_time() -> None:
    def allocate() -> None:
        empty_strided_cpu((6 * MIB,), (1,), torch.uint8)

    with dtr_alloc.rematerialize("8MiB", thrash_limit=0) as session:
        x = torch.ones(ELEMENTS)
        code(session, [])
        kept = [x + i for i in range(96)]
        sum_, passed = counted(session, lambda: code(session, [], run=allocate))
        assert sum(map(dtr_alloc.is_evicted, kept)) > 48
        del kept
    assert sum_ <= passed


def test_the_first_call_which_tunes_what_it_runs_is_held_to_cost_the_usual() -> None:
    with dtr_alloc.rematerialize(None) as session:
        first, _ = counted(session, lambda: code(session, [], run=nap, name=3))
        second, _ = counted(session, lambda: code(session, [], run=nap, name=3))
        other, _ = counted(session, lambda: code(session, [], run=nap, name=4))
    assert max(first, other) < NAP <= second


@pytest.mark.parametrize("inside", [0, 1])
def test_on_a_device_it_costs_what_the_device_needs_beside_operators(
    cuda: FakeCuda, inside: int
) -> None:
    """A time stamp takes 0.25 ms: with an operator inside, three pass until the last."""
    x = torch.ones(64, 64)
    with instrumented(on_cuda=True), dtr_alloc.rematerialize("64MiB") as session:

        def operators() -> None:
            for _ in range(inside):
                x.exp()

        cuda.event_takes(0.25)
        for _ in range(6):
            before = session._core.stats().kernel_ns
            code(session, [x], run=operators)
            took = session._core.stats().kernel_ns - before
            session._core.step()
    assert took == pytest.approx(750_000 if inside else 250_000, rel=0.01)


def test_a_call_that_fails_says_nothing_of_what_the_next_one_costs() -> None:
    def fail() -> None:
        raise LookupError

    with dtr_alloc.rematerialize(None) as session:
        code(session, [])
        before = session._core.stats().kernel_ns
        with pytest.raises(LookupError):
            code(session, [], run=fail)
        assert session._core.stats().kernel_ns == before
        code(session, [], run=nap)
        assert session._core.stats().kernel_ns - before >= NAP * 1e9
