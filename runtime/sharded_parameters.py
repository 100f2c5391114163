"""Lets layers of FSDP2 that reshard their parameters be recomputed while these are gathered.

FSDP2 gathers a layer's parameters before the layer's forward pass, frees them behind it, and
gathers them again for the layer's backward pass, which is when its activations are needed. It frees
them by resizing their storage to nothing. Without this file that would look like memory handed out:
recipes would get a copy of all parameters.

So FSDP's own functions tell the session what they do. A recipe of a layer refers to the parameters
of one version, and can be run while FSDP holds that version gathered. What may be needed at other
times stays in memory: what a layer returns, and whatever is read outside of the layer. Behind the
backward pass, what the program still holds of the layer stays as well. No collective is repeated or
added. Costs a call for each parameter that is freed or gathered.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dtr_alloc import _core

_MODULES = "torch.distributed.fsdp._fully_shard."
_VERSION = "_dtr_alloc_version"

Current = Callable[[], _core.Session | None]
Function = Callable[..., Any]
_Version = list[tuple[weakref.ref[torch.Tensor], int]]


def watch(current: Current) -> Callable[[], None]:
    """Lets FSDP2, where the program has imported it, tell the session that is `current` then.
    Returns the undo."""
    of_parameter: Any = sys.modules.get(_MODULES + "_fsdp_param")
    of_group: Any = sys.modules.get(_MODULES + "_fsdp_param_group")
    if of_parameter is None or of_group is None:
        return lambda: None
    watches = [
        (of_group.FSDPParamGroup, "post_forward", _returns),
        (of_parameter, "free_storage", _frees),
        (of_parameter, "alloc_storage", _allocates),
        (of_parameter.FSDPParam, "free_unsharded_param", _reshards),
        (of_parameter.FSDPParam, "to_unsharded", _is_gathered),
    ]
    before = [getattr(owner, name) for owner, name, _ in watches]
    for (owner, name, make), function in zip(watches, before, strict=True):
        setattr(owner, name, functools.wraps(function)(make(current, function)))

    def undo() -> None:
        for (owner, name, _), function in zip(watches, before, strict=True):
            setattr(owner, name, function)

    return undo


def _returns(current: Current, post_forward: Function) -> Function:
    """The layer's forward pass ends: what it returns is for others, who have other parameters."""

    def call(group: Any, module: Any, given: Any, output: Any) -> Any:
        session = current()
        in_backward = torch._C._current_graph_task_id() >= 0  # A checkpoint's: it is freed there.
        if session is not None and group._reshard_after_forward and not in_backward:
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor):
                    session.pin(getattr(leaf, "_local_tensor", leaf))  # Of a DTensor.
        return post_forward(group, module, given, output)

    return call


def _reshards(current: Current, free: Function) -> Function:
    def call(parameter: Any) -> Any:
        session = current()
        if session is not None:
            in_backward = torch._C._current_graph_task_id() >= 0
            for tensor in _gathered(parameter):
                session.content_goes(tensor, in_backward, torch.is_grad_enabled())
        return free(parameter)

    return call


def _is_gathered(current: Current, to_unsharded: Function) -> Function:
    def call(parameter: Any) -> Any:
        made = to_unsharded(parameter)
        session = current()
        if session is not None:
            now = _version(parameter)
            before = getattr(parameter, _VERSION, None)
            same = before is not None and _same(before, now)
            setattr(parameter, _VERSION, now)
            for tensor in _gathered(parameter):
                session.content_is_back(tensor, same)
        return made

    return call


def _frees(current: Current, free: Function) -> Function:
    return _resizes(current, free, lambda tensor: 0)


def _allocates(current: Current, allocate: Function) -> Function:
    return _resizes(current, allocate, lambda tensor: tensor.numel() * tensor.itemsize)


def _resizes(current: Current, resize: Function, size: Callable[[torch.Tensor], int]) -> Function:
    """Under a session the same, without handing the storage out (raw_access.py)."""

    def call(tensor: torch.Tensor) -> None:
        if current() is None:
            resize(tensor)
            return
        storage = torch._C.TensorBase.untyped_storage(tensor)
        if storage.size() != size(tensor):
            storage.resize_(size(tensor))

    return call


def _gathered(parameter: Any) -> list[torch.Tensor]:
    return [*parameter.all_gather_outputs, *parameter._unsharded_inner_tensors]


def _version(parameter: Any) -> _Version:
    """Of this process's shard; the others' are stepped alike."""
    shard = parameter._sharded_param_data, parameter._sharded_local_tensor
    return [(weakref.ref(part), part._version) for part in (parameter.sharded_param, *shard)]


def _same(one: _Version, other: _Version) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a() is b() and at == then for (a, at), (b, then) in pairs)
