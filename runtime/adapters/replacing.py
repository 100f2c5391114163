"""Functions of ours in the place of torch's, for a while.

A scope watches some of torch's methods, for which torch has no hook. When it ends, each is put back
as it was. A library may have put its own function in the place of ours meanwhile, as
`unittest.mock` does. That one stays: to take it away would undo what the library did. It may go on
calling ours, which do nothing once their scope is over.
"""

from __future__ import annotations

from typing import Any

from dtr_alloc.runtime.adapters.undo import Undo

_MISSING = object()


def replace(undo: Undo, owner: Any, name: str, ours: Any) -> None:
    """Until `undo` is closed, the attribute `name` of a module or class is `ours`."""
    undo.callback(_put_back, owner, name, ours, vars(owner).get(name, _MISSING))
    setattr(owner, name, ours)


def _put_back(owner: Any, name: str, ours: Any, before: Any) -> None:
    if vars(owner).get(name) is not ours:
        return
    if before is _MISSING:  # Inherited.
        delattr(owner, name)
    else:
        setattr(owner, name, before)
