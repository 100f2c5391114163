"""CuPy and RMM on the pool, so that one budget bounds them together with torch.

CuPy takes any callable that turns a size into a MemoryPointer; the owner of the memory frees
its block when the last array over it dies (RMM does it in the same way). A block is allocated
for CuPy's current stream and freed for it: work of other streams is then ordered by the pool.
Neither library is imported before the allocator is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from dtr_alloc.pool import Pool

__all__ = ["Source", "cupy_allocator", "rmm_resource"]


class Source(Protocol):
    """A `Pool` of the CUDA arena, or what `allocator` returned."""

    @property
    def device(self) -> int: ...
    def allocate(self, size: int, *, stream: int = 0) -> int: ...
    def free(self, address: int) -> None: ...


class _Block:
    """Owns a block as long as arrays lie in it."""

    def __init__(self, pool: Source, size: int, stream: int, **place: int) -> None:
        self._pool = pool
        self.address = pool.allocate(size, stream=stream, **place)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._pool.free(self.address)


def cupy_allocator(pool: Source, device: int | None = None) -> Callable[[int], Any]:
    """The allocator for `cupy.cuda.set_allocator`.

    With the object that `dtr_alloc.allocator` returned, CuPy's arrays and torch's tensors share one
    budget: an array may evict tensors. With a `Pool` they have a budget of their own.

    Args:
        pool: A `Pool` of the CUDA arena, or what `dtr_alloc.allocator` returned.
        device: The number of the CUDA device. None: a pool's own; of an allocator, which serves
            all devices, the one that is CuPy's current device at each request.

    Raises:
        TypeError: `pool` is neither.
        ValueError: The pool's memory is not a CUDA device's, or is another device's.
        ImportError: Later, when memory is asked for: CuPy is not installed.

    Example:
        >>> cupy.cuda.set_allocator(dtr_alloc.cupy_allocator(pool))  # doctest: +SKIP
    """
    chosen = _chosen(pool, device)
    # A stream dies with CuPy's object, and another may then have its name: those that used the
    # pool are kept.
    streams: dict[int, Any] = {}
    of_one = isinstance(pool, Pool)

    def allocate(size: int) -> Any:
        import cupy

        number = cupy.cuda.runtime.getDevice() if chosen is None else chosen
        stream = cupy.cuda.get_current_stream()
        streams.setdefault(stream.ptr, stream)
        place = {} if of_one else {"device": number}
        block = _Block(pool, size, stream.ptr, **place)
        memory = cupy.cuda.UnownedMemory(block.address, size, block, number)
        return cupy.cuda.MemoryPointer(memory, 0)

    return allocate


def rmm_resource(pool: Source, device: int | None = None) -> Any:
    """A device memory resource for RMM: `rmm.mr.set_current_device_resource(rmm_resource(pool))`.
    A resource of RMM's is one device's, so make one for each.

    Args:
        pool: As for `cupy_allocator`.
        device: The number of the CUDA device. None: a pool's own; of an allocator, torch's current
            one, now.

    Raises:
        TypeError, ValueError: As for `cupy_allocator`.
        ImportError: RMM is not installed.
    """
    number = _chosen(pool, device)
    import rmm

    if number is None:
        number = torch.cuda.current_device()
    place = {} if isinstance(pool, Pool) else {"device": number}

    def allocate(size: int, stream: Any = None) -> int:
        return pool.allocate(size, stream=_number(stream), **place)

    def deallocate(address: int, size: int, stream: Any = None) -> None:
        del size, stream  # The pool knows both.
        pool.free(address)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def _chosen(pool: Source, device: int | None) -> int | None:
    """A pool has one device. An allocator serves all: the one that is named, if any.

    Raises:
        TypeError: it is neither.
        ValueError: CuPy cannot use its memory.
    """
    if not (hasattr(pool, "allocate") and hasattr(pool, "free")):
        raise TypeError(
            f"{pool!r} is no pool: give a dtr_alloc.Pool or what dtr_alloc.allocator returned"
        )
    arena = getattr(pool, "arena", "cuda")
    if arena != "cuda":
        raise ValueError(
            f'the pool\'s memory is "{arena}", which CuPy cannot use: make it with arena="cuda"'
        )
    if not isinstance(pool, Pool):
        return device
    if device not in (None, pool.device):
        raise ValueError(
            f"device {device} with a pool on device {pool.device}: leave device out, or make the "
            f'pool there, dtr_alloc.Pool(budget, arena="cuda", device={device})'
        )
    return pool.device


def _number(stream: Any) -> int:
    """The driver's name of a stream, as RMM hands it over: nothing, a number, or an object that
    follows CUDA's stream protocol."""
    if stream is None:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    return int(stream)
