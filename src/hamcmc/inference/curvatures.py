"""Curvatures of a log-density of so many parameters that no Hessian can be held."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from hamcmc._compile import jit
from hamcmc._types import PyTree
from hamcmc.target.posterior import Posterior
from hamcmc.target.whitened import Whitened

POWERS = 20  # steps of the power iteration


def prior_curvature(flat: Posterior, x: Array, seed: int) -> Array:
    """|diagonal of −∇² log p(θ)|, exact for a prior under which parameters are independent."""
    v = jax.random.rademacher(jax.random.key(seed), x.shape, x.dtype)
    product = jit(lambda x, v: jax.jvp(jax.grad(flat._log_prior), (x,), (v,))[1])(x, v)
    return jnp.abs(v * product)


def largest_curvature(white: Posterior, z: Array, rows: PyTree, seed: int) -> Array:
    """The largest eigenvalue of −∇² log p at z, by the power iteration."""

    def turn(_: Array, v: Array) -> Array:
        image = curved(white, z, v, rows)
        return image / jnp.linalg.norm(image)

    v = jax.random.normal(jax.random.key(seed), z.shape, z.dtype)
    v = lax.fori_loop(0, POWERS, turn, v / jnp.linalg.norm(v))
    return jnp.linalg.norm(curved(white, z, v, rows))


def flat_view(posterior: Posterior, like: PyTree) -> Posterior:
    """The posterior of a flat vector."""
    dimension = ravel_pytree(like)[0].size
    return Whitened(posterior, copy.copy(like), np.zeros(dimension), np.ones(dimension))


def curved(posterior: Posterior, x: Array, v: Array, rows: PyTree) -> Array:
    """−∇² log p(x) v."""
    return -jax.jvp(lambda x: posterior.grad(x, rows), (x,), (v,))[1]


def some_rows(data: PyTree, count: int) -> PyTree:
    """So many rows, evenly spaced."""
    length = len(jax.tree.leaves(data)[0])
    return jax.tree.map(lambda x: jnp.asarray(x[:: max(1, -(-length // count))]), data)
