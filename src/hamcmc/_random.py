"""Random bits and whole numbers: those of ``jax.random``, bit by bit, several times faster on a CPU.

On a CPU, JAX compiles its generator, Threefry, to a loop over passes through memory. Written out here, the twenty
rounds are one fused pass. This matters because a cheap step spends much of its time on random numbers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)
KEPT = 256  # so many numbers or more are computed once and kept


def bits(key: Array, size: int) -> Array:
    """``jax.random.bits(key, (size,), jnp.uint32)``."""
    words = jax.random.key_data(key)
    if words.shape != (2,) or size >= 2**32:  # another generator, or a case too rare to write out
        return jax.random.bits(key, (size,), jnp.uint32)

    def numbers(count: Array) -> Array:
        high, low = threefry(words[0], words[1], jnp.zeros_like(count), count)
        return high ^ low

    return numbers(lax.iota(jnp.uint32, size)) if size < KEPT else kept(numbers, size)


def below(key: Array, size: int, most: int) -> Array:
    """``jax.random.randint(key, (size,), 0, most)``."""
    if jax.dtypes.canonicalize_dtype(int) != jnp.int32 or not 0 < most < 2**31:
        return jax.random.randint(key, (size,), 0, most)
    one, other = jax.random.split(key)
    span = np.uint32(most)
    found = lax.rem(bits(other, size), span)
    if power := (2**16 % most) ** 2 % 2**32 % most:  # 0 where JAX's own arithmetic leaves the second word out
        found = lax.rem(lax.rem(bits(one, size), span) * np.uint32(power) + found, span)
    return found.astype(jnp.int32)


def kept(numbers: Callable[[Array], Array], size: int) -> Array:
    """The numbers at 0 … size−1, computed once.

    XLA fuses cheap arithmetic into every place of use, where it computes all of it again; but never across a loop.
    """
    half = (size + 1) // 2
    halves = lax.map(lambda i: numbers(i * half + lax.iota(jnp.uint32, half)), jnp.arange(2, dtype=jnp.uint32))
    return halves.ravel()[:size]


def threefry(key0: Any, key1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).

    Of arrays of NumPy, too.
    """
    schedule = (key0, key1, key0 ^ key1 ^ PARITY)
    x0, x1 = x0 + key0, x1 + key1
    for block in range(5):
        for r in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r)))
        x0 = x0 + schedule[(block + 1) % 3]
        x1 = x1 + (schedule[(block + 2) % 3] + np.uint32(block + 1))
    return x0, x1
