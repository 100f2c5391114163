"""Other threads, forked children, and processes that exit: what a scope is to each of them."""

import gc
import logging
import re
import threading
import warnings
from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import current
from tests.support.exactness import bits, chain, same, scope
from tests.support.instruments import instrumented
from tests.support.own_process import forked, own_process, printed
from tests.support.threads import in_threads


def filling(size: int) -> list[Tensor]:
    """So many bytes that nobody may evict."""
    filled = [torch.zeros(1 << 16) for _ in range(size >> 18)]
    for one in filled:
        one.numpy()
    return filled


BEYOND = r"beyond its budget, by up to \S+ [KM]iB: what cannot be recomputed, or is held by"


def test_a_forked_child_reads_what_was_evicted() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        assert forked(lambda: float(x[0, 0])) == str(float(torch.ones(1).exp()))
        session.check()


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_a_fork_leaves_the_parent_room_for_its_operators(memory: Any) -> None:
    with dtr_alloc.rematerialize("2MiB", memory=memory) as session:
        held = [torch.full((1 << 14,), float(n)).exp() for n in range(60)]  # 3.75 MiB.
        expected = float((held[1] * 2).sum())
        evictable = session.stats().evictable_bytes
        assert forked(lambda: "") == ""
        assert session.stats().evictable_bytes >= evictable - (64 << 10)
        assert float((held[1] * 2).sum()) == expected
        session.check()
        del held


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_a_child_opens_a_scope_whatever_threads_of_the_parent_were_doing(memory: Any) -> None:
    inside, over = threading.Event(), threading.Event()

    def code() -> list[Tensor]:
        inside.set()
        over.wait()
        return []

    def work(x: Tensor) -> None:
        with dtr_alloc.join_scope():
            session._core.holding([x], [], False, 1, code)  # As compiled code has its arguments.

    def child() -> str:
        with pytest.raises(RuntimeError, match="not in memory when this process was forked"):
            missing.sum()
        with dtr_alloc.rematerialize("1MiB") as own:
            made = [kept.exp() for _ in range(30)]
            assert own.stats().evictions > 0
            assert same(bits(made[0]), bits(kept.exp()))
            own.check()
            made.clear()
        return f"{float(read[0]):.3f}, {float(kept[0]):.3f}"

    with dtr_alloc.rematerialize("2MiB", memory=memory) as session:
        read, kept = torch.ones(1 << 14).exp(), torch.zeros(1 << 14).exp()
        missing = torch.ones(1 << 17).exp()
        dtr_alloc.evict(missing)
        filled = filling(7 << 18)  # There is no room for it.
        thread = threading.Thread(target=work, args=(read,))
        thread.start()
        inside.wait()
        told = forked(child)
        over.set()
        thread.join()
        del filled
    assert told == "2.718, 1.000"


def test_a_child_of_a_thread_that_joined_leaves_the_scope() -> None:
    told: list[str] = []
    with dtr_alloc.rematerialize("1MiB"):
        in_threads(lambda: told.append(forked(_core.records_this_thread)))
    assert told == ["False"]


def test_a_child_that_leaves_its_parents_scope_keeps_its_own() -> None:
    parents = dtr_alloc.rematerialize("4MiB")

    def child() -> bool:
        with dtr_alloc.rematerialize("4MiB"):
            x = torch.ones(256, 64).exp()
            parents.__exit__(None, None, None)
            return dtr_alloc.evict(x)

    with parents:
        assert forked(child) == "True"


def test_instruments_are_those_of_the_block_around() -> None:
    for always in (False, True, False):
        with instrumented(evict_always=always), dtr_alloc.rematerialize(None) as session:
            torch.ones(1000).exp().sin()
            assert (session.stats().evictions > 0) == always


OPEN = """
scope = dtr_alloc.rematerialize("1MiB")
scope.__enter__()
kept = [torch.ones(256, 256).exp().sin() for _ in range(12)]  # 3 MiB
"""
SUSPENDED = """
def steps():
    with dtr_alloc.rematerialize("1MiB"):
        kept = [torch.ones(256, 256).exp().sin() for _ in range(12)]
        yield kept
generator = steps()
kept = next(generator)
"""
# What a module from before ours holds goes after the globals of ours have gone.
LATE = "import os; os.kept = dtr_alloc.runtime.scope.scope, dict(globals())"
# Nothing is brought back for the end, and what is evicted can be read up to it.
ENDED = """
import atexit, gc
evicted = sum(map(dtr_alloc.is_evicted, kept))
atexit._run_exitfuncs()
scope = generator = None
gc.collect()
assert sum(map(dtr_alloc.is_evicted, kept)) == evicted > 0
assert {float(x[0, 0]) for x in kept} == {float(torch.ones(1).exp().sin())}
"""


@pytest.mark.parametrize("end", ["", LATE, ENDED])
@pytest.mark.parametrize("begin", [OPEN, SUSPENDED])
def test_a_process_that_exits_with_a_scope_open_says_nothing(begin: str, end: str) -> None:
    program = "import torch, dtr_alloc\n" + begin + end
    done = own_process(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_exits_though_a_thread_has_joined_its_open_scope() -> None:
    program = """
import threading, time, torch, dtr_alloc
scope = dtr_alloc.rematerialize("1MiB")
scope.__enter__()
joined = threading.Event()
def work():
    with dtr_alloc.join_scope():
        joined.set()
        time.sleep(1000)
threading.Thread(target=work, daemon=True).start()
joined.wait()
"""
    done = own_process(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_scope_that_waits_for_its_threads_says_for_whom(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(current, "_PATIENCE", 0.01)
    joined, told = threading.Event(), threading.Event()

    def work() -> None:
        with dtr_alloc.join_scope():
            joined.set()
            told.wait()

    def hear(_: logging.LogRecord) -> bool:
        told.set()
        return True

    thread = threading.Thread(target=work, name="worker")
    log = logging.getLogger("dtr_alloc")
    log.addFilter(hear)
    try:
        with pytest.raises(ValueError, match="no"), scope("1MiB"):
            thread.start()
            joined.wait()
            raise ValueError("no")
    finally:
        log.removeFilter(hear)
        thread.join()
    assert caplog.messages == [
        "a scope ends, and waits for threads that joined it by join_scope(): worker; "
        "the body of the scope has raised ValueError('no')"
    ]


def joins() -> Generator[None, None, None]:
    with dtr_alloc.join_scope():
        yield


def test_another_thread_leaves_for_one_that_has_ended_and_stays_in_the_scope() -> None:
    """As where one thread begins a generator, and another closes it."""
    work = joins()
    with scope("1MiB") as session:
        in_threads(lambda: next(work), join=False)
        work.close()
        chain(64)
        assert session.stats().evictions > 0
        with dtr_alloc.record_trace():  # Which is of one thread.
            pass


def test_nobody_leaves_for_a_thread_that_may_still_compute() -> None:
    joining, joined, over = dtr_alloc.join_scope(), threading.Event(), threading.Event()

    def work() -> None:
        joining.__enter__()
        joined.set()
        over.wait()

    thread = threading.Thread(target=work, name="worker")
    with scope("1MiB"):
        thread.start()
        joined.wait()
        with pytest.raises(RuntimeError, match=r"the thread worker has called join_scope\(\)"):
            joining.__exit__(None, None, None)
        over.set()
        thread.join()
        joining.__exit__(None, None, None)


def test_a_scope_waits_for_no_thread_that_has_ended_without_leaving_it() -> None:
    joined = [joins() for _ in range(2)]
    with scope("1MiB"):
        in_threads(*[lambda work=work: next(work) for work in joined], join=False)
    with scope("1MiB"):
        pass


def test_a_scope_whose_thread_has_ended_is_closed_by_another() -> None:
    opened: list[dtr_alloc.Session] = []
    scope = dtr_alloc.rematerialize("1MiB")
    in_threads(lambda: opened.append(scope.__enter__()), join=False)
    with dtr_alloc.join_scope(), pytest.raises(RuntimeError, match="leave join_scope"):
        opened[0].close()
    opened[0].close()
    assert dtr_alloc.current_session() is None


class Opener(threading.Thread):
    def run(self) -> None:
        self.session = dtr_alloc.rematerialize("1MiB").__enter__()


def test_a_scope_ends_that_only_its_ended_thread_leads_to() -> None:
    opener = Opener()
    opener.start()
    opener.join()
    assert dtr_alloc.current_session() is not None
    del opener
    gc.collect()
    assert dtr_alloc.current_session() is None


def test_cycles_with_evicted_tensors_are_collected() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        for _ in range(20):
            holder: list[object] = chain(3)  # type: ignore[assignment]
            holder.append(holder)
            dtr_alloc.evict(holder[1])  # type: ignore[arg-type]
        del holder
        gc.collect()
        assert session.stats().records == 0
        assert session.stats().live_bytes == 0


def test_what_a_failed_end_made_ordinary_is_freed_when_the_program_drops_it() -> None:
    @torch.library.custom_op("dtr_ends::once", mutates_args=())
    def once(x: torch.Tensor) -> torch.Tensor:
        if ran:
            raise ValueError("not again")
        ran.append(True)
        return x * 2

    ran: list[bool] = []
    with pytest.raises(ValueError, match="not again"), dtr_alloc.rematerialize("64MiB") as session:
        kept = torch.ones(1 << 20).exp()
        lost = once(torch.ones(1000))
        dtr_alloc.evict(lost)
        dtr_alloc.evict(kept)
    before = session.stats().live_bytes
    del kept
    assert session.stats().live_bytes <= before - (4 << 20)
    del lost


def test_an_end_beyond_the_budget_after_an_error_is_told_with_bytes() -> None:
    def run() -> None:
        with dtr_alloc.rematerialize("8MiB"):
            kept.append(torch.ones(1 << 17).exp())
            kept.extend(filling(8 << 20))
            raise ValueError("no")

    kept: list[Tensor] = []
    with pytest.raises(ValueError, match="no"), pytest.warns(UserWarning, match=BEYOND):
        run()
    kept.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # The program's own error is the one that it gets.
        with pytest.raises(ValueError, match="no") as raised:
            run()
    if hasattr(raised.value, "__notes__"):
        assert re.search(BEYOND, raised.value.__notes__[0])


def test_the_bytes_beyond_the_budget_are_counted_at_the_end_not_at_an_earlier_peak() -> None:
    scope = dtr_alloc.rematerialize("16MiB")
    session = scope.__enter__()
    torch.empty(15 << 18)
    session.resize("8MiB")
    x = torch.ones(1 << 17).exp()
    filled = filling(8 << 20)
    with pytest.warns(UserWarning, match="beyond its budget, by up to 512 KiB:"):
        scope.__exit__(None, None, None)
    del x, filled


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_what_others_leave_no_room_for_comes_back_beyond_the_budget(memory: Any) -> None:
    scope = dtr_alloc.rematerialize("8MiB", memory=memory)
    session = scope.__enter__()
    x = torch.ones(1 << 17).exp()
    filled = filling(8 << 20)
    assert dtr_alloc.is_evicted(x)
    with pytest.warns(UserWarning, match=BEYOND):
        scope.__exit__(None, None, None)
    assert f"{x[7]:.3f}" == "2.718"
    assert session.stats().budget_bytes == 8 << 20
    session.check()
    with dtr_alloc.rematerialize("8MiB", memory=memory):
        pass
    del x, filled
    assert session.stats().live_bytes == 0


DROPPED = """
import gc, threading, torch, dtr_alloc
gc.disable()
@torch.library.custom_op("dtr_drop::collects", mutates_args=())
def collects(x: torch.Tensor) -> torch.Tensor:
    gc.collect()
    return x * 2
def computes(x: torch.Tensor) -> torch.Tensor:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    while thread.is_alive():
        y = x * 2
    thread.join()
    return y
for use in collects, computes:
    session = dtr_alloc.rematerialize("64MiB").__enter__()
    x = torch.ones(1 << 20).exp()
    del session
    y = use(x)
    assert dtr_alloc.current_session() is None
    print(f"{float((y + 1).mean()):.3f}")
"""


def test_a_dropped_scope_may_end_within_an_operator_or_in_another_thread() -> None:
    assert printed(DROPPED) == "6.437\n6.437\n"
