"""What a scope did, and what may be changed while it is open.

A scope evicts and recomputes by itself, so a program needs nothing of this page. `Session` tells
what happened: how often, how long it took, and how many bytes. Scopes are opened in scope.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from functools import partial
from html import escape

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET, Size, format_size, parse_size
from dtr_alloc.runtime.heuristic import Heuristic, heuristic_of
from dtr_alloc.runtime.scope import chrome_trace, current, held, plot, snapshot
from dtr_alloc.runtime.scope.advice import Adviser
from dtr_alloc.runtime.scope.memory_history import History
from dtr_alloc.runtime.scope.session_stats import SessionStats
from dtr_alloc.runtime.scope.steps import Step, Steps
from dtr_alloc.runtime.scope.summary import Row, rows, spent_ns
from dtr_alloc.runtime.scope.used_once import Once, Scope


class Session:
    """An open scope, as ``rematerialize`` and ``measure`` give it. It stays readable after the
    scope is left."""

    _scope: Scope | None = None  # Which `with` has entered, and `close` leaves.
    _last: SessionStats | None = None  # Of a scope whose memory goes on without it.

    def __init__(
        self, core: _core.Session, steps: Steps, *, measured: Adviser | None = None
    ) -> None:
        """`measured`: who knows what a scope of `measure` did."""
        self._core = core
        self._steps = steps
        self._measured = measured

    def stats(self) -> SessionStats:
        """The figures up to now."""
        if self._last is not None:
            return self._last
        now = self._core.stats()
        names = (field.name for field in fields(SessionStats) if field.name != "budget_bytes")
        figures = {name: getattr(now, name) for name in names}
        budget = self._core.pool_stats().budget if self._core.has_budget() else None
        return SessionStats(**figures, budget_bytes=budget)

    def summary(self) -> str:
        """A table of where time and memory went, for people. Of a `measure` it says which budget to
        try, which takes up to some seconds."""
        return "\n".join(
            f"{name:<17} {value:>12}   {note}".rstrip() for name, value, note in self._rows()
        )

    def _rows(self) -> Iterable[Row]:
        return rows(self.stats(), self._core, self._steps, self._measured)

    def _repr_html_(self) -> str:
        """The same table, which a notebook shows for a session."""
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._rows())
        table = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p>{escape(repr(self))}</p><table>{table}</table>"

    def __repr__(self) -> str:
        s = self.stats()
        budget = "no budget" if s.budget_bytes is None else f"budget {format_size(s.budget_bytes)}"
        state = "open" if self._is_open() else "closed"
        return f"<dtr_alloc.Session: {budget}, peak {format_size(s.peak_bytes)}, {state}>"

    def metrics(self) -> dict[str, float]:
        """The figures as TensorBoard, W&B and MLflow take them: names such as
        ``"dtr_alloc/peak_bytes"``, one for each field of `SessionStats` that is not None, and also
        ``dtr_alloc/steps`` and ``dtr_alloc/recompute_share``, the part of the time in operators and
        the runtime that went to recomputing, from 0 to 1.

        Example:
            >>> import dtr_alloc, torch
            >>> with dtr_alloc.rematerialize("64MiB") as session:
            ...     x = torch.ones(1000).exp()
            >>> session.metrics()["dtr_alloc/peak_bytes"]
            8192.0
        """
        s = self.stats()
        spent = spent_ns(s)
        share = spent["recomputing"] / (sum(spent.values()) or 1)
        figures = asdict(s) | {"steps": self.steps, "recompute_share": share}
        return {f"dtr_alloc/{name}": float(x) for name, x in figures.items() if x is not None}

    def close(self) -> None:
        """Does what leaving the ``with`` does. To leave it afterwards, or to close again, does
        nothing. So a cell of a notebook may open a scope, and another one closes it.

        Raises:
            RuntimeError: this is another thread than the one that opened the scope, or an operator
                or a backward pass is running in it, or the session is an allocator's, which has no
                ``with``. The scope stays open.
            torch.OutOfMemoryError, RuntimeError: as leaving the ``with`` does.

        Example:
            >>> import dtr_alloc, torch
            >>> session = dtr_alloc.rematerialize("64MiB").__enter__()
            >>> x = torch.ones(1000).exp()
            >>> session.close()
            >>> session
            <dtr_alloc.Session: budget 64 MiB, peak 8 KiB, closed>
        """
        if not self._is_open():
            return
        if self._scope is None:
            raise RuntimeError(
                "an allocator's session has no `with` to leave: it serves until the process ends, "
                'and with memory="torch" until allocator.remove()'
            )
        self._scope.close()

    @property
    def steps(self) -> int:
        """Steps of optimizers that have ended in the scope; several that step with no forward pass
        between, or within one backward pass, are one. A program that notes it beside its batches
        finds those that `costliest_steps` tells of."""
        return self._steps.count

    def costliest_steps(self) -> list[Step]:
        """Of the steps of optimizers for which tensors were evicted the ten that lost most time to
        it, the costliest first. So an outlier batch is found.

        Example:
            >>> import dtr_alloc, torch
            >>> layer = torch.nn.Linear(512, 512)
            >>> optimizer = torch.optim.SGD(layer.parameters())
            >>> with dtr_alloc.rematerialize("16MiB") as session:
            ...     for rows in 256, 384, 2048:
            ...         layer(torch.ones(rows, 512)).tanh().exp().sin().mean().backward()
            ...         optimizer.step()
            ...         optimizer.zero_grad()
            >>> [step.number for step in session.costliest_steps()]
            [3]
        """
        return self._steps.costliest()

    @property
    def heuristic(self) -> Heuristic:
        """By which victims are chosen."""
        return heuristic_of(self._core.heuristic())

    def reset_peak(self) -> None:
        """Starts the peak again from what is in use now."""
        self._core.reset_peak()

    def resize(self, budget: Size) -> None:
        """Changes the budget while the program runs; any thread may call this.

        A smaller budget holds at once: the tensors cheapest to recompute are evicted until what is
        left fits, and the pages above it go back to the system. Where small tensors lie scattered
        over more pages, more of them go. With ``memory="torch"`` torch's allocator, or malloc, is
        told to give back what it keeps. A larger one lets the program keep more from now on.

        Args:
            budget: bytes, or a text such as ``"2GiB"``, up to the budget that the scope was opened
                with: so many addresses were reserved. With ``memory="torch"`` none were, and it may
                be up to 16 TiB.

        Raises:
            TypeError, ValueError: `budget` is no size, or above the scope's first, or the scope is
                one of ``measure``, or has no budget.
            RuntimeError: the scope is over, or the swap cannot be written.
            torch.OutOfMemoryError: more than `budget` is in use by operators now running or cannot
                be recomputed. The text names the bytes. The budget is as before.

        Example:
            >>> import dtr_alloc, torch
            >>> with dtr_alloc.rematerialize("64MiB") as session:
            ...     x = [torch.ones(1 << 20) + n for n in range(8)]  # 32 MiB.
            ...     session.resize("16MiB")
            ...     within = session.stats().live_bytes <= 16 << 20
            ...     session.resize("64MiB")
            ...     print(within, f"{sum(x)[0]:.0f}")
            True 36
        """
        self._insist_budget()
        size = parse_size(budget, most=LARGEST_BUDGET)
        most = self._core.largest_budget()
        if size > most:
            raise ValueError(
                f"budget {format_size(size)} is above {format_size(most)}, with which the "
                "scope was opened: open it with the largest it may ever have, and resize it down"
            )
        self._insist_open()
        self._core.resize(size)
        self._steps.budget_changed()

    def lend(self, amount: Size) -> Once:
        """Takes bytes off the budget for as long as the body runs, for somebody else to use.

        Args:
            amount: bytes, or a text such as ``"512MiB"``, less than the budget.

        Raises:
            TypeError, ValueError, RuntimeError, torch.OutOfMemoryError: as of `resize`, before the
                body runs.

        Example:
            >>> import dtr_alloc, torch
            >>> with dtr_alloc.rematerialize("64MiB") as session:
            ...     with session.lend("48MiB"):
            ...         print(session.stats().budget_bytes >> 20)
            ...     print(session.stats().budget_bytes >> 20)
            16
            64
        """
        return Once("loan", "lend()", partial(_Loan, self, amount))

    def release(self) -> int:
        """Evicts all that can be recomputed or may go to the swap, and gives the memory back to the
        system. What the program touches next comes back. Any thread may call this.

        Returns:
            Bytes given back: by a pool to the system; with ``memory="torch"`` to malloc, which is
                told to give back what it can, or by torch's allocator to the device.

        Raises:
            RuntimeError: the scope is over, or the swap cannot be written.

        Example:
            >>> import dtr_alloc, torch
            >>> with dtr_alloc.rematerialize("64MiB") as session:
            ...     x = torch.ones(1 << 22).exp()
            ...     print(session.release() >= 1 << 24, dtr_alloc.is_evicted(x), f"{x[0]:.3f}")
            True True 2.718
        """
        self._insist_open()
        return self._core.give_back()

    def _insist_budget(self) -> None:
        if not self._core.has_budget():
            raise ValueError(
                "there is no budget to change: give rematerialize() or allocator() the largest "
                "that may ever be needed"
            )

    def _is_open(self) -> bool:
        return current.session() is self._core

    def _insist_open(self) -> None:
        if not self._is_open():
            raise RuntimeError(
                "this scope is over, or of the process that this one was forked from: what it held "
                "is ordinary memory by now"
            )

    def timeline(self) -> npt.NDArray[np.int64]:
        """Bytes in use after each operator, shape (operators,); empty unless the scope was
        opened with timeline."""
        return np.asarray(self._core.timeline(), dtype=np.int64)

    def export_chrome_trace(
        self, path: str | os.PathLike[str], profile: str | os.PathLike[str] | None = None
    ) -> None:
        """Writes when tensors were evicted and recomputed, and the bytes in use by class, for
        chrome://tracing and Perfetto. The scope must have been opened with ``events=True``.

        Args:
            path: where to, compressed if it ends in ``.gz``.
            profile: what ``torch.profiler.profile.export_chrome_trace`` wrote of the same run; then
                `path` has both, on one axis of time.

        Raises:
            ValueError: the scope kept no events, or `profile` is not a profile of torch's.
            OSError: a file cannot be read or written.
        """
        chrome_trace.write(path, History(self._core), profile)

    def dump_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Writes each allocation, eviction and recomputation, for pytorch.org/memory_viz: a pickle
        as of ``torch.cuda.memory._snapshot()``. Frames name the operator and the script's line
        (docs/pictures.md). The scope must have been opened with ``events=True``.

        Raises:
            ValueError: the scope kept no events.
            OSError: the file cannot be written.

        Example:
            >>> import pathlib, pickle, tempfile, dtr_alloc, torch
            >>> path = pathlib.Path(tempfile.mkdtemp(), "run.pickle")
            >>> with dtr_alloc.rematerialize("64MiB", events=True) as session:
            ...     x = torch.ones(1000).exp()
            >>> session.dump_snapshot(path)
            >>> [event["action"] for event in pickle.loads(path.read_bytes())["device_traces"][0]]
            ['segment_alloc', 'alloc', 'alloc', 'free_requested', 'free_completed']
        """
        snapshot.dump(path, History(self._core), self.stats().budget_bytes)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the bytes in use over time by class, with the budget as it is now, the program's
        phases and the ends of its steps (docs/pictures.md). The path's suffix is the format.

        Raises:
            ValueError: the scope kept no events, or there is no such format.
            ImportError: matplotlib is not installed.
            OSError: the file cannot be written.
        """
        plot.draw(path, History(self._core), self.stats().budget_bytes)

    def held(self) -> held.Held:
        """What is in use at the peak of the events kept, by module, line of the script and class,
        layers of a kind together. The scope must have been opened with ``events=True``.

        Raises:
            ValueError: the scope kept no events.

        Example:
            >>> import dtr_alloc, torch
            >>> layers = torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(4)])
            >>> with dtr_alloc.rematerialize("64MiB", events=True) as session:
            ...     x = layers(torch.ones(1 << 18, requires_grad=True))
            >>> [(line.module, line.tensors) for line in session.held()]
            [('Sequential.0-3', 4), ('', 1)]
        """
        return held.held_at_peak(History(self._core))

    def commit(self) -> None:
        """Makes everything the program holds an ordinary tensor that is never evicted; what was
        evicted is recomputed.

        Raises:
            torch.OutOfMemoryError: it does not fit the budget together. What was not reached stays
            as it was, but what was reached takes room from now on: `resize` gives more. The text
            names what the next tensor needs, and others may need more.
        """
        self._core.commit()

    def check(self) -> None:
        """Walks the whole bookkeeping. For tests.

        Raises:
            RuntimeError: something does not add up; the text says what.
        """
        self._core.check()


class _Loan(AbstractContextManager[None]):
    """From when it is taken to when it is given back. `__exit__` may be called repeatedly."""

    def __init__(self, session: Session, amount: Size) -> None:
        self._session = session
        self._amount = amount
        self._taken = _core.Loan(session._core)

    def __enter__(self) -> None:
        self._session._insist_budget()
        size = parse_size(self._amount, "amount")
        self._session._insist_open()
        self._taken.take(size)
        self._session._steps.budget_changed()

    def __exit__(self, *_: object) -> None:
        if self._session._is_open():
            self._taken.give_back()


def current_session() -> Session | None:
    """The session of the scope that is open, also where a decorator opened it, or of the allocator
    that serves this process; None where there is none.

    Example:
        >>> import dtr_alloc
        >>> with dtr_alloc.rematerialize("64MiB") as session:
        ...     print(dtr_alloc.current_session() is session)
        True
        >>> if session := dtr_alloc.current_session():  # In a notebook, before a cell opens one.
        ...     session.close()
    """
    opened, core = current.scope(), current.session()
    if opened is None or core is None:
        return None
    return (opened.front and opened.front()) or Session(core, opened.steps)
