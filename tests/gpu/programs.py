"""How these tests run a program: once on plain torch, once under dtr_alloc, on a GPU or on the CPU.

CUDA's allocator is for a whole process, so on a GPU each program runs in one of its own: a file
with the text of this module, the program's function, and a call of it, whose answer comes back as
JSON. On the CPU the function is called as it is, and dtr_alloc is a scope: that shows that the
program and what the test expects of it make sense, before there is a GPU to try it on. Names that
the file would not have are an error there, too.

A program takes a device and a budget in bytes, or None for plain torch, and begins with `swap`.
"""

import builtins
import dis
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import CodeType
from typing import Any

import torch

import dtr_alloc

MIB = 1 << 20
Program = Callable[..., Any]
_scopes = ExitStack()
TELL_A_HANG = "import faulthandler\nfaulthandler.dump_traceback_later(100, exit=True)"


class Watched:
    """What counts a program's memory: dtr_alloc's session, or torch where there is none."""

    def __init__(self, device: str, session: Callable[[], Any], pool: Callable[[], Any]) -> None:
        self._device, self._session, self._pool = device, session, pool

    def evictions(self) -> int:
        session = self._session()
        return 0 if session is None else int(session.stats().evictions)

    def remaps(self) -> int:
        stats = self._pool()
        return 0 if stats is None else int(stats.remaps)

    def peak(self) -> int:
        if self._device == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return int(self._session().stats().peak_bytes)

    def check(self) -> None:
        if session := self._session():
            session.check()


def swap(device: str, budget: int | None, **options: Any) -> Watched:
    """Puts dtr_alloc in place, unless the budget is None: then only the peak is counted."""
    if device == "cuda":
        if budget is None:
            return Watched(device, lambda: None, lambda: None)
        allocator = dtr_alloc.allocator(budget, **{"thrash_limit": 0.0, **options})
        torch.cuda.memory.change_current_allocator(allocator)
        core = allocator._core
        return Watched(device, lambda: allocator.session, lambda: core.pool_stats(0))
    kept = {name: options[name] for name in ("memory", "events") if name in options}
    opened = dtr_alloc.measure() if budget is None else dtr_alloc.rematerialize(budget, **kept)
    session = _scopes.enter_context(opened)
    return Watched(device, lambda: session, lambda: session._core.pool_stats())


def digest(tensor: torch.Tensor) -> str:
    """Of every byte. Of a copy: memory that is handed out is never evicted."""
    flat = tensor.detach().clone().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]


def result(watched: Watched, tensors: Iterable[torch.Tensor], **more: Any) -> dict[str, Any]:
    """What two runs of a program are compared by, and what its memory did."""
    found = {"peak": watched.peak(), "evictions": watched.evictions(), "remaps": watched.remaps()}
    watched.check()
    return found | more | {"sums": [digest(tensor) for tensor in tensors]}


def trained(model: torch.nn.Module) -> list[torch.Tensor]:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*model.parameters(), *gradients, *model.buffers()]


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def losses_of(steps: int, forward: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Of so many forward and backward passes. No graph is left behind."""
    losses = []
    for _ in range(steps):
        loss = forward()
        backward(loss)
        losses.append(loss.detach().clone())
        del loss
    return losses


def hold_up(device: str, cycles: int = 20_000_000) -> None:
    """Gives the current stream work for some milliseconds."""
    if device == "cuda":
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def deterministic() -> None:
    """As every program on a GPU begins; one may switch it off."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)


def in_process(text: str, expect: int = 0) -> Any:
    """Runs a text in a process of its own; what its last line said, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"  # Triton wants to read a kernel's source.
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, str(file)],
            env=os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONFAULTHANDLER": "1"},
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=120,
            check=False,
        )
    assert done.returncode == expect, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def globals_of(code: CodeType) -> set[str]:
    """Names of the module that a function reads, those of functions inside it included."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return found.union(*map(globals_of, inner))


def text_of(program: Program, *arguments: object, needs: Iterable[Any] = ()) -> str:
    """A file that runs the program; `needs` are modules whose text it wants before its own."""
    here = sys.modules[text_of.__module__]
    known = {name for part in (here, *needs) for name in vars(part)} | {*dir(builtins)}
    if absent := globals_of(program.__code__) - known:
        raise NameError(f"{program.__name__} uses names of its file: {sorted(absent)}")
    parts = [inspect.getsource(part) for part in (here, *needs, program)]
    values = ", ".join(map(repr, arguments))
    return "\n\n".join(
        [*parts, TELL_A_HANG, f"deterministic()\nprint(json.dumps({program.__name__}({values})))"]
    )


def told(program: Program, device: str, *arguments: Any, needs: Iterable[Any] = ()) -> Any:
    text = text_of(program, device, *arguments, needs=needs)
    if device == "cuda":
        return in_process(text)
    torch.manual_seed(0)
    with _scopes:
        return program(device, *arguments)


def assert_exact(program: Program, device: str, share: float, *arguments: Any) -> tuple[Any, Any]:
    """What it says on plain torch, and under a share of the peak that it had there: the same."""
    plain = told(program, device, None, *arguments)
    budget = int(plain["peak"] * share)
    found = told(program, device, budget, *arguments)
    assert found["evictions"] > 0
    assert found["peak"] <= budget
    assert found["sums"] == plain["sums"]
    return plain, found
