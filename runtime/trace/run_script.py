"""Running a user's script from the command line, as `python script args` would.

A command that records a script is in a scope already, or opens one where the script does. So what
the script itself calls to open a scope is replaced while it runs, and what would change the budget
of that scope does nothing.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import dtr_alloc
from dtr_alloc.runtime.session import Session


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
def scopes_of_scripts(
    opened: Callable[..., AbstractContextManager[Session]],
) -> Iterator[None]:
    """In the body `rematerialize` and `measure` are `opened`."""
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (dtr_alloc, "rematerialize", opened),
        (dtr_alloc, "measure", opened),
        (Session, "resize", lambda *_: None),
        (Session, "lent", lambda *_: nullcontext()),
        (Session, "release", lambda *_: 0),
    ]
    before = [getattr(owner, name) for owner, name, _ in replaced]
    for owner, name, other in replaced:
        setattr(owner, name, other)
    try:
        yield
    finally:
        for (owner, name, _), own in zip(replaced, before, strict=True):
            setattr(owner, name, own)
