"""An exception at each line of ours in turn, as a handler of a signal raises it.

Python runs a handler between two instructions, and a tracer is called before each line: one that
raises is at as many places as there are lines, and needs no luck. Which lines there are, the walk
finds by itself. Lines of Python's and torch's own are not interrupted.
"""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.utils.dlpack
from torch.optim import optimizer

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import current

_OURS = os.path.dirname(dtr_alloc.__file__) + os.sep
_CHANGED = (
    *(torch, torch.Tensor, torch.utils.dlpack),
    *(optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks),
)


class Interruption(BaseException):
    """As KeyboardInterrupt is none of Exception's."""


def interrupt(run: Callable[[], object], lines: int) -> Interruption | None:
    """Calls `run`, and raises when so many lines of ours have begun in this thread. Returns what
    was raised, with all that its traceback holds; None where there were no more lines."""
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        if event == "line":
            if left == 0:
                place = f"{frame.f_code.co_filename.removeprefix(_OURS)}:{frame.f_lineno}"
                raise Interruption(place)
            left -= 1
        return trace

    sys.settrace(trace)
    try:
        run()
    except Interruption as raised:
        return raised
    finally:
        sys.settrace(None)
    return None


def walk(run: Callable[[], object], check: Callable[[], object]) -> int:
    """Interrupts `run` at each line, and calls `check` after it. Returns the number of lines."""
    lines = 0
    while raised := interrupt(run, lines):
        try:
            check()
        except Exception as error:
            raise AssertionError(f"after an exception at {raised}") from error
        lines += 1
    return lines


def of_the_process() -> list[object]:
    """What opening a scope changes in the process, and in this thread."""
    changed = [dict(owner if isinstance(owner, dict) else vars(owner)) for owner in _CHANGED]
    return [*changed, list(sys.meta_path), current.scope(), _core.records_this_thread()]
