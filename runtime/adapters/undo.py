"""What is to be undone when a scope is over.

A handler of a signal may raise between any two steps of Python code, also while things are undone.
So each is noted before it is done, stays noted until its undo has returned, and may be undone twice
or without having been done. Whoever closes this does so until it comes through (`_core.Bracket`).
An `ExitStack` forgets what was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


class Undo:
    """Calls to be made in the end, the last one first."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] = []

    def callback(self, function: Callable[..., Any], /, *arguments: Any) -> None:
        """Notes a call, which must do no harm where it is made twice, or without a reason."""
        self._calls.append(partial(function, *arguments))

    def close(self) -> None:
        """Makes the calls. Where one raises, the rest is left for another `close`."""
        while self._calls:
            self._calls[-1]()
            self._calls.pop()
