"""Lets layers of FSDP2 that reshard their parameters be recomputed while these are gathered.

FSDP2 gathers a layer's parameters before the layer's forward pass, frees them after it, and gathers
them again for the layer's backward pass, which is when its activations are needed. It frees them by
resizing their storage to nothing. Without this file that would look like memory handed out, and
recipes would get a copy of all parameters.

So FSDP's own functions tell the session what they do. A recipe of a layer can be run while FSDP has
the same parameters gathered, which a checksum tells (constants.h). What may be needed at other
times stays in memory: what a layer returns, and what an operator reads outside of the layer. After
the backward pass, what the program still holds of the layer stays as well. No collective is
repeated or added. Costs two passes over the parameters each time, and while some are freed a look
at the recipes behind each argument of an operator. CPU tensors alone; elsewhere recipes get copies.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from dtr_alloc import _core
from dtr_alloc.runtime.adapters.on_import import when_imported
from dtr_alloc.runtime.adapters.undo import Undo

_MODULES = "torch.distributed.fsdp._fully_shard."

Current = Callable[[], _core.Session | None]
Function = Callable[..., Any]


class _Here(threading.local):
    """What FSDP does in this thread."""

    stays = _core.Stays.all
    """What is to stay of a layer when its parameters go."""
    ends_backward = False


_here = _Here()
_Waiting = WeakKeyDictionary[Any, int]
"""Forward passes of a group of parameters whose backward pass is to come."""


def watch(current: Current, undo: Undo) -> None:
    """Lets FSDP2, from when the program has imported it, tell the session that is `current` then,
    until `undo` is closed."""
    when_imported(undo, _MODULES + "_fsdp_state", lambda _: _watch(current, undo))


def _watch(current: Current, undo: Undo) -> None:
    of_state, of_group, of_parameter = (  # The first has imported the others.
        sys.modules.get(_MODULES + name)
        for name in ("_fsdp_state", "_fsdp_param_group", "_fsdp_param")
    )
    state = getattr(of_state, "FSDPState", None)
    group = getattr(of_group, "FSDPParamGroup", None)
    parameter = getattr(of_parameter, "FSDPParam", None)
    waiting = _Waiting()
    frees = functools.partial(_resizes, lambda tensor: 0)
    allocates = functools.partial(_resizes, lambda tensor: tensor.numel() * tensor.itemsize)
    watches: list[tuple[Any, str, Function]] = [
        (state, "_root_post_backward_final_callback", functools.partial(_ends_backward, waiting)),
        (group, "post_forward", functools.partial(_ends_forward, waiting)),
        (group, "post_backward", functools.partial(_ends_layer, waiting)),
        (parameter, "free_unsharded_param", _reshards),
        (parameter, "to_unsharded", _is_gathered),
        (of_parameter, "free_storage", frees),
        (of_parameter, "alloc_storage", allocates),
    ]
    if missing := [name for owner, name, _ in watches if not hasattr(owner, name)]:
        if session := current():
            session.note_stayed(
                f"FSDP2 of torch {torch.__version__} has no {', '.join(missing)}: recipes keep "
                "copies of the parameters that it frees"
            )
        return
    if hasattr(of_group, "alloc_storage"):  # Torch 2.15 has a second name for it.
        watches.append((of_group, "alloc_storage", allocates))
    for owner, name, make in watches:
        function = getattr(owner, name)
        undo.replace(owner, name, functools.wraps(function)(make(current, function)))


@contextmanager
def _telling(**what: Any) -> Iterator[None]:
    before = {name: getattr(_here, name) for name in what}
    vars(_here).update(what)
    try:
        yield
    finally:
        vars(_here).update(before)


def _ends_forward(waiting: _Waiting, current: Current, post_forward: Function) -> Function:
    """What a layer returns is read when other layers' parameters are gathered: it stays."""

    def call(group: Any, module: Any, given: Any, output: Any) -> Any:
        session = current()
        in_backward = torch._C._current_graph_task_id() >= 0  # A checkpoint's: it is freed there.
        if session is None or in_backward:
            return post_forward(group, module, given, output)
        differentiated = torch.is_grad_enabled()
        waiting[group] = waiting.get(group, 0) + differentiated
        if not group._reshard_after_forward:
            return post_forward(group, module, given, output)
        for tensor in _tensors(output, set()):
            session.pin(tensor)
        stays = _core.Stays.nothing if differentiated else _core.Stays.since_it_came
        with _telling(stays=stays):
            return post_forward(group, module, given, output)

    return call


def _ends_layer(waiting: _Waiting, _: Current, post_backward: Function) -> Function:
    """A backward pass of a layer, behind which those of other forward passes may come. They need
    what the layer returned before its parameters are gathered again, and that stays only where they
    are freed after each forward pass."""

    def call(group: Any, *given: Any) -> Any:
        waiting[group] = max(waiting.get(group, 0) - 1, 0)
        more = waiting[group] > 0 and group._reshard_after_forward and not _here.ends_backward
        with _telling(stays=_core.Stays.nothing if more else _core.Stays.all):
            return post_backward(group, *given)

    return call


def _ends_backward(waiting: _Waiting, _: Current, final_callback: Function) -> Function:
    def call(state: Any) -> Any:
        with _telling(ends_backward=True):
            made = final_callback(state)
        waiting.clear()
        return made

    return call


def _reshards(current: Current, free: Function) -> Function:
    def call(parameter: Any) -> Any:
        session = current()
        if session is not None:
            part = getattr(parameter, "_sharded_post_forward_param_data", None)
            if part is not None:  # A copy of some of it, which will be gathered again.
                session.pin(part)
            for tensor in _gathered(parameter):
                session.content_goes(tensor, _here.stays)
        return free(parameter)

    return call


def _is_gathered(current: Current, to_unsharded: Function) -> Function:
    def call(parameter: Any) -> Any:
        made = to_unsharded(parameter)
        session = current()
        if session is not None:
            for tensor in _gathered(parameter):
                session.pin(tensor)  # FSDP resizes its storage, which an evicted one's is not.
                session.content_is_back(tensor)
        return made

    return call


def _resizes(size: Callable[[torch.Tensor], int], current: Current, resize: Function) -> Function:
    """Under a session the same, without handing the storage out (raw_access.py)."""

    def call(tensor: torch.Tensor) -> None:
        if current() is None or not tensor.is_cpu:
            resize(tensor)
            return
        storage = torch._C.TensorBase.untyped_storage(tensor)
        if storage.size() != size(tensor):
            storage.resize_(size(tensor))

    return call


def _gathered(parameter: Any) -> list[torch.Tensor]:
    tensors = (*parameter.all_gather_outputs, *parameter._unsharded_inner_tensors)
    return [tensor for tensor in tensors if tensor.is_cpu]


def _tensors(output: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Those of what a layer returns, however it is wrapped."""
    if id(output) in seen:
        return
    seen.add(id(output))
    if isinstance(output, torch.Tensor) and not is_traceable_wrapper_subclass(output):
        yield output
        return
    for part in _parts(output):
        yield from _tensors(part, seen)


def _parts(output: Any) -> Iterable[Any]:
    """What it is made of, kept while it is walked, so that no two of them have one `id`."""
    attribute = functools.partial(getattr, output)
    if is_traceable_wrapper_subclass(output):  # A DTensor, say.
        return list(map(attribute, output.__tensor_flatten__()[0]))
    if isinstance(output, Mapping):
        return output.values()
    if isinstance(output, (list, tuple)):
        return output
    if dataclasses.is_dataclass(output):
        return [attribute(each.name) for each in dataclasses.fields(output)]
    return [leaf for leaf in tree_leaves(output) if leaf is not output]
