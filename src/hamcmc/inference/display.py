"""Where the reports of long work go: to a bar in a terminal, to a function, or nowhere."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from hamcmc import _processes
from hamcmc.inference.progress import Progress, Status, silent

P = ParamSpec("P")
R = TypeVar("R")


def only_the_plan(status: Status) -> None:
    """Print what an automatic run is going to do, and nothing else: stderr is a file or a pipe."""
    if status.phase == "plan":
        print(f"plan: {status.note}", file=sys.stderr)


@contextlib.contextmanager
def shown(progress: bool | Progress | None, description: str, phase: str = "preparing") -> Iterator[Progress]:
    """Yield the function to call with each status.

    Args:
        progress: a function to call, True for a bar, False for nothing; None shows a bar if stderr is a terminal.
        description: what the bar calls the work.
        phase: what the bar shows until the first status.
    """
    if not _processes.writes():
        progress = False
    if progress is None:
        progress = sys.stderr.isatty() or only_the_plan
    if progress is True:
        from hamcmc.inference.bar import Bar  # rich takes a while to import

        display = Bar(description, phase)
        try:
            display.open()  # here, so that Ctrl-C at its first frame closes it, too
            yield display
        finally:
            display.close()
    else:
        yield progress or silent


def displayed(description: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Open one display for a whole call. The function gets it as `progress`, and hands it to all that it calls."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        """A function with the same arguments."""

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            """Show what happens during the call."""
            asked: Any = kwargs.get("progress")
            with shown(asked, description) as show:
                kwargs["progress"] = show
                return function(*args, **kwargs)

        return call

    return decorate
