"""What is to be undone when a scope is over, such as functions of ours in the place of torch's.

A handler of a signal may raise between any two steps of Python code, also while things are undone.
So each is noted before it is done, stays noted until its undo has returned, and may be undone twice
or without having been done. Whoever closes this does so until it comes through (`_core.Bracket`).
An `ExitStack` forgets what was interrupted.

A scope watches some of torch's methods, for which torch has no hook. When it ends, each is put back
as it was. A library may have put its own function in the place of ours meanwhile, as
`unittest.mock` does. That one stays: to take it away would undo what the library did. It may go on
calling ours, which do nothing once their scope is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

_MISSING = object()


class Undo:
    """Calls to be made in the end, the last one first."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] = []

    def callback(self, function: Callable[..., Any], /, *arguments: Any) -> None:
        """Notes a call, which must do no harm where it is made twice, or without a reason."""
        self._calls.append(partial(function, *arguments))

    def replace(self, owner: Any, name: str, ours: Any) -> None:
        """Until the end the attribute `name` of a module or class is `ours`."""
        self.callback(_put_back, owner, name, ours, vars(owner).get(name, _MISSING))
        setattr(owner, name, ours)

    def close(self) -> None:
        """Makes the calls. Where one raises, the rest is left for another `close`."""
        while self._calls:
            self._calls[-1]()
            self._calls.pop()


def _put_back(owner: Any, name: str, ours: Any, before: Any) -> None:
    if vars(owner).get(name) is not ours:
        return
    if before is _MISSING:  # Inherited.
        delattr(owner, name)
    else:
        setattr(owner, name, before)
