"""Commands that look at a program: ours, which the demo trains, or a script of the user's."""

import sys
from pathlib import Path

import click

from dtr_alloc.commands.options import (
    BUDGET,
    OURS_FIRST,
    explained,
    has_matplotlib,
    names,
    needs_place_for,
    needs_place_for_picture,
    program,
    ratio,
    wide_console,
    with_default,
)
from dtr_alloc.runtime.heuristic import DEFAULT


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="One of resnet, gpt, lstm, treelstm, unet; may be repeated. Default: all.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="50%",
    callback=ratio,
    default=("70%", "50%", "30%"),
    help="Share of the activation peak; may be repeated. Default: 70% 50% 30%.",
)
@with_default(
    "--steps",
    type=click.IntRange(min=2),
    default=4,
    help="Optimizer steps of each training; the first warms up.",
)
@with_default(
    "--rounds", type=click.IntRange(min=1), default=5, help="Timed trainings of each kind."
)
@with_default(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    help="Folder for demo.json and demo.png.",
)
@with_default("--threads", type=click.IntRange(min=1), default=1, help="Threads of an operator.")
def demo(
    models: tuple[str, ...],
    budgets: tuple[float, ...],
    steps: int,
    rounds: int,
    out: Path,
    threads: int,
) -> None:
    """Train five models in a fraction of their memory, and compare with eager bit for bit.

    Exits with 1 where a result differs from eager's, the pool's peak is above the budget, a budget
    below eager's peak evicts nothing, or half of the activation peak is not enough.
    """
    import torch

    from dtr_alloc.demo import MODELS, Plan, draw, table, write_json
    from dtr_alloc.demo.progress import compare_all

    for name in models:
        if name not in MODELS:
            raise click.BadParameter(
                f"no model {name!r}: choose from {', '.join(MODELS)}.", param_hint="--model"
            )
    names = list(dict.fromkeys(models)) or list(MODELS)
    json, picture = out / "demo.json", out / "demo.png"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(
            f"the folder {out} cannot be made: {error.strerror}; give --out another"
        ) from error
    needs_place_for(json)
    if has_matplotlib():
        needs_place_for_picture(picture)
    plan = Plan(budgets, steps, rounds)
    torch.set_num_threads(threads)

    console = wide_console()
    comparisons = compare_all({name: MODELS[name] for name in names}, plan, console)
    console.print(table(comparisons))
    write_json(json, comparisons, plan)
    if has_matplotlib():
        draw(picture, comparisons)
        console.print(f"Wrote {json} and {picture}.")
    else:
        console.print(f"Wrote {json}, and no picture: pip install matplotlib")
    failures = [failure for comparison in comparisons for failure in comparison.failures()]
    for failure in failures:
        console.print(f"[bold red]Failed:[/] {failure}")
    if failures:
        raise SystemExit(1)


@click.command(context_settings=OURS_FIRST)
@program
@with_default("-o", "--out", default="trace.log.gz", metavar="LOG", help="Write the trace to LOG.")
@with_default(
    "--clock",
    type=click.Choice(["wall", "logical"]),
    default="wall",
    help="Cost of an operator: its time (wall), or the bytes that it touches (logical).",
)
def trace(words: tuple[str, ...], module: bool, out: str, clock: str) -> None:
    """Run a Python SCRIPT or MODULE with ARGS and record what it computes on the CPU.

    Nothing is evicted meanwhile. The log can be replayed at any budget: dtr-alloc simulate LOG.
    Options stand before the script: what is behind it is the script's. A script that fails or exits
    early leaves a log of what it did; its exit code is kept.
    """
    from dtr_alloc.runtime.scope.record import trace_script

    needs_place_for(Path(out))
    with explained():
        code, operators, elsewhere = trace_script(words[0], words[1:], out, clock, module=module)
    try:
        click.echo(f"{out}: {operators:,} operators", err=True)
        if elsewhere:
            click.echo(f"not in {out}: what was computed by {elsewhere}", err=True)
    finally:  # The script may have closed stderr.
        sys.exit(code)


@click.command("plan", context_settings=OURS_FIRST)
@program
@click.option("--budgets", callback=names, metavar="B,B,...", help=f"{BUDGET} Default: six.")
@click.option(
    "--batches",
    callback=names,
    metavar="N,N,...",
    help="Plan for each of these, in place of {batch} in ARGS.",
)
@with_default("--slowdown", type=float, default=1.2, help="Largest acceptable slowdown.")
@with_default("--steps", type=int, default=4, help="Optimizer steps to run.")
@with_default(
    "--rounds",
    type=int,
    default=3,
    help="Repeat the runs so often; the fastest time of each step counts.",
)
@with_default("--heuristic", default=DEFAULT, metavar="NAME", help="Choose victims by this preset.")
@click.option(
    "--within",
    metavar="BYTES",
    help="Limit memory while the script runs, if it does not fit without a limit.",
)
@click.option(
    "--link", metavar="SPEED", help='Plan for a swap file of this speed: "2GB/s", or "measured".'
)
@click.option(
    "--swap-dir",
    metavar="FOLDER",
    help="Put the swap file there. Default: the folder of temporary files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, an object a batch.")
def plan_(
    words: tuple[str, ...],
    module: bool,
    budgets: list[str],
    batches: list[str],
    slowdown: float,
    steps: int,
    rounds: int,
    heuristic: str,
    within: str | None,
    link: str | None,
    swap_dir: str | None,
    as_json: bool,
) -> None:
    """Predict what a SCRIPT's training costs under budgets, from its first steps.

    Runs SCRIPT or MODULE with ARGS several times until an optimizer has stepped a few times,
    without a budget; then simulates. DTR_ALLOC_PLANNING=1 in its environment tells it. Options
    stand before the script: what is behind it is the script's. With --batches 8,16,32 all is done
    for each, in place of "{batch}" in ARGS: dtr-alloc plan --batches 8,16 train.py --batch={batch}

    Exits with 1 where no budget can be named.
    """
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from dtr_alloc.runtime.planning import plan as planning
    from dtr_alloc.runtime.planning import report as plan_report
    from dtr_alloc.runtime.planning.plan import Plan
    from dtr_alloc.runtime.planning.script import ScriptError, profile_script

    script, *args = words
    if batches and not any("{batch}" in word for word in args):
        raise click.UsageError("--batches needs {batch} in ARGS, where the script takes its batch")
    plans = []
    console = Console(stderr=True)
    silent = not console.is_terminal
    with explained(), Progress(console=console, transient=True, disable=silent) as bar:
        speed = planning.check(budgets, slowdown, steps, rounds, heuristic, within, link, swap_dir)
        each: list[str | None] = [*batches]
        for batch in each or [None]:
            given = args if batch is None else [word.replace("{batch}", batch) for word in args]
            task = bar.add_task(batch or "", total=rounds * (2 if within is None else 1))

            of = "" if batch is None else f"batch {batch}, "

            def advance(doing: str, task: TaskID = task, of: str = of) -> None:
                trial = "saving less" in doing  # Not in the total.
                bar.update(task, advance=not trial, description=f"{of}{doing}")
                if silent and not trial and (within or "plain" in doing):
                    click.echo(f"{of}{doing.split(',')[0]} of {rounds}", err=True)

            try:
                profile = profile_script(
                    script, given, steps, rounds, within, advance, module=module
                )
            except ScriptError as error:
                raise click.ClickException(str(error)) from error
            bar.update(task, description=f"{of}simulating")
            if silent:
                click.echo(f"{of}simulating", err=True)
            budget = budgets or None
            plans.append(
                planning.plan_of(profile, budget, slowdown, heuristic, batch, speed, swap_dir)
            )
    if as_json:
        click.echo(f"[{', '.join(map(Plan.as_json, plans))}]")
    else:
        each_plan = [one for plan in plans for one in plan.with_what_was_tried()]
        wide_console().print(plan_report.table(each_plan))
        for plan in each_plan:
            click.echo(plan_report.suggestion(plan, slowdown))
    if not all(any(one.smallest for one in plan.with_what_was_tried()) for plan in plans):
        sys.exit(1)
