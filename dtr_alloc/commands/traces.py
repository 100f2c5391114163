"""Commands that read recorded traces: what would other budgets and other heuristics cost?"""

import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dtr_alloc.commands.options import (
    BUDGET,
    FILE,
    LOGS,
    PICTURE,
    explained,
    json_flag,
    names,
    needs_place_for_picture,
    picture,
    rules,
    wide_console,
    with_default,
)
from dtr_alloc.runtime.heuristic import DEFAULT

if TYPE_CHECKING:
    import optuna

    from dtr_alloc.runtime.simulate.result import SimulationResult


@click.command()
@click.argument("log", type=FILE)
@click.option("--budget", required=True, metavar="60%|SIZE", help=BUDGET)
@with_default(
    "--heuristic",
    default=DEFAULT,
    metavar="NAME",
    help="Choose victims by this preset or ablation.",
)
@rules
@json_flag("one object, of all figures")
def simulate(log: str, budget: str, as_json: bool, **rules: Any) -> None:
    """Replay a recorded trace under a budget.

    Replays it as a scope would run it; with --paper as the paper's simulator does. Prints a line
    for each figure, with what it means. The status is ok where the run came to its end; oom where
    nothing was left to evict; thrash where recomputing had taken longer than all operators
    together, and the run was stopped. The overhead is the time of all operators that ran, those run
    again included, by that of each once: 1.25 is a quarter more.

    Exits with 3 unless the status is ok; the figures are printed all the same.
    """
    from dtr_alloc.pool.size import format_size
    from dtr_alloc.runtime.simulate.report import lines
    from dtr_alloc.runtime.simulate.rules import Rules
    from dtr_alloc.runtime.simulate.simulator import Simulator

    with explained():
        simulator = Simulator(log)
        result = simulator.run(budget, Rules(**rules))
    click.echo(result.as_json() if as_json else "\n".join(lines(result)))
    largest = simulator.baseline.largest_operator_bytes
    if result.status == "oom" and result.budget_bytes < largest:
        click.echo(
            f"The largest operator alone reads and makes {format_size(largest)}, more than the "
            f"budget of {format_size(result.budget_bytes)}.",
            err=True,
        )
    if result.status != "ok":
        sys.exit(3)


@click.command()
@LOGS
@click.option("--csv", type=PICTURE, metavar="FILE", help="Write a row for each run to FILE.")
@picture("--plot")
@json_flag("a list, an object a run")
@click.option(
    "--budgets", callback=names, metavar="B,B,...", help=f"{BUDGET} Default: 100%,90%,...,10%."
)
@click.option(
    "--heuristics",
    callback=names,
    metavar="NAME,NAME,...",
    help="Compare these. Default: seven; with --paper the six of its figure 2.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Run this many processes. Default: one a core."
)
@rules
def sweep(
    logs: tuple[str, ...],
    csv: Path | None,
    plot: Path | None,
    as_json: bool,
    budgets: list[str],
    heuristics: list[str],
    **options: Any,
) -> None:
    """Replay traces with every heuristic at every budget.

    The CSV has a row for each run, with the columns that "dtr-alloc simulate" explains. Runs that
    did not come to their end (status oom or thrash) are rows too, and counted in the last line; the
    exit code is 0.
    """
    from dtr_alloc.runtime.simulate.sweep import BUDGETS, HEURISTICS
    from dtr_alloc.runtime.simulate.sweep import sweep as run

    if csv is None and plot is None and not as_json:
        raise click.UsageError("say where the results go: --csv, --plot or --json")
    needs_place_for_picture(plot)
    with explained():
        chosen = heuristics or HEURISTICS, budgets or BUDGETS
        results = run(logs, *chosen, csv=csv, progress=True, **options)
    if plot is not None:
        _draw(results, plot)
    if as_json:
        click.echo(json.dumps([result.figures() for result in results], indent=1))
    failed = sum(result.status != "ok" for result in results)
    wrote = " and ".join(map(str, filter(None, (csv, plot))))
    told = f"{len(results)} runs, {failed} of them out of memory or thrashing."
    click.echo(f"{told} Wrote {wrote}." if wrote else told, err=as_json)


@click.command()
@click.argument("csv", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    *("-o", "--out"), required=True, type=PICTURE, metavar="FILE", help="Write the picture to FILE."
)
def plot(csv: Path, out: Path) -> None:
    """Draw a sweep's CSV: overhead against budget."""
    needs_place_for_picture(out)
    from dtr_alloc.runtime.simulate.sweep import read_csv

    with explained():
        results = read_csv(csv)
    _draw(results, out)
    click.echo(f"Wrote {out}.")


def _draw(results: "Sequence[SimulationResult]", path: Path) -> None:
    from dtr_alloc.runtime.simulate.plot import plot as draw

    with explained():
        draw(results, path)


@click.command("bound")
@click.argument("log", type=FILE)
@click.option("--budget", "budgets", multiple=True, required=True, metavar="60%|SIZE", help=BUDGET)
@click.option("--floor", is_flag=True, help="Also look for the smallest budget that works.")
@with_default(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    help="Spend so long on each budget's proof, and as long again on the search. 0: only the quick "
    "bound.",
)
@picture("--out")
@json_flag("a list, an object a budget")
def bound_(
    log: str,
    budgets: tuple[str, ...],
    floor: bool,
    seconds: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Tell how much recomputation any policy needs at a budget, and how near the known ones come.

    "no policy below" is proven: by linear and integer programs, or, where that is more, by the
    quick bound. "best found" is a search over the simulator's settings. --budget may be repeated.

    Exits with 3 where a budget is below the floor, in which no policy could run the program.
    """
    from dtr_alloc.runtime.bounding import report as bound_report
    from dtr_alloc.runtime.bounding.bound import Bounder
    from dtr_alloc.runtime.simulate.simulator import parse_budget

    needs_place_for_picture(out)
    with explained():
        for budget in budgets:
            parse_budget(budget)
        bounder = Bounder(log)
        bounds = [bounder.at(budget, floor, seconds) for budget in dict.fromkeys(budgets)]
        bounds.sort(key=lambda one: -one.budget_bytes)
        if as_json:
            click.echo(json.dumps([one.as_dict() for one in bounds], indent=1))
        else:
            wide_console().print(bound_report.table(bounds))
            click.echo("\n".join(bound_report.lines(bounds)))
        if out is not None:
            bound_report.draw(bounds, out)
    if any(math.isinf(one.lower) for one in bounds):
        sys.exit(3)


@click.command()
@LOGS
@click.option("--budget", "budgets", multiple=True, required=True, metavar="60%|SIZE", help=BUDGET)
@with_default(
    "--trials", type=click.IntRange(min=1), default=200, help="Stop after this many settings."
)
@click.option(
    "--storage", metavar="URL|FILE", help="Keep the study there, to go on later. Default: nowhere."
)
@click.option(
    "--holdout",
    multiple=True,
    type=FILE,
    metavar="LOG",
    help="Also try the result on this trace; may be repeated.",
)
@picture("--plot")
@click.option("--seed", type=int, help="Use this random seed for the search.")
@json_flag("one object, of the setting and each trace with it")
def tune(
    logs: tuple[str, ...],
    budgets: tuple[str, ...],
    trials: int,
    storage: str | None,
    holdout: tuple[str, ...],
    plot: Path | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Search the score's parameters for the least overhead on traces.

    Give several processes one --storage, and they share the work; call again after a kill, and it
    goes on where it was. --budget may be repeated.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    for module in ("optuna", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise click.ClickException("tuning needs more: pip install 'dtr-alloc[tune]'")
    if plot is not None and trials < 2:
        raise click.UsageError(
            f"--plot with --trials {trials}: a picture shows what trials differ in: give 2 or "
            "more, or leave --plot out"
        )
    needs_place_for_picture(plot)
    from dtr_alloc.runtime.tuning import report as tune_report
    from dtr_alloc.runtime.tuning import tune as tuning

    columns = (
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with explained():
        held = tuning.cases(holdout, budgets)
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("tuning", total=trials, best="")

            def advance(study: "optuna.Study", done: int) -> None:
                best = f"best overhead {math.exp(study.best_value):.3f}"
                bar.update(task, completed=min(done, trials), best=best)

            study = tuning.tune(logs, budgets, trials, storage, seed=seed, progress=advance)
        best = tuning.heuristic_of(study.best_params)
        given = tune_report.compare(tuning.cases(logs, budgets), best)
        held_out = tune_report.compare(held, best)
        if as_json:
            click.echo(json.dumps(tune_report.as_dict(best, given, held_out), indent=1))
        else:
            click.echo(tune_report.table(given, held_out))
            click.echo(f"\n{tuning.line_to_paste(best)}")
        if plot is not None:
            tune_report.draw(study, plot)
