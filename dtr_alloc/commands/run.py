"""`dtr-alloc run`: a program that nobody edits, under a budget.

On the CPU the program is in a scope from before its first line, so its parameters count. The scope
ends with the process: what the program still holds then is not brought back, and what it registered
with atexit finds it open. With CUDA the program has our allocator instead.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dtr_alloc.commands.options import OURS_FIRST, explained, program, with_default

if TYPE_CHECKING:
    from dtr_alloc.runtime.scope.run_script import Elsewhere
    from dtr_alloc.runtime.scope.session import Session

_LAUNCHERS = {
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    *("accelerate", "accelerate-launch", "accelerate.commands.launch"),
    *("accelerate.commands.accelerate_cli", "fabric", "lightning.fabric.cli"),
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
}  # Scripts and modules.


@click.command(context_settings=OURS_FIRST)
@program
@click.option(
    "--budget",
    envvar="DTR_ALLOC_BUDGET",
    metavar="60%|SIZE",
    help='A size, "4GiB", or a share of the activation peak, plus what must stay. Default: that of '
    "the environment variable DTR_ALLOC_BUDGET.",
)
@click.option("--within", metavar="SIZE", help="With a share: the budget of the first step.")
@with_default(
    "--memory", type=click.Choice(["pool", "torch"]), default="pool", help="Who allocates."
)
@click.option(
    "--strict",
    is_flag=True,
    help="An operator that was refused memory and went on with less, as cuDNN does, is an error.",
)
def run(
    words: tuple[str, ...],
    module: bool,
    budget: str | None,
    within: str | None,
    memory: str,
    strict: bool,
) -> None:
    """Run a Python program, unedited, under a memory budget.

    The program is SCRIPT or a MODULE, with ARGS, as python would run it: its output and its exit
    code are its own. On the CPU all of it is in a scope; where torch finds a CUDA device, its
    allocator is replaced. A summary follows on stderr. Processes that the program starts run
    without a budget; for several that train together:

    torchrun --nproc-per-node 2 --no-python dtr-alloc run --budget 4GiB train.py
    """
    from dtr_alloc.runtime.scope.run_script import Elsewhere, no_other_budget, run_script

    name, *args = words
    if Path(name).name in _LAUNCHERS:
        raise click.UsageError(
            f"{name} starts processes that would run without a budget: let it start dtr-alloc in "
            "each: torchrun --nproc-per-node 2 --no-python dtr-alloc run --budget 4GiB train.py"
        )
    session = _opened(budget, within, memory, strict)
    elsewhere, process = Elsewhere(), os.getpid()
    with no_other_budget(), elsewhere.watch():
        code = run_script(name, args, module=module)
    try:
        if os.getpid() == process:  # A child may come here, too.
            _tell(session(), elsewhere)
    finally:
        sys.exit(code)


def _opened(
    budget: str | None, within: str | None, memory: str, strict: bool
) -> "Callable[[], Session | None]":
    """Puts this process under the budget, to its end. Returns what gives the session."""
    import torch

    import dtr_alloc

    if not torch.cuda.is_available():
        if budget is None and memory == "pool":
            raise click.UsageError("how much memory? Give --budget, such as 4GiB or 60%")
        with explained(RuntimeError, MemoryError):
            scope = dtr_alloc.rematerialize(budget, within=within, memory=memory, strict=strict)  # type: ignore[arg-type]
            session = scope.__enter__()
        scope.end_with_process()
        return lambda: session
    if within is not None:
        raise click.UsageError("--within goes with a share, which is for the CPU")
    with explained(RuntimeError, MemoryError):
        chosen = dtr_alloc.allocator(budget, memory=memory, strict=strict)  # type: ignore[arg-type]
        torch.cuda.memory.change_current_allocator(chosen)
    return lambda: chosen.session


def _tell(session: "Session | None", elsewhere: "Elsewhere") -> None:
    rank = os.environ.get("RANK")
    told = (
        "no memory of a device was asked for, and nothing had a budget: for a program on the CPU "
        "set CUDA_VISIBLE_DEVICES="
    )
    if session is not None:
        told = session.summary()
    lines = [f"dtr-alloc run{f', rank {rank}' if rank else ''}:", told]
    if str(elsewhere):
        lines.append(f"{'without a budget':<17} {'':>12}   {elsewhere}")
    with contextlib.suppress(OSError, ValueError):  # The program may have closed them.
        sys.stdout.flush()
        click.echo("\n".join(lines), err=True)
