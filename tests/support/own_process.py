"""Programs in a process of their own: what they import, limit or end stays theirs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def own_process(
    program: str, *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, for ten minutes at most, with these variables in its environment."""
    command, env = [sys.executable, "-c", program, *arguments], os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, cwd=cwd)


def printed(program: str, *arguments: str, cwd: Path | None = None, **variables: str) -> str:
    """What it prints. It must end well."""
    done = own_process(program, *arguments, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def forked(run: Callable[[], object]) -> str:
    """What it comes to in a forked process: its result, or the text of its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = str(run())
        except BaseException as error:
            told = str(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader) as pipe:
        return pipe.read()
