"""The calls that move one tensor by hand.

They overrule the runtime for one tensor of the scope that is open. Outside of scopes they do
nothing.
"""

from __future__ import annotations

import torch

from dtr_alloc import _core
from dtr_alloc.runtime.scope import current


def evict(tensor: torch.Tensor) -> bool:
    """Evicts a tensor's content now; it comes back when next touched.

    Returns:
        Whether there was something to evict: False for parameters, inputs and whatever else can
            neither be recomputed nor go to a swap.

    Raises:
        TypeError: it is no tensor.
        RuntimeError: it cannot be written to the swap.

    Example:
        >>> import dtr_alloc, torch
        >>> with dtr_alloc.rematerialize("64MiB"):
        ...     x = torch.ones(1000).exp()
        ...     evict(x), is_evicted(x), f"{x[0]:.3f}", is_evicted(x)
        (True, True, '2.718', False)
    """
    _insist_tensor(tensor)
    session = current.session()
    return session is not None and session.evict(tensor)


def materialize(tensor: torch.Tensor) -> None:
    """Brings an evicted tensor back now. One that is resident, or was never evictable, stays as it
    is.

    After a scope, it does so with a tensor that the scope's end could not bring back, because
    memory or a disk was full.

    Raises:
        TypeError: it is no tensor.
        torch.OutOfMemoryError: it does not fit the budget.
        RuntimeError: it cannot be read from the swap.
    """
    _insist_tensor(tensor)
    if session := current.session():
        session.materialize(tensor)
    elif over := _core.lingering_session():
        over.pin(tensor)


def pin(tensor: torch.Tensor) -> None:
    """Brings a tensor back if it is evicted, and never evicts it again.

    On a device that is work of the current stream. A thread outside the scope that reads the tensor
    on another stream must first make that stream wait for this one (``wait_stream``).

    Raises:
        TypeError: it is no tensor.
        torch.OutOfMemoryError: it does not fit the budget.
        RuntimeError: it cannot be read from the swap.

    Example:
        >>> import dtr_alloc, torch
        >>> with dtr_alloc.rematerialize("64MiB"):
        ...     x = torch.ones(1000).exp()
        ...     pin(x)
        ...     evict(x)
        False
    """
    _insist_tensor(tensor)
    if session := current.session() or _core.lingering_session():
        session.pin(tensor)


def is_evicted(tensor: torch.Tensor) -> bool:
    """Whether a tensor's content is gone for now.

    Raises:
        TypeError: it is no tensor.
    """
    _insist_tensor(tensor)
    session = current.session() or _core.lingering_session()
    return session is not None and session.is_evicted(tensor)


def _insist_tensor(tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is expected, not {type(tensor).__name__}")
