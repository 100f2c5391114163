"""The scopes' dispatch key beside others who use it: higher-order operators, and other libraries.

Torch resolves higher-order operators (cond, scan, flex_attention) in Python, by the dispatch keys
of the thread less those that the operator lets pass. An operator without an implementation on the
scopes' key would find no kernel there, so while a scope is open it lets the key pass, as ordinary
operators do by a fallthrough. What it calls inside is recorded as ever. An operator with an
implementation there, for fake tensors, gets it for these alone: no release up to 2.15 has one.
Source: HigherOrderOperator in torch/_ops.py (2.11 to 2.15), whose list of keys is read by
operators that are made later.

Another library may give an ordinary operator a kernel on the key, and the dispatcher calls the one
that came last. Ours goes before it as a scope opens, and after each registration on the key from
Python while one is open. Costs some 100 us a scope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from dtr_alloc import _core
from dtr_alloc.runtime.adapters.undo import Undo

_KEY = torch._C.DispatchKey(_core.dispatch_key)
_OPS: Any = torch._ops  # Without types.
_OF_NEW_ONES = _OPS._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS


def share_key(undo: Undo) -> None:
    """Gives the key to the scope where no fake tensor is meant, until `undo` is closed."""
    if _KEY not in _OF_NEW_ONES:
        _let_key_pass(undo)
    _watch_registrations(undo)
    _core.take_key()


def _let_key_pass(undo: Undo) -> None:
    there = list(_OPS._higher_order_ops.values())
    kept = [one for one in there if not one.non_fallthrough_keys.has(_KEY)]
    undo.callback(_insist_on_key, kept)
    for operator in there:
        if theirs := operator.py_kernels.get(_KEY):
            undo.callback(_implement, operator, theirs)
            _implement(operator, _for_fake_tensors(operator, theirs))
        else:
            operator.fallthrough(_KEY)
    _OF_NEW_ONES.append(_KEY)


def _insist_on_key(but: list[Any]) -> None:
    if _KEY in _OF_NEW_ONES:
        _OF_NEW_ONES.remove(_KEY)
    for operator in list(_OPS._higher_order_ops.values()):
        if operator not in but:
            operator.non_fallthrough_keys = operator.non_fallthrough_keys.add(_KEY)


def _implement(operator: Any, kernel: Callable[..., Any]) -> None:
    operator.py_kernels[_KEY] = kernel
    operator._dispatch_cache.clear()


def _for_fake_tensors(operator: Any, theirs: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = _OPS._get_tensors(args, kwargs)
        if _core.fake_mode_is_on() or any(
            torch._C._dispatch_keys(one).has(_KEY) for one in tensors
        ):
            return theirs(*args, **kwargs)
        keys = _OPS._compute_keyset(args, kwargs, operator.non_fallthrough_keys.remove(_KEY))
        return operator.dispatch(keys.highestPriorityTypeId(), *args, **kwargs)

    return kernel


def _watch_registrations(undo: Undo) -> None:
    library: Any = torch.library.Library
    register = library.impl

    @functools.wraps(register)
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        register(self, op_name, fn, dispatch_key, **options)
        if (dispatch_key or self.dispatch_key) == "Fake":
            _core.take_key()

    undo.replace(library, "impl", impl)
