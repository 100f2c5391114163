"""Which scope is open in this process, kept in one place.

There is one at most. It is a scope on the CPU, from `rematerialize` or `measure`, or it is the CUDA
allocator's (serving.py). Whoever needs the open session asks here, at the price of reading a
global: the calls by hand, the watch over raw memory, compiled code, threads that join, an error
that gives advice, and fork.

The two kinds of scope differ in what `CpuScope` and `CudaScope` define. A CPU scope has its session
from the start. The CUDA allocator makes its own at the first request for memory, so until then
there is none to ask, and nothing can be evicted.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import queue
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from dtr_alloc import _core
from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.scope.advice import Adviser
from dtr_alloc.runtime.scope.steps import Steps

if TYPE_CHECKING:
    from dtr_alloc.runtime.scope.session import Session

_log = logging.getLogger("dtr_alloc")

_PATIENCE = 10.0
"""Seconds that a scope waits for its threads without a word."""

instruments: dict[str, Any] = {}
"""Options of `_core.Session` beside a scope's own, by which our tests run scopes as no program
should (tests/support/instruments.py)."""


class Recorded:
    """A thread of an allocator that has no session yet."""

    def join(self) -> None:
        _core.record_this_thread(True)

    def part(self, here: bool) -> None:
        if here:
            _core.record_this_thread(False)


class OpenScope(ABC):
    """A scope while it is open, and the threads that have joined it."""

    def __init__(self, steps: Steps, adviser: Adviser | None = None) -> None:
        self.steps = steps
        self.adviser = adviser
        self.front: weakref.ref[Session] | None = None  # What the program has of it.
        self._told = False
        # No lock: what an exception of a signal's handler left locked would stay so.
        self._dismissed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._joined: dict[object, threading.Thread] = {}  # By what `admit` was given.
        self._admits = True

    @abstractmethod
    def session(self) -> _core.Session | None:
        """The session that the scope runs in; None as long as there is none."""

    def member(self) -> _core.Member | Recorded:
        """By which a thread makes what it computes part of the scope."""
        session = self.session()
        return Recorded() if session is None else _core.Member(session)

    @abstractmethod
    def before_fork(self) -> None:
        """Prepares for a child that has the scope's tensors, but not its threads."""

    def step(self) -> None:
        """Marks that an optimizer's step has ended."""
        if session := self.session():
            costs = session.step()
            if costs is None:  # Another thread's, outside of the scope.
                return
            self.steps.stays_bytes = max(self.steps.stays_bytes, session.pool_stats().live)
            if costs[0]:
                self.tell_if_reached()
            self.steps.ended(*costs)

    def tell_if_reached(self) -> None:
        """Has the log tell once that tensors were evicted for want of memory."""
        session = self.session()
        if self._told or session is None or not (evicted := session.stats().evicted_bytes):
            return
        self._told = True
        _log.info(
            "the budget of %s is reached, in step %d: %s evicted so far",
            format_size(session.pool_stats().budget),
            self.steps.count + 1,
            format_size(evicted),
        )

    def admit(self, who: object) -> bool:
        """Counts this thread as one of the scope's, until `dismiss` gets the same `who`. False if
        the scope admits none any more. Raises RuntimeError where it is in a scope already."""
        if _core.is_member():
            raise RuntimeError("this thread belongs to a dtr_alloc scope already")
        self._joined[who] = threading.current_thread()
        return self._admits

    def dismiss(self, who: object) -> None:
        """Undoes `admit`, whatever that returned, if it was called."""
        self._joined.pop(who, None)  # Not there in a forked child.
        self._dismissed.put(None)

    def wait_for_threads(self) -> None:
        """Returns when all threads are dismissed or have ended, and admits none from then on. Where
        that takes long, the log tells for whom it waits, and which exception is on its way."""
        if any(one.ident == threading.get_ident() for one in list(self._joined.values())):
            raise RuntimeError("this thread has joined the scope: leave join_scope() first")
        begun, told = time.monotonic(), False
        body = sys.exc_info()[1]
        while names := self.refuse_threads():
            if not told and time.monotonic() - begun >= _PATIENCE:
                told = True
                raised = "" if body is None else f"; the body of the scope has raised {body!r}"
                _log.warning(
                    "a scope ends, and waits for threads that joined it by join_scope(): %s%s",
                    names,
                    raised,
                )
            with contextlib.suppress(queue.Empty):  # A thread may end without a word.
                self._dismissed.get(timeout=min(_PATIENCE, 1.0))

    def refuse_threads(self) -> str:
        """Admits no thread any more; or names those that have joined, if any, and goes on."""
        names = self._names()
        if not names:
            self._admits = False  # Who joins is counted before it looks here.
            names = self._names()
            self._admits = bool(names)
        return names

    def admit_threads(self) -> None:
        """Undoes `refuse_threads`."""
        self._admits = True

    def _names(self) -> str:
        alive = [one.name for one in list(self._joined.values()) if one.is_alive()]
        return ", ".join(name or "one without a name" for name in alive)

    def abandon_in_child(self) -> None:
        """After a fork: the scope and its other threads are the parent's."""
        self._dismissed = queue.SimpleQueue()
        self.steps.abandon_in_child()
        self._joined = {}
        if session := self.session():
            session.abandon_in_child()


class CpuScope(OpenScope):
    """The scope of `rematerialize` or `measure`."""

    def __init__(self, core: _core.Session, adviser: Adviser, steps: Steps) -> None:
        super().__init__(steps, adviser)
        self.core = core

    def session(self) -> _core.Session:
        return self.core

    def before_fork(self) -> None:
        # A child that reads what did not fit gets an error.
        with contextlib.suppress(torch.OutOfMemoryError):
            self.core.bring_back_for_child()


class CudaScope(OpenScope):
    """What a CUDA allocator serves, or `measure` counts."""

    def __init__(self, allocator: _core.CudaAllocator | _core.GuestAllocator, steps: Steps) -> None:
        super().__init__(steps)
        self._allocator = allocator

    def session(self) -> _core.Session | None:
        return self._allocator.session()

    def before_fork(self) -> None:
        """Nothing: a child cannot use CUDA's tensors in any case."""


_current: OpenScope | None = None


def scope() -> OpenScope | None:
    """The scope that is open."""
    return _current


def session() -> _core.Session | None:
    """The session of the scope that is open, if it has one by now."""
    return None if _current is None else _current.session()


def begin(opened: OpenScope) -> None:
    """From now on `opened` is the one."""
    global _current
    _current = opened


def end() -> None:
    """From now on no scope is open."""
    global _current
    _current = None


def keep_forever(thing: object) -> None:
    """Keeps an object from being freed, also as the process ends: tensors still lead to it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
