"""Files: the one atomic writer, and one way to report what a disk refuses and what a reader cannot read."""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hamcmc._types import Facts
from hamcmc.store.errors import DamagedRun, RunError

PARTIAL = ".partial"  # how the name of an unfinished file ends
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(file: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Write a file whole or not at all: yields a temporary path, which takes the file's place at the end of the block.

    Whatever stood at the temporary path is removed first: it is left over from a killed process, or a link that leads
    elsewhere. The new file is flushed to the disk before it gets its name. If the block raises, the old file stays and
    the temporary one is removed.

    Args:
        file: the file to create or replace.
        temporary: where to write meanwhile, on the same file system; by default beside the file.
    """
    temporary = file.with_name(file.name + PARTIAL) if temporary is None else temporary
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(file: Path, content: bytes) -> None:
    """Write bytes to a file, whole or not at all."""
    with replacing(file) as temporary, open(temporary, "xb") as f:
        f.write(content)


def remove_partial_writes(path: Path) -> None:
    """Delete the temporary files of writes that were cut short in a run's directory."""
    for file in (*path.glob(f"*{PARTIAL}"), *(path / "draws.zarr").rglob(f"*{PARTIAL}")):
        file.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Delete a store of draws. After a failed write, zarr's own thread may still be writing to it: try again."""
    if path.is_symlink():
        path.unlink()
    for patience in (0.1, 0.3, 1.0, 0.0):  # seconds
        if not path.exists():
            return
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not patience:
                raise
            time.sleep(patience)


@contextlib.contextmanager
def guard_disk(path: Path | str | None) -> Iterator[None]:
    """Turn the operating system's refusal to write into a :class:`RunError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise RunError(
                f"no room left on the disk of {path}: what was checkpointed is safe; free some space, then resume"
            ) from error
        raise RunError(f"cannot write to {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def reading(what: Any, wrong: str = "is damaged", kind: type[Exception] = DamagedRun) -> Iterator[None]:
    """Raise `kind` for whatever a file's reader could not make sense of, whichever library the reader belongs to.

    A :class:`RunError`, or an error that is of this kind already, passes as it is.
    """
    try:
        yield
    except (kind, RunError):
        raise
    except Exception as error:  # libraries raise all kinds of errors on files that nobody wrote
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise kind(f"{what} {wrong}: {text}") from error


def require(content: Facts, file: Path, kinds: Facts) -> None:
    """Raise :class:`DamagedRun` unless the content of a file has every name in `kinds` with a value of that type."""
    for name, kind in kinds.items():
        value = content.get(name, ...)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wrong = "is missing" if value is ... else f"is {str(value)[:40]!r}"
            raise DamagedRun(f"{file} is damaged: {name} {wrong}")
