"""Independent pieces of long work side by side, one on each core."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

from hamcmc.inference.progress import Progress, Status

Found = TypeVar("Found")


class Stopped(BaseException):
    """Ends a piece of work whose result nobody waits for any more."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(pieces: Sequence[Callable[[Progress], Found]]) -> Iterator[tuple[int, Found]]:
    """Run pieces of work in as many threads as there are cores: compiled programs hold no lock of Python's.

    Programs that must not run beside another one of their kind need :func:`hamcmc._compile.guard`.

    Args:
        pieces: each gets a function to report progress to, which ends it when another piece failed or after Ctrl-C.

    Yields:
        The number of a piece and its result, in the order in which they end.
    """
    stopping = Event()

    def look(_status: Status | None = None) -> None:
        if stopping.is_set():
            raise Stopped

    def work(piece: Callable[[Progress], Found]) -> Found:
        look()
        try:
            return piece(look)
        except BaseException:  # this thread must not take the next piece before anybody hears of the failure
            stopping.set()
            raise

    with ThreadPoolExecutor(cores()) as pool:
        numbers = {pool.submit(work, piece): i for i, piece in enumerate(pieces)}
        try:
            for future in as_completed(numbers):
                if not isinstance(future.exception(), Stopped):  # the failure that stopped it is still to come
                    yield numbers[future], future.result()
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
