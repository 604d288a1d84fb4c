"""A run's directory.

    run.json        the settings: what was asked, seed, versions, checksum of the data
    draws.zarr/     posterior/…, sample_stats/…, moments/… in ArviZ's layout (chain, draw, …)
    checkpoint      the state of all chains, with a SHA-256 over all of it; replaced atomically
    events.jsonl    what happened when

Draws are written before the checkpoint that counts them. A run that is killed at any moment therefore resumes from its
checkpoint and writes the same bytes again. Times appear in the log and the checkpoint only: the store of draws is
a function of the settings. No file is ever unpickled, everything that is read is compared with ``run.json``, and
nothing is written through a symbolic link inside the directory.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from hamcmc._types import Record
from hamcmc.store.checkpoint import Checkpoint, encode
from hamcmc.store.errors import RunError
from hamcmc.store.files import PARTIAL, guard_disk, remove_tree, write_atomically
from hamcmc.store.settings import FORMAT, digest, read_settings

OWN = ("run.json", "checkpoint", "events.jsonl", "draws.zarr", "ratings", "blocks")  # names in a run's directory


class Directory:
    """A run's directory, open for writing by one process until the end of a ``with`` block."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = _lock(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @classmethod
    def create(cls, path: str | os.PathLike, settings: Record, *, overwrite: bool = False) -> "Directory":
        """Make a new run directory. An existing one is replaced only with `overwrite`, and only if it is a run."""
        path = Path(path)
        check_free(path, overwrite=overwrite)
        with guard_disk(path):
            path.mkdir(parents=True, exist_ok=True)
        directory = cls(path)
        try:
            check_free(path, overwrite=overwrite)  # again, now that nobody else can write
            with guard_disk(path):
                for name in OWN:
                    if name in ("checkpoint", "events.jsonl") or (path / name).is_symlink():
                        (path / name).unlink(missing_ok=True)
                remove_tree(path / "draws.zarr")
                content = json.dumps({"format": FORMAT} | settings, indent=2) + "\n"
                write_atomically(path / "run.json", content.encode())
        except BaseException:
            directory.__exit__()
            raise
        return directory

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Directory":
        """Open an existing run to continue it."""
        path = Path(path)
        read_settings(path)
        for link in _links(path):
            raise RunError(f"{link} is a symbolic link: a run is continued only within its own directory")
        return cls(path)

    def log(self, event: str, **facts: Any) -> None:
        """Append a line to the log of events."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        with guard_disk(self.path), open(self.path / "events.jsonl", "a") as f:
            f.write(json.dumps(line) + "\n")

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        meta = checkpoint.meta | {"run_json": digest(self.path)}
        with guard_disk(self.path):
            write_atomically(self.path / "checkpoint", encode(checkpoint._replace(meta=meta)))


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise if a new run may not be written to this path."""
    exists = f"{path} exists already: choose another directory, resume it, or overwrite it (--overwrite)"
    with guard_disk(path):
        if path.is_symlink() and not path.exists():
            raise RunError(f"{path} is a link to nowhere: choose another directory")
        if path.exists() and not path.is_dir():
            raise RunError(exists)
        found = {file.name for file in path.iterdir()} if path.exists() else set()
    found -= {f"run.json{PARTIAL}"}  # left over from a start that was killed
    if found and not overwrite:
        raise RunError(exists)
    if found and "run.json" not in found:
        raise RunError(f"{path} exists and is not a run: it will not be overwritten")


def _links(path: Path) -> Iterator[Path]:
    """Symbolic links where a run writes."""
    for name in OWN:
        if (path / name).is_symlink():
            yield path / name
    for folder, folders, names in os.walk(path / "draws.zarr"):
        yield from (Path(folder, n) for n in (*folders, *names) if Path(folder, n).is_symlink())


def _lock(path: Path) -> int:
    """Lock the directory for this process; returns the descriptor that holds the lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunError(f"{path} is being written by another process") from error
    except OSError:
        pass  # a file system without locks
    return descriptor


def being_written(run: Path) -> bool | None:
    """Whether a process holds the run's lock; None if the file system has no locks."""
    try:
        directory = os.open(run, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once, below
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(directory)
    return False


def state(status: str, run: Path | None) -> str:
    """The status of a run for people. A checkpoint says "running" until the end, also after Ctrl-C or a crash; if
    nobody holds the lock of its directory, the run has stopped."""
    if status != "running" or run is None:
        return status
    return {True: "running", False: "stopped", None: "not finished"}[being_written(run)]
