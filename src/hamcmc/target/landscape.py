"""A posterior around its mode: directions, curvatures, the noise of the gradient, and draws to start from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_leaves

from hamcmc._types import PyTree
from hamcmc.target import disk, minibatch
from hamcmc.target.estimators import ControlVariate, control_variate
from hamcmc.target.hessian import subsample
from hamcmc.target.importance import require_uniform
from hamcmc.target.mode import laplace
from hamcmc.target.posterior import Posterior

DENSE = 256  # parameters up to which the whole Hessian is computed
RITZ = 64  # directions that Lanczos' iteration finds beyond that
ELEMENTS = 2**24  # numbers of the data that a Hessian product reads at once
FLOOR = 1e-6  # the smallest curvature, as a share of the largest; flatter directions get this one


class Landscape(NamedTuple):
    """A posterior around its mode, in flat unconstrained coordinates.

    Attributes:
        mode: (D,).
        directions: (K, D), orthonormal rows: the Hessian's eigenvectors, or Ritz vectors where D is large.
        curvatures: (K,), −∇² log p along them, rising.
        noise: (K,), the variance of the stochastic gradient along them.
        root_square: root mean square over coordinates of the likelihood's mean gradient on a minibatch.
        scoring: the posterior with the gradient of least noise, for discrepancies.
        data: the data, or of streamed data a part that fits in memory.
        passes: about how many passes over all data the survey took.
    """

    mode: Array
    directions: Array
    curvatures: Array
    noise: np.ndarray
    root_square: float
    scoring: Posterior
    data: PyTree
    passes: int

    @property
    def steepest(self) -> float:
        """L, the largest curvature."""
        return float(self.curvatures[-1])

    def start(self, key: Array, count: int, scale: float = 1.0) -> Array:
        """Draws (count, D) from the normal law with this mode and these curvatures; narrow where none is known.

        Along each direction the draws are the normal quantiles in random order, so that their moments are exact.
        """
        k, d = self.directions.shape
        keys = jax.random.split(key, k + 1)
        quantiles = jax.scipy.special.ndtri((jnp.arange(count) + 0.5) / count)
        quantiles = quantiles / jnp.sqrt(jnp.mean(quantiles**2))
        along = jax.vmap(lambda key: jax.random.permutation(key, quantiles), out_axes=1)(keys[:k])
        rest = jax.random.normal(keys[k], (count, d)) if k < d else jnp.zeros((count, d))
        rest = rest - (rest @ self.directions.T) @ self.directions
        spread = (along / jnp.sqrt(self.curvatures)) @ self.directions + rest / jnp.sqrt(self.curvatures[-1])
        return (self.mode + scale * spread).astype(self.mode.dtype)

    def whiten(self, x: Array, g: Array) -> tuple[Array, Array]:
        """Positions and gradients (…, D) along the directions (…, K), in units in which the curvatures are 1."""
        root = jnp.sqrt(self.curvatures)
        return (x - self.mode) @ self.directions.T * root, g @ self.directions.T / root


def survey(posterior: Posterior, start: PyTree, *, batch_size: int | None, seed: int) -> Landscape:
    """Find the mode from `start` (parameters), and measure the density around it."""
    require_uniform(posterior, "the trials of tune")
    data = in_memory(posterior, seed)
    try:
        found = laplace(posterior, start, seed=seed)
        parameters, passes = found.mode, round(found.gradients)
    except ValueError:  # there is no mode to find from there
        parameters, passes = start, 0
    position = posterior.unconstrain_unchecked(jax.tree.map(jnp.asarray, parameters))
    flat, unravel = ravel_pytree(position)
    rows = None
    if data is not None:
        length = len(tree_leaves(data)[0])
        per_row = max(1, sum(x[0].size for x in tree_leaves(data)))
        rows = jax.tree.map(lambda x: jnp.asarray(x[:: max(1, -(-length * per_row // ELEMENTS))]), data)

    def hessian_product(x, v, rows):
        def grad(x):
            return ravel_pytree(posterior.grad(unravel(x), rows))[0]

        return -jax.jvp(grad, (x,), (v,))[1]

    look = _eigen if flat.size <= DENSE else _ritz
    curvatures, directions = jax.jit(lambda x, rows: look(lambda v: hessian_product(x, v, rows), x, seed))(flat, rows)
    if not bool(jnp.isfinite(curvatures).all()):
        raise ValueError("the log-density has no finite second derivatives at the mode (or at init)")
    steepest = jnp.max(jnp.abs(curvatures))
    curvatures = jnp.clip(jnp.abs(curvatures), FLOOR * steepest, steepest)
    order = jnp.argsort(curvatures)
    scoring = posterior
    if not (posterior.size == 0 or batch_size is None or isinstance(posterior, ControlVariate)):
        scoring, passes = control_variate(posterior, parameters), passes + 1
    scape = Landscape(
        flat, directions[order], curvatures[order], np.zeros(len(order)), 1.0, scoring, data, passes + len(order)
    )
    if posterior.size == 0:
        return scape
    noise, root = _noise(posterior, scape, unravel, batch_size, jax.random.key(seed))
    return scape._replace(noise=noise, root_square=root)


def in_memory(posterior: Posterior, seed: int, largest: int = 2**28) -> PyTree:
    """The data; of streamed data as many random rows as fit in 256 MiB."""
    if not posterior.streamed:
        return posterior.data
    per_row = sum(np.asarray(x[:1]).nbytes for x in tree_leaves(posterior.data))
    rows = subsample(np.random.default_rng(seed), posterior.size, min(posterior.size, max(1, largest // per_row)))
    return jax.tree.map(lambda x: disk.on_device(disk.rows(x, np.sort(rows))), posterior.data)


def _eigen(product, x: Array, _seed: int) -> tuple[Array, Array]:
    hessian = lax.map(product, jnp.eye(x.size, dtype=x.dtype), batch_size=min(16, x.size))
    values, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    return values, vectors.T


def _ritz(product, x: Array, seed: int) -> tuple[Array, Array]:
    """Lanczos' iteration from a random direction; each vector is made orthogonal to all earlier ones."""

    def orthogonal(v, basis):
        for _ in range(2):
            v = v - (basis @ v) @ basis
        return v / jnp.linalg.norm(v)

    def turn(k, carry):
        basis, images, v = carry
        v = orthogonal(v, basis)
        image = product(v)
        return basis.at[k].set(v), images.at[k].set(image), image

    empty = jnp.zeros((RITZ, x.size), x.dtype)
    first = jax.random.normal(jax.random.key(seed), x.shape, x.dtype)
    basis, images, _ = lax.fori_loop(0, RITZ, turn, (empty, empty, first))
    projected = basis @ images.T
    values, vectors = jnp.linalg.eigh((projected + projected.T) / 2)
    return values, vectors.T @ basis


def _noise(posterior: Posterior, scape: Landscape, unravel, batch_size: int | None, key: Array, count: int = 64):
    """The stochastic gradient's variance along the directions, and the root mean square of mean likelihood gradients.

    Both come from two minibatches at each of `count` draws from the normal law.
    """
    length = len(tree_leaves(scape.data)[0])

    @jax.jit
    def differences(data, starts, keys):
        def one(x, key, t):
            rows = data
            if batch_size is not None:
                rows = minibatch.gather(data, minibatch.draw(key, t, length, batch_size, True))
            mean = posterior.mean_likelihood_grad(unravel(x), rows)
            return scape.directions @ _flat(posterior.combine(unravel(x), mean)), _flat(mean)

        def two(x, key):
            g, mean = jax.vmap(lambda t: one(x, key, t))(jnp.arange(2))
            return (g[0] - g[1]) ** 2 / 2, mean[0] ** 2

        return jax.tree.map(lambda v: v.mean(0), lax.map(lambda a: two(*a), (starts, keys)))

    noise, square = differences(scape.data, scape.start(key, count), jax.random.split(key, count))
    return _finite(noise), max(float(np.sqrt(_finite(square).mean())), 1e-30)


def _flat(tree: PyTree) -> Array:
    return ravel_pytree(tree)[0]


def _finite(v: Array) -> np.ndarray:
    return np.nan_to_num(np.asarray(v, np.float64), posinf=0.0)
