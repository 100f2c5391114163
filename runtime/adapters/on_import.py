"""What is to be done once the program has imported a module.

Some modules take seconds to import, and a program that does not use them must not pay. So where a
module is not there yet, its import is waited for.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

from dtr_alloc import _core
from dtr_alloc.runtime.adapters.undo import Undo


def when_imported(undo: Undo, name: str, act: Callable[[ModuleType], None]) -> None:
    """Calls `act` with the module: now, if it is imported already, else when it is. Nothing happens
    any more once `undo` is closed."""
    if name in sys.modules:
        act(importlib.import_module(name))  # Another thread may be at it, and is waited for.
        return
    finder = _Finder(name, act)
    undo.callback(finder.leave)
    sys.meta_path.insert(0, finder)


class _Finder:
    """Lets Python find the module as ever, and acts once it is loaded."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act
        self._waits = True
        self._lock = threading.RLock()

    def leave(self) -> None:
        _core.locked(self._lock, self._wait_no_more)
        if self in sys.meta_path:  # The program may have put another list there.
            sys.meta_path.remove(self)

    def _wait_no_more(self) -> None:
        self._waits = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            load(module)
            with self._lock:
                if self._waits:
                    self._act(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
