"""Scopes whose tensors lie in the memory of the stand-in, and the allocator of ours before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET
from dtr_alloc.runtime.heuristic import native_scorer, resolve
from tests.native_stand_in.native import Native
from tests.support.instruments import instrumented


def guest_of(native: Native, session: Any = None, device: int = 0) -> _core.GuestAllocator:
    made = _core.GuestAllocator(
        budget=LARGEST_BUDGET,
        device=device,
        heuristic=resolve("dtr")._native(),
        thrash_limit=0.0,
        scorer=native_scorer("host"),
        image="",
        recordable=[],
        native=native.address,
    )
    if session is not None:
        made.serve(session._core)
    return made


class Open(NamedTuple):
    """A scope over the stand-in, and the allocator before it."""

    session: dtr_alloc.Session
    guest: _core.GuestAllocator
    address: int


@contextmanager
def open_guest(
    native: Native,
    budget: int | str = LARGEST_BUDGET,
    recordable: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[Open]:
    opened = dtr_alloc.rematerialize(budget, clock="logical", thrash_limit=0, recordable=recordable)
    with instrumented(native=native.address, **options), opened as session:
        guest = guest_of(native, session)
        yield Open(session, guest, guest.address())
