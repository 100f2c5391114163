"""What was moved to the host's memory comes back ahead of its use (engine/ahead.cpp), on the fake
driver, with CPU tensors on its memory. The copies alone are in test_host_tier.py."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope.session import Session
from tests.fake_cuda.driver import FakeCuda
from tests.support.exactness import grad_of
from tests.swap.test_swap_on_device import COPIES, on_device

QUARTER_MIB, WIDE = 1 << 18, 5


class Repeated:
    """Steps with a wide tensor, for which others must go, that then read one gradient by one."""

    def __init__(self) -> None:
        self.kept = {n: torch.ones(1 << 16).requires_grad_() for n in range(12)}
        for number, x in self.kept.items():
            (x * float(number)).sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)

    def gradient(self, number: int) -> Tensor:
        return grad_of(self.kept[number])

    def read_the_first(self) -> None:
        """After the wide tensor: the next ones are on their way then."""
        torch.zeros(WIDE << 16).add(1)
        self.gradient(0)[7] + 1

    def step(self) -> None:
        torch.zeros(WIDE << 16).add(1)
        for number in self.kept:
            assert float(self.gradient(number)[7] + 1) == number + 1
        self.optimizer.step()


@contextmanager
def after_steps(count: int) -> Iterator[tuple[Session, Repeated]]:
    """A program on 4 MiB that has run so many steps. It is let go at the end."""
    with on_device(16 * QUARTER_MIB, "logical") as session:
        program = Repeated()
        for _ in range(count):
            program.step()
        yield session, program
        session.check()
        program.kept.clear()


def test_what_a_repeated_step_reads_is_on_its_way_before_it_is_read(cuda: FakeCuda) -> None:
    with after_steps(0) as (session, program):
        ahead = []
        for _ in range(6):
            before = session.stats().swapped_ahead_bytes
            program.step()
            ahead.append(session.stats().swapped_ahead_bytes - before)
            session.check()
        assert ahead[0] == 0
        assert ahead[-1] > 0


def test_a_copy_begins_as_late_as_it_may(cuda: FakeCuda) -> None:
    """By the clock that counts bytes an operator on 16 KiB takes 32, so that the copies of two
    gradients of 256 KiB begin some ten operators before the first is read."""
    with after_steps(0) as (session, program):
        small = torch.ones(1 << 12)
        for _ in range(5):
            torch.zeros(WIDE << 16).add(1)
            live = []
            for _ in range(200):
                small.exp()
                live.append(session.stats().live_bytes)
            for number in program.kept:
                assert float(program.gradient(number)[7]) == number
            program.optimizer.step()
        assert {*live[:185]} == {live[0]}
        assert live[-1] > live[0]


def test_a_copy_waits_for_no_later_one_that_has_time(cuda: FakeCuda) -> None:
    """Each gradient is read long after the one before, so its copy begins some nine operators
    before, and not eighteen, as that of two, which an eighth of the budget holds."""
    with after_steps(0) as (session, program):
        small = torch.ones(1 << 12)
        for _ in range(5):
            torch.zeros(WIDE << 16).add(1)
            for number in range(3):
                live = []
                for _ in range(100):
                    small.exp()
                    live.append(session.stats().live_bytes)
                assert float(program.gradient(number)[7]) == number
            program.optimizer.step()
        assert {*live[:88]} == {live[0]}
        assert live[-1] > live[0]


def test_what_is_on_its_way_gives_way_to_what_the_program_needs(cuda: FakeCuda) -> None:
    with after_steps(5) as (session, program):
        program.read_the_first()
        wide = torch.zeros(15 << 16)  # An eighth of the budget is on its way.
        session.check()
        program.step()
        del wide


def test_what_is_on_its_way_may_be_let_go_evicted_pinned_and_taken(cuda: FakeCuda) -> None:
    rng = random.Random(0)
    acts: list[Callable[[Tensor], object]] = [
        dtr_alloc.evict,
        dtr_alloc.materialize,
        lambda tensor: tensor.data_ptr(),
        lambda tensor: tensor.add_(0),
        lambda tensor: tensor.clone(),
    ]
    for _ in range(20):
        with after_steps(3) as (session, program):
            for _ in range(9):
                rng.choice(acts)(program.gradient(rng.choice([*program.kept])))
                if rng.random() < 0.3:
                    del program.kept[rng.choice([*program.kept])]
                elif rng.random() < 0.2:
                    session.release()
                elif rng.random() < 0.2:
                    with suppress(torch.OutOfMemoryError):  # Where too much was taken.
                        session.resize(rng.choice([8, 12, 15]) * QUARTER_MIB)
                    session.resize(16 * QUARTER_MIB)
                session.check()
                program.step()
            for number in program.kept:
                assert torch.unique(program.gradient(number)).tolist() == [number]


def test_a_program_that_turns_to_other_steps_has_nothing_on_its_way(cuda: FakeCuda) -> None:
    with after_steps(5) as (session, program):
        program.read_the_first()
        with_copies = session.stats().live_bytes
        torch.ones(1 << 10).exp()
        assert session.stats().live_bytes <= with_copies - QUARTER_MIB
        session.check()
        program.step()


def test_what_is_on_its_way_as_a_step_ends_may_be_read_in_the_next(cuda: FakeCuda) -> None:
    """Also what was, and came, before."""
    with after_steps(0) as (session, program):
        for _ in range(2):
            for _ in range(3):
                program.step()
            program.read_the_first()
            with_copies = session.stats().live_bytes
            assert with_copies >= 3 * QUARTER_MIB  # Two are on their way.
            program.optimizer.step()
            assert session.stats().live_bytes == with_copies
            session.check()


def test_what_is_on_its_way_is_released_too(cuda: FakeCuda) -> None:
    with after_steps(5) as (session, program):
        before = session.stats().swapped_ahead_bytes
        program.read_the_first()
        session.release()
        assert session.stats().live_bytes < QUARTER_MIB
        assert session.stats().swapped_ahead_bytes == before  # What was begun has not arrived.
        program.step()


def test_a_tensor_that_dies_while_it_is_on_its_way_leaves_no_memory_behind(cuda: FakeCuda) -> None:
    with after_steps(0) as (session, program):
        for number in range(1, 12):
            for _ in range(3):
                program.step()
            program.read_the_first()
            del program.kept[number]
            session.check()
        program.kept.clear()
        assert session.stats().live_bytes <= 512  # The optimizer's parameter.


def test_threads_read_what_is_on_its_way_for_either(cuda: FakeCuda) -> None:
    with after_steps(3) as (_, program):

        def read() -> list[float]:
            with dtr_alloc.join_scope():
                numbers = [random.Random(n).randrange(12) for n in range(200)]
                return [float(program.gradient(n)[7]) - n for n in numbers]

        with ThreadPoolExecutor(2) as threads:
            found = [threads.submit(read) for _ in range(2)]
            for _ in range(20):
                program.step()
            assert all(one.result() == [0.0] * 200 for one in found)


@pytest.mark.parametrize("call", [COPIES[1], "cuEventRecord", "cuStreamWaitEvent"])
def test_a_copy_that_fails_ahead_is_copied_when_it_is_asked_for(cuda: FakeCuda, call: str) -> None:
    silent = 0
    for after in range(40):
        with after_steps(3) as (session, program):
            cuda.fail(call, after)
            told = False
            for _ in range(3):
                while True:
                    try:
                        program.step()
                        break
                    except RuntimeError as error:
                        assert f"{call} failed" in str(error)
                        told = True
                session.check()
            failed = cuda.pending_failures() == 0
            silent += failed and not told
        if not failed:
            break
    assert after > 0
    assert silent > 0


def test_what_arrives_is_not_there_before_other_streams_wait_for_it(
    cuda: FakeCuda, two_streams: tuple[int, int]
) -> None:
    """Where they cannot be made to wait, another stream might read it too early."""
    with after_steps(0) as (session, program):
        _core.set_host_stream(two_streams[0])
        torch.ones(1 << 16).exp()
        _core.set_host_stream(0)
        for _ in range(3):
            program.step()
        program.read_the_first()
        copies = cuda.calls(COPIES[1])
        cuda.fail("cuStreamWaitEvent", 1)  # The first is the reader's.
        with pytest.raises(RuntimeError, match="cuStreamWaitEvent failed"):
            dtr_alloc.materialize(program.gradient(1))
        assert cuda.calls(COPIES[1]) == copies  # It was on its way.
        assert dtr_alloc.is_evicted(program.gradient(1))
        session.check()
        program.step()
