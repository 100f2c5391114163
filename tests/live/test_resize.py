"""A budget that changes while the program runs: it holds from then on, and no bit differs."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.demo import MODELS, Plan
from dtr_alloc.demo.models import gpt
from dtr_alloc.demo.train import train
from tests.support.pool_memory import of_this_process
from tests.support.threads import in_threads

MIB = 1 << 20


def results(count: int) -> list[torch.Tensor]:
    """Tensors of 1 MiB that can be recomputed."""
    base = torch.arange(MIB // 4, dtype=torch.float32)
    return [base * (n + 1) for n in range(count)]


def test_a_smaller_budget_holds_at_once_and_a_larger_one_from_then_on() -> None:
    expected = [float(n + 1) for n in range(8)]
    with dtr_alloc.rematerialize("16MiB") as session:
        held = results(8)
        session.resize("4MiB")
        assert session.stats().live_bytes <= 4 * MIB
        assert session.stats().budget_bytes == 4 * MIB
        session.reset_peak()
        assert [tensor[1].item() for tensor in held] == expected
        assert session.stats().peak_bytes <= 4 * MIB
        session.resize(16 * MIB)
        assert [tensor[1].item() for tensor in held] == expected
        before = session.stats().evictions
        assert [tensor[1].item() for tensor in held] == expected
        assert session.stats().evictions == before
        session.check()


def test_a_budget_below_what_must_stay_is_refused_before_anything_changes() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        kept, held = results(3), results(4)
        for tensor in kept:
            dtr_alloc.pin(tensor)
        before = session.stats()
        with pytest.raises(torch.OutOfMemoryError, match=r"to at least 3\.00 MiB") as error:
            session.resize("2MiB")
        assert "it stays 16.00 MiB" in str(error.value)
        after = session.stats()
        assert (after.evictions, after.live_bytes) == (before.evictions, before.live_bytes)
        assert after.budget_bytes == 16 * MIB
        session.resize("3MiB")  # As the error says.
        assert session.stats().live_bytes == 3 * MIB
        session.resize("16MiB")
        assert held[3][1].item() == 4.0


def test_a_budget_may_be_exactly_what_must_stay() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        (kept,) = results(1)
        small = [kept[:1001] * n for n in range(100)]  # 4,004 bytes, in blocks of 4,096.
        dtr_alloc.pin(kept)
        session.resize("1MiB")
        assert session.stats().live_bytes == MIB
        session.resize("16MiB")
        assert [tensor[1].item() for tensor in small] == list(range(100))


ACTS: list[Callable[[], object]] = []


@torch.library.custom_op("test_resize::add_one_", mutates_args=("x",))
def add_one_(x: torch.Tensor) -> None:
    """Does the next of ACTS while it runs, and others wait for their turn."""
    ACTS.pop()()
    x.add_(1)


def test_what_a_running_operator_reads_stays() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        held = results(4)
        ACTS.append(lambda: session.resize("512KiB"))
        with pytest.raises(torch.OutOfMemoryError, match=r"to at least 1\.00 MiB"):
            add_one_(held[0])
        assert session.stats().evictions == 0
        assert session.stats().budget_bytes == 16 * MIB
        ACTS.append(lambda: session.resize("3MiB"))
        add_one_(held[0])
        assert session.stats().live_bytes <= 3 * MIB
        session.resize("16MiB")
        assert [tensor[1].item() for tensor in held] == [2.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("17MiB", "17 MiB is above 16 MiB, with which the scope was opened"),
        ("eight", "is not a size"),
        (0, "is not above zero"),
        (-1, "is not above zero"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(budget: Any, message: str) -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        held = results(8)
        with pytest.raises(ValueError, match=message):
            session.resize(budget)
        assert session.stats().budget_bytes == 16 * MIB
        assert session.stats().evictions == 0
        assert len(held) == 8


def test_a_scope_without_a_budget_has_none_to_resize() -> None:
    for scope in (dtr_alloc.measure(), dtr_alloc.rematerialize(None)):
        with scope as session:
            with pytest.raises(ValueError, match="there is no budget to change"):
                session.resize("1MiB")
            with pytest.raises(ValueError, match="no budget to change"), session.lend("1MiB"):
                pass
            assert session.stats().budget_bytes is None


def test_a_scope_that_is_over_cannot_be_resized() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        pass
    with pytest.raises(RuntimeError, match="this scope is over"):
        session.resize("1MiB")
    with pytest.raises(RuntimeError, match="this scope is over"):
        session.release()
    with pytest.raises(RuntimeError, match="this scope is over"), session.lend("1MiB"):
        pass


def test_what_is_released_goes_back_to_the_system_and_returns_when_touched() -> None:
    with dtr_alloc.rematerialize("64MiB") as session:
        held = results(32)
        committed = session._core.pool_stats().committed
        assert session.release() >= 31 * MIB
        assert session._core.pool_stats().committed <= committed - 31 * MIB
        assert all(dtr_alloc.is_evicted(tensor) for tensor in held)
        assert [tensor[1].item() for tensor in held] == [float(n + 1) for n in range(32)]


@pytest.mark.skipif(not _core.sees_raw_access, reason="torch before 2.13: more stays in memory")
@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_between_forward_and_backward_the_activations_leave_the_process(memory: Any) -> None:
    expected = trained_beside(memory, releases=False)
    assert all(map(torch.equal, trained_beside(memory, releases=True), expected))


def trained_beside(memory: Any, *, releases: bool) -> list[torch.Tensor]:
    """The gradients of a step, in whose middle the memory is perhaps lent to somebody else."""
    torch.manual_seed(0)
    job = gpt()
    text = job.batch(torch.Generator().manual_seed(0))
    with dtr_alloc.rematerialize("128MiB", memory=memory) as session:
        loss = job.loss(job.model, text)
        activations = session.stats().live_bytes
        assert activations > 16 * MIB
        if releases:
            before = of_this_process("Rss")
            session.release()
            assert before - of_this_process("Rss") >= 0.9 * activations
            assert session.stats().live_bytes <= 0.1 * activations
        loss.backward()  # type: ignore[no-untyped-call]
    return [torch.clone(p.grad) for p in job.model.parameters() if p.grad is not None]


def test_what_is_lent_comes_back_also_after_an_error() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        held = results(8)
        with pytest.raises(KeyError), session.lend("12MiB"), session.lend("1MiB"):
            assert session.stats().budget_bytes == 3 * MIB
            assert session.stats().live_bytes <= 3 * MIB
            raise KeyError
        assert session.stats().budget_bytes == 16 * MIB
        assert [tensor[1].item() for tensor in held] == [float(n + 1) for n in range(8)]


def test_what_comes_back_from_a_loan_never_passes_the_budget_of_the_scope() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        with session.lend("12MiB"):
            session.resize("8MiB")
        assert session.stats().budget_bytes == 16 * MIB


def test_a_loan_that_outlives_its_scope_ends_quietly() -> None:
    with contextlib.ExitStack() as loan:
        with dtr_alloc.rematerialize("16MiB") as session:
            loan.enter_context(session.lend("4MiB"))
        with dtr_alloc.rematerialize("8MiB") as other:
            loan.close()
            assert other.stats().budget_bytes == 8 * MIB


def test_a_loan_that_leaves_nothing_is_refused() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        told = "amount 16.00 MiB is not below the budget of 16.00 MiB, so that nothing would be "
        with pytest.raises(ValueError, match=told), session.lend("16MiB"):
            pass
        assert session.stats().budget_bytes == 16 * MIB


def test_loans_of_two_threads_do_not_undo_each_other() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:

        def lend(amount: int) -> None:
            for _ in range(200):
                with session.lend(amount):
                    pass

        in_threads(lambda: lend(MIB), lambda: lend(3 * MIB), join=False)
        assert session.stats().budget_bytes == 16 * MIB


def test_loans_that_wait_for_their_turn_add_up() -> None:
    with dtr_alloc.rematerialize("16MiB") as session:
        loans = [(_core.Loan(session._core), n * MIB) for n in (1, 3)]
        threads = [threading.Thread(target=loan.take, args=(size,)) for loan, size in loans]

        def start_them() -> None:
            for thread in threads:
                thread.start()
            time.sleep(0.1)  # With less they might not wait, and would add up all the same.

        ACTS.append(start_them)
        add_one_(results(1)[0])
        for thread in threads:
            thread.join(60)
        assert session.stats().budget_bytes == 12 * MIB


def test_an_accepted_budget_holds_though_others_begin_to_read_meanwhile() -> None:
    stop, tries, refused, over, disturbed = threading.Event(), 60, 0, 0, []

    def compute() -> None:
        with dtr_alloc.join_scope():
            while not stop.is_set():
                try:
                    (torch.ones(1 << 14) + 1).neg_()
                except torch.OutOfMemoryError as error:
                    disturbed.append(str(error))

    def read(big: torch.Tensor) -> None:
        with dtr_alloc.join_scope():
            while not stop.is_set():
                with contextlib.suppress(torch.OutOfMemoryError):  # At the small budget.
                    big[:1].sum()

    with dtr_alloc.rematerialize("64MiB") as session, contextlib.ExitStack() as last:
        big = torch.ones(3 << 20).exp()  # 12 MiB.
        threading.Thread(target=read, args=(big,)).start()
        threading.Thread(target=compute).start()
        last.callback(stop.set)
        for _ in range(tries):
            held = [torch.ones(1 << 14) + n for n in range(64)]
            torch.ones(6 << 20)  # Its 24 MiB take time to go back, in which others begin.
            try:
                session.resize("8MiB")
                over += session.stats().live_bytes > 8 * MIB
            except torch.OutOfMemoryError:
                refused += 1
                over += session.stats().budget_bytes != 64 * MIB
            session.resize("64MiB")
            del held
        del big
    assert 0 < refused < tries
    assert over == 0
    assert disturbed == []


def test_a_budget_that_can_never_be_is_refused_unseen_by_other_threads() -> None:
    stop, refused = threading.Event(), 0

    def ask(session: dtr_alloc.Session) -> None:
        nonlocal refused
        while not stop.is_set():
            with pytest.raises(torch.OutOfMemoryError, match="cannot shrink to"):
                session.resize("2MiB")
            refused += 1

    with dtr_alloc.rematerialize("64MiB") as session, contextlib.ExitStack() as last:
        kept = torch.zeros(MIB)
        dtr_alloc.pin(kept)
        asker = threading.Thread(target=ask, args=(session,))
        asker.start()
        last.callback(asker.join, 60)
        last.callback(stop.set)
        while refused < 1000 and asker.is_alive():
            held = [torch.ones(1 << 14) + n for n in range(16)]
            del held
        assert session.stats().evictions == 0
    assert refused >= 1000


def small_gpt() -> Any:
    return gpt(layers=3, width=32, heads=2, length=16, texts=4, vocabulary=32)


@pytest.mark.parametrize(
    ("make", "steps", "least"),
    [
        pytest.param(small_gpt, 12, 30, id="small gpt"),
        pytest.param(MODELS["gpt"], 40, 1000, id="gpt", marks=pytest.mark.slow),
        pytest.param(MODELS["treelstm"], 40, 1000, id="treelstm", marks=pytest.mark.slow),
    ],
)
def test_training_is_exact_while_another_thread_resizes_the_budget(
    make: Callable[[], Any], steps: int, least: int
) -> None:
    """Budgets are drawn between all of the activations and 0.35 of them, `least` times or more."""
    plan = Plan(steps=steps)
    eager = train(make, plan, None)
    measured = train(make, plan, dtr_alloc.measure)
    peak = measured.stats[-1].peak_bytes
    fixed = measured.gradient_bytes + measured.optimizer_bytes
    draw = random.Random(0)
    stop, shares, over = threading.Event(), [], []

    def resize(session: dtr_alloc.Session) -> None:
        while not stop.is_set():
            share = draw.uniform(0.35, 1.0)
            budget = fixed + int(share * (peak - fixed))
            try:
                session.resize(budget)
            except torch.OutOfMemoryError:  # Just now more is being read.
                continue
            shares.append(share)
            session.reset_peak()
            time.sleep(0.0005)
            if session.stats().peak_bytes > budget:
                over.append(budget)

    @contextlib.contextmanager
    def scope() -> Iterator[dtr_alloc.Session]:
        with dtr_alloc.rematerialize(peak) as session:
            session.resize(fixed + int(0.35 * (peak - fixed)))  # So that the first step evicts.
            thread = threading.Thread(target=resize, args=(session,))
            thread.start()
            try:
                yield session
            finally:
                stop.set()
                thread.join(60)

    resized = train(make, plan, scope)
    assert resized.digests == eager.digests
    assert len(shares) >= least
    assert min(shares) < 0.6
    assert resized.stats[-1].evictions > 0
    assert not over
