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
# Of erf⁻¹ for w = −log(1 − x²) < 5 and beyond, highest power first
CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
PAIRED = 2**10  # single-precision noise of this size or more is made in pairs, which takes two thirds of the time
AT_ONCE = 2**14  # and of this size or more outside of a loop


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
        return in_pairs(words, (size + 1) // 2, at_once=size >= AT_ONCE).ravel()[:size].reshape(shape)
    return kept(lambda count: from_counts(words, count, dtype), size).reshape(shape)


def from_counts(words: Array, count: Array, dtype: Any) -> Array:
    """The normal numbers at the given places of a key's sequence."""
    high, low = threefry(words[0], words[1], jnp.zeros_like(count), count)
    bits = high ^ low if dtype == jnp.float32 else high.astype(jnp.uint64) << np.uint64(32) | low.astype(jnp.uint64)
    return from_bits(bits, dtype)


def in_pairs(words: Array, half: int, *, at_once: bool) -> Array:
    """Two normal numbers for each of the first places of a key's sequence, (2, half).

    At once, XLA divides the work among its threads. In a loop it computes both numbers of a place in one pass, if they
    are the parts of a complex one, and never again for another use of them.
    """

    def numbers(count: Array) -> tuple[Array, Array]:
        """Random bits at these places."""
        return threefry(words[0], words[1], jnp.zeros_like(count), count)

    def paired(count: Array) -> Array:
        """Both normal numbers at these places."""
        return lax.complex(*(quantile(uniform(bits, jnp.dtype(jnp.float32))) for bits in numbers(count)))

    if at_once:
        return quantile(uniform(jnp.stack(numbers(lax.iota(jnp.uint32, half))), jnp.dtype(jnp.float32)))
    pairs = kept(paired, half)
    return jnp.stack([pairs.real, pairs.imag])


def quantile(x: Array) -> Array:
    """√2 erf⁻¹(x) in single precision by the approximation of M. Giles (Approximating the erfinv function, 2012).

    XLA has the same polynomials, but takes log1p(−x²) where the logarithm will do: nothing is lost near x = 0.
    """
    w = -jnp.log((1 - x) * (1 + x))
    centre, tail = (jnp.polyval(np.asarray(c, np.float32), v) for c, v in ((CENTRE, w - 2.5), (TAIL, jnp.sqrt(w) - 3)))
    return np.float32(np.sqrt(2)) * jnp.where(w < 5, centre, tail) * x


def from_bits(bits: Array, dtype: Any) -> Array:
    """Normal numbers from random bits of the same width."""
    return dtype.type(np.sqrt(2)) * lax.erf_inv(uniform(bits, dtype))


def uniform(bits: Array, dtype: Any) -> Array:
    """Numbers in (−1, 1): random mantissas make uniform ones in [1, 2), which are moved."""
    kind, info = bits.dtype.type, jnp.finfo(dtype)
    one, lowest = np.ones((), dtype), np.nextafter(-np.ones((), dtype), np.zeros((), dtype))
    mantissa = (bits >> kind(info.bits - info.nmant)) | one.view(kind)
    moved = (lax.bitcast_convert_type(mantissa, dtype) - one) * (one - lowest) + lowest
    return jnp.maximum(lowest, moved)
