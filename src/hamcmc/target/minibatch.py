"""Which data a step sees: index draws that are functions of (key, iteration) alone.

No state is kept between iterations. Draws therefore do not depend on how a run is cut into segments, and a resumed run
sees the data that an uninterrupted run would have seen.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc._random import below, bits
from hamcmc._types import PyTree


def draw(key: Array, iteration: Array, size: int, batch_size: int, replace: bool) -> Array:
    """Indices of one minibatch.

    With replacement the indices are independent and uniform, as in the paper. Without replacement, consecutive
    iterations walk through a random permutation of the data, with a new permutation for each epoch of ⌊N/n⌋ iterations.

    Args:
        key: the run's key for minibatches, the same at every iteration.
        iteration: the iteration's number.
    """
    if replace:
        return below(jax.random.fold_in(key, iteration), batch_size, size)
    per_epoch = size // batch_size
    epoch, place = iteration // per_epoch, iteration % per_epoch
    return permute(jax.random.fold_in(key, epoch), place * batch_size + jnp.arange(batch_size), size)


def permute(key: Array, index: Array, size: int) -> Array:
    """The image of each index under a pseudo-random permutation of 0 … size−1, which is never written down.

    A Feistel network permutes the numbers below the next power of 4. An image outside the range is mapped again until
    it is inside.
    """
    half = max(1, (int(size - 1).bit_length() + 1) // 2)
    mask = jnp.uint32(2**half - 1)
    rounds = 6 if size > 64 else 12  # short halves mix slowly
    round_keys = bits(key, rounds)

    def network(x):
        left, right = x >> half, x & mask
        for k in round_keys:
            left, right = right, left ^ (_mix(right ^ k) & mask)
        return (left << half) | right

    def outside(x):
        return x >= size

    x = network(index.astype(jnp.uint32))
    x = lax.while_loop(lambda x: jnp.any(outside(x)), lambda x: jnp.where(outside(x), network(x), x), x)
    return x.astype(jnp.int32)


def _mix(x: Array) -> Array:
    """An integer hash: every input bit reaches every output bit."""
    for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
        x = (x ^ (x >> shift)) * jnp.uint32(multiplier)
    return x ^ (x >> 16)


def gather(data: PyTree, indices: Array | np.ndarray) -> PyTree:
    """The rows of every leaf; on the host for NumPy arrays and memory maps."""
    if isinstance(indices, np.ndarray):
        return jax.tree.map(lambda x: np.asarray(x)[indices], data)
    return jax.tree.map(lambda x: jnp.take(x, indices, axis=0, mode="clip"), data)
