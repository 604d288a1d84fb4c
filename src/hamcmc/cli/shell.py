"""What all commands share: the two consoles, exit codes, a progress bar, and options that several of them take.

Exit codes: 0 for success, 1 for a run that failed, 2 for bad usage or input, 130 and 143 for SIGINT and SIGTERM.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from hamcmc.store.errors import Interrupted, RunError

screen, errors = Console(width=None if sys.stdout.isatty() else 120), Console(stderr=True, soft_wrap=True)
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Turn expected failures into a line on stderr and an exit code."""
    try:
        yield
    except Interrupted as stop:
        errors.print(f"[yellow]{escape(str(stop))}[/yellow]", highlight=False)
        raise typer.Exit(128 + stop.signal) from None
    except RunError as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from None
    except ValueError as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(2) from None


@contextlib.contextmanager
def bar(name: str) -> Iterator[Any]:
    """A bar for work that reports (what, fraction done)."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=not sys.stderr.isatty()) as display:
        task = display.add_task(name, total=1.0)
        yield lambda what, done: display.update(task, description=f"{name}: {what}", completed=done)


def setting(text: str) -> tuple[str, Any]:
    """``name=value``; the value as JSON where it is some, else as text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"--set wants NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
