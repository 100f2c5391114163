"""The allocator for `torch.cuda.memory.change_current_allocator`: one line sets a program up.

Nothing happens to the GPU when it is made: torch asks it for memory later, and then the pool of
that device is reserved. From then on the operators of the thread that made it, and of the autograd
threads it starts, are recorded, and an allocation that would pass the budget evicts what is
cheapest to recompute. How torch's own names (memory_stats, empty_cache, graphs, ...) behave is
told in docs/allocator.md.

With `memory="torch"` torch's own allocator keeps the memory, and the object stands before it
(docs/torch_memory.md). It may then come when CUDA is in use, and go again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.cuda.memory import _CUDAAllocator

from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET, format_size, parse_size
from dtr_alloc.runtime.adapters import libraries
from dtr_alloc.runtime.heuristic import (
    DEFAULT,
    Heuristic,
    Scorer,
    insist_name,
    native_scorer,
    resolve_live,
)
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.advice import Adviser
from dtr_alloc.runtime.scope.current import CudaScope
from dtr_alloc.runtime.scope.memory_history import number_kept
from dtr_alloc.runtime.scope.scope import Memory, check_thrash_limit
from dtr_alloc.runtime.scope.serving import Service
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.scope.steps import Steps
from dtr_alloc.runtime.scope.swapping import host_swap
from dtr_alloc.runtime.simulate.rules import live

__all__ = ["Allocator", "Guest", "allocator"]


class Allocator(_CUDAAllocator):
    """What `allocator` returns. Torch calls `allocator()`; the rest is for you."""

    def __init__(
        self,
        core: _core.CudaAllocator | _core.GuestAllocator,
        budget: int | None,
        device: int | None,
        steps: Steps,
        *,
        serves: bool,
    ) -> None:
        self._native = core.native()
        super().__init__(self._native)
        self._core = core
        self._budget = budget
        self._device = device
        self._steps = steps
        if serves:  # Last: what serves must not be lost to an exception.
            self._service = Service(CudaScope(core, steps))

    def allocator(self) -> Any:
        """The native object, for `change_current_allocator`.

        Raises:
            RuntimeError: CUDA is in use already; the text says where the call belongs.
        """
        _refuse_if_late()
        return self._native

    @property
    def budget(self) -> int | None:
        """The most bytes that live tensors of one device may have; None: as many as it holds."""
        return self._budget

    @property
    def device(self) -> int:
        """The number of the device that it was made for, else 0."""
        return self._device if self._device is not None else 0

    @property
    def session(self) -> Session | None:
        """What the runtime did so far. None before the first request for memory, or without
        rematerialization."""
        core = self._core.session()
        return None if core is None else Session(core, self._steps)

    def allocate(self, size: int, *, stream: int = 0, device: int | None = None) -> int:
        """Returns the address of a block of the same pool that torch's tensors lie in, for work of
        a stream; tensors are evicted for it if need be.

        Raises:
            torch.OutOfMemoryError: The budget or the device cannot hold it.
            ValueError: `size` is negative, or `stream` is the per-thread default stream.
            RuntimeError: There is no CUDA driver, or it turned a call down.
        """
        if size < 0:
            raise ValueError(f"size is {size}; it must not be negative")
        return self._core.allocate(max(size, 1), self.device if device is None else device, stream)

    def free(self, address: int) -> None:
        """Frees a block that `allocate` returned.

        Raises:
            RuntimeError: No live block starts there.
        """
        self._core.free(address)

    def retire_stream(self, stream: int, *, device: int | None = None) -> None:
        """Says that a stream is about to be destroyed that torch did not make, such as CuPy's under
        `torch.cuda.ExternalStream`. The runtime remembers each stream that read a tensor, and would
        have others wait for one that is gone. Call it before the stream is destroyed: the host
        waits for its work. With ``memory="torch"`` torch goes on remembering the stream for
        tensors that were pinned or handed out meanwhile: delete these before the stream, too.

        Args:
            stream: its handle (CUstream), such as ``cupy.cuda.Stream.ptr``.
            device: its CUDA device. None: the one that the allocator was made for, else 0.

        Raises:
            RuntimeError: a graph is being captured, or the driver turned a call down. The call may
                be repeated.
        """
        self._core.retire_stream(stream, self.device if device is None else device)

    def __repr__(self) -> str:
        budget = "no budget"
        if self._budget is not None:
            budget = f"a budget of {format_size(self._budget)}"
        return f"<dtr_alloc.{type(self).__name__} with {budget}>"


class Guest(Allocator):
    """What `allocator(memory="torch")` returns: torch's own allocator, with the runtime above it.

    `change_current_allocator` takes it before CUDA is used. `install` does the same at any time.
    """

    def __init__(self, core: _core.GuestAllocator, budget: int | None, device: int | None) -> None:
        self._guest = core
        super().__init__(core, budget, device, Steps(), serves=True)

    def allocate(self, size: int, *, stream: int = 0, device: int | None = None) -> int:
        if size >= 0:  # Torch's allocator is ready once CUDA is.
            torch.cuda.init()  # type: ignore[no-untyped-call]
        return super().allocate(size, stream=stream, device=device)

    def install(self) -> None:
        """Puts it before torch's allocator, though CUDA may be in use. Tensors that exist stay as
        they are: they count in the budget, and are not evicted.

        Raises:
            RuntimeError: another allocator was installed since this one was made, or this one was
                removed.
        """
        self._guest.install()

    def remove(self) -> None:
        """Leaves torch's allocator alone again, for good: what was evicted is recomputed, and every
        tensor is an ordinary one, where it lies. The budget no longer holds. One that has served
        nothing makes way for another allocator or scope, installed or not.

        Raises:
            RuntimeError: it was removed before, or has served memory and is not installed now; or
                another thread made it, or threads that joined compute under it.
            torch.OutOfMemoryError: the device has not the memory. It stays installed.
        """
        self._service.end(self._guest.remove)


class Counted:
    """What the scope of `measure` opens on CUDA: torch's own allocator, with a session before it
    that counts. It comes and goes at any time. Torch does not tell when memory is freed, so there
    is no trace to simulate; and its books go on afterwards, so the figures are kept.
    """

    def __init__(self, device: str | torch.device, *, timeline: bool, events: bool) -> None:
        """Raises ValueError or RuntimeError as `measure` does."""
        if events:
            raise ValueError(
                f'events with device "{device}": the memory is torch\'s, and torch.cuda.memory.'
                "_record_memory_history() keeps them; leave events out"
            )
        number = _device_number(device)
        _refuse_without_cuda(f'dtr_alloc.measure(device="{device}")', "dtr_alloc.measure()")
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._device = torch.cuda.current_device() if number is None else number
        options: dict[str, Any] = {"device": self._device, "record": False, "timeline": timeline}
        options["heuristic"] = resolve_live(DEFAULT)._native()
        self._guest = _core.GuestAllocator(**options, **current.instruments)
        self.scope = CudaScope(self._guest, Steps())

    def session(self) -> Session:
        """What the program gets, once `enter` was called."""
        core = self._guest.session()
        assert core is not None
        adviser = Adviser(core, live(), call="allocator")
        return Session(core, self.scope.steps, measured=adviser)

    def enter(self) -> None:
        """Raises RuntimeError where a scope is open."""
        self._guest.install()
        self._guest.free(self._guest.allocate(1, self._device, 0))  # Makes the session.
        self.session().reset_peak()
        _core.record_this_thread(True)

    def leave(self) -> tuple[int, int]:
        """Whatever was begun; again, too. Nothing was evicted, so nothing comes back."""
        if self._guest.installed():
            if front := self.scope.front and self.scope.front():
                front._last = front.stats()
            self._guest.remove()
        return 0, 0

    def take_untold(self) -> list[str]:
        """As a session's."""
        return self.session()._core.take_untold()


def allocator(
    budget: int | str | None = None,
    device: int | str | torch.device | None = None,
    rematerialize: bool = True,
    heuristic: str | Heuristic = DEFAULT,
    *,
    memory: Memory = "pool",
    scorer: Scorer = "auto",
    thrash_limit: float = 100.0,
    recordable: Iterable[str] = (),
    rdma: bool = False,
    exportable: bool = False,
    swap: int | str | None = None,
    events: bool | int = False,
    strict: bool = False,
) -> Allocator:
    """The allocator for `torch.cuda.memory.change_current_allocator`.

    Call it in the thread that trains, once, before CUDA is used. Results are bit for bit those of
    plain torch where the operators themselves are deterministic.

    Args:
        budget: The most that live tensors of a device may hold together: an int of bytes, or a
            string such as `"8GiB"`. Parameters and optimizer state count, too. None, with
            ``memory="torch"``: tensors are evicted only where torch would be out of memory.
        device: The CUDA device whose tensors are evicted. None: the first that is used. Other
            devices get a pool with the same budget, from which nothing is evicted.
        rematerialize: Whether to evict and recompute. Without, a full pool is out of memory.
        heuristic: A preset's name or a `Heuristic`, as `rematerialize` has it.
        memory: ``"pool"``: all memory comes from a pool of our own; ``"torch"``: torch's own
            allocator keeps it, with all that it can do, and the runtime evicts
            (docs/torch_memory.md). There is then no `rdma`, no `exportable`.
        scorer: Where victims are chosen. ``"auto"``: by the host, and by the device where there are
            so many candidates that it is faster, which is measured at the first request for memory;
            ``"host"`` and ``"device"``: always there. The victims are the same.
        thrash_limit: Recomputing this many times longer than computing, over two seconds, is an
            error; 0 for no limit.
        recordable: Operators of other libraries that you vouch for, as `rematerialize` has them.
        rdma: Whether a network card can reach the memory (GPUDirect RDMA).
        exportable: Whether a POSIX file descriptor can name pages of it, for another process to
            map. NCCL and UCX ask for both where they register memory. A device that makes no such
            pages is an error at the first request for memory, and then nothing was reserved.
        swap: Bytes, or a text such as ``"32GiB"``, of the host's memory for what nobody can
            recompute (gradients, the state of an optimizer) and for what takes longer to recompute
            than to copy. It is page-locked at the first request for memory, all of it; a machine
            that refuses is an error then (docs/swap.md).
        events: Keep what happens to memory, for pictures, as `rematerialize` does. With
            ``memory="torch"`` torch does: ``torch.cuda.memory._record_memory_history``.
        strict: An operator that was refused memory and went on with less raises, as `rematerialize`
            has it: cuDNN without a workspace, for example.

    Raises:
        TypeError, ValueError: An argument that is not understood. Nothing has changed then.
        RuntimeError: This build or this torch has no CUDA, CUDA is in use already, or a scope is
            open; the text says what to do.

    Example:
        >>> chosen = dtr_alloc.allocator("8GiB")  # doctest: +SKIP
        >>> torch.cuda.memory.change_current_allocator(chosen)  # doctest: +SKIP
    """
    insist_name("memory", memory, Memory)
    if memory == "torch":
        _refuse_what_a_guest_lacks(rematerialize, rdma, exportable, swap is not None, bool(events))
    elif budget is None:
        raise ValueError(
            'budget None with memory="pool": the pool needs a size; give a budget, or take '
            'memory="torch", which evicts only where torch would be out of memory'
        )
    size = None if budget is None else parse_size(budget, most=LARGEST_BUDGET)
    number = _device_number(device)
    host = host_swap(swap, rematerialize=rematerialize)
    chosen = resolve_live(heuristic)
    place = native_scorer(scorer)
    kept = number_kept(events)
    for given, name, why in (
        (kept, "events", "nobody keeps them"),
        (strict, "strict", "no operator is watched"),
    ):
        if given and not rematerialize:
            raise ValueError(f"{name} with rematerialize=False: {why}; leave one of them out")
    check_thrash_limit(thrash_limit)
    vouched = libraries.checked(recordable)
    same = "" if memory == "pool" else ', memory="torch"'
    some = "8GiB" if budget is None else budget
    _refuse_without_cuda(
        "dtr_alloc.allocator()", f'dtr_alloc.rematerialize({some!r}, device="cpu"{same})'
    )
    if memory == "pool":
        _refuse_if_late()
    from dtr_alloc.kernels import ahead

    options: dict[str, Any] = {
        "device": -1 if number is None else number,
        "heuristic": chosen._native(),
        "thrash_limit": float(thrash_limit),
        "scorer": place,
        "image": ahead.image(),
        "recordable": vouched,
        "strict": strict,
    }
    if memory == "torch":
        guest = _core.GuestAllocator(budget=size or 0, **options)
        return Guest(guest, size, number)
    assert size is not None
    options |= {"rematerialize": rematerialize, "rdma": rdma, "exportable": exportable}
    core = _core.CudaAllocator(budget=size, swap=host, events=kept, **options)
    return Allocator(core, size, number, Steps(), serves=rematerialize)


def _refuse_without_cuda(call: str, scope: str) -> None:
    on_cpu = f"on CPU use `with {scope}:`"
    if torch.version.cuda is None:
        raise RuntimeError(
            f"{call} serves CUDA devices, and torch {torch.__version__} is built "
            f"without CUDA: install a CUDA build of torch and build dtr_alloc again; {on_cpu}"
        )
    if not hasattr(_core, "CudaAllocator"):
        raise RuntimeError(
            "dtr_alloc was built without its CUDA allocator, because the headers of CUDA's runtime "
            "were not found: set CUDA_HOME to a toolkit and build it again: "
            f"pip install --no-build-isolation -e .; {on_cpu}"
        )


def _refuse_what_a_guest_lacks(
    rematerialize: bool, rdma: bool, exportable: bool, swap: bool, events: bool
) -> None:
    torchs = "the memory is torch's"
    for given, name, reason in (
        (not rematerialize, "rematerialize=False", "a guest has nothing else to do"),
        (rdma, "rdma=True", torchs),
        (exportable, "exportable=True", torchs),
        (swap, "swap", torchs),
        (events, "events", f"{torchs}, and torch.cuda.memory._record_memory_history() keeps them"),
    ):
        if given:
            raise ValueError(f'{name} with memory="torch": {reason}; leave one of them out')


def _device_number(device: int | str | torch.device | None) -> int | None:
    if device is None or (isinstance(device, int) and not isinstance(device, bool)):
        if device is not None and device < 0:
            raise ValueError(f"device {device} is not the number of a CUDA device")
        return device
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} is not a CUDA device: {error}") from error
    if named.type != "cuda":
        raise ValueError(f'device "{named}" is not a CUDA device')
    return named.index


def _refuse_if_late() -> None:
    if _core.cuda_allocator_in_use():
        raise RuntimeError(
            "it is too late to change the CUDA allocator: this process has used CUDA already. Call "
            "torch.cuda.memory.change_current_allocator(dtr_alloc.allocator(...)) directly after "
            "the imports, before any tensor is put on a GPU and before torch.cuda.manual_seed, "
            "mem_get_info or get_device_properties; a library that probes the GPU at import comes "
            "after it"
        )
