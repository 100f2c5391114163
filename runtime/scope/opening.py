"""What opening a scope changes in the process, and how all of it is undone.

An exception may come at any line here, from a signal's handler: Ctrl-C, or an alarm that bounds the
time of a body. Python's `finally` is no remedy, because the next line of it may be interrupted as
well. So there is one way to the end, and it may be gone again and again: each step sees whether it
was done, and does no harm if it was not begun. `used_once.Scope` calls it until it comes through,
from C++, where no handler runs. What one call of C++ does is done or not done, never half.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from dtr_alloc import _core
from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.adapters import dispatch_key
from dtr_alloc.runtime.adapters.undo import Undo
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.current import CudaScope, OpenScope
from dtr_alloc.runtime.scope.hooks import watch_program
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.scope.steps import level_of_the_program

if TYPE_CHECKING:
    from dtr_alloc.runtime.scope.cuda_allocator import Counted


class Opening(AbstractContextManager[Session]):
    """One scope of `rematerialize` or `measure`, from its begin to its end.

    `__exit__` is called until it returns, also where `__enter__` raised.
    """

    def __init__(
        self, core: _core.Session | Counted, session: Callable[[], Session], scope: OpenScope
    ) -> None:
        """`session` makes what the program gets. It leads back here, so it is not kept here."""
        self._core = core
        self._session = session
        self._scope = scope
        self._adviser = scope.adviser
        self._undo = Undo()
        self._waited = False

    def __enter__(self) -> Session:
        """Raises RuntimeError where a scope is open."""
        if isinstance(current.scope(), CudaScope):
            raise RuntimeError(
                "dtr_alloc.allocator() or measure() on CUDA serves this process already, and there "
                "is one session in a process: no scope can open beside it"
            )
        if self._adviser is not None:
            self._adviser.watch()
        dispatch_key.share_key(self._undo)
        self._core.enter()
        current.begin(self._scope)
        watch_program(self._scope, self._undo)
        session = self._session()
        self._scope.front = weakref.ref(session)
        return session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._waited and current.scope() is self._scope:  # Not in a forked child.
            self._waited = True  # Who interrupts the wait ends it.
            self._scope.wait_for_threads()
            self._scope.tell_if_reached()
        spilled, beyond = self._leave(error)
        if current.scope() is self._scope:
            current.end()
        self._undo.close()
        if self._adviser is not None:
            self._adviser.keep(failed=error is not None)
        if error is None:
            for text in self._core.take_untold():
                _warn(text, None)
            share = self._scope.steps.share
            if share is not None and (lacks := share.lacks()):
                _warn(f"the budget is a share, and was none: {lacks}. Give bytes", None)
        if spilled and not isinstance(error, torch.OutOfMemoryError):  # Which holds them itself.
            _warn(
                "tensors that outlive the scope do not fit its budget together: "
                f"{format_size(spilled)} of them now lie in ordinary memory, which no budget "
                "bounds",
                error,
            )
        if beyond:
            _warn(
                "tensors that outlive the scope were brought back beyond its budget, by up to "
                f"{format_size(beyond)}: what cannot be recomputed, or is held by an error on its "
                "way, left no room for them",
                error,
            )

    def _leave(self, error: BaseException | None) -> tuple[int, int]:
        """Makes what the program holds ordinary. Returns how many bytes of it did not fit the
        budget, and how many were beyond it."""
        try:
            return self._core.leave()
        except BaseException as failure:
            _forget_interrupted_backward()
            if error is None or not isinstance(failure, RuntimeError):
                raise
            # The body's own error says more.
            _add_note(error, f"not all that the scope leaves behind can be read: {failure}")
            return 0, 0


def _warn(text: str, error: BaseException | None) -> None:
    """At the line of the program that leaves the scope. An error on its way is not replaced by a
    warning that is one, and is told of it."""
    try:
        warnings.warn(text, stacklevel=level_of_the_program())
    except UserWarning:
        if error is None:
            raise
        _add_note(error, text)


def _add_note(error: BaseException, text: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(f"dtr_alloc: {text}")


def _forget_interrupted_backward() -> None:
    """An exception in a backward pass leaves what was still to do in the thread's queue, with every
    tensor saved for that, until the next backward pass finds it there and drops it. Tensors that
    nobody can reach would keep their scope from ending."""
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
