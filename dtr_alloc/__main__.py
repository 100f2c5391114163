"""The command line: `dtr-alloc`, also `python -m dtr_alloc`."""

import click

from dtr_alloc import __version__
from dtr_alloc.commands.programs import demo, plan_, trace
from dtr_alloc.commands.run import run
from dtr_alloc.commands.traces import bound_, plot, simulate, sweep, tune


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


for command in (demo, run, trace, plan_, simulate, sweep, plot, bound_, tune):
    main.add_command(command)


if __name__ == "__main__":
    main()
