"""Which line of the program runs an operator, and in which module: what a picture tells of a block.

While events are kept, the runtime calls `locate` at each operator and remembers a number. Torch's
own frames and ours are left out. The module is that of the innermost call on the stack, named by
its place in the outermost one (``GPT.blocks.3.mlp``), so no hook is put on a program's modules. In
a backward pass on the CPU the line is that of ``backward()``; a device's thread has no line. Takes
some microseconds an operator. At most 65,535 places have a number; later ones are unknown.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from functools import cache
from types import FrameType
from typing import NamedTuple

import torch

from dtr_alloc import _core


class Site(NamedTuple):
    """The module that runs, empty outside of one, and the program's frames, the innermost first:
    file, line, function."""

    module: str = ""
    frames: tuple[tuple[str, int, str], ...] = ()


_MOST = 65_535
_CALL = torch.nn.Module.__call__.__code__
_NOT_THE_PROGRAMS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    "<frozen ",
)
# Numbers are of this process, for all its scopes. No lock: each step is one of Python's own.
_sites = {0: Site()}
_numbers: dict[object, int] = {}
_next = itertools.count(1)
_names: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()


def site(number: int) -> Site:
    """What has this number."""
    return _sites[number]


def locate() -> int:
    """The number of the place that calls; 0 where it is unknown."""
    calls: list[FrameType] = []
    frames: list[FrameType] = []
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code is _CALL:
            calls.append(frame)
        elif _is_programs(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    module = _name(calls[0].f_locals["self"], calls[-1].f_locals["self"]) if calls else ""
    key = (module, *[(frame.f_code, frame.f_lasti) for frame in frames])
    number = _numbers.get(key, 0)
    if not number:
        number = next(_next)
        if number > _MOST:
            return 0
        lines = [(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames]
        _sites[number] = Site(module, tuple(lines))
        _numbers[key] = number
    return number


@cache
def _is_programs(file: str) -> bool:
    return not file.startswith(_NOT_THE_PROGRAMS)


def _name(inner: torch.nn.Module, outer: torch.nn.Module) -> str:
    names = _names.get(outer)
    if names is None:
        names = _names[outer] = {id(module): name for name, module in outer.named_modules()}
    name = names.get(id(inner), f"({type(inner).__name__})")  # Not a part of the other.
    return f"{type(outer).__name__}.{name}".removesuffix(".")


_core.set_locator(locate)
