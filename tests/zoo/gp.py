"""Gaussian processes and Gaussian fields."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

import hamcmc
from tests import zoo
from tests.zoo.densities import binomial_logit, gamma, inverse_gamma, normal, poisson_log, sigmoid

positive = hamcmc.positive()
NUGGET = 1e-4  # relative; what single precision needs for a Cholesky factor


def matern(x: np.ndarray, length):
    """The correlations of a Matérn-3/2 process, with a nugget."""
    scaled = np.sqrt(3) * np.abs(x[:, None] - x) / length
    return (1 + scaled) * jnp.exp(-scaled) + NUGGET * np.eye(len(x))


def log_gaussian(y, root):
    """The log-density of N(0, root rootᵀ)."""
    return -0.5 * jnp.sum(solve_triangular(root, y, lower=True) ** 2) - jnp.sum(jnp.log(jnp.diag(root)))


@zoo.model
def gp_regression() -> zoo.Case:
    """Gaussian-process regression, squared-exponential, 40 points: length, amplitude and noise."""
    rng = np.random.default_rng(91)
    x = np.sort(rng.uniform(0, 10, size=40))
    y = np.sin(x) + 0.3 * x + 0.3 * rng.normal(size=40)
    y -= y.mean()
    squares = (x[:, None] - x) ** 2

    def log_density(p):
        covariance = p["amplitude"] ** 2 * jnp.exp(-0.5 * squares / p["length"] ** 2)
        root = jnp.linalg.cholesky(covariance + (p["noise"] ** 2 + NUGGET * p["amplitude"] ** 2) * np.eye(40))
        prior = inverse_gamma(p["length"], 5.0, 5.0) + normal(p["amplitude"], 0.0, 2.0) + normal(p["noise"])
        return prior + log_gaussian(y, root)

    init = {"length": jnp.ones(()), "amplitude": jnp.ones(()), "noise": jnp.ones(())}
    nuts = {"whiten": True, "warmup": 500, "samples": 1000}
    return zoo.Case(hamcmc.Posterior(log_density, support=positive), init, nuts=nuts)


@zoo.model
def gp_poisson() -> zoo.Case:
    """Counts with a Gaussian process of 50 points as log-rate, non-centred, and its length and amplitude."""
    rng = np.random.default_rng(92)
    x = np.linspace(0, 10, 50)
    y = rng.poisson(np.exp(1 + np.sin(x) + 0.3 * np.cos(3 * x)))

    def log_density(p):
        f = p["level"] + p["amplitude"] * jnp.linalg.cholesky(matern(x, p["length"])) @ p["z"]
        prior = inverse_gamma(p["length"], 4.0, 6.0) + normal(p["amplitude"]) + normal(p["level"], 0.0, 2.0)
        return prior + normal(p["z"]) + poisson_log(y, f)

    init = {"length": jnp.ones(()), "amplitude": jnp.ones(()), "level": jnp.zeros(()), "z": jnp.zeros(50)}
    posterior = hamcmc.Posterior(log_density, support={"length": positive, "amplitude": positive})
    return zoo.Case(posterior, init, nuts={"warmup": 500, "samples": 1000})


@zoo.model
def gp_labels() -> zoo.Case:
    """Successes out of 5 with a Gaussian process of 40 points as log-odds, centred, with its amplitude."""
    rng = np.random.default_rng(93)
    x = np.linspace(0, 8, 40)
    trials = np.full(40, 5)
    y = rng.binomial(trials, sigmoid(2 * np.sin(x)))
    root = np.linalg.cholesky(
        np.asarray((1 + np.abs(x[:, None] - x)) * np.exp(-np.abs(x[:, None] - x)) + NUGGET * np.eye(40))
    )
    whiten = np.linalg.inv(root)

    def log_density(p):
        process = normal(whiten @ p["f"], 0.0, p["amplitude"])
        return gamma(p["amplitude"], 4.0, 2.0) + process + binomial_logit(y, trials, p["f"])

    init = {"amplitude": jnp.ones(()), "f": jnp.zeros(40)}
    return zoo.Case(hamcmc.Posterior(log_density, support={"amplitude": positive}), init)


@zoo.model
def spatial_counts() -> zoo.Case:
    """Counts on a 10 × 10 lattice with a conditional autoregression as log-risk, centred."""
    rng = np.random.default_rng(94)
    place = np.arange(100)
    row, column = place // 10, place % 10
    near = (np.abs(row[:, None] - row) + np.abs(column[:, None] - column)) == 1
    precision = np.diag(near.sum(axis=1)) - 0.95 * near
    field = np.linalg.solve(np.linalg.cholesky(precision).T, rng.normal(size=100))
    expected = rng.uniform(2, 20, size=100)
    y = rng.poisson(expected * np.exp(0.1 + 0.8 * field))

    def log_density(p):
        field, spread = p["field"], p["spread"]
        prior = -0.5 * field @ (precision @ field) / spread**2 - 100 * jnp.log(spread) + normal(spread)
        return prior + normal(p["level"], 0.0, 2.0) + poisson_log(y, np.log(expected) + p["level"] + field)

    init = {"level": jnp.zeros(()), "spread": jnp.ones(()), "field": jnp.zeros(100)}
    return zoo.Case(hamcmc.Posterior(log_density, support={"spread": positive}), init)
