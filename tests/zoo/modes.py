"""Densities with more than one mode."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import hamcmc
from tests import zoo
from tests.zoo import marginals
from tests.zoo.densities import normal


def mixture(weights: np.ndarray, means: np.ndarray, sds: np.ndarray, *, hard: bool = False) -> zoo.Case:
    """A mixture of Gaussians with diagonal covariances; `means` and `sds` are (K, D)."""

    def log_density(x):
        squares = -0.5 * jnp.sum(((x - means) / sds) ** 2, axis=1) - jnp.sum(jnp.log(sds), axis=1)
        return logsumexp(squares + np.log(weights))

    def exact():
        return {"theta": marginals.of_mixture(weights, means, sds)}

    return zoo.Case(hamcmc.Posterior(log_density), jnp.zeros(means.shape[1]), exact, hard=hard)


@zoo.model
def mixture_close() -> zoo.Case:
    """Two Gaussians in 5 dimensions, their centres 3 sds apart."""
    means = np.zeros((2, 5))
    means[:, 0] = [-1.5, 1.5]
    return mixture(np.array([0.4, 0.6]), means, np.ones((2, 5)))


@zoo.model
def mixture_far() -> zoo.Case:
    """Two Gaussians in 5 dimensions, their centres 20 sds apart: no local method finds both with their weights."""
    means = np.zeros((2, 5))
    means[:, 0] = [-5.0, 15.0]
    return mixture(np.array([0.3, 0.7]), means, np.ones((2, 5)), hard=True)


@zoo.model
def mixture_grid() -> zoo.Case:
    """Nine Gaussians on a 3 × 3 grid in the plane, neighbours 8 sds apart."""
    means = np.array([[i, j] for i in (-8.0, 0.0, 8.0) for j in (-8.0, 0.0, 8.0)])
    return mixture(np.arange(1, 10) / 45, means, np.ones((9, 2)), hard=True)


@zoo.model
def mixture_scales() -> zoo.Case:
    """A narrow Gaussian within a wide one, sds 0.2 and 3, in 4 dimensions."""
    sds = np.array([[0.2] * 4, [3.0] * 4])
    return mixture(np.array([0.5, 0.5]), np.zeros((2, 4)), sds, hard=True)


@zoo.model
def double_well() -> zoo.Case:
    """Six coordinates, each in a double well of its own: 64 modes with passes of 2 nats between them."""
    well = 2.0

    def exact():
        grid = np.linspace(-3, 3, 6001)
        m = marginals.of_grid(grid, -well * (grid**2 - 1) ** 2 + 0.3 * grid)
        return {"theta": marginals.stack([m] * 6)}

    posterior = hamcmc.Posterior(lambda x: jnp.sum(-well * (x**2 - 1) ** 2 + 0.3 * x))
    return zoo.Case(posterior, jnp.zeros(6), exact)


@zoo.model
def mixture_data() -> zoo.Case:
    """The two means, the two sds and the share of a Gaussian mixture from 300 observations, the means in order."""
    rng = np.random.default_rng(41)
    first = rng.random(300) < 0.35
    y = np.where(first, rng.normal(-1.5, 0.8, 300), rng.normal(2.2, 1.0, 300))

    def log_prior(p):
        return normal(p["low"], 0.0, 3.0) + normal(p["gap"], 0.0, 3.0) + normal(p["sd"], 0.0, 2.0)

    def log_likelihood(p, y):
        means = jnp.stack([p["low"], p["low"] + p["gap"]])
        parts = -0.5 * ((y - means) / p["sd"]) ** 2 - jnp.log(p["sd"])
        return logsumexp(parts + jnp.log(jnp.stack([p["share"], 1 - p["share"]])))

    support = {"gap": hamcmc.positive(), "sd": hamcmc.positive(), "share": hamcmc.bounded(0.0, 1.0)}
    init = {"low": jnp.zeros(()), "gap": jnp.ones(()), "sd": jnp.ones(2), "share": jnp.array(0.5)}
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, y, support=support), init)
