"""The scope of the CUDA allocator, with an allocator that only tells its session."""

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.current import CudaScope
from dtr_alloc.runtime.scope.serving import Service
from dtr_alloc.runtime.scope.steps import Steps
from tests.support.threads import in_threads


@pytest.fixture
def allocator() -> mock.Mock:
    """One that has had no request for memory yet."""
    made = mock.Mock()
    made.session.return_value = None
    return made


@pytest.fixture
def service(allocator: Any) -> Iterator[Service]:
    made = Service(CudaScope(allocator, Steps()))
    yield made
    if current.scope() is not None:
        made.end(lambda: None)


def test_the_thread_that_began_ends_it(service: Service) -> None:
    removed = mock.Mock()
    told = "was made in the thread MainThread, and is removed in Thread-"
    with pytest.raises(RuntimeError, match=told):
        in_threads(lambda: service.end(removed), join=False)
    removed.assert_not_called()
    assert _core.records_this_thread()
    service.end(removed)
    removed.assert_called_once()
    assert not _core.records_this_thread()
    assert current.scope() is None


def test_it_does_not_end_under_threads_that_have_joined(service: Service) -> None:
    joined, done = threading.Event(), threading.Event()

    def work() -> None:
        with dtr_alloc.join_scope():
            joined.set()
            done.wait()

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    joined.wait()
    with pytest.raises(RuntimeError, match="while other threads compute under it: worker joined"):
        service.end(mock.Mock())
    done.set()
    thread.join()
    in_threads(lambda: dtr_alloc.join_scope().__enter__(), join=False)


def test_where_memory_cannot_come_back_it_goes_on(service: Service) -> None:
    with pytest.raises(MemoryError):
        service.end(mock.Mock(side_effect=MemoryError))
    assert _core.records_this_thread()
    recorded: list[bool] = []
    in_threads(lambda: recorded.append(_core.records_this_thread()))
    assert recorded == [True]


def test_threads_that_join_are_known_to_the_session(allocator: Any, service: Service) -> None:
    session = allocator.session.return_value = mock.Mock()

    def work() -> None:
        member.join.assert_called_once()
        member.part.assert_not_called()

    with mock.patch.object(_core, "Member") as of:
        member = of.return_value
        in_threads(work)
    of.assert_called_once_with(session)
    member.part.assert_called_once()


def test_a_later_session_is_not_left_by_who_joined_before(allocator: Any, service: Service) -> None:
    def work() -> None:
        with dtr_alloc.join_scope():
            assert _core.records_this_thread()
            allocator.session.return_value = mock.Mock()
        assert not _core.records_this_thread()

    with mock.patch.object(_core, "Member") as of:
        in_threads(work, join=False)
    of.assert_not_called()


def test_it_may_end_in_another_thread_if_the_one_that_began_is_gone(allocator: Any) -> None:
    made: list[Service] = []
    in_threads(lambda: made.append(Service(CudaScope(allocator, Steps()))), join=False)
    made[0].end(lambda: None)
    assert current.scope() is None
