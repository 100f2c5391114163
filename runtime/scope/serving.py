"""The scope of the CUDA allocator: the threads whose operators its session records.

It begins when the allocator is made, in the thread that makes it, and lasts as long as the process,
but for a guest's, which may be removed (docs/torch_memory.md). Then that thread's operators are no
longer recorded. Recording is a flag that each thread has for itself, so the thread that began ends
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dtr_alloc import _core
from dtr_alloc.runtime.adapters import dispatch_key
from dtr_alloc.runtime.adapters.undo import Undo
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.current import CudaScope
from dtr_alloc.runtime.scope.hooks import watch_program


class Service:
    """Opens the scope, and puts the operators of this thread into it. Raises RuntimeError where a
    scope is open."""

    def __init__(self, scope: CudaScope) -> None:
        if current.scope() is not None:
            raise RuntimeError(
                "a dtr_alloc scope is open, or dtr_alloc.allocator() was called before; there is "
                "one of them in a process: call dtr_alloc.allocator() once, outside of scopes"
            )
        self._thread = threading.current_thread()
        self._scope = scope
        self._undo = Undo()  # To which what is imported later adds its own.
        try:
            dispatch_key.share_key(self._undo)
            watch_program(self._scope, self._undo)
            self._undo.callback(current.end)
            current.begin(self._scope)
            self._undo.callback(_core.record_this_thread, False)
            _core.record_this_thread(True)
        except BaseException:
            self._undo.close()
            raise

    def end(self, remove: Callable[[], None]) -> None:
        """Calls `remove`, which brings back what was evicted, and ends the scope. Where `remove`
        raises, all stays as it was. Raises RuntimeError where this is another thread than the one
        that began, or threads that joined are not done."""
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            raise RuntimeError(
                f"the allocator was made in the thread {self._thread.name}, and is removed in "
                f"{threading.current_thread().name}: call remove() in the thread that made it"
            )
        try:
            if names := self._scope.refuse_threads():
                raise RuntimeError(
                    "the allocator cannot be removed while other threads compute under it: "
                    f"{names} joined by join_scope() and did not leave; remove it when they are "
                    "done"
                )
            # In C++, since a signal's handler may raise between two lines.
            _core.then_to_the_end(remove, self._undo.close)
        except BaseException:
            self._scope.admit_threads()
            raise
