"""Work on many items where one of them may crash its process or never end.

A forked child works on the items in their order and sends each result through a pipe. When it dies
or takes too long for an item, that item's result is a sentence that says so, and a new child goes
on with the next. Long is by the processor's time, for the machine may be busy, and by the clock
where the child waits for ever. The parent must not have computed with several threads: OpenMP's do
not survive a fork.
"""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
MEMORY_BYTES = 6 << 30
BUSY = 20  # How much slower a machine may be for all that it has to do.


@dataclass(frozen=True)
class Lost:
    """An item without a result."""

    reason: str


def _work(work: Callable[[Any], Any], items: Sequence[Any], first: int, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for item in items[first:]:
        try:
            found = work(item)
        except Exception as error:
            words = " ".join(str(error).split())
            found = Lost(f"{type(error).__name__}: {words[:120]}")
        pipe.send(found)


def _processor_s(pid: int) -> float:
    """What a process has had of the processor so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _answers(pipe: Connection, pid: int, seconds: float) -> bool:
    """Whether a child's next result comes within so many seconds of its processor's time."""
    began, end = _processor_s(pid), time.monotonic() + BUSY * seconds
    while not pipe.poll(0.5):
        if _processor_s(pid) - began > seconds or time.monotonic() > end:
            return False
    return True


def results(
    work: Callable[[Item], Any], items: Sequence[Item], seconds: float
) -> Iterator[tuple[Item, Any]]:
    """What `work` returns for each item, or a Lost where it raised, crashed, or took longer."""
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(items):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(work, items, done, theirs), daemon=True)
        child.start()
        theirs.close()
        while done < len(items):
            found: Any = Lost("took too long")
            try:
                if _answers(ours, child.pid or 0, seconds):
                    found = ours.recv()
                    yield items[done], found
                    done += 1
                    continue
            except EOFError:
                found = Lost("crashed")
            child.kill()
            child.join()
            yield items[done], found
            done += 1
            break
        child.join()
        ours.close()
