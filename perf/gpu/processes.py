"""Scripts in processes of their own, with a limit of time, whose results so far are never lost.

A part must survive whatever one of its processes does: crash, hang, or be too slow. So each is
killed with all that it started when its time is up. A script writes what it has so far whenever it
has more, whole files only (`write_json`). The file is looked at each second while the script runs,
so that even where this process is killed the report has nearly all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN_GROUP: Any = {"process_group": 0}
if sys.version_info < (3, 11):
    OWN_GROUP = {"preexec_fn": os.setpgrp}


def ended(
    command: list[str],
    limit: float,
    output: Path,
    *,
    env: dict[str, str],
    cwd: Path | None = None,
    look: Callable[[], None] = lambda: None,
) -> int | None:
    """Runs a command; what it prints is added to `output` as it comes. `look` is called each
    second meanwhile.

    Returns:
        Its exit code, or None: the time was up, and it was killed with all that it started.
    """
    deadline = time.monotonic() + limit
    with (
        output.open("ab") as file,
        subprocess.Popen(
            command, stdout=file, stderr=file, env=env, cwd=cwd, **OWN_GROUP
        ) as process,
    ):
        try:
            while (left := deadline - time.monotonic()) > 0:
                try:
                    return process.wait(min(1, left))
                except subprocess.TimeoutExpired:
                    look()
            return None
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, if it has not ended, and all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read(path: Path) -> dict[str, Any]:
    """What a script has written so far; empty if that is nothing."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except (OSError, json.JSONDecodeError):
        return {}


def run_script(
    script: str,
    arguments: list[str],
    limit: float,
    env: dict[str, str],
    partial: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """What a script of this folder wrote to its `--out`.

    Returns:
        The whole of it; or what there was, with `unfinished` or `failed` to say why it is not all.
        `partial` is told of what there is in between.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, said = Path(folder) / "out.json", Path(folder) / "said.txt"
        seen: dict[str, Any] = {}

        def look() -> None:
            nonlocal seen
            if (found := read(out)) != seen:
                seen = found
                partial(found)

        command = [sys.executable, str(HERE / script), *arguments, "--out", str(out)]
        code = ended(command, limit, said, env=env, look=look)
        found = read(out)
        if code is None:
            reached = found.get("unfinished", "as it ended" if found else "nothing was written")
            found["unfinished"] = f"killed after {limit:.0f} s: {reached}"
        elif code != 0 or not found:
            text = said.read_text(errors="replace").strip()[-2000:]
            found["failed"] = text or f"exit code {code}"
        return found
