"""The driver on the host: it runs a compiled program segment by segment, and keeps what the program makes.

Between two segments it records draws, writes checkpoints, acts on signals and shows progress. It knows neither samplers
nor targets: sampling and factorization are two programs that it drives.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from hamcmc._types import Facts, Record
from hamcmc.inference.display import shown
from hamcmc.inference.progress import Progress, Status
from hamcmc.store.errors import Diverged, Interrupted, NonFinite
from hamcmc.store.recorder import Recorder

Draws = Mapping[str, np.ndarray]  # by ``group/name``, with leading axes (draw, chain)


class Program(Protocol):
    """A run that is advanced one segment at a time.

    Attributes:
        name: what the progress bar calls it.
        iteration: how far it has come, of `total`.
        total: where it ends.
    """

    name: str
    iteration: int
    total: int

    def advance(self) -> Draws:
        """Run one segment and return its draws. Raise :class:`Broken` if the state is lost."""
        ...

    def pack(self, going: bool) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint: all that is needed to continue a run that is `going` on, or to read one."""
        ...

    def unpack(self, arrays: Mapping[str, np.ndarray], meta: Facts) -> None:
        """Continue from a checkpoint."""
        ...

    def counters(self) -> Record:
        """What a checkpoint counts: iteration, seconds, gradients and whatever else the program measures."""
        ...

    def facts(self) -> Record:
        """What the log of events says about the newest segment; empty if there is nothing to say."""
        ...

    def status(self, draws: int) -> Status:
        """What the progress bar shows; `draws` is how many are stored per chain."""
        ...

    def agree(self, mine: bool) -> bool:
        """Whether any of the processes that run this program says so: all must leave the loop together."""
        ...


class Broken(Exception):
    """Raised by a program whose state is lost. Its `iteration` must then be the one where that was found.

    Attributes:
        draws: the draws of the segment that are kept.
        facts: what the log says: iteration, and where they are known chain and parameter.
        error: what :func:`drive` raises.
    """

    def __init__(self, message: str, draws: Draws, facts: Facts, error: type[NonFinite | Diverged] = NonFinite):
        super().__init__(message)
        self.draws, self.facts, self.error = draws, facts, error


def drive(
    program: Program,
    recorder: Recorder,
    *,
    resumed: bool = False,
    progress: bool | Progress | None = None,
    checkpoint_seconds: float = 30.0,
    resume_with: str = "",
    about: Facts | None = None,
) -> None:
    """Advance a program until it is complete.

    Args:
        program: what to run; every process of a distributed run calls this with its own part of it.
        recorder: where draws, checkpoints and events go.
        resumed: whether the program continues from a checkpoint; a new run writes one before its first segment.
        progress: show a bar (None: if stderr is a terminal), or call a function with each status.
        checkpoint_seconds: time between checkpoints.
        resume_with: the command that continues the run, for the message of :class:`~hamcmc.Interrupted`.
        about: what else the log says about the start, such as the number of devices.

    Raises:
        NonFinite: the state became non-finite; the draws before that are kept.
        Diverged: the draws left the posterior; they are kept.
        Interrupted: SIGINT or SIGTERM arrived; everything up to then is saved.

    They are raised without a result, which the caller attaches; `recorder.meta` has the last counters.
    """

    def save(status: str, **more: Any) -> None:
        """Write draws and a checkpoint."""
        arrays = program.pack(status == "running")  # every process packs, since that may gather what is spread
        recorder.save({"status": status, **program.counters(), **more}, arrays)

    with signals() as received, shown(progress, program.name, "compiling") as show:
        if not resumed:
            save("running")
        recorder.log("start", iteration=program.iteration, **(about or {}))
        saved = time.monotonic()
        while program.iteration < program.total and not program.agree(bool(received)):
            try:
                draws = program.advance()
            except Broken as broken:
                recorder.append(broken.draws)
                recorder.cut()
                recorder.log("failed", **broken.facts)
                save("failed", message=str(broken))
                raise broken.error(str(broken)) from None
            recorder.append(draws)
            if facts := program.facts():
                recorder.log("progress", **facts)
            show(program.status(recorder.total))
            if program.iteration < program.total and program.agree(time.monotonic() - saved >= checkpoint_seconds):
                save("running")
                saved = time.monotonic()
        if program.iteration == program.total:
            save("complete")
            recorder.log("complete", iteration=program.iteration, seconds=round(program.counters()["seconds"], 3))
        else:
            save("running")
        if received or program.iteration < program.total:
            number = received[0] if received else signal.SIGTERM  # another process may have received it
            raise _interrupted(program, recorder, signal.Signals(number), resume_with)


def _interrupted(program: Program, recorder: Recorder, number: signal.Signals, resume_with: str) -> Interrupted:
    """What to raise after a signal."""
    recorder.log("interrupted", signal=number.name, iteration=program.iteration)
    if program.iteration == program.total:
        then = ", which was the last"
    elif resume_with:
        then = f", all saved: '{resume_with}' continues"
    else:
        then = "; give out= to be able to resume"
    message = f"stopped by {number.name} at iteration {program.iteration:,} of {program.total:,}{then}"
    return Interrupted(message, int(number))


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, to act on between segments; a second one acts at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    old = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: object) -> None:
        """Remember the first signal, and let the old handlers act on the next."""
        received.append(number)
        for n, handler in old.items():
            signal.signal(n, handler)

    for n in old:
        signal.signal(n, note)
    try:
        yield received
    finally:
        for n, handler in old.items():
            signal.signal(n, handler)
