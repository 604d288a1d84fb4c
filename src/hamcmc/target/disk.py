"""Data that stay on disk: rows of memory maps, and work on chunks of them that reads ahead."""

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from hamcmc._compile import x64
from hamcmc._types import PyTree

WORKERS = min(4, os.cpu_count() or 1)  # chunks that are read and computed side by side; more hold more memory

ALIGNMENT = 64  # bytes; JAX computes in place on an array that begins at a multiple, and copies all others

# Where control groups of version 2 and 1 have the limit of a process's memory
LIMITS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}

ALONE = 16  # pages in a row that a disk reads in about the time of one on its own

GATHERED = 2**22  # bytes of single rows that are read at once


class CutShort(OSError):
    """A file became shorter while it was in use. The message names it."""


def rows(x: Any, which: slice | np.ndarray) -> np.ndarray:
    """Rows of an array.

    A slice of rows that stand together is a view and no copy.
    The system is told what to expect of a memory map: all of a slice at once, and single rows where `which` has
    indices. It would otherwise read 128 KiB around each of them. Indices in rising order are read fastest: where they
    stand near to each other, all that is between them is read, too.

    Raises:
        CutShort: the array is a memory map, and its file is shorter than it was when it was opened. To touch a page
            beyond the end of a file would end the process without a word.
    """
    held = mapping(x)
    if isinstance(which, slice):
        part = np.asarray(x[which])
        if held is None:
            return part
        require_whole(x)
        if not part.flags.c_contiguous:
            return aligned(part)
        if part.size:
            begin = part.ctypes.data - np.frombuffer(held, np.uint8).ctypes.data
            begin, end = begin - begin % mmap.PAGESIZE, begin + part.nbytes
            _advise(held, "MADV_WILLNEED", begin, end - begin)
        return part
    if held is None:
        return np.asarray(x[which])
    require_whole(x)
    _advise(held, "MADV_SEQUENTIAL" if _near(x, which) else "MADV_RANDOM", 0, len(held))
    try:
        found, flat = room((which.size, *x.shape[1:]), x.dtype), which.ravel()
        step = max(1, GATHERED * len(x) // max(1, x.nbytes))
        for start in range(0, len(flat), step):
            found[start : start + step] = x[flat[start : start + step]]
        return found.reshape(*which.shape, *x.shape[1:])
    finally:
        _advise(held, "MADV_NORMAL", 0, len(held))


def on_device(x: np.ndarray) -> Array:
    """The array as one of JAX, which is a view where it is aligned. Nobody may write to it from now on."""
    return jax.device_put(x, may_alias=True)


def whole(length: int) -> int:
    """The largest number of rows up to `length` after which rows of any type are aligned again."""
    return length - length % ALIGNMENT if length > ALIGNMENT else length


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy that begins where JAX wants arrays to begin, so that it computes on this copy and makes no other."""
    found = room(x.shape, x.dtype)
    found[...] = x
    return found


def room(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """An aligned array with nothing in it yet."""
    size = int(np.prod(shape)) * kind.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + size].view(kind).reshape(shape)


def scratch(length: int, kind: Any, streamed: bool) -> np.ndarray:
    """Zeros, one for each row: beside streamed data in a file that has no name and vanishes, otherwise in memory."""
    if not (streamed and length):
        return np.zeros(length, kind)
    with tempfile.TemporaryFile(prefix="hamcmc-") as file:
        return np.memmap(file, kind, "w+", shape=(length,))


def mapping(x: Any) -> mmap.mmap | None:
    """The mapping that an array is a view of; None for an array in memory."""
    held = getattr(x, "_mmap", None) if isinstance(x, np.memmap) else None
    return held if isinstance(held, mmap.mmap) else None


def shapes(data: PyTree, count: int) -> PyTree:
    """Shapes and types of so many rows, to trace a function of rows with."""
    kind = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), kind(x.dtype)), data)


def require_whole(x: Any) -> None:
    """Raise if the array is a memory map of a file that has become shorter."""
    if (held := mapping(x)) is None:
        return
    needed, has = x.offset - x.offset % mmap.ALLOCATIONGRANULARITY + len(held), held.size()
    if has < needed:
        name = x.filename or "the file of a memory map"
        raise CutShort(f"{name} was cut short while it was in use: it has {has:,} bytes and had at least {needed:,}")


def _near(x: np.ndarray, which: np.ndarray) -> bool:
    """Whether a disk reads rows with all that is between them sooner than each on its own."""
    return which.size > 0 and np.ptp(which) * x.strides[0] < ALONE * which.size * mmap.PAGESIZE


def _advise(held: mmap.mmap, advice: str, begin: int, length: int) -> None:
    """Tell the system what will be read, where it can be told."""
    if hasattr(mmap, advice):
        held.madvise(getattr(mmap, advice), begin, length)


def memory(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the machine's memory, or the least limit of its control groups.

    Slurm and containers limit a process in this way.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # a system without control groups
        return found
    for line in groups:
        _, kind, path = line.split(":", 2)
        if kind not in LIMITS:
            continue
        top, file = LIMITS[kind]
        group = root / top / path.strip("/")
        for folder in (group, *group.parents):
            limit = _text(folder / file)
            found = min(found, int(limit)) if limit.isdigit() else found
            if folder == root / top:
                break
    return found


def _text(path: Path) -> str:
    """What a file says, or nothing."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def ahead(
    work: Callable[[Any], Any], chunks: Iterable[Any], workers: int | None = None, *, alone: bool = False
) -> Iterator[Any]:
    """What `work` makes of each chunk, in their order. Threads work on the chunks that follow, a few at a time.

    The first chunk is finished before any other begins, so that a program is compiled once. With `alone` there are no
    threads (:func:`hamcmc._compile.blocking` says when that is needed).
    """
    waiting, count = iter(chunks), workers or WORKERS
    precise = x64()

    def as_here(chunk: Any) -> Any:
        with jax.enable_x64(precise):  # which is a setting of the thread
            return work(chunk)

    if alone:
        yield from map(work, waiting)
        return
    for first in waiting:
        yield work(first)
        break
    with ThreadPoolExecutor(count) as pool:
        pending: deque[Future] = deque()
        for chunk in waiting:
            pending.append(pool.submit(as_here, chunk))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
