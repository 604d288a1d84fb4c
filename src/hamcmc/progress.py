"""What a run tells while it goes on, and a bar for the terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Status(NamedTuple):
    """Where a run stands.

    Attributes:
        iteration: iterations done, of `total`; the first `warmup` of them are not recorded.
        draws: stored draws per chain.
        seconds: sampling time so far, without compilation.
        rate: iterations per second, recently.
        step_size: the current ε.
        acceptance: mean fraction of curvature pairs accepted; None for samplers without.
        note: more to show.
    """

    iteration: int
    total: int
    warmup: int
    draws: int
    seconds: float
    rate: float
    step_size: float
    acceptance: float | None
    note: str = ""


Progress = Callable[[Status], None]


@contextlib.contextmanager
def shown(progress: bool | Progress | None, description: str) -> Iterator[Progress]:
    """The function to call with each status: the given one, or that of a bar (None: if stderr is a terminal)."""
    if progress is None:
        progress = sys.stderr.isatty()
    if progress is True:
        update, close = bar(description)
        try:
            yield update
        finally:
            close()
    else:
        yield progress or (lambda status: None)


def bar(description: str) -> tuple[Progress, Callable[[], None]]:
    """A rich progress bar on stderr: rate, time left, step size, acceptance of pairs. Returns (update, close)."""
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
    task = display.add_task(description, total=None, rate="compiling", facts="")
    display.start()

    def update(status: Status) -> None:
        phase = "warm-up" if status.iteration < status.warmup else f"{status.draws} draws"
        facts = [phase, f"ε {status.step_size:.2e}"]
        if status.acceptance is not None:
            facts.append(f"pairs {status.acceptance:.0%}")
        if status.note:
            facts.append(status.note)
        display.update(
            task,
            completed=status.iteration,
            total=status.total,
            rate=f"{status.rate:,.0f} it/s",
            facts=" · ".join(facts),
        )

    return update, display.stop
