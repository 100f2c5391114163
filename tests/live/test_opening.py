"""Opening and leaving scopes, joining and lending, with an exception at every line of them."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.current import CudaScope
from dtr_alloc.runtime.scope.serving import Service
from dtr_alloc.runtime.scope.steps import Steps
from tests.support.interruptions import of_the_process, walk


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is interrupted as an object dies is told by this hook."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


def opens() -> None:
    """The next scope works."""
    with dtr_alloc.rematerialize("1MiB") as session:
        x = torch.ones(256, 64).exp()
        assert dtr_alloc.evict(x)
        assert float(x[0, 0]) == float(torch.ones(1).exp())
        session.check()


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (partial(dtr_alloc.rematerialize, "2MiB"), 150),
        (partial(dtr_alloc.rematerialize, "2MiB", memory="torch"), 150),
        (dtr_alloc.measure, 100),
    ],
)
def test_a_scope_is_open_or_not_wherever_it_is_interrupted(
    make: Callable[[], AbstractContextManager[Any]], least: int
) -> None:
    before = of_the_process()

    def run() -> None:
        with make():
            torch.ones(1000)

    def check() -> None:
        assert of_the_process() == before
        opens()

    assert walk(run, check) >= least


@pytest.fixture
def elsewhere() -> Iterator[dtr_alloc.Session]:
    """A scope that another thread has opened."""
    opened, over = threading.Event(), threading.Event()
    sessions: list[dtr_alloc.Session] = []

    def work() -> None:
        with dtr_alloc.rematerialize("2MiB") as session:
            sessions.append(session)
            opened.set()
            over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    opened.wait()
    yield sessions[0]
    over.set()
    thread.join()  # It waits for those who joined.


def test_a_thread_has_joined_or_not_wherever_interrupted(elsewhere: dtr_alloc.Session) -> None:
    opened = current.scope()
    assert opened is not None

    def run() -> None:
        with dtr_alloc.join_scope():
            pass

    def check() -> None:
        assert not _core.records_this_thread()
        assert opened._joined == {}
        run()

    assert walk(run, check) >= 15


def test_a_loan_is_given_back_wherever_it_is_interrupted() -> None:
    with dtr_alloc.rematerialize("2MiB") as session:

        def run() -> None:
            with session.lend("1MiB"):
                pass

        def check() -> None:
            assert session.stats().budget_bytes == 2 << 20

        assert walk(run, check) >= 15


def test_a_budget_is_the_old_or_the_new_one_wherever_its_change_is_interrupted() -> None:
    with dtr_alloc.rematerialize("2MiB") as session:

        def check() -> None:
            assert session.stats().budget_bytes in (1 << 20, 2 << 20)
            session.resize("2MiB")
            session.check()

        assert walk(lambda: session.resize("1MiB"), check) >= 10


def serving() -> Service:
    """Of an allocator that has had no request for memory yet."""
    allocator: Any = mock.Mock(session=lambda: None)
    return Service(CudaScope(allocator, Steps()))


def test_an_allocator_serves_or_not_wherever_its_begin_is_interrupted() -> None:
    before = of_the_process()
    services: list[Service] = []

    def check() -> None:
        assert of_the_process() == before

    assert walk(lambda: services.append(serving()), check) >= 100
    services[0].end(lambda: None)
    check()


def test_an_allocator_is_removed_or_serves_wherever_its_end_is_interrupted() -> None:
    before = of_the_process()
    services = [serving()]
    removals: list[int] = []

    def end() -> None:
        services[0].end(lambda: removals.append(1))

    def check() -> None:
        if not removals:
            opened = current.scope()
            assert opened is not None
            assert opened._admits
            assert _core.records_this_thread()
            return
        assert of_the_process() == before
        removals.clear()
        services[:] = [serving()]

    assert walk(end, check) >= 10
    check()
    services[0].end(lambda: None)
