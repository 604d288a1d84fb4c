"""What long work reports while it runs, and the bar that shows it in a terminal."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Status(NamedTuple):
    """How far some work has come. Only `done` is always given; the other fields are given where they make sense.

    Attributes:
        done: the fraction of the whole that is done, from 0 to 1. It is 0 while the whole is not known: while an
            automatic run measures the posterior, and while XLA compiles. It begins again with a longer run.
        phase: what is happening now, such as ``"looking for the mode"``, ``"compiling"``, ``"adaptation"`` or
            ``"250 draws"``. ``"plan"`` says in `note` what an automatic run is going to do.
        iteration: iterations done, of `total`; the first `warmup` of them are not recorded.
        total: iterations in all.
        warmup: iterations before the first recorded one.
        draws: stored draws per chain.
        seconds: sampling time so far, without compilation.
        rate: iterations per second, recently.
        step_size: the current ε; None for a sampler that adapts it.
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


def tell(progress: bool | Progress | None, phase: str, note: str = "") -> None:
    """Say what happens now, at the beginning of work whose end is not in sight."""
    if callable(progress):
        progress(Status(0.0, phase, note=note))
