"""What all commands share: the consoles, exit codes, and the options that several of them take.

Exit codes: 0 for success, 1 for a run that failed, 2 for bad usage or input, 3 for a run that has not converged, 4 for
a run that is wrong, 130 and 143 for SIGINT and SIGTERM.
"""

import contextlib
import csv
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from hamcmc._require import MissingPackage
from hamcmc._types import Facts
from hamcmc.store.errors import Interrupted, RunError
from hamcmc.target.disk import CutShort

screen, errors = Console(width=None if sys.stdout.isatty() else 120), Console(stderr=True, soft_wrap=True)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)]
RunOut = Annotated[Path, typer.Option("--out", "-o", help="Directory for the run.")]
Seed = Annotated[int, typer.Option(help="Everything random follows from it.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the sampler; may be repeated."),
]
CheckpointSeconds = Annotated[float, typer.Option(help="Time between checkpoints.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for another program, and nothing else.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV, and nothing else.")]
Processes = Annotated[
    int,
    typer.Option(help="Processes on this machine, which share the rows. Under mpirun or Slurm, their number counts."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]

RENAMED = {"--samples": "--num-samples", "--burn-in": "--warmup"}  # options of 0.1.0 that still work


class Command(TyperCommand):
    """A command that also takes the names that its options had in 0.1.0, without a word about them in its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace old names, as in ``--samples 100`` and ``--samples=100``, then parse."""
        ctx.meta["hamcmc.arguments"] = (ctx.info_name, *args)  # for processes that do the same
        words = (word.partition("=") for word in args)
        return super().parse_args(ctx, [RENAMED.get(name, name) + equals + value for name, equals, value in words])


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Turn expected failures into a line on stderr and an exit code. A worker leaves that to who started it."""
    if "HAMCMC_PROCESSES" in os.environ:
        yield
        return
    try:
        yield
    except Interrupted as stop:
        warn(str(stop))
        raise typer.Exit(128 + stop.signal) from None
    except KeyboardInterrupt:  # while nothing has begun that would say where it stopped
        warn("stopped by SIGINT before there was anything to resume")
        raise typer.Exit(128 + signal.SIGINT) from None
    except (RunError, CutShort, ValueError, MissingPackage) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(1 if isinstance(error, (RunError, CutShort)) else 2) from None


@contextlib.contextmanager
def stoppable(state: str) -> Iterator[None]:
    """Let SIGINT and SIGTERM end work that cannot be resumed: unfinished files are removed, and `state` is told."""
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        for n in old:
            signal.signal(n, signal.SIG_IGN)  # nothing may interrupt the removal of unfinished files
        received.append(number)
        raise KeyboardInterrupt

    old = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    for n in old:
        signal.signal(n, stop)
    try:
        yield
    except KeyboardInterrupt:
        number = received[0] if received else signal.SIGINT
        raise Interrupted(f"stopped by {signal.Signals(number).name}: {state}", number) from None
    finally:
        for n, handler in old.items():
            signal.signal(n, handler)


def chosen(as_json: bool, as_csv: bool) -> str | None:
    """How to print a table: json, csv, or None for people."""
    if as_json and as_csv:
        raise ValueError("--json and --csv exclude each other: choose one")
    return "json" if as_json else "csv" if as_csv else None


def write_table(
    form: str, head: Sequence[str], rows: Iterable[Sequence[Any]], about: Facts, name: str = "rows"
) -> None:
    """Print a table for another program: CSV, or JSON with facts `about` it. What is not a number becomes null."""
    known = [[None if isinstance(v, float) and not math.isfinite(v) else v for v in row] for row in rows]
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(known)
        return
    typer.echo(json.dumps({**about, name: [dict(zip(head, row)) for row in known]}, ensure_ascii=False))


def say(message: str) -> None:
    """Print a line that is neither wrapped nor coloured."""
    screen.print(escape(message), highlight=False, soft_wrap=True)


def wrote(*files: Path) -> None:
    """Say which files were written; of many the first ones and the last."""
    names = list(map(str, files))
    if len(names) > 8:
        names = [*names[:3], "…", f"{names[-1]} ({len(names):,} files)"]
    say("Wrote " + ", ".join(names))


def warn(message: str) -> None:
    """Print a warning to stderr."""
    errors.print(f"[yellow]{escape(message)}[/yellow]", highlight=False)


def flowing(docstring: str | None) -> str:
    """A docstring as help: each paragraph on one line, because the terminal breaks lines itself."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (docstring or "").split("\n\n"))


def setting(text: str) -> tuple[str, Any]:
    """Split ``name=value``. A value that is JSON is read as JSON; anything else stays text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"--set needs NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
