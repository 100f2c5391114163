"""Other threads, forked children, and processes that exit: what a scope is to each of them."""

import gc
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.instruments import instrumented
from tests.support.exactness import bits, chain, same, scope


def test_a_thread_without_the_runtime_gets_an_error_that_names_the_remedy() -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        caught: list[Exception] = []

        def touch() -> None:
            try:
                x.sum()
            except Exception as error:
                caught.append(error)

        thread = threading.Thread(target=touch)
        thread.start()
        thread.join()
        assert "dtr_alloc.materialize" in str(caught[0])
        assert float(x[0, 0]) == float(torch.ones(1).exp())


def test_a_scope_left_while_another_thread_holds_an_evicted_tensor() -> None:
    go, done = threading.Event(), threading.Event()
    found: list[tuple[object, ...]] = []
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)

        def later(mine: Tensor) -> None:
            go.wait()
            found.append(bits(mine))
            done.set()

        thread = threading.Thread(target=later, args=(x,))
        thread.start()
    go.set()
    done.wait()
    thread.join()
    assert same(found[0], bits(torch.ones(256, 64).exp()))


def test_backward_called_from_another_thread_is_exact() -> None:
    def program() -> Iterator[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        loss = model(torch.randn(128, 64)).square().mean()
        yield loss
        yield from torch.autograd.grad(loss, list(model.parameters()))

    expected = [bits(t) for t in program()]
    with scope(None, evict_always=True) as session:
        found = [bits(t) for t in program()]
        assert session.stats().rematerializations > 0
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


class Squares(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((512,), float(index)).square()


def test_dataloader_workers_and_forked_children() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
        batches = [batch.exp().log() for batch in loader]
        assert float(batches[1][3, 0]) == pytest.approx(49.0)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(float(x[0, 0])).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert float(os.read(reader, 64)) == float(torch.ones(1).exp())
        os.close(reader)
        os.close(writer)
        session.check()


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_a_fork_goes_on_where_the_budget_has_no_room_to_bring_back_all(
    memory: Literal["pool", "torch"],
) -> None:
    with dtr_alloc.rematerialize("2MiB", memory=memory) as session:
        held = [torch.ones(1 << 17) + n for n in range(6)]  # 3 MiB; each takes one of ones, too.
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        session.check()
        del held


def filling(size: int) -> list[Tensor]:
    """So many bytes that nobody may evict."""
    filled = [torch.zeros(1 << 16) for _ in range(size >> 18)]
    for one in filled:
        one.numpy()
    return filled


BEYOND = r"beyond its budget, by up to \S+ [KM]iB: what cannot be recomputed, or is held by"


def in_child(run: Callable[[], object]) -> str:
    """What it comes to in a forked process: its result, or the text of its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = str(run())
        except BaseException as error:
            told = str(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader) as pipe:
        return pipe.read()


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_a_fork_leaves_the_parent_room_for_its_operators(
    memory: Literal["pool", "torch"],
) -> None:
    with dtr_alloc.rematerialize("2MiB", memory=memory) as session:
        held = [torch.full((1 << 14,), float(n)).exp() for n in range(60)]  # 3.75 MiB.
        expected = float((held[1] * 2).sum())
        evictable = session.stats().evictable_bytes
        assert in_child(lambda: "") == ""
        assert session.stats().evictable_bytes >= evictable - (64 << 10)
        assert float((held[1] * 2).sum()) == expected
        session.check()
        del held


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_a_child_opens_a_scope_whatever_threads_of_the_parent_were_doing(
    memory: Literal["pool", "torch"],
) -> None:
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
        told = in_child(child)
        over.set()
        thread.join()
        del filled
    assert told == "2.718, 1.000"


def test_a_child_of_a_thread_that_joined_leaves_the_scope() -> None:
    told: list[str] = []

    def work() -> None:
        with dtr_alloc.join_scope():
            told.append(in_child(_core.records_this_thread))

    with dtr_alloc.rematerialize("1MiB"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert told == ["False"]


def test_a_child_that_leaves_its_parents_scope_keeps_its_own() -> None:
    parents = dtr_alloc.rematerialize("4MiB")
    with parents:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with dtr_alloc.rematerialize("4MiB"):
                x = torch.ones(256, 64).exp()
                parents.__exit__(None, None, None)
                os.write(writer, str(dtr_alloc.evict(x)).encode())
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        assert os.read(reader, 64) == b"True"
        os.close(reader)


def test_instruments_are_those_of_the_block_around() -> None:
    with dtr_alloc.rematerialize(None) as session:
        torch.ones(1000).exp()
        assert session.stats().evictions == 0
    with instrumented(evict_always=True):
        opened = dtr_alloc.rematerialize(None)
        with opened as session:
            kept = torch.ones(1000).exp()
            assert session.stats().evictions > 0
    with dtr_alloc.rematerialize(None) as session:
        kept = kept.exp()
        assert session.stats().evictions == 0


def test_a_process_that_exits_inside_a_scope_ends_well() -> None:
    program = """
import torch, dtr_alloc
scope = dtr_alloc.rematerialize("4MiB")
session = scope.__enter__()
x = torch.ones(256, 64).exp()
y = x.sin()
dtr_alloc.evict(x)
print(float(y[0, 0]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
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


def test_a_thread_may_leave_the_scope_by_another_threads_hand() -> None:
    """As a generator does that one thread begins and another closes."""

    def joins() -> Generator[None, None, None]:
        with dtr_alloc.join_scope():
            yield

    work = joins()
    with scope("1MiB"):
        thread = threading.Thread(target=next, args=(work,))
        thread.start()
        thread.join()
        work.close()
        _core.record_this_thread(True)  # Which that has ended here.


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


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_what_others_leave_no_room_for_comes_back_beyond_the_budget(
    memory: Literal["pool", "torch"],
) -> None:
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
