"""Small matrices in a compiled loop, where an operation that is not fused costs more than its numbers do."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

SMALL = 64  # numbers up to which a product of two matrices is written as a sum


def times(a: Array, b: Array) -> Array:
    """``a @ b``; few numbers are multiplied and added up one by one, which the compiler fuses with what is around."""
    if max(a.size, b.size) > SMALL:
        return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
    if a.ndim == 1:
        return jnp.sum(a[:, None] * b, 0) if b.ndim == 2 else jnp.sum(a * b)
    return jnp.sum(a[:, :, None] * b, 1) if b.ndim == 2 else jnp.sum(a * b, 1)


def diagonal(a: Float[Array, "m m"]) -> Float[Array, " m"]:
    """The diagonal as a sum, which the compiler fuses; ``jnp.diagonal`` is a gather."""
    return jnp.sum(jnp.where(jnp.eye(len(a), dtype=bool), a, 0), 1)


def inverse(a: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """The inverse of a small matrix, by Gauss–Jordan elimination with row pivoting.

    It takes half of the time of ``jnp.linalg.inv``, which spends most of it on turning LAPACK's row swaps into a
    permutation.
    """
    m = len(a)
    place = jnp.arange(m)

    def eliminate(k: Array, rows: Float[Array, "m 2m"]) -> Float[Array, "m 2m"]:
        column = lax.dynamic_index_in_dim(rows, k, 1, keepdims=False)
        own = lax.dynamic_index_in_dim(rows, k, 0, keepdims=False)
        chosen = place == jnp.argmax(jnp.where(place >= k, jnp.abs(column), -1))
        pivot = jnp.sum(jnp.where(chosen[:, None], rows, 0), 0) / jnp.sum(jnp.where(chosen, column, 0))
        corner = jnp.sum(jnp.where(place == k, column, 0))
        rows, column = jnp.where(chosen[:, None], own, rows), jnp.where(chosen, corner, column)  # the swap
        return jnp.where((place == k)[:, None], pivot, rows - column[:, None] * pivot)

    return lax.fori_loop(0, m, eliminate, jnp.concatenate([a, jnp.eye(m, dtype=a.dtype)], 1))[:, m:]
