"""The bar that shows in a terminal how far some work has come, and for how long it has been going on."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

from hamcmc.inference.progress import Status

WIDTH = 20  # characters of the bar, so that a line of 80 has room for words


class Bar:
    """A line on stderr that a thread of its own refreshes, so that it also moves while XLA compiles.

    Once it is open, call it with a :class:`~hamcmc.inference.progress.Status` to change what it shows. As long as
    nothing is known about how much there is to do, the bar only moves; then it also says how much time is left.

    Args:
        description: what it calls the work.
        phase: what happens first.
        console: where to draw; stderr by default.
    """

    def __init__(self, description: str, phase: str, console: Console | None = None):
        self.description, self.phase, self.began = description, phase, time.monotonic()
        self.display = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(WIDTH),
            TaskProgressColumn(),
            Times(self.began),
            TextColumn("{task.fields[facts]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            console=console or Console(stderr=True),
            expand=True,
        )
        self.task = self.display.add_task(description, total=None, facts=phase, left=None)

    def open(self) -> None:
        """Draw the first frame."""
        self.display.start()

    def __call__(self, status: Status) -> None:
        """Show a status. A plan is printed above the bar."""
        if status.phase == "plan":
            line = f"plan: {status.note}"
            self.display.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        known = status.done > 0 or status.total > 0
        if not known and self._total is not None:  # other work begins, of which nothing is known yet
            self.display.remove_task(self.task)
            self.task = self.display.add_task(self.description, total=None, facts="", left=None)
        left = (status.total - status.iteration) / status.rate if status.rate else None
        total = 1.0 if known else None  # None leaves it as it is
        new, self.phase = status.phase != self.phase, status.phase  # a phase may be over before the thread looks
        self.display.update(self.task, total=total, completed=status.done, facts=_facts(status), left=left, refresh=new)

    def close(self) -> None:
        """Leave the terminal as it was. A bar that never knew how much there was to do disappears."""
        if self._total is None:
            self.display.live.transient = True
        self.display.stop()

    @property
    def _total(self) -> float | None:
        return next(t.total for t in self.display.tasks if t.id == self.task)


class Times(ProgressColumn):
    """The time since the work began, and how much is left if there is a way to know."""

    def __init__(self, began: float):
        super().__init__()
        self.began = began

    def render(self, task: Task) -> Text:
        """Both times, as in ``0:12, 0:08 left``."""
        passed = _clock(time.monotonic() - self.began)
        if task.total is None or task.finished:
            return Text(passed)
        left = task.time_remaining or task.fields["left"]
        return Text(passed if left is None else f"{passed}, {_clock(left)} left")


def _facts(status: Status) -> str:
    """All that is known beside times, in one line."""
    facts = [status.phase] if status.phase else []
    if status.note:
        facts.append(status.note)
    if status.rate:
        facts.append(f"{status.rate:,.0f} it/s")
    if status.step_size is not None:
        facts.append(f"ε {status.step_size:.2g}")
    if status.acceptance is not None:
        facts.append(f"pairs {status.acceptance:.0%}")
    return " · ".join(facts)


def _clock(seconds: float) -> str:
    """A time as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
