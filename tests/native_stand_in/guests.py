"""Scopes whose tensors lie in the memory of the stand-in, and the allocator of ours before it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET
from dtr_alloc.runtime.heuristic import native_scorer, resolve
from dtr_alloc.runtime.scope.instruments import instrumented
from tests.fake_cuda.driver import FakeCuda
from tests.native_stand_in.native import Native, build

MIB = 1 << 20
WHOLE = 1 << 32
"""The fake device's memory where no test says otherwise."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def native(library: str, cuda: FakeCuda) -> Iterator[Native]:
    """On a device of 64 MiB. What a test leaves behind in it is an error."""
    made = Native(library, cuda.path)
    cuda.set_capacity(64 * MIB)
    made.reset()
    yield made
    made.drop_all()
    gc.collect()
    made.uninstall()
    made.takes_python(False)
    made.enable(True)
    assert (made.live, made.other_live, made.strays) == (0, 0, 0)
    made.reset()
    cuda.set_capacity(WHOLE)


def scope(
    native: Native,
    budget: int | str = LARGEST_BUDGET,
    *,
    recordable: tuple[str, ...] = (),
    **options: Any,
) -> Any:
    """Its tensors lie in the stand-in's memory."""
    with instrumented(native=native.address, **options):
        opened = dtr_alloc.rematerialize(
            budget, clock="logical", thrash_limit=0, recordable=recordable
        )
        session = opened.__enter__()
    return opened, session


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


class Open:
    """A scope over the stand-in, and the allocator before it."""

    def __init__(self, native: Native, budget: int | str = LARGEST_BUDGET, **options: Any) -> None:
        self._native, self._budget, self._options = native, budget, options

    def __enter__(self) -> Open:
        self._scope, self.session = scope(self._native, self._budget, **self._options)
        self.guest = guest_of(self._native, self.session)
        self.address = self.guest.address()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)
