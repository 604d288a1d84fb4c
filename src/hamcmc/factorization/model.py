r"""Gaussian factorization of a sparse matrix.

.. math::

    x_{ij} ∼ N(μ + a_i + b_j + w_i^⊤ h_j,\; 1/τ), \qquad
    w_{ik} ∼ N(m_k, 1/λ_k), \quad h_{jk} ∼ N(m'_k, 1/λ'_k), \quad a_i ∼ N(·,·), \quad b_j ∼ N(·,·)

The paper's model has neither μ nor biases, and all variances are 1. In the full model every precision and mean has a
conjugate hyper-prior: τ ∼ Gamma(1, 1/2·Var x) and (m, λ) ∼ Normal-Gamma with the weight of one row.

A bias is a factor whose partner is the constant 1: row i is (w_i, a_i, 1) and column j is (h_j, 1, b_j). Both are
padded with zeros to a multiple of eight numbers, as the gradient kernel needs. Constants and padding never move.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc import _check

PAD = 8  # numbers in a vector of the gradient kernel
SIDES = ("W", "H")


class Layout(NamedTuple):
    """What each column of the padded factors means.

    Attributes:
        rank: K; the first K columns are the factors.
        biases: whether column K is the row's bias, and column K+1 the column's.
    """

    rank: int
    biases: bool

    @property
    def width(self) -> int:
        """Numbers in a padded row."""
        return -(-(self.rank + 2 * self.biases) // PAD) * PAD

    def free(self, side: str) -> np.ndarray:
        """1 for the columns that are sampled, on side ``"W"`` or ``"H"``."""
        mask = np.zeros(self.width, np.float32)
        mask[: self.rank] = 1
        if self.biases:
            mask[self.rank + (side == "H")] = 1
        return mask

    def constant(self, side: str) -> np.ndarray:
        """1 for the column that is the partner of the other side's bias."""
        one = np.zeros(self.width, np.float32)
        if self.biases:
            one[self.rank + (side == "W")] = 1
        return one


class Hyper(NamedTuple):
    """τ of the noise; mean and precision of each column of W and of H (0 for those that do not move)."""

    noise: Array
    W_mean: Array
    W_precision: Array
    H_mean: Array
    H_precision: Array


class Sums(NamedTuple):
    """Sufficient statistics: Σe² over the ratings; Σ and Σ² of each column over the rows of W and of H."""

    squared_error: Array
    W: Array
    W_squared: Array
    H: Array
    H_squared: Array


class Prior(NamedTuple):
    """Hyper-priors: Gamma(shape, rate) of τ; Normal-Gamma with weight κ (in rows), shape and rate of (m, λ)."""

    noise_shape: float = 1.0
    noise_rate: float = 0.5
    weight: float = 1.0
    shape: float = 1.0
    rate: float = 0.1


def layout(model: str, rank: int) -> Layout:
    """The columns of a model, ``"paper"`` or ``"full"``."""
    return Layout(_check.at_least("rank", rank, 1), _check.one_of("model", model, ("paper", "full")) == "full")


def start(columns: Layout, value_variance: float) -> Hyper:
    """Hyper-parameters at the start: unit variances in the paper's model, scales from the ratings in the full one."""
    free = {s: jnp.asarray(columns.free(s)) for s in SIDES}
    zeros = jnp.zeros(columns.width)
    if not columns.biases:
        return Hyper(jnp.ones(()), zeros, free["W"], zeros, free["H"])
    # Noise, the two biases and W H have about these shares of the ratings' variance.
    bias = {s: np.eye(columns.width)[columns.rank + (s == "H")] / (0.2 * value_variance) for s in SIDES}
    factor = np.sqrt(columns.rank / (0.1 * value_variance))
    precision = {s: jnp.asarray(free[s] * np.where(bias[s] > 0, bias[s], factor), jnp.float32) for s in SIDES}
    return Hyper(jnp.asarray(1 / (0.7 * value_variance)), zeros, precision["W"], zeros, precision["H"])


def gibbs(key: Array, sums: Sums, size: int, shape: tuple[int, int], columns: Layout, prior: Prior) -> Hyper:
    """Draw the hyper-parameters of the full model given W, H and the residuals. This is exact: they are conjugate."""
    keys = jax.random.split(key, 3)
    noise = jax.random.gamma(keys[0], prior.noise_shape + size / 2) / (prior.noise_rate + sums.squared_error / 2)
    W_mean, W_precision = normal_gamma(keys[1], sums.W, sums.W_squared, shape[0], prior)
    H_mean, H_precision = normal_gamma(keys[2], sums.H, sums.H_squared, shape[1], prior)
    free = {s: jnp.asarray(columns.free(s)) for s in SIDES}
    return Hyper(noise, free["W"] * W_mean, free["W"] * W_precision, free["H"] * H_mean, free["H"] * H_precision)


def normal_gamma(key: Array, first: Array, second: Array, n: int, prior: Prior) -> tuple[Array, Array]:
    """Draw (m, λ) of normal columns from their posterior, given Σx = `first` and Σx² = `second` over n rows."""
    key_mean, key_precision = jax.random.split(key)
    weight, mean = prior.weight + n, first / (prior.weight + n)
    # Σ(x − x̄)² + κn/(κ+n) x̄², which is Σx² − (κ+n) mean²
    rate = prior.rate + jnp.maximum(second - weight * mean**2, 0) / 2
    precision = jax.random.gamma(key_precision, prior.shape + n / 2, first.shape) / rate
    return mean + jax.random.normal(key_mean, first.shape) / jnp.sqrt(weight * precision), precision
