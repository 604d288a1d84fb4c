"""Posteriors on which samplers are compared by effective samples per second, each made here from a seed."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import hamcmc
from hamcmc.target import linear_gaussian as model

NOISE_VARIANCE = 10.0  # of the linear Gaussian model
WEAK, STRONG = 1.0, 1000.0  # curvature that its data add along most directions, and along one in 50 (at least one)


class Problem(NamedTuple):
    """A posterior with its mode, the directions along which samplers are watched, and the best minibatch.

    `directions` are eigenvectors of the Hessian at the mode, from the softest to the stiffest, columns in the flat
    unconstrained space; `curvatures` are all of its eigenvalues.
    """

    name: str
    posterior: hamcmc.Posterior
    mode: Any
    batch_size: int | None
    directions: np.ndarray
    curvatures: np.ndarray
    gaussian: bool = False  # nearly: the Hessian tells the variances

    @property
    def condition(self) -> float:
        """Of the Hessian at the mode."""
        return float(self.curvatures[-1] / self.curvatures[0])


def logistic(size: int = 100_000, dimension: int = 100, seed: int = 0) -> Problem:
    """Logistic regression with correlated features (0.9 between neighbours), prior N(0, I)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, dimension)).astype(np.float32)
    for j in range(1, dimension):
        x[:, j] = 0.9 * x[:, j - 1] + np.sqrt(1 - 0.81) * x[:, j]
    theta = rng.standard_normal(dimension).astype(np.float32) / np.sqrt(dimension)
    labels = rng.random(size) < 1 / (1 + np.exp(-x @ theta))
    return watched(f"logistic, N = {size:,}, D = {dimension}", *logistic_model(x, labels), 1000)._replace(gaussian=True)


def census(size: int = 32_561, seed: int = 0) -> Problem:
    """Logistic regression on indicators of 14 categorical variables, some frequent and some very rare, prior N(0, I).

    As ill-conditioned as regressions on census data are, for the same reason: common indicators have curvatures in the
    thousands, and of rare ones only the prior knows.
    """
    rng = np.random.default_rng(seed)
    columns = []
    for levels in (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41):
        share = np.sort(rng.dirichlet(np.full(levels, 0.25)))[::-1] + 2e-5
        columns.append(np.eye(levels, dtype=np.float32)[rng.choice(levels, size, p=share / share.sum())])
    x = np.concatenate([np.ones((size, 1), np.float32), *columns], 1)
    theta = rng.standard_normal(x.shape[1]).astype(np.float32) / 2
    labels = rng.random(size) < 1 / (1 + np.exp(1.5 - x @ theta))
    return watched(f"logistic on indicators, N = {size:,}, D = {x.shape[1]}", *logistic_model(x, labels), 500)


def linear(dimension: int = 100, seed: int = 0) -> Problem:
    """The paper's linear Gaussian model with 10 000 rows that vary much along few random directions."""
    rng = np.random.default_rng([seed, dimension])
    axes = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    curvatures = np.where(np.arange(dimension) < max(1, dimension // 50), STRONG, WEAK)
    data = model.simulate(rng, 10_000, axes * np.sqrt(curvatures * NOISE_VARIANCE / 10_000), NOISE_VARIANCE)
    truth = model.exact(data, NOISE_VARIANCE)
    posterior = model.linear_gaussian(data, NOISE_VARIANCE)
    mean = jnp.asarray(truth.mean, jnp.float32)
    return watched(f"linear Gaussian, D = {dimension}", posterior, mean, 1000)._replace(gaussian=True)


def hierarchical(groups: int = 997, size: int = 50_000, seed: int = 0) -> Problem:
    """A logistic regression with a random effect for each of many groups of very different sizes, D = groups + 3.

    Effects b_j ~ N(m, s²), m ~ N(0, 1), log s ~ N(0, 1), and one slope.
    """
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(groups, 1.0))
    group = rng.choice(groups, size, p=share).astype(np.int32)
    x = rng.standard_normal(size).astype(np.float32)
    effect = 0.5 + 0.8 * rng.standard_normal(groups)
    labels = rng.random(size) < 1 / (1 + np.exp(-effect[group] - x))

    def log_prior(theta):
        m, s, b = theta["mean"], theta["log_sd"], theta["effect"]
        return -0.5 * (m**2 + s**2 + theta["slope"] ** 2 + jnp.sum(((b - m) * jnp.exp(-s)) ** 2)) - groups * s

    def log_likelihood(theta, datum):
        logit = theta["effect"][datum["group"]] + theta["slope"] * datum["x"]
        return -jnp.logaddexp(0.0, jnp.where(datum["label"], -logit, logit))

    data = {"group": group, "x": x, "label": labels}
    posterior = hamcmc.Posterior(log_prior, log_likelihood, data)
    # The joint density has its mode where all effects are equal and s is 0. The mode given s is where the posterior is.
    given = lambda s: hamcmc.Posterior(lambda t: log_prior(t | {"log_sd": s}), lambda t, d: log_likelihood(t, d), data)
    centre = {"mean": jnp.zeros(()), "slope": jnp.zeros(()), "effect": jnp.zeros(groups)}
    log_sd = jnp.asarray(-0.2)
    for _ in range(3):
        centre = hamcmc.find_mode(given(log_sd), centre)
        spread = jnp.mean((centre["effect"] - centre["mean"]) ** 2)
        log_sd = 0.5 * jnp.log(
            spread + jnp.mean(1 / (jnp.exp(-2 * log_sd) + 0.2 * np.bincount(group, minlength=groups)))
        )
    return watched(f"hierarchical, D = {groups + 3}", posterior, centre | {"log_sd": log_sd}, 1000)


def logistic_model(x: np.ndarray, labels: np.ndarray) -> tuple[hamcmc.Posterior, jax.Array]:
    """The posterior and its mode."""

    def log_likelihood(theta, datum):
        return -jnp.logaddexp(0.0, jnp.where(datum["label"], -1.0, 1.0) * (datum["x"] @ theta))

    log_prior = lambda theta: -0.5 * jnp.sum(theta**2)
    posterior = hamcmc.Posterior(log_prior, log_likelihood, {"x": x, "label": labels})
    return posterior, hamcmc.find_mode(posterior, jnp.zeros(x.shape[1]))


def watched(name: str, posterior: hamcmc.Posterior, mode: Any, batch_size: int | None, many: int = 10) -> Problem:
    """The problem with its Hessian's eigenvectors, evenly spaced by rank."""
    flat, unravel = ravel_pytree(mode)
    log_density = lambda x: posterior.log_density(unravel(x), posterior.data)
    column = jax.jit(lambda v: jax.jvp(jax.grad(log_density), (flat,), (v,))[1])
    hessian = -np.stack([np.asarray(column(v), np.float64) for v in np.eye(flat.size, dtype=np.float32)])
    curvatures, axes = np.linalg.eigh((hessian + hessian.T) / 2)
    ranks = np.unique(np.linspace(0, flat.size - 1, many).astype(int))
    return Problem(name, posterior, mode, batch_size, axes[:, ranks], curvatures)
