"""The marginal distribution of every scalar parameter: mean, sd and five quantiles."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Marginals(NamedTuple):
    """The marginals of the entries of one parameter, each with the parameter's shape.

    Attributes:
        mean, sd: NaN where they do not exist.
        quantiles: at `LEVELS`, along the first axis.
    """

    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray

    def pick(self, index: Any) -> "Marginals":
        """The marginals of some of the entries."""
        return Marginals(self.mean[index], self.sd[index], self.quantiles[:, index])


def of_distribution(distribution: Any, shape: tuple[int, ...] = ()) -> Marginals:
    """Marginals of a frozen distribution of scipy, repeated to `shape`."""
    mean, sd = np.asarray(distribution.mean()), np.asarray(distribution.std())
    quantiles = np.stack([np.asarray(distribution.ppf(level)) for level in LEVELS])
    shape = shape or mean.shape
    return Marginals(
        np.broadcast_to(mean, shape),
        np.broadcast_to(sd, shape),
        np.stack([np.broadcast_to(q, shape) for q in quantiles]),
    )


def of_gaussian(mean: np.ndarray, covariance: np.ndarray) -> Marginals:
    """Marginals of a Gaussian."""
    return of_distribution(stats.norm(mean, np.sqrt(np.diag(covariance))))


def of_draws(draws: np.ndarray) -> Marginals:
    """Marginals of draws along the first axis."""
    return Marginals(draws.mean(axis=0), draws.std(axis=0, ddof=1), np.quantile(draws, LEVELS, axis=0))


def of_grid(grid: np.ndarray, log_density: np.ndarray) -> Marginals:
    """Marginals of a scalar whose log-density, up to a constant, is given on a fine, even grid that covers its mass."""
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = weights @ grid
    # The mass of a grid point lies evenly around it, so the distribution function at the point is half-way.
    cdf = np.cumsum(weights) - weights / 2
    return Marginals(np.asarray(mean), np.sqrt(weights @ (grid - mean) ** 2), np.interp(LEVELS, cdf, grid))


def of_mixture(weights: np.ndarray, means: np.ndarray, sds: np.ndarray) -> Marginals:
    """Marginals of Gaussian mixtures: `weights` (K,), `means` and `sds` (K, …) of the components."""
    w = weights.reshape(-1, *[1] * (means.ndim - 1))
    mean = np.sum(w * means, axis=0)
    variance = np.sum(w * (sds**2 + (means - mean) ** 2), axis=0)
    flat_means, flat_sds = means.reshape(len(weights), -1), sds.reshape(len(weights), -1)

    def quantile(j: int, level: float) -> float:
        def excess(x: float) -> float:
            return weights @ stats.norm.cdf(x, flat_means[:, j], flat_sds[:, j]) - level

        low, high = np.min(flat_means[:, j] - 9 * flat_sds[:, j]), np.max(flat_means[:, j] + 9 * flat_sds[:, j])
        return float(optimize.brentq(excess, low, high))  # type: ignore[arg-type]

    quantiles = [[quantile(j, level) for j in range(flat_means.shape[1])] for level in LEVELS]
    return Marginals(mean, np.sqrt(variance), np.reshape(quantiles, (len(LEVELS), *mean.shape)))


def of_transformed(distribution: Any, transform: Callable, mean: Any, sd: Any) -> Marginals:
    """Marginals of an increasing function of a scipy variable, whose mean and sd are known otherwise."""
    quantiles = np.stack([transform(np.asarray(distribution.ppf(level))) for level in LEVELS])
    return Marginals(np.asarray(mean), np.asarray(sd), quantiles)


def stack(entries: list[Marginals]) -> Marginals:
    """The marginals of a vector from those of its entries."""
    return Marginals(
        np.stack([m.mean for m in entries]),
        np.stack([m.sd for m in entries]),
        np.stack([m.quantiles for m in entries], axis=1),
    )
