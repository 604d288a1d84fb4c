"""What long work reports while it runs."""

from collections.abc import Callable
from typing import NamedTuple


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


def tell(progress: bool | Progress | None, phase: str, note: str = "") -> None:
    """Say what happens now, at the beginning of work whose end is not in sight."""
    if callable(progress):
        progress(Status(0.0, phase, note=note))
