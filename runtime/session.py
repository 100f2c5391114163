"""The scope in which a program runs under a memory budget, and what it did there.

Entering a scope makes torch take CPU memory from a pool of the budget's size and routes the
operators of this thread (of the autograd threads it starts, and of those that join) through the
runtime. Leaving it makes everything the program still holds an ordinary tensor.
Source: DTR (section 3); the rules that keep results exact are in DESIGN.md.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import numbers
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dtr_alloc import _core
from dtr_alloc.runtime import advice, chrome_trace, compiled_code, higher_order, raw_access
from dtr_alloc.runtime.heuristic import Heuristic, Policy, native_policy, native_scorer, resolve
from dtr_alloc.size import LARGEST_BUDGET, format_size, parse_size

# Addresses reserved for a pool without a budget: twice the machine's memory, and 128 GiB at least.
_NO_LIMIT = max(1 << 37, 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
_NO_LIMIT = min(_NO_LIMIT, LARGEST_BUDGET)


@dataclass(frozen=True)
class SessionStats:
    """What a session did so far. Times are nanoseconds, sizes bytes.

    Attributes:
        operators: torch operators run by the program, without recomputations.
        recorded: those whose results can be recomputed.
        evictions: tensors evicted; what the program itself dropped does not count.
        rematerializations: operators run again.
        records: live entries of the runtime's own book-keeping; 0 after a commit.
        kernel_ns: time in the program's operators.
        remat_ns: time in operators run again.
        search_ns: time spent finding memory: choosing victims and giving their blocks back.
        bookkeeping_ns: everything else the runtime did around operators.
        live_bytes: pool bytes in use.
        peak_bytes: most pool bytes ever in use since the scope was opened or the peak reset.
        evictable_bytes: pool bytes that could be evicted now.
        largest_operator_bytes: arguments and results of the largest operator so far.
        budget_bytes: the budget, or None without one.
    """

    operators: int
    recorded: int
    evictions: int
    rematerializations: int
    records: int
    kernel_ns: int
    remat_ns: int
    search_ns: int
    bookkeeping_ns: int
    live_bytes: int
    peak_bytes: int
    evictable_bytes: int
    largest_operator_bytes: int
    budget_bytes: int | None


class Session:
    """An open scope, as ``rematerialize`` and ``measure`` give it. It stays readable after the
    scope is left."""

    def __init__(self, core: _core.Session, budget_bytes: int | None, events: bool = False) -> None:
        self._core = core
        self._budget = budget_bytes
        self._events = events
        if events:
            core.keep_events()

    def stats(self) -> SessionStats:
        """The figures up to now."""
        core = self._core.stats()
        figures = {
            name: getattr(core, name)
            for name in SessionStats.__dataclass_fields__
            if name != "budget_bytes"
        }
        return SessionStats(**figures, budget_bytes=self._budget)

    def summary(self) -> str:
        """A table of where time and memory went, for people."""
        s = self.stats()
        total = s.kernel_ns + s.remat_ns + s.search_ns + s.bookkeeping_ns or 1
        rows = [
            ("operators", f"{s.operators:,}", f"{s.recorded:,} can be recomputed"),
            ("evictions", f"{s.evictions:,}", f"{s.rematerializations:,} operators run again"),
            ("peak", format_size(s.peak_bytes), f"budget {_show_budget(s.budget_bytes)}"),
            ("in use", format_size(s.live_bytes), f"{format_size(s.evictable_bytes)} evictable"),
            ("largest operator", format_size(s.largest_operator_bytes), "arguments and results"),
        ]
        for name, spent in (
            ("computing", s.kernel_ns),
            ("recomputing", s.remat_ns),
            ("finding memory", s.search_ns),
            ("book-keeping", s.bookkeeping_ns),
        ):
            rows.append((name, f"{spent / 1e6:,.1f} ms", f"{100 * spent / total:.1f} %"))
        rows += [("memory taken", "", text) for text in self._core.exposures()]
        return "\n".join(f"{name:<17} {value:>12}   {note}" for name, value, note in rows)

    def reset_peak(self) -> None:
        """Starts the peak again from what is in use now."""
        self._core.reset_peak()

    def timeline(self) -> npt.NDArray[np.int64]:
        """Pool bytes in use after each operator, shape (operators,); empty unless the scope was
        opened with timeline."""
        return np.asarray(self._core.timeline(), dtype=np.int64)

    def export_chrome_trace(
        self, path: str | os.PathLike[str], profile: str | os.PathLike[str] | None = None
    ) -> None:
        """Writes when tensors were evicted and recomputed, for chrome://tracing and Perfetto. The
        scope must have been opened with ``events=True``.

        Args:
            path: where to, compressed if it ends in ``.gz``.
            profile: what ``torch.profiler.profile.export_chrome_trace`` wrote of the same run; then
                `path` has both, on one axis of time.

        Raises:
            ValueError: the scope kept no events, or `profile` is not a profile of torch's.
            OSError: a file cannot be read or written.
        """
        if not self._events:
            raise ValueError("this scope kept no events: open it with rematerialize(events=True)")
        chrome_trace.write(path, self._core.events(), profile)

    def commit(self) -> None:
        """Makes everything the program holds an ordinary tensor that is never evicted; what was
        evicted is recomputed.

        Raises:
            torch.OutOfMemoryError: it does not fit the budget together. What was not reached stays
            as it was.
        """
        self._core.commit()

    def check(self) -> None:
        """Walks the whole book-keeping. For tests.

        Raises:
            RuntimeError: something does not add up; the text says what.
        """
        self._core.check()


def _show_budget(budget: int | None) -> str:
    return "none" if budget is None else format_size(budget)


class _Served:
    """The session of the CUDA allocator, which begins with the first request for memory."""

    def __init__(self, allocator: _core.CudaAllocator) -> None:
        self._allocator = allocator

    def evict(self, tensor: torch.Tensor) -> bool:
        session = self._allocator.session()
        return session is not None and session.evict(tensor)

    def materialize(self, tensor: torch.Tensor) -> None:
        if session := self._allocator.session():
            session.materialize(tensor)

    def pin(self, tensor: torch.Tensor) -> None:
        if session := self._allocator.session():
            session.pin(tensor)

    def expose(self, tensor: torch.Tensor) -> tuple[int, int]:
        session = self._allocator.session()
        return (0, 0) if session is None else session.expose(tensor)

    def note_exposure(self, text: str) -> None:
        if session := self._allocator.session():
            session.note_exposure(text)

    def join(self) -> None:
        _core.record_this_thread(True)

    def part(self) -> None:
        _core.record_this_thread(False)

    def reading(self, tensor: torch.Tensor) -> _core.Reading | None:
        session = self._allocator.session()
        return None if session is None else session.reading(tensor)

    def holding(self, tensors: Sequence[Any], written: list[int], run: Callable[[], Any]) -> Any:
        session = self._allocator.session()
        return run() if session is None else session.holding(tensors, written, run)

    def is_evicted(self, tensor: torch.Tensor) -> bool:
        session = self._allocator.session()
        return session is not None and session.is_evicted(tensor)

    def commit(self) -> None:
        if session := self._allocator.session():
            session.commit()

    def step(self) -> None:
        if session := self._allocator.session():
            session.step()

    def abandon_in_child(self) -> None:
        if session := self._allocator.session():
            session.abandon_in_child()


_open: _core.Session | _Served | None = None


def open_session() -> _core.Session | None:
    """The scope that is open in this process, if there is one; a CUDA allocator's is none."""
    return _open if isinstance(_open, _core.Session) else None


_lingering: list[_core.Session | _Served] = []  # Tensors of theirs are still evicted.


_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_scopes: weakref.WeakSet[_Scope] = weakref.WeakSet()


class _Scope(AbstractContextManager[Session]):
    """What `rematerialize` and `measure` return: a scope to be entered once, or a decorator, whose
    calls have a scope each.

    One that is still open as the process exits, as in a notebook, ends with it. Leaving it then
    would bring back what nobody reads, and could not: a generator is closed only when modules have
    lost their names. So the scope goes on, and is never taken apart.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Session]]) -> None:
        self._make = make
        self._entered: AbstractContextManager[Session] | None = None
        self._ends_with_process = False

    def __enter__(self) -> Session:
        if self._entered is not None:
            raise RuntimeError(
                "this scope was entered before, and a scope is used once: "
                "call rematerialize() or measure() again"
            )
        entered = self._make()
        session = entered.__enter__()
        self._entered = entered
        _scopes.add(self)
        return session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._ends_with_process:
            return None
        if self._entered is None:
            raise RuntimeError("this scope was not entered, so it cannot be left")
        return self._entered.__exit__(kind, error, trace)

    def __call__(self, function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        @functools.wraps(function)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            with self._make():
                return function(*args, **kwargs)

        return call

    def end_with_process(self) -> None:
        """Keeps what is open from being left, by whomever, and from being collected."""
        if self._entered is not None:
            self._ends_with_process = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._entered))


@atexit.register
def _at_exit() -> None:
    for scope in list(_scopes):
        scope.end_with_process()


def _used_once(make: Callable[_Args, AbstractContextManager[Session]]) -> Callable[_Args, _Scope]:
    @functools.wraps(make)
    def scope(*args: _Args.args, **kwargs: _Args.kwargs) -> _Scope:
        return _Scope(functools.partial(make, *args, **kwargs))

    return scope


def check_thrash_limit(limit: float) -> None:
    """Raises TypeError or ValueError unless it is 0 or more."""
    if isinstance(limit, bool) or not isinstance(limit, numbers.Real):
        raise TypeError(f"thrash_limit {limit!r} is not a number")
    if not limit >= 0:
        raise ValueError(f"thrash_limit is {limit!r}; it must be 0 or more")


@_used_once
@contextmanager
def rematerialize(
    budget: int | str | None,
    *,
    device: str | torch.device = "cpu",
    heuristic: str | Heuristic = "dtr",
    policy: Policy = "eager",
    clock: str = "wall",
    timeline: bool = False,
    events: bool = False,
    thrash_limit: float = 100.0,
    debug: bool = False,
    _instruments: dict[str, Any] | None = None,
) -> Iterator[Session]:
    """Runs the body under a memory budget: CPU tensors made inside come from a pool that never
    passes it.

    When an allocation would, the tensors cheapest to recompute are evicted, and recomputed when
    next touched. Results are bit for bit those of plain torch. Tensors made before the scope
    (parameters, usually) lie outside the budget. What lives on after the scope is an ordinary
    tensor.

    Args:
        budget: bytes, or a text such as ``"2GiB"``, up to 16 TiB; None records
            everything but never evicts.
        device: ``"cpu"``.
        heuristic: a preset's name or a ``Heuristic``.
        policy: what becomes of a tensor that the program lets go while something can still be
            recomputed from it. ``"eager"``: it is freed at once, and recomputed for that;
            ``"banish"``: it is freed for good once all that was made from it is there, and that is
            then never evicted; ``"ignore"``: it stays until its score is least. The first is best
            nearly always; the others are the paper's, for studies.
        clock: what an operator costs: ``"wall"``, its time, or ``"logical"``, the bytes it touches,
            which makes the evictions of a run repeatable.
        timeline: keep the pool's bytes in use after every operator (``Session.timeline``).
        events: keep when what was evicted and recomputed (``Session.export_chrome_trace``): some 60
            bytes each.
        thrash_limit: recomputing this many times longer than computing, over two seconds, is an
            error; 0 for no limit.
        debug: look for writes that nobody declared: each constant that a recomputation would read
            (parameters, inputs, exposed tensors) and each argument that an operator says it only
            reads is compared by a checksum before and after. Costs a pass over every argument of
            every operator. docs/exactness.md tells what it finds and what it cannot.

    Raises:
        TypeError, ValueError: an argument that is not understood. Nothing has changed then.
        MemoryError: the process cannot reserve the addresses, twice the budget.
        RuntimeError: a scope is already open in this process; or, with debug, inside the scope, by
            the first operator that wrote what it should not have, or that reads what was written
            behind the runtime's back; the text names what made the tensor.
        torch.OutOfMemoryError: inside the scope, where the budget cannot hold what one operator
            needs together with what cannot be recomputed. The text names the least that would have
            served this request; and the budget in which all would run, by a simulation, once whole
            steps of an optimizer were seen: in this scope, or in one (or a ``measure``) before it
            that began alike. Two steps tell more than one.

    Example:
        >>> import torch
        >>> with rematerialize("64MiB") as session:
        ...     x = torch.ones(1000).exp().sum()
        >>> session.stats().peak_bytes <= 64 << 20
        True
    """
    size = None if budget is None else parse_size(budget, most=LARGEST_BUDGET)
    if clock not in ("wall", "logical"):
        raise ValueError(f'clock {clock!r} is not "wall" or "logical"')
    check_thrash_limit(thrash_limit)
    options: dict[str, Any] = {"evict_always": False, "verify": False, "on_cuda": False}
    options |= {"scorer": native_scorer("host"), "image": ""}
    options.update(_instruments or {})
    core = _core.Session(
        budget=_NO_LIMIT if size is None else size,
        limited=size is not None,
        heuristic=resolve(heuristic)._native(),
        policy=native_policy(policy),
        record=True,
        logical_clock=clock == "logical",
        timeline=timeline,
        thrash_limit=float(thrash_limit),
        debug=debug,
        **options,
    )
    session = Session(core, size, events)
    with advice.watched(core, heuristic, policy, clock), _scope(core, device):
        yield session


@_used_once
@contextmanager
def measure(*, device: str | torch.device = "cpu", timeline: bool = False) -> Iterator[Session]:
    """Runs the body as plain torch does, but counts its memory: CPU tensors come from a pool,
    nothing is ever evicted.

    ``session.stats().peak_bytes`` is what the body needs without a budget. An OutOfMemoryError of a
    later ``rematerialize`` that begins alike tells the budget in which this body would run.

    Args:
        device: ``"cpu"``.
        timeline: keep the pool's bytes in use after every operator.

    Raises:
        ValueError: another device.
        RuntimeError: a scope is already open in this process.

    Example:
        >>> import torch
        >>> with measure() as session:
        ...     x = torch.ones(1000).exp()  # Two tensors of 4,000 bytes, in blocks of 4,096.
        >>> session.stats().peak_bytes
        8192
    """
    core = _core.Session(
        budget=_NO_LIMIT,
        limited=False,
        heuristic=resolve("dtr")._native(),
        policy=native_policy("eager"),
        record=False,
        logical_clock=False,
        timeline=timeline,
        evict_always=False,
        verify=False,
        debug=False,
        thrash_limit=0.0,
        on_cuda=False,
        scorer=native_scorer("host"),
        image="",
    )
    with advice.watched(core, "dtr", "eager", "wall"), _scope(core, device):
        yield Session(core, None)


@contextmanager
def _scope(core: _core.Session, device: str | torch.device) -> Iterator[None]:
    try:
        on_cpu = torch.device(device).type == "cpu"
    except (RuntimeError, TypeError):
        on_cpu = False
    if not on_cpu:
        raise ValueError(
            f'device {device!r} has no scope; only "cpu" has. On CUDA, directly after the imports: '
            "torch.cuda.memory.change_current_allocator(dtr_alloc.allocator(budget))"
        )
    global _open
    if isinstance(_open, _Served):
        raise RuntimeError(
            "dtr_alloc.allocator() serves this process already, and there is one session in a "
            "process: CPU tensors cannot have a scope beside it"
        )
    higher_order.let_key_pass()
    core.enter()
    _open = core
    _let_join(core)
    hooks = (
        register_optimizer_step_pre_hook(lambda *_: _core.set_in_optimizer(True)),
        register_optimizer_step_post_hook(lambda *_: _optimizer_stepped(core)),
    )
    restore = raw_access.watch(lambda: _open)
    let_go = compiled_code.hold_arguments(core.holding)
    failed = True
    try:
        yield
        failed = False
    finally:
        try:
            _let_nobody_join()
        finally:
            try:
                spilled = core.leave() if _open is core else 0  # A forked child has left already.
            except BaseException as error:
                _lingering.append(core)
                _forget_interrupted_backward()
                # The body's own error says more than that what it leaves behind does not fit.
                if not (failed and isinstance(error, torch.OutOfMemoryError)):
                    raise
                spilled = 0
            finally:
                _open = None
                restore()
                let_go()
                for hook in hooks:
                    hook.remove()
                _core.set_in_optimizer(False)
    if spilled and not failed:
        warnings.warn(
            "tensors that outlive the scope do not fit its budget together: "
            f"{format_size(spilled)} of them now lie in ordinary memory",
            stacklevel=6,  # The line of the program that leaves the scope.
        )


def _forget_interrupted_backward() -> None:
    """An exception in a backward pass leaves what was still to do in the thread's queue, with every
    tensor saved for that, until the next backward pass finds it there and drops it. Tensors that
    nobody can reach would keep their scope from ending."""
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]


_joinable: _core.Session | _Served | None = None
_joined = 0  # Threads inside join_scope().
_parted = threading.Condition()


@contextmanager
def join_scope() -> Iterator[None]:
    """Makes the operators that this thread runs in the body part of the scope that is open.

    A scope's own thread, and autograd's threads, belong to it from the start; any other thread that
    computes on the scope's tensors joins it first. Threads share the budget, and a tensor that
    several of them need is recomputed once. Recomputations, writes in place and random numbers
    take turns; other operators run side by side. Leaving the scope waits for those who joined.

    Raises:
        RuntimeError: no scope is open, or this thread belongs to one already, or a trace of the
            scope is being recorded.

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
    global _joined
    with _parted:
        session = _joinable
        if session is None:
            raise RuntimeError(
                "join_scope() in a thread, but no dtr_alloc scope is open: open rematerialize() "
                "before the thread starts, and keep it open until the thread is done"
            )
        if _core.records_this_thread():
            raise RuntimeError("this thread belongs to a dtr_alloc scope already")
        _joined += 1
    try:
        session.join()
        try:
            yield
        finally:
            session.part()
            _core.set_in_optimizer(False)
    finally:
        with _parted:
            _joined -= 1
            _parted.notify_all()


def _let_join(session: _core.Session | _Served) -> None:
    global _joinable
    with _parted:
        _joinable = session


def _let_nobody_join() -> None:
    """Waits for those who have joined."""
    global _joinable
    with _parted:
        _parted.wait_for(lambda: _joined == 0)
        _joinable = None


def serve(allocator: _core.CudaAllocator) -> None:
    """Puts the operators of this thread under the CUDA allocator's session, for good.

    Raises:
        RuntimeError: A scope is open.
    """
    global _open
    if _open is not None:
        raise RuntimeError(
            "a dtr_alloc scope is open, or dtr_alloc.allocator() was called before; there is one "
            "of them in a process: call dtr_alloc.allocator() once, outside of scopes"
        )
    higher_order.let_key_pass()
    served = _Served(allocator)
    _open = served
    _let_join(served)
    register_optimizer_step_pre_hook(lambda *_: _core.set_in_optimizer(True))
    register_optimizer_step_post_hook(lambda *_: _optimizer_stepped(served))
    raw_access.watch(lambda: _open)
    compiled_code.hold_arguments(served.holding)
    _core.record_this_thread(True)


def _optimizer_stepped(core: _core.Session | _Served) -> None:
    _core.set_in_optimizer(False)
    core.step()


def _before_fork() -> None:
    if isinstance(_open, _core.Session):  # A child cannot use CUDA's tensors in any case.
        _open.commit_before_fork()


def _in_child() -> None:
    global _open, _joinable, _joined, _parted
    # The other threads are the parent's, and may hold its lock.
    _joinable, _joined, _parted = None, 0, threading.Condition()
    if _open is not None:
        _open.abandon_in_child()
        _lingering.append(_open)
        _open = None


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
_core.set_adviser(advice.advise)


def evict(tensor: torch.Tensor) -> bool:
    """Evicts a tensor's content now; it comes back when next touched.

    Returns:
        Whether there was something to evict: False for parameters, inputs and whatever else cannot
            be recomputed.

    Example:
        >>> import torch
        >>> with rematerialize("64MiB"):
        ...     x = torch.ones(1000).exp()
        ...     evict(x), is_evicted(x), f"{x[0]:.3f}", is_evicted(x)
        (True, True, '2.718', False)
    """
    return _open is not None and _open.evict(tensor)


def materialize(tensor: torch.Tensor) -> None:
    """Brings an evicted tensor back now. One that is resident, or was never evictable, stays as it
    is.

    Raises:
        torch.OutOfMemoryError: it does not fit the budget.
    """
    if _open is not None:
        _open.materialize(tensor)


def pin(tensor: torch.Tensor) -> None:
    """Brings a tensor back if it is evicted, and never evicts it again.

    Raises:
        torch.OutOfMemoryError: it does not fit the budget.

    Example:
        >>> import torch
        >>> with rematerialize("64MiB"):
        ...     x = torch.ones(1000).exp()
        ...     pin(x)
        ...     evict(x)
        False
    """
    if _open is not None:
        _open.pin(tensor)


def is_evicted(tensor: torch.Tensor) -> bool:
    """Whether a tensor's content is gone for now."""
    return _open is not None and _open.is_evicted(tensor)
