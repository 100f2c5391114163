"""Code that torch.compile made, in a scope: it reads its tensors through raw pointers.

Inductor's kernels take addresses in C++, where no operator tells that a tensor is needed. Every
compiled graph, forward and backward, is called through one method of one class. In a scope that
method first brings back all that the graph is given, and holds it until the call is over
(live/session/hold.h). Functions that were compiled before the scope go through it too. Outside of
scopes the method is torch's own. Inductor need not be imported yet (on_import.py). Costs some
microseconds for each call of a graph.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from dtr_alloc import _core
from dtr_alloc.runtime.adapters.on_import import when_imported
from dtr_alloc.runtime.adapters.undo import Undo

_MODULE = "torch._inductor.output_code"
_GRAPHS = ("CompiledFxGraph", "CompiledAOTI")
_MARK = "_dtr_alloc_region"
_OVERWRITTEN = "_dtr_alloc_overwritten"
_NAME = "_dtr_alloc_name"
backend_has_compiled: bool | None = None  # None: nobody asked for ours (compile_backend.py).
saves_all = False  # Ours has cut a graph without torch's activation_memory_budget.
tried_share: float | None = None  # What a plan tries in its place.
_names = itertools.count(int.from_bytes(os.urandom(7), "big"))


def hold_arguments(session: Callable[[], _core.Session | None], undo: Undo) -> None:
    """Makes the graphs that a scope's threads call hold their arguments, by the `session` that the
    scope has then, until `undo` is closed."""

    def wrap(module: ModuleType) -> None:
        for graph in (getattr(module, name) for name in _GRAPHS if hasattr(module, name)):
            undo.replace(graph, "__call__", _held(graph.__call__, session))

    when_imported(undo, _MODULE, wrap)


def mark(graph: Any, region: _core.CompiledRegion | str, name: str) -> None:
    """Has a compiled graph called as an operator in scopes; or tells why that cannot be, which
    a scope's summary shows under the graph's `name`."""
    graph.__dict__[_MARK] = (region, name)


def mark_overwritten(graph: Any, arguments: Sequence[int]) -> None:
    """Tells which arguments a compiled backward graph may write over, and says so nowhere: what the
    forward graph saved, and nobody else has."""
    graph.__dict__[_OVERWRITTEN] = tuple(arguments)


def is_being_made() -> bool:
    """Whether this thread compiles. That looks at addresses and storages, and keeps none."""
    return torch._guards.CompileContext.try_get() is not None


def _name(graph: Any) -> int:
    """Of a graph and no other, unlike its address. Torch's caches on disk may keep it."""
    return int(graph.__dict__.setdefault(_NAME, next(_names)))


def _held(
    run: Callable[..., Any], session: Callable[[], _core.Session | None]
) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(graph: Any, inputs: Sequence[Any]) -> Any:
        holder = session() if _core.records_this_thread() else None
        if holder is None:
            return run(graph, inputs)
        region, name = graph.__dict__.get(_MARK, (None, ""))
        if isinstance(region, str):
            holder.note_stayed(f"{name}: {region}")
        elif region is not None and isinstance(inputs, list):
            made = region(inputs, functools.partial(run, graph))
            if made is not None:
                return made
        written = [*getattr(graph, "mutated_input_idxs", range(len(inputs)))]
        written += graph.__dict__.get(_OVERWRITTEN, ())
        backward = getattr(graph, "fx_kwargs", {}).get("is_backward", False)
        return holder.holding(inputs, written, backward, _name(graph), lambda: run(graph, inputs))

    return call
