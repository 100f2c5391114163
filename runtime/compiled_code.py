"""Code that torch.compile made, in a scope: it reads its tensors through raw pointers.

Inductor's kernels take addresses in C++, where no operator tells that a tensor is needed. Every
compiled graph, forward and backward, is called through one method of one class. In a scope that
method first brings back all that the graph is given, and holds it until the call is over
(csrc/live/hold.h). Functions that were compiled before the scope go through it too. Outside of
scopes the method is torch's own. Inductor takes seconds to import, so a program that does not use
it must not pay: where it is not there yet, its import is waited for. Costs some microseconds for
each call of a graph.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from dtr_alloc import _core

_MODULE = "torch._inductor.output_code"
_GRAPHS = ("CompiledFxGraph", "CompiledAOTI")
_MARK = "_dtr_alloc_region"


def hold_arguments(session: Callable[[], _core.Session | None]) -> Callable[[], None]:
    """Makes the graphs that a scope's threads call hold their arguments, by the `session` that the
    scope has then. Returns the undo."""
    undo: list[Callable[[], None]] = []

    def wrap(module: ModuleType) -> None:
        for graph in (getattr(module, name) for name in _GRAPHS if hasattr(module, name)):
            undo.append(functools.partial(setattr, graph, "__call__", graph.__call__))
            graph.__call__ = _held(graph.__call__, session)

    if _MODULE in sys.modules:
        wrap(sys.modules[_MODULE])
    else:
        wait = _OnImport(wrap)
        sys.meta_path.insert(0, wait)
        undo.append(functools.partial(sys.meta_path.remove, wait))

    def restore() -> None:
        while undo:
            undo.pop()()

    return restore


def mark(graph: Any, region: _core.CompiledRegion | str, name: str) -> None:
    """Has a compiled graph called as an operator in scopes; or tells why that cannot be, which
    a scope's summary shows under the graph's `name`."""
    graph.__dict__[_MARK] = (region, name)


def is_being_made() -> bool:
    """Whether this thread compiles. That looks at addresses and storages, and keeps none."""
    return torch._guards.CompileContext.try_get() is not None


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
        written = getattr(graph, "mutated_input_idxs", range(len(inputs)))
        backward = getattr(graph, "fx_kwargs", {}).get("is_backward", False)
        return holder.holding(inputs, list(written), backward, lambda: run(graph, inputs))

    return call


class _OnImport:
    """A finder that lets Python find the module as ever, and acts once it is loaded."""

    def __init__(self, act: Callable[[ModuleType], None]) -> None:
        self._act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:  # Else the scope is over.
                self._act(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
