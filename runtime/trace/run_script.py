"""Running a user's script from the command line, as `python script args` would."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence


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
