"""The profile of a script, whose steps are counted by its optimizers (step_ends.py).

Each training is a process of its own, so that it starts from scratch, and ends after some steps:
there the script is left as `sys.exit` leaves it, so that its `finally` and what it registered with
atexit run. Which step of an optimizer ends one of the program is seen in a scope alone. So that run
comes first, and the one in plain torch ends its steps at the same ones. What a script prints is
held back, and shown where it fails. The environment has DTR_ALLOC_PLANNING=1, for scripts that
would rather not write a checkpoint each time.

A script that opens a scope itself is profiled in its first one, so that what lies outside of it
stays outside, and is left where it opens another; its budget is not obeyed. Else all of the script
is in a scope. Where torch finds a CUDA device, it has the CUDA allocator instead, to the end of its
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dtr_alloc.pool.size import short_size
from dtr_alloc.runtime.adapters import compiled_code
from dtr_alloc.runtime.planning.profile import TRIED_SHARE, Profile, Recorded, shares, warn_of_trial
from dtr_alloc.runtime.scope import cuda_allocator
from dtr_alloc.runtime.scope.out_of_memory import needed
from dtr_alloc.runtime.scope.record import Recording, recorded
from dtr_alloc.runtime.scope.run_script import (
    Elsewhere,
    run_script,
    scopes_of_scripts,
    session_of_scripts,
)
from dtr_alloc.runtime.scope.scope import measure, rematerialize
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.scope.session_stats import SessionStats
from dtr_alloc.runtime.trace import Trace


class ScriptError(RuntimeError):
    """The script did not get through its first steps; the text has its last words."""


def profile_script(
    script: str,
    args: Sequence[str],
    steps: int,
    rounds: int,
    within: str | None = None,
    advance: Callable[[str], None] = lambda doing: None,
    *,
    module: bool = False,
) -> Profile:
    """Trains in a scope and in plain torch, `rounds` times in turn; `advance` is told before each.
    Raises ScriptError where a run of the script failed, or made no step."""
    eager: list[tuple[int, ...]] = []
    found: list[Recorded] = []
    saving_less: list[Recorded] = []
    own_scope, tries = False, True
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "run.json", Path(folder) / "trace.log"

        def train(ends: list[int] | None = None, share: float | None = None) -> dict[str, Any]:
            nonlocal own_scope
            options: dict[str, Any] = {"steps": steps, "module": module, "share": share}
            options |= {"log": str(log) if ends is None else None, "within": within, "ends": ends}
            row = _run(script, args, {**options, "own_scope": own_scope}, out)
            if row["opens_scope"]:
                own_scope = True
                row = _run(script, args, {**options, "own_scope": True}, out)
            return row

        for turn in range(rounds):
            advance(f"round {turn + 1}, recorded")
            row = train()
            found.append(_recorded(row, log))
            if within is None:
                advance(f"round {turn + 1}, plain torch")
                eager.append(tuple(train(ends=row["ends"])["step_ns"]))
            if not (tries and row["saves_all"]):
                continue
            advance(f"round {turn + 1}, recorded, compiled code saving less")
            try:
                saving_less.append(_recorded(train(share=TRIED_SHARE), log))
            except ScriptError as error:
                tries = False
                saving_less.clear()
                warn_of_trial(error)
    return Profile.of(eager, found, saving_less)


def _recorded(row: dict[str, Any], log: Path) -> Recorded:
    times = tuple(row["step_ns"])
    figures = row["kernel_share"], row["peak_bytes"]
    return Recorded(Trace.load(log), row["warm_marks"], len(times), times, *figures)


# Without this folder on the path: a module of the script's may have the name of one that torch
# imports. What runs the script puts its own folder there.
_START = f"""
import sys
here = [] if getattr(sys.flags, "safe_path", False) else [sys.path.pop(0)]
from {__name__} import main
sys.path[:0] = here
main()
"""


def _run(script: str, args: Sequence[str], options: dict[str, Any], out: Path) -> dict[str, Any]:
    out.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as told:  # A pipe lasts as long as any process of the script.
        code = subprocess.call(
            [sys.executable, "-c", _START, str(out), json.dumps(options), script, *args],
            stdout=told,
            stderr=subprocess.STDOUT,
            env=os.environ | {"DTR_ALLOC_PLANNING": "1"},
        )
        told.seek(0)
        words = b"" if out.exists() else told.read()
    if not out.exists():
        last = "\n".join(words.decode(errors="replace").splitlines()[-12:])
        raise ScriptError(f"{script} exited with {code} in its first steps:\n{last}")
    row: dict[str, Any] = json.loads(out.read_text())
    if row.get("problem"):
        raise ScriptError(f"{script} {row['problem']}")
    return row


class _Watch:
    """Times the steps of the part of a script that is profiled: a mark as it begins, one after each
    step, and one as it ends by itself. `ends`: how many optimizers' steps had begun as each step of
    the program ended, where an earlier run saw it."""

    def __init__(self, steps: int, ends: list[int] | None) -> None:
        self.steps = steps
        self.ends = ends or []
        self._thread = threading.get_ident()
        self.marks: list[tuple[int, SessionStats | None]] = []
        self.stepped = self._begun = 0

    @contextmanager
    def __call__(self, scope: Session | None) -> Iterator[None]:
        def here() -> bool:
            return threading.get_ident() == self._thread

        def mark() -> None:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
            self.marks.append((time.perf_counter_ns(), scope.stats() if scope else None))

        def begins(*_: object) -> None:
            self._begun += here()

        def ended() -> None:
            if not here():
                return
            mark()
            self.stepped += 1
            if scope:
                self.ends.append(self._begun)
            if self.stepped == self.steps:
                raise SystemExit

        def stepped(*_: object) -> None:
            if not here():
                raise SystemExit  # Of that thread.
            if scope is None and self.ends[self.stepped : self.stepped + 1] == [self._begun]:
                ended()

        mark()
        hooks = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(stepped)
        if scope:
            scope._steps.hears = ended
        try:
            yield
        finally:
            if scope:
                scope._steps.hears = None
            for hook in hooks:
                hook.remove()
            if self.stepped < self.steps:
                mark()

    def figures(self) -> dict[str, Any]:
        """What there is to say of it: of its steps but the first; of a program with one step, of
        that; of one without, of all of it."""
        warm_marks = int(self.stepped > 1)
        steady = self.marks[1 : 1 + self.stepped] if warm_marks else self.marks[:2]
        times = [at for at, _ in steady]
        step_ns = tuple(after - before for before, after in pairwise(times))
        first, last = steady[0][1], steady[-1][1]
        if first is None or last is None:
            return {"step_ns": step_ns}
        kept, kernels = shares(first, last, times[-1] - times[0])
        return {
            "step_ns": [int(ns * kept) for ns in step_ns],
            "warm_marks": warm_marks,
            "kernel_share": kernels,
            "peak_bytes": last.peak_bytes,
            "ends": self.ends,
        }


def _train(script: str, args: list[str], options: dict[str, Any]) -> dict[str, Any] | None:
    watch, recording = _Watch(options["steps"], options.get("ends")), Recording()
    log, within, elsewhere = options["log"], options["within"], Elsewhere()
    compiled_code.tried_share = options.get("share")
    refused = False
    least: int | None = None

    def raised(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        nonlocal least
        least = needed(error) if isinstance(error, torch.OutOfMemoryError) else None
        sys.__excepthook__(kind, error, trace)

    @contextmanager
    def profiled(recordable: Iterable[str] = ()) -> Iterator[Session]:
        if log is None:
            with measure() as closed:
                pass
            with watch(None), session_of_scripts(closed):
                yield closed  # It counts nothing: this is plain torch.
            return
        opened = _on_cuda(within) if on_cuda else rematerialize(within, recordable=recordable)
        with opened as scope, recorded(recording), watch(scope):
            yield scope

    def refuse(*_: object, **__: object) -> NoReturn:
        nonlocal refused
        refused = True
        raise SystemExit  # The script has a scope of its own.

    @contextmanager
    def first_only(*_: object, recordable: Iterable[str] = (), **__: object) -> Iterator[Session]:
        if watch.marks:
            raise SystemExit  # Its first one is over, and that is profiled alone.
        with profiled(recordable) as scope:
            yield scope

    own_scope = options["own_scope"]
    on_cuda = torch.cuda.is_available() and not own_scope
    with (
        scopes_of_scripts(first_only if own_scope else refuse),
        elsewhere.watch(),
        nullcontext() if own_scope else profiled(),
    ):
        before, sys.excepthook = sys.excepthook, raised
        code = run_script(script, args, module=options.get("module", False))
        sys.excepthook = before
    if refused:
        return {"opens_scope": True}
    if within is not None and least:
        more = f"give --within {short_size(2 * least)}, say; {short_size(least)} do until there"
        return {"problem": f"does not fit within {within}: {more}"}
    if elsewhere.steps and not watch.stepped:
        return {"problem": "trains in another thread, and a plan follows the script's first alone"}
    if code != 0 or not watch.marks:
        return None
    if recording.trace is not None:
        if recording.trace.schedule().op_constant.all():
            told = f" ({elsewhere})" if elsewhere.processes else ""
            told += "; for a program on the CPU set CUDA_VISIBLE_DEVICES=" * on_cuda
            nothing = "computes nothing in its first process, and a plan follows no other"
            return {"problem": nothing + told}
        recording.trace.save(log)
    saves_all = compiled_code.saves_all
    return {"opens_scope": False, "saves_all": saves_all, **watch.figures()}


@contextmanager
def _on_cuda(within: str | None) -> Iterator[Session]:
    """Of a script on a device, whose memory is the limit: a budget above it is never reached."""
    chosen = cuda_allocator.allocator(within or "1TiB")
    torch.cuda.memory.change_current_allocator(chosen)
    chosen.free(chosen.allocate(1))  # Which makes the session.
    session = chosen.session
    assert session is not None
    yield session


def main() -> None:
    out, options, script, *args = sys.argv[1:]
    row = _train(script, args, json.loads(options))
    if row is None:
        sys.exit(1)
    Path(out).write_text(json.dumps(row))


if __name__ == "__main__":
    main()
