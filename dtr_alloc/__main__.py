"""The command line: `dtr-alloc`, also `python -m dtr_alloc`. One function per command."""

import importlib.util
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dtr_alloc import __version__
from dtr_alloc.runtime.heuristic import Policy
from dtr_alloc.runtime.simulation_rules import Mode, Rules

if TYPE_CHECKING:
    import optuna


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dtr-alloc")
def main() -> None:
    """A memory budget that holds, for any program on stock PyTorch."""


@main.command()
def info() -> None:
    """Show what a bug report needs: versions, machine, build, GPU, environment."""
    from dtr_alloc.info import rows as found

    rows = found()
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
    _needs_matplotlib()

    import torch
    from rich.console import Console

    from dtr_alloc.demo import MODELS, Plan, draw, table, write_json
    from dtr_alloc.demo.progress import compare_all

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
    comparisons = compare_all({name: MODELS[name] for name in names}, plan, console)
    console.print(table(comparisons))
    write_json(out / "demo.json", comparisons, plan)
    draw(out / "demo.png", comparisons)
    console.print(f"Wrote {out / 'demo.json'} and {out / 'demo.png'}.")
    failures = [failure for comparison in comparisons for failure in comparison.failures()]
    for failure in failures:
        console.print(f"[bold red]Failed:[/] {failure}")
    if failures:
        raise SystemExit(1)


def _needs_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException("pictures are drawn with matplotlib: pip install matplotlib")


@contextmanager
def _explained() -> Iterator[None]:
    """What a user can put right becomes a message instead of a traceback."""
    from dtr_alloc import TraceError

    try:
        yield
    except (ValueError, TraceError, OSError, ImportError) as error:
        raise click.ClickException(str(error)) from error


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in (value or "").split(",") if word.strip()]


LOGS = click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
POLICY = click.option(
    "--policy",
    type=click.Choice(["eager", "banish", "ignore"]),
    default="eager",
    show_default=True,
    help="What becomes of a tensor that the program lets go.",
)
MODE = click.option(
    "--mode",
    type=click.Choice(["bytes", "pool"]),
    default="bytes",
    show_default=True,
    help="As the paper's simulator, or as the live runtime.",
)
BUDGET = (
    'A number with a point is a share of the peak without a budget ("0.5"); anything else is bytes '
    '("8GiB"; "5" is five bytes).'
)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--out", default="trace.log.gz", show_default=True, metavar="LOG")
@click.option("--clock", type=click.Choice(["wall", "logical"]), default="wall", show_default=True)
def trace(script: str, args: tuple[str, ...], out: str, clock: str) -> None:
    """Run a Python SCRIPT with ARGS and record what it computes on the CPU.

    Nothing is evicted meanwhile. The log can be replayed at any budget: dtr-alloc simulate LOG.
    Put -- before ARGS that begin with a dash. A script that fails or exits early leaves a log of
    what it did; its exit code is kept.
    """
    from dtr_alloc.runtime.trace.record import trace_script

    code, operators = trace_script(script, args, out, clock)
    click.echo(f"{out}: {operators:,} operators", err=True)
    sys.exit(code)


@main.command()
@click.argument("log", type=click.Path(exists=True, dir_okay=False))
@click.option("--budget", required=True, metavar="RATIO|BYTES", help=BUDGET)
@click.option("--heuristic", default="dtr", show_default=True, metavar="NAME")
@POLICY
@MODE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(
    log: str, budget: str, heuristic: str, policy: Policy, mode: Mode, as_json: bool
) -> None:
    """Replay a recorded trace under a budget.

    Prints a line for each figure, with what it means. The status is ok where the run came to its
    end; oom where nothing was left to evict; thrash where recomputing had taken longer than
    all operators together, and the run was stopped. The overhead is the time of all operators that
    ran, those run again included, by that of each once: 1.25 is a quarter more.

    Exits with 3 unless the status is ok; the figures are printed all the same.
    """
    from dtr_alloc.runtime.simulate import Simulator
    from dtr_alloc.runtime.simulation_report import lines
    from dtr_alloc.size import format_size

    with _explained():
        simulator = Simulator(log)
        result = simulator.run(budget, Rules(heuristic, policy, mode))
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


@main.command("plan", context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--budgets", callback=_names, metavar="B,B,...", help=f"{BUDGET} Default: six.")
@click.option("--batches", callback=_names, metavar="N,N,...", help="For {batch} in ARGS.")
@click.option("--slowdown", type=float, default=1.2, show_default=True, help="What is acceptable.")
@click.option("--steps", type=int, default=4, show_default=True, help="Of the optimizer.")
@click.option("--rounds", type=int, default=3, show_default=True, help="The least times count.")
@click.option("--heuristic", default="dtr", show_default=True, metavar="NAME")
@click.option("--within", metavar="BYTES", help="Evict already now, where it does not fit.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, an object a batch.")
def plan_(
    script: str,
    args: tuple[str, ...],
    budgets: list[str],
    batches: list[str],
    slowdown: float,
    steps: int,
    rounds: int,
    heuristic: str,
    within: str | None,
    as_json: bool,
) -> None:
    """Predict what a SCRIPT's training costs under budgets, from its first steps.

    Runs SCRIPT with ARGS until an optimizer has stepped a few times, without a budget; then
    simulates. Put -- before ARGS that begin with a dash. With --batches 8,16,32 that is done for
    each, in place of "{batch}" in ARGS: dtr-alloc plan train.py --batches 8,16 -- --batch={batch}
    """
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from dtr_alloc.runtime.planning import plan as planning
    from dtr_alloc.runtime.planning import report as plan_report
    from dtr_alloc.runtime.planning.script import ScriptError, profile_script

    if batches and not any("{batch}" in word for word in args):
        raise click.UsageError("--batches needs {batch} in ARGS, where the script takes its batch")
    plans = []
    with _explained(), Progress(console=Console(stderr=True), transient=True) as bar:
        planning.check(budgets, slowdown, steps, rounds, heuristic, within)
        for batch in batches or [""]:
            words = [word.replace("{batch}", batch) for word in args] if batch else args
            task = bar.add_task(batch, total=rounds * (2 if within is None else 1))

            def advance(doing: str, task: TaskID = task, batch: str = batch) -> None:
                bar.update(task, advance=1, description=f"{batch} {doing}".strip())

            try:
                profile = profile_script(script, words, steps, rounds, within, advance)
            except ScriptError as error:
                raise click.ClickException(str(error)) from error
            plans.append(planning.plan_of(profile, budgets or None, slowdown, heuristic, batch))
    if as_json:
        click.echo(f"[{', '.join(plan.as_json() for plan in plans)}]")
        return
    console = Console(width=max(shutil.get_terminal_size().columns, 100))
    console.print(plan_report.table(plans))
    for plan in plans:
        click.echo(plan_report.suggestion(plan, slowdown))


@main.command()
@LOGS
@click.option("--csv", type=click.Path(dir_okay=False, path_type=Path), help="Where rows go.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="A picture.")
@click.option(
    "--budgets", callback=_names, metavar="B,B,...", help=f"{BUDGET} Default: 1.0,0.9,...,0.1."
)
@click.option("--heuristics", callback=_names, metavar="NAME,NAME,...", help="Default: six.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes. Default: one a core.")
@POLICY
@MODE
def sweep(
    logs: tuple[str, ...],
    csv: Path | None,
    plot: Path | None,
    budgets: list[str],
    heuristics: list[str],
    jobs: int | None,
    policy: Policy,
    mode: Mode,
) -> None:
    """Replay traces with every heuristic at every budget.

    The CSV has a row for each run, with the columns that "dtr-alloc simulate" explains. Runs that
    did not come to their end (status oom or thrash) are rows too, and counted in the last line; the
    exit code is 0.
    """
    from dtr_alloc.runtime.sweep import BUDGETS, HEURISTICS
    from dtr_alloc.runtime.sweep import sweep as run

    if csv is None and plot is None:
        raise click.UsageError("say where the results go: --csv, --plot or both")
    if plot is not None:
        _needs_matplotlib()
    with _explained():
        results = run(
            logs,
            heuristics or HEURISTICS,
            budgets or BUDGETS,
            policy=policy,
            mode=mode,
            jobs=jobs,
            csv=csv,
            progress=True,
        )
    if plot is not None:
        from dtr_alloc.runtime.plot import plot as draw

        with _explained():
            draw(results, plot)
    failed = sum(result.status != "ok" for result in results)
    wrote = " and ".join(str(path) for path in (csv, plot) if path is not None)
    click.echo(f"{len(results)} runs, {failed} of them out of memory or thrashing. Wrote {wrote}.")


@main.command()
@click.argument("csv", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="A picture."
)
def plot(csv: Path, out: Path) -> None:
    """Draw a sweep's CSV: overhead against budget."""
    _needs_matplotlib()
    from dtr_alloc.runtime.plot import plot as draw
    from dtr_alloc.runtime.sweep import read_csv

    with _explained():
        draw(read_csv(csv), out)
    click.echo(f"Wrote {out}.")


@main.command("bound")
@click.argument("log", type=click.Path(exists=True, dir_okay=False))
@click.option("--budget", "budgets", multiple=True, required=True, metavar="R", help=BUDGET)
@click.option("--floor", is_flag=True, help="Look for the smallest budget that works, too.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="For a budget's proof, and as long again for the search. 0: the quick bound alone.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A picture.")
def bound_(
    log: str, budgets: tuple[str, ...], floor: bool, seconds: float, out: Path | None
) -> None:
    """Tell how much recomputation any policy needs at a budget, and how near the known ones come.

    "no policy below" is proven: by linear and integer programs, or, where that is more, by the
    quick bound. "best found" is a search over the simulator's settings. --budget may be repeated.

    Exits with 3 where a budget is below the floor, in which no policy could run the program.
    """
    from rich.console import Console

    from dtr_alloc.runtime.bounding import report as bound_report
    from dtr_alloc.runtime.bounding.bound import Bounder
    from dtr_alloc.runtime.simulate import parse_budget

    if out is not None:
        _needs_matplotlib()
    with _explained():
        for budget in budgets:
            parse_budget(budget)
        bounder = Bounder(log)
        bounds = [bounder.at(budget, floor, seconds) for budget in dict.fromkeys(budgets)]
        bounds.sort(key=lambda one: -one.budget_bytes)
        console = Console(width=max(shutil.get_terminal_size().columns, 100))
        console.print(bound_report.table(bounds))
        click.echo("\n".join(bound_report.lines(bounds)))
        if out is not None:
            bound_report.draw(bounds, out)
    if any(math.isinf(one.lower) for one in bounds):
        sys.exit(3)


@main.command()
@LOGS
@click.option("--budget", "budgets", multiple=True, required=True, metavar="B", help=BUDGET)
@click.option("--trials", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--storage", metavar="URL|FILE", help="Where the study is kept. Default: nowhere.")
@click.option(
    "--holdout",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="LOG",
    help="A trace to try the result on; may be repeated.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="A picture.")
@click.option("--seed", type=int, help="Of the search.")
def tune(
    logs: tuple[str, ...],
    budgets: tuple[str, ...],
    trials: int,
    storage: str | None,
    holdout: tuple[str, ...],
    plot: Path | None,
    seed: int | None,
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
    from dtr_alloc.runtime.tuning import report as tune_report
    from dtr_alloc.runtime.tuning import tune as tuning

    columns = (
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with _explained():
        held = tuning.cases(holdout, budgets)
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("tuning", total=trials, best="")

            def advance(study: "optuna.Study", done: int) -> None:
                best = f"best overhead {math.exp(study.best_value):.3f}"
                bar.update(task, completed=min(done, trials), best=best)

            study = tuning.tune(logs, budgets, trials, storage, seed=seed, progress=advance)
        best = tuning.heuristic_of(study.best_params)
        given = tune_report.compare(tuning.cases(logs, budgets), best)
        click.echo(tune_report.table(given, tune_report.compare(held, best)))
        if plot is not None:
            tune_report.draw(study, plot)
    click.echo(f"\n{tuning.line_to_paste(best)}")


if __name__ == "__main__":
    main()
