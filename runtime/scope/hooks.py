"""What torch tells of the program, by its hooks, while a scope is open.

A scope wants to know when an optimizer steps, because tapes, traces and ``session.summary()`` count
by steps. Torch's raw memory, the parameters that FSDP2 gathers, and what compiled code takes have
watches of their own (raw_access.py, sharded_parameters.py, compiled_code.py), which begin and end
with the scope too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from dtr_alloc import _core
from dtr_alloc.runtime.adapters import compiled_code, raw_access, sharded_parameters
from dtr_alloc.runtime.adapters.undo import Undo
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.current import OpenScope
from dtr_alloc.runtime.scope.step_ends import StepEnds


def watch_program(opened: OpenScope, undo: Undo) -> None:
    """Has torch tell of an optimizer's steps, of raw memory that it hands out, and of compiled
    code that it calls, until `undo` is closed."""

    ended = False

    def end() -> None:
        nonlocal ended
        ended = True

    def session() -> _core.Session | None:
        """None for a function of ours that a library goes on calling after the scope."""
        return None if ended else current.session()

    def operators() -> int:
        found = session()
        return found.stats().recorded if found else 0

    def step() -> None:
        if not ended:  # A backward pass may be over later than the scope.
            opened.step()

    ends = StepEnds(operators, step)

    def begin() -> None:
        share = opened.steps.share
        if share is not None and not ended and _core.is_member():
            share.optimizer_begins()

    def begins(
        _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        ends.optimizer_begins()
        _core.set_in_optimizer(True)
        if len(args) > 1 and callable(args[1]):
            return (args[0], _outside_of_step(args[1], ends, begin), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, kwargs | {"closure": _outside_of_step(kwargs["closure"], ends, begin)}
        begin()
        return None

    def stepped(optimizer: object, *_: object) -> None:
        _core.set_in_optimizer(False)
        another = ends.optimizer_ends(optimizer)
        if another and not ended and _core.is_member():
            opened.steps.optimizer_ended(step=False)

    undo.callback(end)
    undo.callback(_core.set_in_optimizer, False)
    handles: list[RemovableHandle] = []
    undo.callback(_remove, handles)
    handles.append(register_optimizer_step_pre_hook(begins))
    handles.append(register_optimizer_step_post_hook(stepped))
    raw_access.watch(session, undo)
    sharded_parameters.watch(session, undo)
    compiled_code.hold_arguments(session, undo)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _outside_of_step(
    closure: Callable[..., Any], ends: StepEnds, begin: Callable[[], None]
) -> Callable[..., Any]:
    """What a closure computes is the program's, and the step goes on behind it. Without this, its
    first operator with gradients would pass for the end of a step that raised (intercept.cpp).
    """

    @functools.wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        ends.closure_runs()
        _core.set_in_optimizer(False)
        result = closure(*args, **kwargs)
        _core.set_in_optimizer(True)
        begin()
        return result

    return run
