"""Minibatches for the compiled loop: from the device's memory, or streamed from a memory map."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc.inference.compiled import Keys
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

PyTree = Any
HELD_BYTES = 64 * 2**20  # minibatches held at once; another such buffer is being read meanwhile


def iterations_held(posterior: Posterior, chains: int, batch_size: int) -> int:
    """How many iterations' minibatches fit into the buffer."""
    row = sum(x.nbytes // len(x) for x in jax.tree.leaves(posterior.data))
    return max(1, HELD_BYTES // (row * batch_size * chains))


class Batches:
    """What the compiled loop takes as data for a visit.

    In-memory data are handed over as they are. Of streamed data it gets the visit's minibatches, read by a thread while
    the visit before it runs; the indices are those of the in-memory case, so the draws are the same.
    """

    def __init__(self, posterior: Posterior, keys: Keys, *, batch_size: int | None, replace: bool, length: int):
        self._posterior = posterior
        self._pool = ThreadPoolExecutor(1) if posterior.streamed else None
        self._ahead: dict[int, Future] = {}
        if posterior.streamed:
            self._indices = _indices(keys, posterior.size, batch_size or posterior.size, replace, length)

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def of(self, begin: int, after: int | None) -> PyTree:
        """Data for the visit at iteration `begin`; starts to read for the one at `after`."""
        if self._pool is None:
            return self._posterior.data
        ready = self._ahead.pop(begin, None)
        batches = ready.result() if ready else self._read(begin)
        if after is not None:
            self._ahead[after] = self._pool.submit(self._read, after)
        return batches

    def _read(self, begin: int) -> PyTree:
        indices = np.asarray(self._indices(begin))
        return jax.tree.map(lambda x: jnp.asarray(x[indices]), self._posterior.data)


def _indices(keys: Keys, size: int, batch_size: int, replace: bool, length: int) -> Callable:
    one = lambda key, t: minibatch.draw(key, t, size, batch_size, replace)
    chains = jax.vmap(one, (0, None))
    return jax.jit(lambda begin: jax.vmap(lambda t: chains(keys.batch, t))(begin + jnp.arange(length)))
