"""What the processes of one run say to each other on the host. A process that is alone waits for nobody.

All processes of a run do the same on the host, and in the same order. What one of them alone knows or measures, such as
a time or an error, must be made known to all before anything depends on it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

R = TypeVar("R")
LONGEST = 1000  # bytes of a message


def several() -> bool:
    """Whether this process works together with others."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def writes() -> bool:
    """Whether this process is the one that writes files and talks to the user."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def gathered(x: np.ndarray) -> np.ndarray:
    """The arrays of all processes, which have one shape and type, along a new leading axis."""
    x = np.asarray(x)
    if not several():
        return x[None]
    raw = np.frombuffer(x.tobytes(), np.uint8)  # JAX would cut double to single precision
    return np.asarray(multihost_utils.process_allgather(raw)).view(x.dtype).reshape(-1, *x.shape)


def agreed(mine: bool) -> bool:
    """Whether any process says so: all must leave a loop together."""
    return bool(gathered(np.asarray(mine)).any())


def told(number: float) -> float:
    """The number that the first process has."""
    return float(gathered(np.array(number, np.float64))[0])


def texts(mine: str) -> list[str]:
    """What each process says."""
    raw = np.frombuffer(mine.encode()[:LONGEST].ljust(LONGEST, b"\0"), np.uint8)
    return [bytes(x).rstrip(b"\0").decode(errors="ignore") for x in gathered(raw)]


def text(mine: str) -> str:
    """What the first process says, however long it is."""
    raw = np.frombuffer(mine.encode(), np.uint8)
    length = int(gathered(np.array(len(raw))).max())
    said = bytes(gathered(np.pad(raw, (0, length - len(raw))))[0])
    return said.rstrip(b"\0").decode()


def all_or_none(work: Callable[[], R], kind: type[Exception]) -> R:
    """What `work` returns; if it raises such an error in one process, then all processes raise it."""
    if not several():
        return work()
    failure: Exception | None = None
    made: Any = None
    try:
        made = work()
    except kind as error:
        failure = error
    said = texts("" if failure is None else str(failure) or type(failure).__name__)
    who = next((i for i, text in enumerate(said) if text), None)
    if who is None:
        return made
    raise kind(said[who] if all(said) else f"process {who} of {len(said)}: {said[who]}") from failure
