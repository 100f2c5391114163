"""The scopes' dispatch key beside others who use it: higher-order operators, and other libraries.

Torch resolves higher-order operators (cond, scan, flex_attention) in Python, by the dispatch keys
of the thread less those that the operator lets pass. An operator without an implementation on the
scopes' key would find no kernel there, so while a scope is open it lets the key pass, as ordinary
operators do by a fallthrough. What it calls inside is recorded as ever. An operator with an
implementation there keeps it, and gets that in a scope too: no release up to 2.15 has one. Costs
some microseconds a scope. Source: HigherOrderOperator in torch/_ops.py (2.11 to 2.15), whose list
of keys is read by operators that are made later.

Another library may register kernels of ordinary operators on the key, and the dispatcher then calls
the one that came last. A scope warns of these as it opens.
"""

from __future__ import annotations

import warnings

import torch

from dtr_alloc import _core
from dtr_alloc.runtime.adapters.undo import Undo

_NAMED = 5


def let_key_pass(undo: Undo) -> None:
    """Makes every higher-order operator without an implementation on the key, present and future,
    pass over it, until `undo` is closed."""
    key = torch._C.DispatchKey(_core.dispatch_key)
    of_new_ones = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if key in of_new_ones:
        return
    there = list(torch._ops._higher_order_ops.values())
    kept = [one for one in there if not one.non_fallthrough_keys.has(key)]
    undo.callback(_insist_on_key, key, kept)
    for operator in there:
        if key not in operator.py_kernels:
            operator.fallthrough(key)  # type: ignore[no-untyped-call]
    of_new_ones.append(key)


def _insist_on_key(key: torch._C.DispatchKey, but: list[torch._ops.HigherOrderOperator]) -> None:
    of_new_ones = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if key in of_new_ones:
        of_new_ones.remove(key)
    for operator in list(torch._ops._higher_order_ops.values()):
        if operator not in but:
            operator.non_fallthrough_keys = operator.non_fallthrough_keys.add(key)


def warn_of_other_kernels(stacklevel: int) -> None:
    """Warns if another library has registered kernels on the key."""
    names = _core.kernels_of_others()
    if not names:
        return
    rest = len(names) - _NAMED
    more = f" and {rest} more" if rest > 0 else ""
    warnings.warn(
        f"another library has registered kernels on DispatchKey.Fake for "
        f"{', '.join(names[:_NAMED])}{more}. In this scope torch calls these kernels instead of "
        "dtr_alloc's: their results are not recorded, and evicted arguments do not come back. "
        "Register them on another key, or when the scope is over",
        stacklevel=stacklevel + 1,
    )
