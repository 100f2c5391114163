"""Running a user's program from the command line, as `python script args` or `python -m module
args` would: `__main__`, `sys.argv` and `sys.path` are the same, and so are the exit code and what
is printed where the program raises.

A command that records a program is in a scope already, or opens one where the program does. So what
the program itself calls to open a scope is replaced while it runs. What would change the budget of
that scope does nothing, nor does what needs an option that it was opened without. `dtr-alloc run`
ends a program that opens one, because there is one budget in a process.
"""

from __future__ import annotations

import builtins
import io
import multiprocessing.process
import os
import runpy
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.adapters.undo import Undo
from dtr_alloc.runtime.scope.held import Held
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.scope.used_once import used_once


def run_script(script: str, args: Sequence[str], *, module: bool = False) -> int:
    """Runs it, or the module of that name, as ``__main__`` in this process, and returns its exit
    code: 1 where it raised, after the traceback went to stderr; 130 after Ctrl-C.
    """
    sys.argv = [script, *args]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.realpath(script))
    try:
        runpy.run_module(script, None, "__main__", alter_sys=True) if module else _execute(script)
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, _FROZEN):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


_FROZEN = "<frozen runpy>"


def _execute(script: str) -> None:
    """Not by `runpy.run_path`, which has another ``sys.argv[0]``."""
    module = types.ModuleType("__main__")
    module.__file__ = path = os.path.abspath(script)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


@contextmanager
def scopes_of_scripts(
    opened: Callable[..., AbstractContextManager[Session]], *, closable: bool = True
) -> Iterator[None]:
    """In the body `rematerialize` and `measure` open what `opened` does, which the script's
    `Session.close` leaves where it is `closable`. What running a script changes in this process is
    as before when it is over."""
    scope = used_once(opened)
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    with closing(Undo()) as undo:
        undo.callback(_as_before, *before)
        undo.replace(dtr_alloc, "rematerialize", scope)
        undo.replace(dtr_alloc, "measure", scope)
        undo.replace(Session, "lend", lambda *_, **__: nullcontext())
        undo.replace(Session, "release", lambda *_: 0)
        for name in ("resize", "export_chrome_trace", "dump_snapshot", "plot"):
            undo.replace(Session, name, lambda *_, **__: None)
        undo.replace(Session, "held", lambda _: Held())
        if not closable:
            undo.replace(Session, "close", lambda _: None)
        yield


@contextmanager
def session_of_scripts(session: Session) -> Iterator[None]:
    """In the body, outside of a scope, `dtr_alloc.current_session` is this one."""
    with closing(Undo()) as undo:
        undo.replace(dtr_alloc, "current_session", lambda: session)
        yield


def _as_before(argv: list[str], path: list[str], main: types.ModuleType) -> None:
    sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main


@contextmanager
def no_other_budget() -> Iterator[None]:
    """In the body what opens a scope, or changes the allocator, ends the program, as `sys.exit`
    with a sentence does. In another thread it is an error, for there `sys.exit` says nothing."""

    def refuse(name: str, *_: object, **__: object) -> NoReturn:
        caller: types.FrameType | None = sys._getframe(1)
        while caller and caller.f_globals.get("__name__", "").startswith("dtr_alloc."):
            caller = caller.f_back  # A callback of ours.
        where = f"{caller.f_code.co_filename}:{caller.f_lineno} " if caller else ""
        text = (
            f"dtr-alloc run: {where}calls {name}(), and the program has a budget already, the one "
            "of this command: run it by python, or without that call"
        )
        here = threading.current_thread() is threading.main_thread()
        raise SystemExit(text) if here else RuntimeError(text)

    with closing(Undo()) as undo:
        for name in ("rematerialize", "measure", "allocator"):
            undo.replace(dtr_alloc, name, partial(refuse, f"dtr_alloc.{name}"))
        changes = "change_current_allocator"
        for module in (torch.cuda, torch.cuda.memory):
            undo.replace(module, changes, partial(refuse, f"torch.cuda.memory.{changes}"))
        yield


class Elsewhere:
    """What the program does where this thread's scope does not follow it, counted inside `watch`:
    the processes that it starts by multiprocessing, as DataLoaders do, and steps of optimizers in
    threads outside of the scope."""

    def __init__(self) -> None:
        self.processes = self.steps = 0
        self._thread = threading.get_ident()

    @contextmanager
    def watch(self) -> Iterator[None]:
        process = multiprocessing.process.BaseProcess
        start: Callable[[Any], None] = process.start

        def counted(started: Any) -> None:
            start(started)
            self.processes += 1

        with closing(Undo()) as undo:
            undo.replace(process, "start", counted)
            undo.callback(register_optimizer_step_post_hook(self._stepped).remove)
            yield

    def __str__(self) -> str:
        """What to tell of it; "" of nothing."""
        found = []
        if self.processes:
            found = [f"{self.processes:,} process{'es' * (self.processes > 1)} that it started"]
        found += [f"{self.steps:,} steps of optimizers in other threads"] if self.steps else []
        return " and ".join(found)

    def _stepped(self, *_: object) -> None:
        self.steps += threading.get_ident() != self._thread and not _core.is_member()
