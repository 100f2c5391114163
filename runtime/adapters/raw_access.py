"""Watches the methods through which Python reaches a tensor's memory past the dispatcher.

Methods that hand the memory out (`numpy`, `data_ptr`, DLPack) may lead to writes that nobody
tells us of. So the tensor is brought back and becomes an ordinary one. Recipes that read it get a
copy of what they read, or what rests on it stays in memory: whichever is smaller (intercept.cpp,
keep_content). Methods that only read (`tolist`, `deepcopy`, `is_shared`, `torch.save`) hold the
tensor while they read, and change nothing. Torch's own checks of storages cannot do this: by the
time a pointer leaves C++, an evicted tensor has none.

Three methods write through a pointer themselves, and tell no version counter: `apply_`, `map_` and
`map2_` (torch/csrc/utils/tensor_apply.cpp, 2.11 to 2.15). To them the tensor is handed out; their
other arguments are read.

And torch reads the items of a list, as in `torch.tensor([x[0], y[1]])`, with our key switched off
(internal_new_from_data in torch/csrc/utils/tensor_new.cpp, 2.11 to 2.15). It calls `float(x[0])`
and the like, which are tried again where the tensor turns out to be evicted.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from dtr_alloc import _core
from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.adapters import compiled_code
from dtr_alloc.runtime.adapters.undo import Undo

_READING = ("tolist", "is_shared", "__deepcopy__")
_EXPOSING = (
    "numpy",
    "__array__",
    "data_ptr",
    "const_data_ptr",
    "mutable_data_ptr",
    "untyped_storage",
    "storage",
    "_typed_storage",
    "__dlpack__",
    "__reduce_ex__",
    "share_memory_",
    "apply_",
    "map_",
    "map2_",
)
_NUMBERS = ("__float__", "__int__", "__index__", "__bool__", "__complex__")
# Of those above, what `torch.save`, `deepcopy` and `is_shared` call themselves, to read.
_STORAGES = ("data_ptr", "untyped_storage", "storage", "_typed_storage", "__reduce_ex__")
# Code that takes memory for the program's line, which is the one to name.
_BETWEEN = (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, "<frozen ", copy.__file__)


# Gives the session of the scope that is open, if it has one by now.
Current = Callable[[], _core.Session | None]


class _Here(threading.local):
    """What this thread reads: what `torch.save` has met, whose bytes are written after the last was
    met, and how many other methods are at it."""

    held: list[_core.Reading] | None = None
    readers = 0


_here = _Here()


def watch(current: Current, undo: Undo) -> None:
    """Puts a watch before each method, for the session that is `current` then, until `undo` is
    closed."""
    watches: list[tuple[Any, str, Callable[..., Any]]] = [(torch, "save", _save)]
    for name in _READING:
        watches.append((torch.Tensor, name, functools.partial(_read, current)))
    for name in _EXPOSING:
        watches.append((torch.Tensor, name, functools.partial(_expose, current, set())))
    for name in _NUMBERS:
        watches.append((torch.Tensor, name, functools.partial(_try_again, current)))
    for owner in (torch, torch.utils.dlpack, torch._C):
        for name in ("to_dlpack", "_to_dlpack", "_to_dlpack_versioned"):
            watches.append((owner, name, functools.partial(_expose, current, set())))
    for owner, name, make in watches:
        if method := getattr(owner, name, None):
            undo.replace(owner, name, functools.wraps(method)(make(method)))
    undo.callback(_core.tell_exposures, None)
    _core.tell_exposures(functools.partial(_tell_of_table, current, set()))


def _read(current: Current, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is None:
            return method(self, *args, **kwargs)
        held = session.reading(self)
        _here.readers += 1
        try:
            return method(self, *args, **kwargs)
        finally:
            _here.readers -= 1
            del held

    return call


def _try_again(current: Current, method: Callable[..., Any]) -> Callable[..., Any]:
    read = _read(current, method)

    def call(self: torch.Tensor) -> Any:
        try:
            return method(self)
        except RuntimeError:
            session = current()
            if session is None or not session.is_evicted(self):
                raise
            return read(self)

    return call


def _expose(
    current: Current, told: set[tuple[str, int]], method: Callable[..., Any]
) -> Callable[..., Any]:
    read = _read(current, method)

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is None or not isinstance(self, torch.Tensor):
            return method(self, *args, **kwargs)
        if compiled_code.is_being_made():
            return read(self, *args, **kwargs)
        if method.__name__ in _STORAGES and (_here.held is not None or _here.readers):
            if _here.held is not None:
                _here.held.append(session.reading(self))
            return method(self, *args, **kwargs)
        copied, kept = session.expose(self)
        if copied or kept:
            _tell(session, told, method.__name__, copied, kept)
        given = (*args, *kwargs.values())
        others = [session.reading(one) for one in given if isinstance(one, torch.Tensor)]
        try:
            return method(self, *args, **kwargs)
        finally:
            del others

    return call


def _save(save: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        outer, _here.held = _here.held, []
        try:
            return save(*args, **kwargs)
        finally:
            _here.held = outer

    return call


def _tell_of_table(current: Current, told: set[tuple[str, int]], copied: int, kept: int) -> None:
    """For bindings/bind_exchange_table.cpp, which sees what no method of Python's does."""
    if session := current():
        _tell(session, told, "__dlpack_c_exchange_api__", copied, kept)


def _tell(
    session: _core.Session, told: set[tuple[str, int]], method: str, copied: int, kept: int
) -> None:
    """Notes the line of the program that took the memory, once each."""
    frame = sys._getframe()  # A library's own thread may have no other.
    between = (*_BETWEEN, __file__)
    while frame.f_back and frame.f_code.co_filename.startswith(between):
        frame = frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno)
    if place in told:
        return
    told.add(place)
    took = [f"{format_size(copied)} copied"] * (copied > 0)
    took += [f"{format_size(kept)} can't be evicted any more"] * (kept > 0)
    session.note_exposure(f"{method} at {place[0]}:{place[1]} ({', '.join(took)})")
