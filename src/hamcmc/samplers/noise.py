"""Standard normal noise: ``jax.random.normal``'s numbers, two to five times faster on a CPU.

The generator is written out (``hamcmc._random``), so its rounds and the map to a normal are one fused pass. This
matters because noise is the largest cost of a cheap step.

Many single-precision numbers are made in pairs, one from each of the two words that Threefry gives. These are not
``jax.random.normal``'s numbers, which take both words for one of them.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc._random import KEPT, kept, threefry
from hamcmc._types import PyTree

KEPT_IN_ROWS = (
    64  # in place of KEPT for arrays with several axes, which XLA cannot vectorise where it fuses their reshape
)
PAIRED = 2**10  # single-precision noise of this size or more is made in pairs, which takes two thirds of the time


def standard_normal(key: Array, like: PyTree) -> PyTree:
    """A pytree of independent N(0, 1) draws with the shapes and types of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves)) if len(leaves) > 1 else [key]
    return treedef.unflatten([normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves)])


def normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Independent N(0, 1) numbers: ``jax.random.normal(key, shape, dtype)`` bit by bit, unless they come in pairs."""
    dtype, size, words = jnp.dtype(dtype), math.prod(shape), jax.random.key_data(key)
    if dtype not in (jnp.float32, jnp.float64) or words.shape != (2,) or size >= 2**32:
        return jax.random.normal(key, shape, dtype)  # another generator, or a case too rare to write out
    if size < (KEPT if len(shape) < 2 else KEPT_IN_ROWS):
        return from_counts(words, lax.iota(jnp.uint32, size), dtype).reshape(shape)
    if dtype == jnp.float32 and size >= PAIRED:
        pairs = kept(lambda count: pairs_from_counts(words, count), (size + 1) // 2)
        return jnp.concatenate([pairs.real, pairs.imag])[:size].reshape(shape)
    return kept(lambda count: from_counts(words, count, dtype), size).reshape(shape)


def from_counts(words: Array, count: Array, dtype: Any) -> Array:
    """The normal numbers at the given places of a key's sequence."""
    high, low = threefry(words[0], words[1], jnp.zeros_like(count), count)
    bits = high ^ low if dtype == jnp.float32 else high.astype(jnp.uint64) << np.uint64(32) | low.astype(jnp.uint64)
    return from_bits(bits, dtype)


def pairs_from_counts(words: Array, count: Array) -> Array:
    """Two normal numbers for each place of a key's sequence: complex, because XLA computes both parts in one pass."""
    high, low = threefry(words[0], words[1], jnp.zeros_like(count), count)
    return lax.complex(*(from_bits(bits, jnp.dtype(jnp.float32)) for bits in (high, low)))


def from_bits(bits: Array, dtype: Any) -> Array:
    """Normal numbers from random bits of the same width."""
    # Random mantissas make uniform numbers in [1, 2), moved to (−1, 1).
    kind, info = bits.dtype.type, jnp.finfo(dtype)
    one, lowest = np.ones((), dtype), np.nextafter(-np.ones((), dtype), np.zeros((), dtype))
    mantissa = (bits >> kind(info.bits - info.nmant)) | one.view(kind)
    uniform = (lax.bitcast_convert_type(mantissa, dtype) - one) * (one - lowest) + lowest
    return dtype.type(np.sqrt(2)) * lax.erf_inv(jnp.maximum(lowest, uniform))
