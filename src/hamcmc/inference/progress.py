"""What long work reports while it runs, and the bar that shows it in a terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Status(NamedTuple):
    """How far some work has come. Only `done` is always given; the other fields are given where they make sense.

    Attributes:
        done: the fraction of the whole that is done, from 0 to 1.
        phase: what is happening now, such as ``"warm-up"`` or ``"round 2 of 5"``.
        iteration: iterations done, of `total`; the first `warmup` of them are not recorded.
        total: iterations in all.
        warmup: iterations before the first recorded one.
        draws: stored draws per chain.
        seconds: sampling time so far, without compilation.
        rate: iterations per second, recently.
        step_size: the current ε.
        acceptance: the mean fraction of curvature pairs that were accepted.
        note: more to show.
    """

    done: float
    phase: str = ""
    iteration: int = 0
    total: int = 0
    warmup: int = 0
    draws: int = 0
    seconds: float = 0.0
    rate: float | None = None
    step_size: float | None = None
    acceptance: float | None = None
    note: str = ""


Progress = Callable[[Status], None]


def silent(_status: Status) -> None:
    """Show nothing."""


@contextlib.contextmanager
def shown(progress: bool | Progress | None, description: str) -> Iterator[Progress]:
    """Yield the function to call with each status.

    Args:
        progress: a function to call, True for a bar, False for nothing; None shows a bar if stderr is a terminal.
        description: what the bar calls the work.
    """
    if progress is None:
        progress = sys.stderr.isatty()
    if progress is True:
        update, close = bar(description)
        try:
            yield update
        finally:
            close()
    else:
        yield progress or silent


def bar(description: str) -> tuple[Progress, Callable[[], None]]:
    """A progress bar on stderr with phase, rate, time left and whatever else is known. Returns (update, close)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}"),
        console=Console(stderr=True),
    )
    task = display.add_task(description, total=1.0, rate="compiling", facts="")
    display.start()

    def update(status: Status) -> None:
        """Show a status."""
        facts = [status.phase] if status.phase else []
        if status.step_size is not None:
            facts.append(f"ε {status.step_size:.2e}")
        if status.acceptance is not None:
            facts.append(f"pairs {status.acceptance:.0%}")
        if status.note:
            facts.append(status.note)
        rate = "" if status.rate is None else f"{status.rate:,.0f} it/s"
        display.update(task, completed=status.done, rate=rate, facts=" · ".join(facts))

    return update, display.stop
