"""What `rematerialize` and `measure` return, and what becomes of it when the process ends.

A scope can be entered once. Entering it again would mean a second session under the same name, so
that is an error. The same object is a decorator, and then each call has a scope of its own.

A scope may still be open as the process exits, as in a notebook. Leaving it then would bring back
what nobody reads, and could not: a generator is closed only when modules have lost their names. So
an open scope ends with the process, and is never taken apart.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import ParamSpec, TypeVar

from dtr_alloc.runtime import current
from dtr_alloc.runtime.session import Session

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_scopes: weakref.WeakSet[Scope] = weakref.WeakSet()
_RUN_LATER = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)


class Scope(AbstractContextManager[Session]):
    """A scope to be entered once, or a decorator, whose calls have a scope each."""

    def __init__(self, make: Callable[[], AbstractContextManager[Session]]) -> None:
        self._make = make
        self._entered: AbstractContextManager[Session] | None = None
        self._ends_with_process = False

    def __enter__(self) -> Session:
        if self._entered is not None:
            raise RuntimeError(
                "this scope was entered before, and a scope is used once: "
                "call rematerialize() or measure() again"
            )
        entered = self._make()
        session = entered.__enter__()
        self._entered = entered
        _scopes.add(self)
        return session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._ends_with_process:
            return None
        if self._entered is None:
            raise RuntimeError("this scope was not entered, so it cannot be left")
        return self._entered.__exit__(kind, error, trace)

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

        @functools.wraps(function)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            with self._make():
                return function(*args, **kwargs)

        return call

    def end_with_process(self) -> None:
        """Keeps what is open from being left, by whomever, and from being collected."""
        if self._entered is not None:
            self._ends_with_process = True
            current.keep_forever(self._entered)


@atexit.register
def _at_exit() -> None:
    for scope in list(_scopes):
        scope.end_with_process()


def used_once(make: Callable[_Args, AbstractContextManager[Session]]) -> Callable[_Args, Scope]:
    """Has a function that opens scopes return a `Scope` that will."""

    @functools.wraps(make)
    def scope(*args: _Args.args, **kwargs: _Args.kwargs) -> Scope:
        return Scope(functools.partial(make, *args, **kwargs))

    return scope
