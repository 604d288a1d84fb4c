"""Data that stay on disk: rows of memory maps, and work on chunks of them that reads ahead."""

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

WORKERS = min(4, os.cpu_count() or 1)  # chunks that are read and computed side by side; more hold more memory


def rows(x: Any, which: slice | np.ndarray) -> np.ndarray:
    """Rows of an array, in memory.

    Raises:
        OSError: the array is a memory map, and its file is shorter than it was when it was opened. To touch a page
            beyond the end of a file would end the process without a word.
    """
    require_whole(x)
    return np.array(x[which])


def require_whole(x: Any) -> None:
    """Raise if the array is a memory map of a file that has become shorter."""
    held = getattr(x, "_mmap", None)
    if not isinstance(x, np.memmap) or held is None:
        return
    needed, has = x.offset - x.offset % mmap.ALLOCATIONGRANULARITY + len(held), held.size()
    if has < needed:
        name = x.filename or "the file of a memory map"
        raise OSError(f"{name} was cut short while it was in use: it has {has:,} bytes and had at least {needed:,}")


def ahead(work: Callable[[Any], Any], chunks: Iterable[Any], workers: int | None = None) -> Iterator[Any]:
    """What `work` makes of each chunk, in their order. Threads work on the chunks that follow, a few at a time.

    The first chunk is finished before any other begins, so that a program is compiled once.
    """
    waiting, count = iter(chunks), workers or WORKERS
    for first in waiting:
        yield work(first)
        break
    with ThreadPoolExecutor(count) as pool:
        pending: deque[Future] = deque()
        for chunk in waiting:
            pending.append(pool.submit(work, chunk))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
