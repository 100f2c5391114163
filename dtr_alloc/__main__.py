"""The command line: `dtr-alloc`, also `python -m dtr_alloc`. One function per command."""

import importlib.metadata
import importlib.util
import math
import os
import shutil
from pathlib import Path

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dtr-alloc")
def main() -> None:
    """A memory budget that holds, for any program on stock PyTorch."""


@main.command()
def info() -> None:
    """Show versions and what this installation can do."""
    import torch

    import dtr_alloc

    rows = {
        "dtr_alloc": importlib.metadata.version("dtr-alloc"),
        "torch": torch.__version__,
        "built against": f"torch {dtr_alloc._core.torch_version}",
        "device cpu": f"supported, {torch.get_num_threads()} threads",
        "device cuda": "not supported yet",
        "page size": f"{os.sysconf('SC_PAGE_SIZE')} bytes",
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        click.echo(f"{name:<{width}}  {value}")


def _ratio(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[float, ...]:
    """Budgets from the command line: shares of the activation peak, largest first."""
    ratios = set()
    for value in values:
        try:
            ratio = float(value)
        except ValueError:
            ratio = math.nan
        if not 0 < ratio < math.inf:
            raise click.BadParameter(
                f"{value!r} is not a share of the activation peak: give a number above 0."
            )
        ratios.add(ratio)
    return tuple(sorted(ratios, reverse=True))


@main.command()
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
    metavar="R",
    callback=_ratio,
    default=("0.7", "0.5", "0.3"),
    help="Share of the activation peak; may be repeated. Default: 0.7 0.5 0.3.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="Optimizer steps of each training; the first warms up.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Timed trainings of each kind.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder for demo.json and demo.png.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads of an operator.",
)
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
    if importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException(
            "the demo draws a picture with matplotlib: pip install matplotlib"
        )

    import torch
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    from dtr_alloc.demo import MODELS, Plan, compare, draw, table, write_json

    for name in models:
        if name not in MODELS:
            raise click.BadParameter(
                f"no model {name!r}: choose from {', '.join(MODELS)}.", param_hint="--model"
            )
    names = list(dict.fromkeys(models)) or list(MODELS)
    out.mkdir(parents=True, exist_ok=True)
    plan = Plan(budgets, steps, rounds)
    torch.set_num_threads(threads)

    console = Console(width=max(shutil.get_terminal_size().columns, 100))  # The table needs 95.
    columns = (
        TextColumn("{task.fields[model]:>8}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    comparisons = []
    with Progress(*columns, console=console, transient=True) as progress:
        for name in names:
            task = progress.add_task("", total=plan.trainings(), model=name)

            def advance(done: int, doing: str, task: TaskID = task) -> None:
                progress.update(task, completed=done, description=doing)

            comparison = compare(name, MODELS[name], plan, advance)
            progress.remove_task(task)
            comparisons.append(comparison)
            verdict = "[red]failed[/]" if comparison.failures() else "done"
            console.print(f"{name}: {verdict}, {plan.trainings()} trainings of {steps} steps")
    console.print(table(comparisons))
    write_json(out / "demo.json", comparisons, plan)
    draw(out / "demo.png", comparisons)
    console.print(f"Wrote {out / 'demo.json'} and {out / 'demo.png'}.")
    failures = [failure for comparison in comparisons for failure in comparison.failures()]
    for failure in failures:
        console.print(f"[bold red]Failed:[/] {failure}")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
