"""Where a run goes while it is made: its draws, checkpoints and events."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc._types import Facts, Record
from hamcmc.store import moments
from hamcmc.store.checkpoint import Checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.draws import Array, Draws, open_store


class Elsewhere:
    """The draws of a run that another process writes: only their number is known here, until they are read.

    Args:
        path: the store of draws, in a directory that both processes see.
        arrays: what is recorded at each draw.
        written: draws per chain that it holds already.
    """

    def __init__(self, path: Path, arrays: list[Array], written: int = 0):
        self.path, self.arrays, self.written, self.pending = path, arrays, written, 0

    @property
    def root(self) -> Any:
        """The store, to read what has been written."""
        return open_store(self.path, self.arrays, self.written, "r")

    def append(self, draws: Mapping[str, np.ndarray]) -> None:
        """Count draws."""
        self.pending += len(next(iter(draws.values())))

    def flush(self) -> None:
        """Count what waits as written."""
        self.written, self.pending = self.written + self.pending, 0

    def cut(self) -> None:
        """Nothing: the other process does it."""

    def put_moments(self, summary: Mapping[str, np.ndarray]) -> None:
        """Nothing: the other process does it."""


class Recorder:
    """Records a run in a directory or in memory; records nothing in a process that does not write.

    Args:
        draws: the store of draws; None in a process that does not write.
        directory: the run's directory; None for a run in memory, whose checkpoints and events are dropped.

    Attributes:
        meta: the counters of the newest checkpoint, also where it was dropped.
    """

    def __init__(self, draws: Draws | Elsewhere | None, directory: Directory | None = None):
        self.draws, self.directory = draws, directory
        self.meta: Record = {}

    @property
    def written(self) -> int:
        """Draws per chain that are in the store."""
        return 0 if self.draws is None else self.draws.written

    @property
    def total(self) -> int:
        """Draws per chain, including those that wait to be written."""
        return 0 if self.draws is None else self.draws.written + self.draws.pending

    def append(self, draws: Mapping[str, np.ndarray]) -> None:
        """Add draws by ``group/name``, with leading axes (draw, chain). An empty mapping adds nothing."""
        if self.draws is not None and draws:
            self.draws.append(dict(draws))

    def save(self, meta: Facts, arrays: Mapping[str, np.ndarray]) -> None:
        """Write all draws, then the checkpoint that counts them.

        The running moments of a complete run, if its program keeps any, also go to the store of draws.
        """
        if self.draws is not None:
            self.draws.flush()
            if meta["status"] == "complete" and (summary := moments.summary(arrays)):
                self.draws.put_moments(summary)
        self.meta = {**meta, "draws": self.written}
        if self.directory is not None:
            self.directory.save(Checkpoint(dict(self.meta), dict(arrays)))

    def cut(self) -> None:
        """Write what is pending, and shorten the store to it: no more draws will follow."""
        if self.draws is not None:
            self.draws.flush()
            self.draws.cut()

    def log(self, event: str, **facts: Any) -> None:
        """Append an event to the directory's log."""
        if self.directory is not None:
            self.directory.log(event, **facts)
