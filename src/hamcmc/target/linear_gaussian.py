"""The paper's first model: θ ~ N(0, I), x_n | θ ~ N(a_nᵀθ, σ²). Its posterior is known exactly."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from hamcmc.target.posterior import Posterior


class Data(NamedTuple):
    """Rows a_n and observations x_n."""

    a: np.ndarray
    x: np.ndarray


class Exact(NamedTuple):
    """The exact posterior N(mean, precision⁻¹)."""

    mean: np.ndarray
    precision: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """precision⁻¹."""
        return np.linalg.inv(self.precision)


def linear_gaussian(data: Data, noise_variance: float) -> Posterior:
    """The posterior of θ given rows a_n and observations x_n; both densities are normalised."""
    constant = 0.5 * math.log(2 * math.pi * noise_variance)

    def log_prior(theta):
        return -0.5 * jnp.sum(theta**2) - 0.5 * theta.size * math.log(2 * math.pi)

    def log_likelihood(theta, datum):
        return -0.5 * (datum.x - jnp.dot(datum.a, theta)) ** 2 / noise_variance - constant

    return Posterior(log_prior, log_likelihood, data)


def exact(data: Data, noise_variance: float) -> Exact:
    """The posterior in closed form: precision I + AᵀA/σ², which is also the expected Fisher information."""
    a, x = (np.asarray(v, np.float64) for v in data)
    precision = np.eye(a.shape[1]) + a.T @ a / noise_variance
    return Exact(np.linalg.solve(precision, a.T @ x / noise_variance), precision)


def log_evidence(data: Data, noise_variance: float) -> float:
    """log p(x) = log N(x; 0, σ²I + AAᵀ), by the D×D precision (Woodbury)."""
    x = np.asarray(data.x, np.float64)
    mean, precision = exact(data, noise_variance)
    fit = x @ x / noise_variance - mean @ precision @ mean
    return float(-0.5 * (len(x) * np.log(2 * np.pi * noise_variance) + np.linalg.slogdet(precision)[1] + fit))


def simulate(rng: np.random.Generator, size: int, mixing: np.ndarray, noise_variance: float) -> Data:
    """Data from the model; rows are ``mixing @ standard normal``, so that ``mixing mixingᵀ`` is their covariance."""
    dimension = mixing.shape[0]
    theta = rng.standard_normal(dimension)
    a = rng.standard_normal((size, mixing.shape[1])) @ mixing.T
    x = a @ theta + np.sqrt(noise_variance) * rng.standard_normal(size)
    return Data(a.astype(np.float32), x.astype(np.float32))
