"""The kernels in XLA's own operations, for accelerators, double precision, and machines without a compiler.

XLA's shapes are static and the number of ratings in a part is not, so ratings are taken in chunks of one length.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc._random import threefry
from hamcmc.factorization.native.blocks import Blocks

SHORTEST = 1024  # chunk


class Chunk(NamedTuple):
    """Consecutive ratings of a row block."""

    at: Array  # where they begin
    valid: Array  # whether each belongs to the part, and was not in the chunk before
    row: Array
    column: Array
    value: Array


def gradient(W: Array, H: Array, blocks: Blocks, part: Array) -> tuple[Array, Array, Array]:
    """See `hamcmc.factorization.native.gradient`."""

    def add(sums, W, H, chunk):
        gW, gH, square = sums
        w, h = W[chunk.row], H[chunk.column]
        e = jnp.where(chunk.valid, chunk.value - jnp.sum(w * h, axis=-1), 0)
        gW = gW.at[chunk.row].add(e[:, None] * h, indices_are_sorted=True)
        return gW, gH.at[chunk.column].add(e[:, None] * w), square + jnp.sum(e * e)

    return over_chunks(add, (jnp.zeros_like(W), jnp.zeros_like(H), jnp.zeros(len(W), W.dtype)), W, H, blocks, part)


def squared_error(W: Array, H: Array, blocks: Blocks, part: Array) -> tuple[Array, Array]:
    """See `hamcmc.factorization.native.squared_error`."""

    def add(sums, W, H, chunk):
        e = jnp.where(chunk.valid, chunk.value - jnp.sum(W[chunk.row] * H[chunk.column], axis=-1), 0)
        return sums[0] + jnp.sum(e), sums[1] + jnp.sum(e * e)

    return over_chunks(add, (jnp.zeros(len(W), W.dtype),) * 2, W, H, blocks, part)


def predict(W: Array, H: Array, blocks: Blocks, part: Array) -> Array:
    """See `hamcmc.factorization.native.predict`."""

    def put(found, W, H, chunk):
        before = lax.dynamic_slice_in_dim(found, chunk.at, len(chunk.row))
        mean = jnp.where(chunk.valid, jnp.sum(W[chunk.row] * H[chunk.column], axis=-1), before)
        return lax.dynamic_update_slice_in_dim(found, mean, chunk.at, 0)

    blocks = blocks._replace(values=blocks.columns)  # any array of that shape
    return over_chunks(put, jnp.zeros(blocks.columns.shape, W.dtype), W, H, blocks, part)


def normal(words: Array, rows: Array, columns: int) -> Array:
    """See `hamcmc.factorization.native.normal`."""
    high, low = threefry(words[0], words[1], rows[..., None], lax.iota(jnp.uint32, columns // 2))
    bits = jnp.stack([high, low], axis=-1).reshape(*rows.shape, columns)

    # As in hamcmc.samplers.noise.from_counts, random mantissas make uniform numbers in [1, 2), moved to (−1, 1).
    one, lowest = np.float32(1), np.nextafter(np.float32(-1), np.float32(0))
    mantissa = (bits >> np.uint32(9)) | one.view(np.uint32)
    uniform = (lax.bitcast_convert_type(mantissa, jnp.float32) - one) * (one - lowest) + lowest
    return np.float32(np.sqrt(2)) * lax.erf_inv(jnp.maximum(lowest, uniform))


def over_chunks(step: Callable, start: Any, W: Array, H: Array, blocks: Blocks, part: Array) -> Any:
    """Fold ``step(state, W, H, chunk)`` over the chunks of each row block's ratings in a part."""
    (_, parts, _), (_, size) = blocks.indptr.shape, blocks.columns.shape
    if size == 0:
        return start
    length = min(size, max(SHORTEST, size // (4 * parts)))  # about four chunks, so that the last wastes little
    indptr = lax.dynamic_index_in_dim(blocks.indptr, part, axis=1, keepdims=False)
    chunks = jnp.max((indptr[:, -1] - indptr[:, 0] + length - 1) // length)

    @jax.vmap
    def one(state, W, H, indptr, columns, values, c):
        """Chunk c of one row block."""
        begin, end = indptr[0] + c * length, indptr[-1]
        at = jnp.minimum(begin, size - length)
        place = at + lax.iota(jnp.int32, length)
        row = jnp.searchsorted(indptr, place, side="right") - 1
        column, value = (lax.dynamic_slice_in_dim(x, at, length) for x in (columns, values))
        valid = (begin <= place) & (place < end)
        return step(state, W, H, Chunk(at, valid, jnp.clip(row, 0, len(W) - 1), column, value.astype(W.dtype)))

    def chunk_of_each(c, state):
        """Chunk c of every row block."""
        return one(state, W, H, indptr, blocks.columns, blocks.values, jnp.broadcast_to(c, len(W)))

    return lax.fori_loop(0, chunks, chunk_of_each, start)
