"""Higher-order operators (cond, scan, flex_attention) in a scope.

Torch resolves them in Python, by the dispatch keys of the thread less those that the operator lets
pass. Of the key that a scope switches on they know nothing, so each would find no kernel there.
They are told to let it pass, as ordinary operators do by a fallthrough; what they call inside is
then recorded as ever. No torch registers anything of theirs on that key, so outside of scopes
nothing changes, and it is never taken back. Costs some microseconds, once a process.
Source: HigherOrderOperator in torch/_ops.py, whose list is read by operators that are made later.
"""

from __future__ import annotations

import torch

from dtr_alloc import _core


def let_key_pass() -> None:
    """Makes every higher-order operator, present and future, pass over the scopes' key."""
    key = torch._C.DispatchKey(_core.dispatch_key)
    of_new_ones = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if key in of_new_ones:
        return
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)  # type: ignore[no-untyped-call]
    of_new_ones.append(key)  # Last: it says that all were told, which an exception may cut short.
