"""A torch that says it has a CUDA device: CPU tensors on the fake driver take its place.

Only builds with CUDA have the allocators, and only a device has tensors of its own. What leads
there is Python's, the same in every build, so tests give it these instead.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import cuda_allocator
from dtr_alloc.runtime.scope.scope import rematerialize
from tests.support.instruments import instrumented

Set = Callable[[object, str, object], object]
"""`setattr`, or what undoes it."""


class PretendedGuest:
    """In place of `_core.GuestAllocator`: its session counts the tensors that are made from its
    first request on, and is there no longer once it is removed."""

    def __init__(self, *, device: int, **options: Any) -> None:
        self.device = device
        self._options = options | {"on_cuda": True}
        self._session: _core.Session | None = None
        self._installed = False

    def install(self) -> None:
        self._installed = True

    def installed(self) -> bool:
        return self._installed

    def allocate(self, size: int, device: int, stream: int) -> int:
        assert (device, stream) == (self.device, 0)
        if self._session is None:
            made = _core.Session(**self._options)
            made.enter()
            _core.record_this_thread(False)  # Only the thread that opens a scope is in it.
            self._session = made
        return size

    def free(self, address: int) -> None:
        pass

    def session(self) -> _core.Session | None:
        return self._session

    def remove(self) -> None:
        if self._session is not None:
            self._session.leave()
        self._installed = False


class PretendedAllocator:
    """In place of what `dtr_alloc.allocator` returns: a scope of the thread that gives it to torch,
    whose session is there from the first request for memory on."""

    def __init__(self, budget: Any, **options: Any) -> None:
        self.asked = {"budget": budget} | options
        self._scopes = ExitStack()
        self._requested = False

    def serve(self) -> None:
        self._scopes.enter_context(instrumented(on_cuda=True))
        opened = rematerialize(self.asked["budget"], thrash_limit=0)
        self._session = self._scopes.enter_context(opened)

    def end(self) -> None:
        self._scopes.close()
        del self._session  # Which holds memory of the driver.

    @property
    def session(self) -> dtr_alloc.Session | None:
        there = self._requested or self._session.stats().peak_bytes > 0
        return self._session if there else None

    def allocate(self, size: int) -> int:
        self._requested = True
        return size

    def free(self, address: int) -> None:
        pass


def pretend(to_set: Set = setattr) -> list[PretendedAllocator]:
    """The allocators that torch was given; whoever asked ends them."""
    given: list[PretendedAllocator] = []

    def change(allocator: PretendedAllocator) -> None:
        allocator.serve()
        given.append(allocator)

    to_set(torch.version, "cuda", "13.0")
    to_set(torch.cuda, "is_available", lambda: True)
    to_set(torch.cuda, "init", lambda: None)
    to_set(torch.cuda, "current_device", lambda: 0)
    to_set(torch.cuda.memory, "change_current_allocator", change)
    to_set(dtr_alloc, "allocator", PretendedAllocator)
    to_set(cuda_allocator, "allocator", PretendedAllocator)
    to_set(_core, "CudaAllocator", object)
    to_set(_core, "GuestAllocator", PretendedGuest)
    return given
