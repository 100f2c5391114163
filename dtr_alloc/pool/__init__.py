"""A memory pool with a budget that holds.

The pool that the runtime evicts from, for use by hand: in tests, in simulations, and by libraries
that allocate by address. It is a thin layer over `_core.Pool`; how blocks are placed and how pages
move is told in `csrc/pool.h`.
"""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch

from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET, format_size, parse_size

__all__ = ["Block", "Pool", "PoolStats"]

_LARGEST_ARENA = 2 * LARGEST_BUDGET


@dataclass(frozen=True, slots=True)
class PoolStats:
    """State of a pool at one moment, in bytes; the sizes of blocks are rounded up to 512."""

    budget: int
    live: int
    """Bytes in live blocks; never more than the budget."""
    peak: int
    """The most that `live` was since the pool was made or `reset_peak` was called; exact."""
    committed: int
    """Bytes of pages that the pool holds. More than the budget rounded up to a page only where a
    request would have been turned down otherwise; what is beyond it is then the free ends of pages
    that live blocks lie on."""
    largest_hole: int
    """Bytes of the largest free range of addresses, or `budget - live` where that is less."""
    external_fragmentation: float
    """`1 - largest_hole / (budget - live)`, what one request cannot get of it; 0 when full."""
    live_blocks: int
    allocations: int
    frees: int
    failures: int
    """Requests that were turned down."""
    remaps: int
    """Allocations for which pages were taken away from free ranges."""
    quarantined: int
    """Bytes that are freed but count as live until the quarantine ends."""
    stream_waits: int
    """Times that a stream was made to wait for another one's work before it got a block."""
    peak_committed: int
    """The most that `committed` was since the pool was made or `reset_peak` was called."""


class Block(NamedTuple):
    """A range of a pool's addresses: a live block, or a hole between live blocks."""

    address: int
    size: int
    free: bool


class Pool:
    """Memory of one arena, handed out by address, up to a budget of bytes.

    A request takes the smallest hole that holds it (best fit); holes that touch are merged at once.
    Sizes are rounded up to 512 bytes. The pool may have more addresses than budget: where the free
    bytes lie scattered, it takes the pages of other holes away and backs one hole with them. A
    request that the budget has bytes for is not turned down for want of whole pages.

    All methods may be called from any thread, and after `os.fork` in the child. Blocks that are
    still live when the pool is dropped are freed with it: keep the pool as long as its addresses
    are in use.

    On a CUDA device a block is allocated for a stream: an int, `torch.cuda.Stream.cuda_stream`; 0
    is the default stream. It may be freed while work of that stream still uses it: the same stream
    may have the memory again at once, and another one is made to wait by an event. Other arenas
    ignore streams.

    Args:
        budget: The most that live blocks may hold together: an int of bytes, or a string such as
            `"8GiB"`.
        arena: Where the memory is. `"host"`: this process. `"virtual"`: nowhere; addresses that
            must not be touched, to see what a program of allocations would do. `"cuda"`: a CUDA
            device.
        device: The number of the CUDA device.
        rdma: Whether a network card can reach the pages of a CUDA device (GPUDirect RDMA).
        exportable: Whether a POSIX file descriptor can name them, for another process to map.
        address_space: Bytes of addresses to reserve, at least the budget; rounded up to a page. By
            default the budget for `"virtual"`, so that fragmentation shows as it would on memory
            that cannot be remapped, and else twice the budget and 64 MiB.

    Raises:
        TypeError: `budget` or `address_space` is neither an int nor a string.
        ValueError: `arena` has no such name, a size is not one, `address_space` is
            less than the budget, either is more than 32 TiB, there is no such device, or pages of
            another arena than a device's were asked for `rdma` or `exportable`.
        RuntimeError: There is no CUDA driver, it turned a call down, or the device makes no such
            pages.
        MemoryError: the process cannot reserve that many addresses.

    Example:
        >>> pool = Pool("1MiB")
        >>> block = pool.allocate(1000)
        >>> pool.stats().live
        1024
        >>> pool.free(block)
    """

    def __init__(
        self,
        budget: int | str,
        arena: Literal["host", "cuda", "virtual"] = "host",
        *,
        device: int = 0,
        rdma: bool = False,
        exportable: bool = False,
        address_space: int | str | None = None,
    ) -> None:
        if arena not in ("host", "cuda", "virtual"):
            raise ValueError(f'arena "{arena}" is unknown: use "host", "cuda" or "virtual"')
        if (rdma or exportable) and arena != "cuda":
            raise ValueError(f'rdma and exportable are of arena "cuda", not of "{arena}"')
        limit = parse_size(budget, most=_LARGEST_ARENA)
        if address_space is not None:
            space = parse_size(address_space, "address_space", _LARGEST_ARENA)
        else:
            space = limit if arena == "virtual" else max(limit, _core.usual_addresses(limit))
        if space < limit:
            raise ValueError(
                f"address_space {format_size(space)} is less than the budget, {format_size(limit)}"
            )
        self._core = _core.Pool(limit, arena, space, device, rdma, exportable)
        self._device = device if arena == "cuda" else 0

    @property
    def device(self) -> int:
        """The number of the CUDA device that the memory is on; 0 of other arenas."""
        return self._device

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Returns the address of a new block of `size` bytes, rounded up to 512 (0 as 1), for work
        of `stream`. Its contents are undefined.

        Raises:
            torch.OutOfMemoryError: The block would pass the budget, or no hole holds it.
            ValueError: `size` is negative, or `stream` is the per-thread default stream.
            MemoryError: The budget allows the block, but the machine or the device has no memory
                for it.
            RuntimeError: The CUDA driver turned a call down. Nothing has been allocated.
        """
        address = self._core.allocate(size, stream=stream)
        if address is None:
            raise torch.OutOfMemoryError(self._full(size))
        return address

    def free(self, address: int) -> None:
        """Frees the block that starts at `address`.

        Raises:
            ValueError: No live block starts there: it was freed before, or is not of this pool.
        """
        self._core.free(address)

    def record_stream(self, address: int, stream: int) -> None:
        """Says that work of another stream uses the block, too: once the block is freed, its memory
        waits for what that stream was given up to then.

        Raises:
            ValueError: No live block starts there, or `stream` is the per-thread default stream.
        """
        self._core.record_stream(address, stream)

    def retire_stream(self, stream: int) -> None:
        """Says that a stream is about to be destroyed, and waits for its work. Call it before that,
        since a new stream may get the same number, and the pool would take one for the other.

        Raises:
            RuntimeError: A quarantine has begun, in which nothing may be waited for.
        """
        self._core.retire_stream(stream)

    def begin_quarantine(self) -> None:
        """Keeps blocks that are freed from now on out of use, until `end_quarantine`. For the
        capture of a graph: call it before the capture begins. It waits for the work that uses free
        memory, so that none of the blocks allocated in between needs an event. Calls nest."""
        self._core.begin_quarantine()

    def end_quarantine(self) -> None:
        """Ends a quarantine; the last one frees the blocks for good.

        Raises:
            ValueError: There was none.
        """
        self._core.end_quarantine()

    def free_neighbours(self, address: int) -> tuple[int, int]:
        """Returns the free bytes directly before and after the block that starts at `address`.

        Raises:
            ValueError: No live block starts there.
        """
        return self._core.free_neighbours(address)

    def stats(self) -> PoolStats:
        """Returns sizes and counts, all of the same moment."""
        now = self._core.stats()
        return PoolStats(*(getattr(now, field.name) for field in fields(PoolStats)))

    def snapshot(self) -> list[Block]:
        """Returns all blocks in address order, live and free; together they cover the address
        space."""
        return [Block(*row) for row in self._core.snapshot()]

    def trim(self) -> int:
        """Gives every page that holds no live byte back to the machine, once no stream uses it
        any more. Returns the bytes given back."""
        return self._core.trim()

    def reset_peak(self) -> None:
        """Sets `stats().peak` to the bytes that are live now, and `peak_committed` likewise."""
        self._core.reset_peak()

    def check(self) -> None:
        """Walks all bookkeeping, for tests: O(blocks + pages).

        Raises:
            RuntimeError: Something does not hold, which would be a fault of the pool.
        """
        self._core.check()

    @property
    def budget(self) -> int:
        """The most bytes that live blocks may hold together."""
        return self._core.budget

    @property
    def arena(self) -> str:
        """`"host"`, `"cuda"` or `"virtual"`."""
        return self._core.arena

    @property
    def address_space(self) -> int:
        """Bytes of addresses reserved."""
        return self._core.address_space

    def _full(self, size: int) -> str:
        now = self.stats()
        return (
            f"pool is full: {format_size(size)} asked, {format_size(now.budget - now.live)} free, "
            f"largest hole {format_size(now.largest_hole)}; budget {format_size(now.budget)}"
        )
