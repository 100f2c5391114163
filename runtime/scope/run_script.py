"""Running a user's script from the command line, as `python script args` would.

A command that records a script is in a scope already, or opens one where the script does. So what
the script itself calls to open a scope is replaced while it runs. What would change the budget of
that scope does nothing, nor does what needs an option that it was opened without.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

import dtr_alloc
from dtr_alloc.runtime.adapters.replacing import replace
from dtr_alloc.runtime.adapters.undo import Undo
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.scope.used_once import used_once


def run_script(script: str, args: Sequence[str]) -> int:
    """Runs it as ``__main__`` in this process, and returns its exit code: 1 where it raised, after
    the traceback went to stderr.
    """
    argv, folder = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *args], os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leave:
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[0] = argv, folder
    return 0


@contextmanager
def scopes_of_scripts(opened: Callable[..., AbstractContextManager[Session]]) -> Iterator[None]:
    """In the body `rematerialize` and `measure` open what `opened` does."""
    scope = used_once(opened)
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (dtr_alloc, "rematerialize", scope),
        (dtr_alloc, "measure", scope),
        (Session, "resize", lambda *_, **__: None),
        (Session, "lend", lambda *_, **__: nullcontext()),
        (Session, "release", lambda *_: 0),
        (Session, "export_chrome_trace", lambda *_, **__: None),
    ]
    with closing(Undo()) as undo:
        for row in replaced:
            replace(undo, *row)
        yield
