"""What one process holds of the rows that several share."""

import copy
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hamcmc import _processes
from hamcmc._types import PyTree
from hamcmc.target.estimators import ControlVariate
from hamcmc.target.posterior import Posterior


class Share:
    """The rows that a process holds, for sums that are made on the host.

    Args:
        model: the posterior, without data.
        rows: arrays that are spread over the mesh, or all of the memory maps if they are streamed.
        bounds: the first row of each device, and N.
        mine: which devices are this process's; they stand together.
        streamed: whether the rows stay on disk.

    Attributes:
        held: the model with these rows alone.
        first: the number of its first row.
    """

    def __init__(self, model: Posterior, rows: PyTree, bounds: np.ndarray, mine: list[int], streamed: bool):
        lengths = np.diff(bounds)
        self.first, end = int(bounds[mine[0]]), int(bounds[mine[-1] + 1])

        def own(x: Any) -> Any:
            """The rows of an array, without those that only fill up a device."""
            if streamed:
                return x[self.first : end]
            parts = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
            if len(parts) == 1 and lengths[mine[0]] == lengths.max():
                return parts[0].data
            return jax.device_put(np.concatenate([np.asarray(p.data)[:n] for p, n in zip(parts, lengths[mine])]))

        self.held = copy.copy(model)
        self.held.data, self.held.size, self.held.streamed = jax.tree.map(own, rows), end - self.first, streamed

    def own(self, rows: np.ndarray | None) -> np.ndarray | None:
        """Those of some rows that are here, by their numbers here."""
        if rows is None:
            return None
        here = rows - self.first
        return here[(here >= 0) & (here < self.held.size)]

    def view(self, posterior: Posterior) -> Posterior:
        """A posterior, or a view of it with a control variate, on the rows that are here alone."""
        return posterior.over(self.held) if isinstance(posterior, ControlVariate) else self.held

    def total(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The sums over processes of arrays in double precision, in the order of the processes and by one message."""
        flat = np.concatenate([np.ravel(x) for x in arrays]).astype(np.float64)
        summed = np.split(_processes.gathered(flat).sum(0), np.cumsum([x.size for x in arrays])[:-1])
        return [part.reshape(x.shape) for part, x in zip(summed, arrays)]
