"""What a part is given: where it reports, on which device, until when; and how it runs scripts.

A part is a function of it. Whatever a script does, the part gets a dict, and the report has had it
as `unfinished` while the script still ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from processes import run_script
from report import Report

ALLOCATOR_SETTINGS = {  # Torch reads them when it is loaded.
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
LEAST_SECONDS = 5  # A script needs some to start.


@dataclass
class Work:
    """One part's. `deadline` is of time.monotonic."""

    report: Report
    part: str
    device: str
    deadline: float
    env: dict[str, str]
    named: tuple[str, ...] = ()
    """Files of tests, for the part that runs tests; all if empty."""
    missing: bool = False
    """Whether results that an earlier call has found are kept, and only the others found."""

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def script(
        self,
        name: str,
        script: str,
        *arguments: object,
        limit: float,
        allocator: str = "",
        settings: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """What the script found, for the result `name`: perhaps with `failed` or `unfinished`.
        `settings` are further variables of its process."""
        if self.missing and (kept := self.report.whole(self.part, name)):
            return kept
        limit = min(limit, self.left())
        if limit < LEAST_SECONDS:
            return {"unfinished": "not begun: no time left"}
        env = self.env | (settings or {})
        if self.cuda and allocator in ALLOCATOR_SETTINGS:
            env["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATOR_SETTINGS[allocator]

        def partial(found: dict[str, Any]) -> None:
            so_far = {"unfinished": "was running"} | found
            self.report.put(self.part, name, so_far, f"unfinished: {so_far['unfinished']}")

        return run_script(script, [str(a) for a in arguments], limit, env, partial)

    def add(self, name: str, found: dict[str, Any], line: str) -> None:
        """Reports a result; one that failed or is not whole says so in its line."""
        if trouble := trouble_of(found):
            line = f"{trouble}; {line}" if line else trouble
        self.report.add(self.part, name, found, line)


def trouble_of(found: dict[str, Any]) -> str:
    """In a few words why this is no whole result; empty if it is one."""
    for key, word in (
        ("failed", "FAILED"),
        ("unfinished", "unfinished"),
        ("out_of_memory", "out of memory"),
    ):
        if text := found.get(key):
            return f"{word}: {str(text).strip().splitlines()[-1][:160]}"
    return ""


@dataclass(frozen=True)
class Part:
    """`limit` is in seconds."""

    name: str
    run: Callable[[Work], None]
    limit: float
    question: str
    timed: bool = True
    """Whether its figures are of time: then nothing else runs meanwhile."""
    needs_gpu: bool = False
