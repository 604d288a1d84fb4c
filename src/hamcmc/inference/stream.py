"""Minibatches for the compiled loop: from the device's memory, or streamed from a memory map."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc._compile import jit
from hamcmc._types import PyTree
from hamcmc.inference.compiled import Keys
from hamcmc.target import disk
from hamcmc.target.posterior import Posterior
from hamcmc.target.sharded import shards_of

HELD_BYTES = 64 * 2**20  # minibatches held at once, while as many again are being read


def iterations_held(posterior: Posterior, chains: int, batch_size: int) -> int:
    """How many iterations' minibatches fit into the buffer."""
    row = sum(x.nbytes // len(x) for x in jax.tree.leaves(posterior.data))
    return max(1, HELD_BYTES // (row * batch_size * chains))


class Batches:
    """The data that the compiled loop takes for a segment.

    In-memory data are passed as they are. If the data are streamed, the loop gets the minibatches of the segment, which
    a thread reads while the segment before it runs. Their indices are those of the in-memory case, so the draws are the
    same.
    """

    def __init__(self, posterior: Posterior, keys: Keys, *, batch_size: int | None, replace: bool, length: int):
        self._posterior = posterior
        self._pool = ThreadPoolExecutor(1) if posterior.streamed else None
        self._ahead: dict[int, Future] = {}
        if posterior.streamed:
            self._drawn = _drawn(keys, posterior, batch_size or posterior.size, replace, length)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def of(self, begin: int, after: int | None) -> PyTree:
        """Data for the segment that begins at iteration `begin`; reading ahead starts for the one at `after`."""
        if self._pool is None:
            return self._posterior.data
        ready = self._ahead.pop(begin, None)
        batches = ready.result() if ready else self._read(begin)
        if after is not None:
            self._ahead[after] = self._pool.submit(self._read, after)
        return batches

    def _read(self, begin: int) -> PyTree:
        indices = self._posterior.found(np.asarray(self._drawn(begin)))
        if (shards := shards_of(self._posterior)) is not None:
            return shards.read(indices)
        return jax.tree.map(lambda x: disk.on_device(disk.rows(x, indices)), self._posterior.data)


def _drawn(keys: Keys, posterior: Posterior, batch_size: int, replace: bool, length: int) -> Callable[[int], jax.Array]:
    """Compile ``begin -> what is drawn`` for the minibatches of `length` iterations, (iteration, chain, n)."""

    def chains(t):
        """The minibatches of all chains at iteration t."""
        return jax.vmap(lambda key: posterior.drawn(key, t, batch_size, replace))(keys.batch)

    return jit(lambda begin: jax.vmap(chains)(begin + jnp.arange(length)))
