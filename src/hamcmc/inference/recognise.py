"""Is this the posterior of a network? Its units can be exchanged, and so its log-density bends upwards somewhere."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from hamcmc._compile import jit
from hamcmc._types import PyTree
from hamcmc.inference.curvatures import curved, flat_view, some_rows
from hamcmc.inference.network import LOOKED_AT, drawn_anew
from hamcmc.target.landscape import in_memory
from hamcmc.target.posterior import Posterior

LANCZOS = 16
FEW_ROWS, MOST_PAIRS, SAME = 256, 200, 1e-4  # rows, pairs of axes, and how equal log-likelihoods must be
FOLDED = 0.01  # a negative curvature counts from this share of the largest one on


def weight_matrices(position: PyTree) -> int:
    """How many matrices, or larger arrays, the parameters have. A network has two or more."""
    return sum(jnp.ndim(x) >= 2 for x in jax.tree.leaves(position))


def folded(posterior: Posterior, like: PyTree, seed: int) -> bool:
    """Whether the log-density bends upwards somewhere around parameters that are drawn anew.

    A network's does, because its units can be exchanged. That of a regression with two matrices does not.
    """
    flat = flat_view(posterior, like)
    rows = some_rows(in_memory(posterior, seed), LOOKED_AT)
    at = ravel_pytree(drawn_anew(like, np.random.default_rng(seed)))[0]

    @jit
    def curvatures(x: Array, rows: PyTree) -> Array:
        """Ritz values of −∇² log p."""

        def turn(k: Array, carry: tuple) -> tuple:
            basis, images, v = carry
            for _ in range(2):
                v = v - (basis @ v) @ basis
            v = v / jnp.linalg.norm(v)
            image = curved(flat, x, v, rows)
            return basis.at[k].set(v), images.at[k].set(image), image

        empty = jnp.zeros((min(LANCZOS, x.size), x.size), x.dtype)
        first = jax.random.normal(jax.random.key(seed), x.shape, x.dtype)
        basis, images, _ = lax.fori_loop(0, len(empty), turn, (empty, empty, first))
        projected = basis @ images.T
        return jnp.linalg.eigvalsh((projected + projected.T) / 2)

    values = np.asarray(curvatures(at, rows))
    return bool(values[0] < -FOLDED * np.abs(values).max())


def exchangeable(posterior: Posterior, like: PyTree, seed: int) -> bool:
    """Whether units can be exchanged: some permutation of an axis of two matrices leaves the log-likelihood as it is.

    The hidden units of a network can, and so can the components of a factorization. The groups of a hierarchy cannot,
    because the data say which row belongs to which.
    """
    rng = np.random.default_rng(seed)
    leaves, structure = jax.tree.flatten(drawn_anew(like, rng))
    # Vectors such as biases are made constant, so that it does not matter which of them belong to the units.
    leaves = [np.asarray(x) if jnp.ndim(x) >= 2 else np.full(jnp.shape(x), np.mean(x), x.dtype) for x in leaves]
    rows = some_rows(in_memory(posterior, seed), FEW_ROWS)
    value = jit(lambda leaves, rows: posterior._mean(structure.unflatten(leaves), rows))
    before = float(value(leaves, rows))
    axes = [(n, i, length) for n, x in enumerate(leaves) if x.ndim >= 2 for i, length in enumerate(x.shape)]
    pairs = [(a, b) for k, a in enumerate(axes) for b in axes[k + 1 :] if a[0] != b[0] and a[2] == b[2] > 1]
    for (m, i, length), (n, j, _) in pairs[:MOST_PAIRS]:
        order = np.roll(np.arange(length), 1)
        moved = list(leaves)
        moved[m], moved[n] = np.take(leaves[m], order, i), np.take(leaves[n], order, j)
        if abs(float(value(moved, rows)) - before) <= SAME * (1 + abs(before)):
            return True
    return False
