"""Operators of other libraries that a user vouches for: which names are taken, and which refused.

The runtime records such an operator by itself where its author promised something
(live/operators/libraries.h). For the others somebody must know that it depends on its arguments and
torch's default generator alone. A name that is misspelled, or of an operator that can never be
recorded, would do nothing and say nothing, so it is refused. Costs a walk over the names of all
operators for each scope that names some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from dtr_alloc import _core

_PATTERN = re.compile(r"[A-Za-z_]\w*::(\w+(\.\w+)?|\w*\*)")
_TORCHS = ("aten", "dtr_alloc")


def checked(recordable: Iterable[str]) -> list[str]:
    """The names of operators in `recordable`, where there is something to say for each.

    Raises:
        TypeError: it is no collection of texts.
        ValueError: a text is no name, names no operator, or only such as are never recorded.

    Example:
        >>> checked(())
        []
        >>> checked(("aten::*",))
        Traceback (most recent call last):
            ...
        ValueError: recordable names 'aten::*', but torch's own operators need nobody's word
    """
    if isinstance(recordable, (str, bytes)) or not isinstance(recordable, Iterable):
        raise TypeError(
            f'recordable {recordable!r} is not a tuple of names, as in recordable=("mylib::*",)'
        )
    patterns = list(recordable)
    for pattern in patterns:
        _check(pattern)
    return patterns


def _check(pattern: str) -> None:
    if not isinstance(pattern, str):
        raise TypeError(f"recordable has {pattern!r}, which is not the name of an operator")
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(
            f'recordable has {pattern!r}; a name is "library::name", "library::name.overload", or '
            "the begin of one with a * behind it"
        )
    if pattern.split("::")[0] in _TORCHS:
        raise ValueError(
            f"recordable names {pattern!r}, but torch's own operators need nobody's word"
        )
    parts = (name.partition(".") for name in _operators(pattern))
    named = [_core.obstacle(name, overload) for name, _, overload in parts]
    if not named:
        raise ValueError(
            f"recordable names {pattern!r}, but no operator is called so; the library "
            "that makes it is imported first"
        )
    if None not in named:
        raise ValueError(f"recordable names {pattern!r}, which {named[0]}: it is never run again")


def _operators(pattern: str) -> list[str]:
    """The full names that a pattern names."""
    names = torch._C._dispatch_get_all_op_names()
    if pattern.endswith("*"):
        return [name for name in names if name.startswith(pattern[:-1])]
    return [name for name in names if pattern in (name, name.split(".")[0])]
