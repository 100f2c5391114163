"""What several commands share: options, how a budget is written, and errors without tracebacks."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dtr_alloc.pool.size import Share, parse_budget

if TYPE_CHECKING:
    from rich.console import Console

with_default = partial(click.option, show_default=True)
FILE = click.Path(exists=True, dir_okay=False)
PICTURE = click.Path(dir_okay=False, path_type=Path)
LOGS = click.argument("logs", nargs=-1, required=True, type=FILE)
_POLICY = with_default(
    "--policy",
    type=click.Choice(["eager", "banish", "ignore"]),
    default="eager",
    help="What happens to a tensor that the program drops: eager: it is evicted at once; banish: "
    "it is forgotten as soon as nothing missing was computed from it; ignore: nothing.",
)
_MODE = with_default(
    "--mode",
    type=click.Choice(["bytes", "pool"]),
    default="pool",
    help="pool: memory is blocks, as in a scope; bytes: memory is a number, as in the paper.",
)
_LINK = click.option(
    "--link",
    metavar="SPEED",
    help='Add a second tier of memory, over a link of this speed: "50GB/s", or "50GB/s+10us" with '
    "a latency. Needs --mode pool.",
)
_LEAVE_BY = with_default(
    "--leave-by",
    type=click.Choice(["drop", "swap", "both"]),
    default="both",
    help="With --link: recompute what is evicted (drop), move it over the link (swap), or do what "
    "takes less time (both).",
)
BUDGET = 'A share of the activation peak, plus what must stay: "60%"; or a size: "8GiB".'
OURS_FIRST = {"allow_interspersed_args": False}
"""Of a command with a `program`: what stands behind the program's name is the program's."""


def program(command: Callable[..., None]) -> Callable[..., None]:
    """What to run, as `python` is told: a command gets `words`, a script or a module and what
    follows, and `module`, whether it is one."""
    shown = "SCRIPT|-m MODULE [ARGS]..."
    words = click.argument(
        "words", nargs=-1, required=True, type=click.UNPROCESSED, metavar=shown, callback=_words
    )
    flag = click.option("-m", "module", is_flag=True, is_eager=True, help="Run a module.")
    return flag(words(command))


def _words(
    context: click.Context, parameter: click.Parameter, words: tuple[str, ...]
) -> tuple[str, ...]:
    name, *others = words
    if not context.params["module"]:
        FILE.convert(name, parameter, context)
    options = [one for one in context.command.params if isinstance(one, click.Option)]
    ours = {"--", *context.help_option_names, *(name for one in options for name in one.opts)}
    if taken := [word for word in dict.fromkeys(w.split("=")[0] for w in others) if word in ours]:
        click.echo(f"{', '.join(taken)} behind {name} is {name}'s; ours stands before it", err=True)
    return words


def _as_the_paper(context: click.Context, parameter: click.Parameter, on: bool) -> None:
    """Other defaults: what is given beside it counts."""
    from dtr_alloc.runtime.simulate.sweep import FIGURE_2

    if on:
        papers = {"mode": "bytes", "heuristic": "dtr", "heuristics": ",".join(FIGURE_2)}
        context.default_map = papers


_PAPER = click.option(
    "--paper",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_as_the_paper,
    help="Replay as the paper's simulator does: --mode bytes --heuristic dtr.",
)


def rules(command: Callable[..., None]) -> Callable[..., None]:
    """Options of a simulation, under the names that `Rules` has for them."""
    return _PAPER(_POLICY(_MODE(_LINK(_LEAVE_BY(command)))))


def json_flag(what: str) -> Callable[..., Any]:
    """Where it is given, nothing but JSON goes to stdout, with times in ns and sizes in bytes."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON: {what}.")


def picture(name: str) -> Callable[..., Any]:
    return click.option(
        name, type=PICTURE, metavar="FILE", help="Write a picture to FILE (.png, .svg, .pdf)."
    )


def ratio(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[float, ...]:
    """Budgets from the command line: shares of the activation peak, largest first."""
    ratios = set()
    for value in values:
        try:
            share = parse_budget(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        if not isinstance(share, Share):
            raise click.BadParameter(f'{value!r} is no share of the activation peak: write "50%".')
        ratios.add(share.fraction)
    return tuple(sorted(ratios, reverse=True))


def names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in (value or "").split(",") if word.strip()]


def wide_console() -> "Console":
    """The terminal, though it may be narrower than our tables, which need 95 columns."""
    from rich.console import Console

    return Console(width=max(shutil.get_terminal_size().columns, 100))


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def needs_place_for(path: Path) -> None:
    """Before the work whose result goes there. The file is opened, because permissions do not tell
    all: root may do anything, and a system's folder still takes no file."""
    try:
        if not path.absolute().parent.is_dir():
            raise click.ClickException(f"there is no folder for {path}")
        new = not path.exists()
        if path.exists() and not (path.is_file() or path.is_dir()):
            return  # A pipe, whose reader would take the attempt for the end.
        with open(path, "ab"):
            pass
        if new:
            path.resolve().unlink()  # A link to nothing stays one.
    except OSError as error:
        raise click.ClickException(
            f"{path} cannot be written: {error.strerror}; name another file"
        ) from error


def needs_place_for_picture(path: Path | None) -> None:
    """The same, of a picture, if there is to be one."""
    if path is None:
        return
    if not has_matplotlib():
        raise click.ClickException("pictures are drawn with matplotlib: pip install matplotlib")
    needs_place_for(path)
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.filetypes
    if path.suffix[1:].lower() not in known:
        raise click.ClickException(
            f"{path} is no picture that matplotlib can write: end it in one of "
            f"{', '.join(sorted(known))}"
        )


@contextmanager
def explained(*more: type[BaseException]) -> Iterator[None]:
    """What a user can put right becomes a message instead of a traceback."""
    known: tuple[type[BaseException], ...] = (ValueError, OSError, ImportError, *more)
    try:
        yield
    except known as error:
        raise click.ClickException(str(error)) from error
