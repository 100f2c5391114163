"""Opening a scope, and joining one.

Entering a scope puts the CPU tensors that torch makes under the budget and routes the
operators of this thread (of the autograd threads it starts, and of those that join) through the
runtime. Leaving it makes everything the program still holds an ordinary tensor. A scope also has to
get through an error in its body, a fork, and an exit of the process (used_once.py).
Source: DTR (section 3); the rules that keep results exact are in DESIGN.md.
"""

from __future__ import annotations

import numbers
import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal, cast

import torch

from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET, Share, Size, parse_budget, parse_size
from dtr_alloc.runtime.adapters import libraries
from dtr_alloc.runtime.heuristic import DEFAULT, Heuristic, insist_float, insist_name, resolve_live
from dtr_alloc.runtime.scope import current, out_of_memory
from dtr_alloc.runtime.scope.advice import Adviser
from dtr_alloc.runtime.scope.current import CpuScope, OpenScope
from dtr_alloc.runtime.scope.memory_history import number_kept
from dtr_alloc.runtime.scope.opening import Opening
from dtr_alloc.runtime.scope.peak_share import PeakShare, whole_machine
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.scope.steps import Steps
from dtr_alloc.runtime.scope.swapping import Folder, native_swap
from dtr_alloc.runtime.scope.used_once import Once, used_once
from dtr_alloc.runtime.simulate.rules import Clock, live

Memory = Literal["pool", "torch"]
"""Who keeps the bytes of a scope's tensors."""


def check_thrash_limit(limit: float) -> None:
    """Raises TypeError or ValueError unless it is 0 or more."""
    if isinstance(limit, bool) or not isinstance(limit, numbers.Real):
        raise TypeError(f"thrash_limit {limit!r} is not a number")
    insist_float("thrash_limit", limit)
    if not limit >= 0:
        raise ValueError(f"thrash_limit is {limit!r}; it must be 0 or more")


@used_once
def rematerialize(
    budget: Size | Share | None,
    *,
    within: Size | None = None,
    device: str | torch.device = "cpu",
    memory: Memory = "pool",
    heuristic: str | Heuristic = DEFAULT,
    clock: str = "wall",
    timeline: bool = False,
    events: bool | int = False,
    thrash_limit: float = 100.0,
    recordable: Iterable[str] = (),
    swap: int | str | None = None,
    swap_dir: Folder | None = None,
    swap_anywhere: bool = False,
    debug: bool = False,
    strict: bool = False,
) -> AbstractContextManager[Session]:
    """Runs the body under a memory budget, which the bytes of CPU tensors made inside never pass.

    When an allocation would, the tensors cheapest to recompute are evicted, and recomputed when
    next touched. Results are bit for bit those of plain torch. Tensors made before the scope
    (parameters, usually) lie outside the budget. What lives on after the scope is an ordinary
    tensor.

    Args:
        budget: bytes, or a text such as ``"2GiB"``, up to 16 TiB; None records
            everything, and evicts only by hand (``evict``, ``Session.release``). Or a share,
            ``"60%"``: of the activation peak, which the program's first step shows, and all of what
            must stay besides (gradients, the state of an optimizer, parameters made in the scope).
            That step runs without a budget. At its end, that of the first ``optimizer.step()``,
            the budget is set, and once more if the second step needs more (docs/scope.md).
        within: with a share, the budget of the first step. None: the machine's memory.
        device: ``"cpu"``.
        memory: ``"pool"``: tensors come from a pool of our own, which is faster with large tensors,
            and whose pages the budget bounds too; ``"torch"``: torch's own allocator makes each
            tensor, and the runtime counts and evicts. The scope's end then copies nothing, and the
            budget may grow (``Session.resize``). It bounds the bytes of tensors, each rounded up
            to 512, not what malloc holds besides (docs/torch_memory.md).
        heuristic: a preset's name or a ``Heuristic``, by which victims are chosen. What is for
            studies alone, a simulation has (docs/heuristics.md).
        clock: what an operator costs: ``"wall"``, its time, or ``"logical"``, the bytes it touches,
            which makes the evictions of a run repeatable.
        timeline: keep the pool's bytes in use after every operator (``Session.timeline``).
        events: keep what happens to memory, for pictures (``Session.dump_snapshot``, ``plot``,
            ``held``, ``export_chrome_trace``): True for the last 262,144 events, or how many. One
            takes 56 bytes. The script's line is looked up for each operator, some microseconds.
        thrash_limit: recomputing this many times longer than computing, over two seconds, is an
            error; 0 for no limit.
        recordable: operators of other libraries that you vouch for, such as ``("mylib::*",)``:
            each depends on its arguments and torch's default generator alone, so that it can be run
            again. Those with ``pt2_compliant_tag``, which ``torch.library.custom_op`` gives, need
            no name. ``Session.summary`` tells which stay in memory (docs/ecosystem.md).
        swap: bytes, or a text such as ``"8GiB"``, of a file for what nobody can recompute:
            gradients, the state of an optimizer, what is not recorded. They go there when memory is
            full, as if to write and read them were their recomputation, and come back when next
            touched. Each of at least 16 KiB has a place in the file while it lives, so this bounds
            them all. The disk has all of it from the start (docs/swap.md).
        swap_dir: the folder of that file, on a disk of this machine; by default that of temporary
            files. The file has no name, and is gone when the scope is over or the process ends.
        swap_anywhere: allow a folder on a network or in memory.
        debug: look for writes that nobody declared: each constant that a recomputation would read
            (parameters, inputs, exposed tensors) and each argument that an operator says it only
            reads is compared by a checksum before and after. Costs a pass over every argument of
            every operator. The first call of each operator of another library is run twice and
            compared. docs/exactness.md tells what is found and what cannot be.
        strict: an operator that was refused memory, caught the error and went on with less raises.
            Otherwise a warning names it: another algorithm may have made other last bits, as
            cuDNN's without a workspace.

    Raises:
        TypeError, ValueError: an argument that is not understood. Nothing has changed then.
        MemoryError: the process cannot reserve the pool's addresses, twice the budget.
        RuntimeError: a scope is already open in this process; or, with debug, inside the scope, by
            the first operator that wrote what it should not have, or that reads what was written
            behind the runtime's back; the text names what made the tensor. Or an operator of
            another library made other bytes when it was run again. Or the disk has no room for the
            swap, or fails to write or read it, in which case nothing is lost.
        torch.OutOfMemoryError: inside the scope, where the budget cannot hold what one operator
            needs together with what cannot be recomputed. The text names the least that would have
            served this request; and the budget in which all would run, by a simulation, once whole
            steps of an optimizer were seen: in this scope, or in one (or a ``measure``) before it
            that began alike. Two steps tell more than one. The error's attributes ``needed`` and
            ``suggested_budget`` are these two in bytes, and ``operator`` is the name of the one
            that asked; each is None where it is not known.

    Example:
        >>> import torch
        >>> with rematerialize("64MiB") as session:
        ...     x = torch.ones(1000).exp().sum()
        >>> session.stats().peak_bytes <= 64 << 20
        True
    """
    _check_device(device)
    asked = None if budget is None else parse_budget(budget, most=LARGEST_BUDGET)
    size = _first_budget(asked, within, swap)
    insist_name("memory", memory, Memory)
    if memory == "torch" and size is None:
        raise ValueError(
            'budget None with memory="torch": nothing would ever be evicted, because torch does '
            "not say when the machine is out of memory; give a budget (dtr_alloc.measure() tells "
            'what the program needs), or leave memory="torch" out'
        )
    insist_name("clock", clock, Clock)
    check_thrash_limit(thrash_limit)
    chosen = resolve_live(heuristic)
    kept = number_kept(events)
    if swap is not None and size is None:
        raise ValueError("swap goes with a budget: without one nothing leaves memory")
    core = _core.Session(
        budget=size or 0,
        guest=memory == "torch",
        heuristic=chosen._native(),
        recordable=libraries.checked(recordable),
        logical_clock=clock == "logical",
        timeline=timeline,
        events=kept,
        thrash_limit=float(thrash_limit),
        debug=debug,
        strict=strict,
        **native_swap(swap, swap_dir, anywhere=swap_anywhere),
        **current.instruments,
    )
    adviser = Adviser(core, live(chosen, cast(Clock, clock)), swap=swap is not None)
    share = None
    if isinstance(asked, Share) and size is not None:
        share = PeakShare(asked, size, core, adviser.peak_bytes)
    steps = Steps(share)
    session = partial(Session, core, steps)
    return Opening(core, session, CpuScope(core, adviser, steps))


@used_once
def measure(
    *, device: str | torch.device = "cpu", timeline: bool = False, events: bool | int = False
) -> AbstractContextManager[Session]:
    """Runs the body as plain torch does, but counts its memory. Nothing is evicted. CPU tensors
    come from a pool. On CUDA they stay torch's, and those from before the body count, too.

    ``session.stats().peak_bytes`` is what the body needs without a budget, and
    ``session.summary()`` says how much of it a budget may save, and which budget to try. An
    OutOfMemoryError of a later ``rematerialize`` that begins alike tells the budget in which this
    body would run.

    Args:
        device: ``"cpu"`` or a CUDA device, where the peak is torch's, which begins anew.
        timeline: keep the bytes in use after every operator.
        events: keep what happens to memory, as ``rematerialize`` does; on the CPU alone.

    Raises:
        ValueError: another device, or `events` is no number of them.
        RuntimeError: a scope is already open in this process, or there is no CUDA, or memory of
            CUDA that is not torch's own.

    Example:
        >>> import torch
        >>> with measure() as session:
        ...     x = torch.ones(1000).exp()  # Two tensors of 4,000 bytes, in blocks of 4,096.
        >>> session.stats().peak_bytes
        8192
    """
    if str(device).startswith("cuda"):
        from dtr_alloc.runtime.scope.cuda_allocator import Counted

        counted = Counted(device, timeline=timeline, events=bool(events))
        return Opening(counted, counted.session, counted.scope)
    _check_device(device)
    core = _core.Session(
        heuristic=resolve_live(DEFAULT)._native(),
        record=False,
        timeline=timeline,
        events=number_kept(events),
        **current.instruments,
    )
    steps, adviser = Steps(), Adviser(core, live())
    session = partial(Session, core, steps, measured=adviser)
    return Opening(core, session, CpuScope(core, adviser, steps))


def _first_budget(asked: int | Share | None, within: Size | None, swap: object) -> int | None:
    """What a scope opens with, of which None is no budget."""
    if not isinstance(asked, Share):
        if within is not None:
            raise ValueError(
                f"within {within!r} is what the first step has where the budget is a share, such "
                'as "60%": write one, or leave within out'
            )
        return asked
    if swap is not None:
        raise ValueError(f"budget {asked} with swap: with one, nothing must stay; write bytes")
    return whole_machine() if within is None else parse_size(within, "within", LARGEST_BUDGET)


def _check_device(device: str | torch.device) -> None:
    try:
        on_cpu = torch.device(device).type == "cpu"
    except (RuntimeError, TypeError):
        on_cpu = False
    if not on_cpu:
        raise ValueError(
            f'device {device!r} has no scope; only "cpu" has. On CUDA, directly after the imports: '
            "torch.cuda.memory.change_current_allocator(dtr_alloc.allocator(budget)), which takes "
            'memory="torch" as well'
        )


def join_scope() -> Once:
    """Makes the operators that this thread runs in the body part of the scope that is open.

    A scope's own thread, and autograd's threads, belong to it from the start; any other thread that
    computes on the scope's tensors joins it first. Threads share the budget, and a tensor that
    several of them need is recomputed once. Recomputations, writes in place and random numbers
    take turns; other operators run side by side. Leaving the scope waits for those who joined.

    Raises:
        RuntimeError: no scope is open, or this thread belongs to one already, or a trace of the
            scope is being recorded; and in another thread that leaves it while this one lives.

    Example:
        >>> import threading, torch
        >>> with rematerialize("64MiB"):
        ...     x = torch.ones(1000).exp()
        ...     def work() -> None:
        ...         with join_scope():
        ...             print(f"{x.sum():.0f}")
        ...     thread = threading.Thread(target=work)
        ...     thread.start()
        ...     thread.join()
        2718
    """
    return Once("joining", "join_scope()", _Joining)


class _Joining(AbstractContextManager[None]):
    """From when this thread joins to when it parts, or when another does that after its end.
    `__exit__` may be called repeatedly."""

    _thread: threading.Thread | None = None
    _opened: OpenScope | None = None
    _member: _core.Member | current.Recorded | None = None

    def __enter__(self) -> None:
        self._thread = threading.current_thread()
        self._opened = current.scope()
        if self._opened is None or not self._opened.admit(self):
            raise RuntimeError(
                "join_scope() in a thread, but no dtr_alloc scope is open: open rematerialize() "
                "before the thread starts, and keep it open until the thread is done"
            )
        self._member = self._opened.member()
        self._member.join()

    def __exit__(self, *_: object) -> None:
        thread = self._thread
        if thread is None:
            return
        here = thread.is_alive() and thread.ident == threading.get_ident()
        if thread.is_alive() and not here:
            raise RuntimeError(
                f"the thread {thread.name} has called join_scope(), and may still compute in "
                "the scope: leave it there"
            )
        if self._member is not None:
            self._member.part(here)
            if here:
                _core.set_in_optimizer(False)
        if self._opened is not None:
            self._opened.dismiss(self)


def _before_fork() -> None:
    if opened := current.scope():
        opened.before_fork()


def _in_child() -> None:
    if opened := current.scope():
        opened.abandon_in_child()
        current.keep_forever(opened)
        current.end()


def _advise(at_least: int) -> str:
    opened = current.scope()
    return "" if opened is None or not opened.adviser else opened.adviser.advise(at_least)


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
_core.set_adviser(_advise)
out_of_memory.install()
