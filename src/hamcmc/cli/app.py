"""The command line: all commands in one program.

Modules that take long to import are imported inside the commands that use them, so that ``hamcmc --help`` is quick.
"""

import gc
import signal
import sys
from typing import Annotated

import typer

from hamcmc import __version__
from hamcmc.cli import pages, ratings, sampling, speech, summaries
from hamcmc.cli.shell import screen

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bayesian inference on large data with stochastic quasi-Newton Langevin dynamics.",
    epilog="Start with [bold]hamcmc demo[/bold]. Then see [bold]hamcmc sample --help[/bold] for a model of your own.",
)


VERDICTS = (3, 4)  # exit codes of runs that are complete, and have not converged or are wrong


def main() -> None:
    """The entry point."""
    try:
        _run()
    except KeyboardInterrupt:  # in an import, mostly: commands that work say themselves where they stopped
        print("stopped by SIGINT", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _run() -> None:
    """Run a command, as a process of its own or as one of several."""
    from hamcmc import _compile
    from hamcmc.inference import launch

    _compile.keep()
    if launch.started_by() is None:
        try:
            app()
        finally:
            gc.freeze()  # what is left is not looked through again on the way out, which takes half a second
        return
    try:
        app()
    except SystemExit as end:
        launch.leave(end.code if isinstance(end.code, int) else 0, others=VERDICTS)
    except Exception as error:
        print(f"process {launch.rank()}: {type(error).__name__}: {error}", file=sys.stderr)
        launch.leave(launch.LOST)


def version(value: bool) -> None:
    """Print the version."""
    if value:
        screen.print(f"hamcmc {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    """Options of the program itself."""


for commands in (sampling, summaries, pages, ratings, speech):
    commands.register(app)
