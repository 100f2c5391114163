"""What `rematerialize`, `measure`, `join_scope` and `Session.lend` return, and what becomes of it
when the process ends.

A scope can be entered once. Entering it again would mean a second session under the same name, so
that is an error. The same object is a decorator, and then each call has a scope of its own.

A scope may still be open as the process exits, as in a notebook. Leaving it then would bring back
what nobody reads, and could not, when modules have lost their names. So an open scope ends with the
process, and is never taken apart.

A scope and its session hold each other, so a scope stays open while the program has either: a cell
of a notebook enters it, keeps the session, and another cell closes that. Where nobody has them any
more, Python's collector ends the scope.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

from dtr_alloc import _core
from dtr_alloc.runtime.scope import current

if TYPE_CHECKING:
    from dtr_alloc.runtime.scope.session import Session

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_NO_PASS = -1  # What torch says outside of a backward pass.
_RUN_LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)

# Of what is open: what becomes of it where nobody has it any more. What was left has none, because
# an exception of a signal's handler would be lost in code that runs as an object dies.
_open: set[weakref.finalize[..., Once]] = set()


class Once(_core.Bracket):
    """A context manager that is used once, or a decorator, whose calls have one each. `make` gives
    another, which may be left repeatedly, until it comes through, also where it was entered in
    part. An exception at any moment finds this one open or not, and never half (undo.py)."""

    def __init__(
        self, name: str, made_by: str, make: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        super().__init__(name, made_by)
        self._another = functools.partial(type(self), name, made_by, make)
        self._make = make
        self._opening: AbstractContextManager[Any] | None = None
        self._dropped: weakref.finalize[..., Once] | None = None
        self._ends_with_process = False

    def _begin(self) -> Any:
        self._opening = self._make()
        thread = weakref.ref(threading.current_thread())  # From which the program may reach this.
        self._dropped = weakref.finalize(self, _leave_dropped, self._opening, thread)
        self._dropped.atexit = False
        _open.add(self._dropped)
        return self._opening.__enter__()

    def _end(self, error: BaseException | None) -> None:
        if self._ends_with_process or self._opening is None:
            return
        trace = None if error is None else error.__traceback__
        self._opening.__exit__(None if error is None else type(error), error, trace)
        if self._dropped is not None:
            self._dropped.detach()
            _open.discard(self._dropped)
        self._opening = None

    def end_with_process(self) -> None:
        """Keeps what is open from being left, by whomever, and from being collected."""
        self._ends_with_process = True
        current.keep_forever(self)

    def __call__(self, function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        """Has another one around each call."""

        @functools.wraps(function)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            with self._another():
                return function(*args, **kwargs)

        return call


class Scope(Once):
    """What `rematerialize` and `measure` return."""

    _session: Session | None = None

    if TYPE_CHECKING:

        def __enter__(self) -> Session: ...

    def _begin(self) -> Session:
        session: Session = super()._begin()
        self._thread = threading.current_thread()
        self._session = session
        session._scope = self
        return session

    def _end(self, error: BaseException | None) -> None:
        if _core.in_operator():
            raise RuntimeError(
                "this scope is left inside an operator, which still needs its tensors: leave it "
                "when the operator is over"
            )
        super()._end(error)
        self._session = None

    def close(self) -> None:
        """Leaves it without a `with`. Raises RuntimeError where that cannot be now."""
        if self._ends_with_process:
            raise RuntimeError(
                "this scope is one of dtr-alloc run, and ends with the process: to close it, open "
                "one in the program and run that by python"
            )
        if threading.get_ident() != self._thread.ident and self._thread.is_alive():
            raise RuntimeError(
                "another thread has opened this scope, and its operators would go on to be "
                "recorded: call session.close() in the thread that opened it"
            )
        if _core.in_operator() or torch._C._current_graph_task_id() != _NO_PASS:
            raise RuntimeError(
                "session.close() inside an operator or a backward pass, which still needs the "
                "scope's tensors: close it when that is over"
            )
        self.__exit__(None, None, None)

    def __call__(self, function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        """Has a scope around each call.

        Raises:
            TypeError: the function is a generator or a coroutine, whose body runs when the call is
                over.
        """
        if any(is_one(function) for is_one in _RUN_LATER):
            name = getattr(function, "__name__", function)  # A partial function has none.
            raise TypeError(
                f"{name} is a generator or a coroutine: its body runs when the call is over, and "
                "would be outside of the scope; open the scope by `with` in its body"
            )
        return super().__call__(function)


def _leave_dropped(
    opening: AbstractContextManager[Any], thread: weakref.ref[threading.Thread]
) -> None:
    """The program has let go of what is open. The collector may run anywhere, also within an
    operator, which uses the session to its end."""
    if _core.in_operator() or threading.current_thread() is not thread():
        current.keep_forever(opening)
    opening.__exit__(GeneratorExit, GeneratorExit(), None)


@atexit.register
def _at_exit() -> None:
    for dropped in list(_open):
        if found := dropped.detach():
            found[0].end_with_process()


def used_once(make: Callable[_Args, AbstractContextManager[Session]]) -> Callable[_Args, Scope]:
    """Has a function that opens scopes return a `Scope` that will."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def scope(*args: _Args.args, **kwargs: _Args.kwargs) -> Scope:
        signature.bind(*args, **kwargs)  # A misspelt option is told here, not at `with`.
        opening = functools.partial(make, *args, **kwargs)
        return Scope("scope", "rematerialize() or measure()", opening)

    return scope
