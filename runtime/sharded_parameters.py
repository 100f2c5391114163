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
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dtr_alloc import _core

_MODULES = "torch.distributed.fsdp._fully_shard."

Current = Callable[[], _core.Session | None]
Function = Callable[..., Any]


class _Here(threading.local):
    """Whether a layer's forward pass ends in this thread, behind which its backward pass comes."""

    after_forward = False


_here = _Here()


def watch(current: Current) -> Callable[[], None]:
    """Lets FSDP2, where the program has imported it, tell the session that is `current` then.
    Returns the undo."""
    of_parameter: Any = sys.modules.get(_MODULES + "_fsdp_param")
    of_group: Any = sys.modules.get(_MODULES + "_fsdp_param_group")
    parameter, group = (
        getattr(module, name, None)
        for module, name in ((of_parameter, "FSDPParam"), (of_group, "FSDPParamGroup"))
    )
    watches = [
        (group, "post_forward", _ends),
        (parameter, "free_unsharded_param", _reshards),
        (parameter, "to_unsharded", _is_gathered),
        (of_parameter, "free_storage", _frees),
        (of_parameter, "alloc_storage", _allocates),
        (of_group, "alloc_storage", _allocates),
    ]
    watches = [row for row in watches if hasattr(*row[:2])]
    if len(watches) < 5:  # Another FSDP than those that are known.
        return lambda: None
    before = [getattr(owner, name) for owner, name, _ in watches]
    for (owner, name, make), function in zip(watches, before, strict=True):
        setattr(owner, name, functools.wraps(function)(make(current, function)))

    def undo() -> None:
        for (owner, name, _), function in zip(watches, before, strict=True):
            setattr(owner, name, function)

    return undo


def _ends(current: Current, post_forward: Function) -> Function:
    """The layer's forward pass: what it returns is for others, who have other parameters."""

    def call(group: Any, module: Any, given: Any, output: Any) -> Any:
        session = current()
        in_backward = torch._C._current_graph_task_id() >= 0  # A checkpoint's: it is freed there.
        if session is None or in_backward or not group._reshard_after_forward:
            return post_forward(group, module, given, output)
        for tensor in _tensors(output):
            session.pin(tensor)
        _here.after_forward = True
        try:
            return post_forward(group, module, given, output)
        finally:
            _here.after_forward = False

    return call


def _reshards(current: Current, free: Function) -> Function:
    def call(parameter: Any) -> Any:
        session = current()
        if session is not None:
            part = getattr(parameter, "_sharded_post_forward_param_data", None)
            if part is not None:  # A copy of some of it, which will be gathered again.
                session.pin(part)
            last = not _here.after_forward
            for tensor in _gathered(parameter):
                session.content_goes(tensor, last, torch.is_grad_enabled())
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


def _frees(current: Current, free: Function) -> Function:
    return _resizes(current, free, lambda tensor: 0)


def _allocates(current: Current, allocate: Function) -> Function:
    return _resizes(current, allocate, lambda tensor: tensor.numel() * tensor.itemsize)


def _resizes(current: Current, resize: Function, size: Callable[[torch.Tensor], int]) -> Function:
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


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Those of what a layer returns, however it is wrapped."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            # Of a DTensor, and of one that a collective is under way for.
            leaf = getattr(leaf, "_local_tensor", leaf)
            yield getattr(leaf, "elem", leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors([getattr(leaf, each.name) for each in dataclasses.fields(leaf)])
        elif isinstance(leaf, dict):
            yield from _tensors(list(leaf.values()))
