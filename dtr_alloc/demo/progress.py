"""Compares models one after the other, and shows on the terminal how far that is.

A demonstration takes minutes, so each model has a bar, and a line that stays when it is done.
"""

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dtr_alloc.demo.models import Job
from dtr_alloc.demo.train import Comparison, Plan, compare


def compare_all(
    models: Mapping[str, Callable[[], Job]], plan: Plan, console: Console
) -> list[Comparison]:
    """What `compare` finds of each model, in order."""
    columns = (
        TextColumn("{task.fields[model]:>8}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    comparisons = []
    with Progress(*columns, console=console, transient=True) as progress:
        for name, make in models.items():
            task = progress.add_task("", total=plan.trainings(), completed=-1, model=name)

            def advance(doing: str, task: TaskID = task) -> None:  # Before each training.
                progress.update(task, advance=1, description=doing)

            comparison = compare(name, make, plan, advance)
            progress.remove_task(task)
            comparisons.append(comparison)
            verdict = "[red]failed[/]" if comparison.failures() else "done"
            console.print(f"{name}: {verdict}, {plan.trainings()} trainings of {plan.steps} steps")
    return comparisons
