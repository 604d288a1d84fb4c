"""Targets with known moments, whose curvature varies, and the samplers that the bias study runs on each."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.integrate import simpson
from scipy.interpolate import PchipInterpolator

from hamcmc.paper import proposition
from hamcmc.samplers.base import Grad, Sampler
from hamcmc.samplers.ensemble.langevin import ensemble_hamcmc
from hamcmc.samplers.ensemble.underdamped import ensemble_underdamped
from hamcmc.samplers.hamcmc import hamcmc
from hamcmc.samplers.naive import naive
from hamcmc.samplers.sgld import sgld
from hamcmc.target.estimators import control_variate
from hamcmc.target.posterior import Posterior

DATA, BATCH = 512, 50  # N is a power of 2, so that random bits make indices that are exactly uniform


class Known(NamedTuple):
    """A density with known moments.

    Attributes:
        grad: the gradient of the log-density.
        statistic: h of a position, one number for each moment.
        exact: E h.
        starts: ``starts(rng, n)`` draws from the density.
        posterior: the same density as a posterior.
        minibatch: ``minibatch(key)`` makes the second argument of `grad`.
    """

    grad: Grad
    statistic: Callable[[Array], Array]
    exact: np.ndarray
    starts: Callable[[np.random.Generator, int], np.ndarray]
    posterior: Posterior
    minibatch: Callable[[Array], Any] | None = None


@cache
def ridge() -> Known:
    """The proposition's target, U = (x+y)⁴/4 + 2(x−y)² + x²/4 + y²/10, with h = (x+y)²."""
    exact = np.array([proposition.exact_moments()["(x+y)²"]])
    grids = np.linspace(-4, 4, 801), np.linspace(-4, 4, 801)
    starts = _from_grid(_density(lambda x, y: -proposition.potential((x, y)), *grids), *grids)
    posterior = Posterior(lambda x: -proposition.potential(x), init=jnp.zeros(2))
    return Known(proposition.grad, lambda x: (x[:1] + x[1:]) ** 2, exact, starts, posterior)


@cache
def ten() -> Known:
    """θ = A u in 10 dimensions, with independent u_i of U_i = q u⁴/4 + l u²/2 + k log cosh u + d u, and h_i = u_i².

    The u_i are quartic, skewed and heavy-shouldered in turn. A = (I + B) diag(σ) with B strictly lower triangular and σ
    from 0.5 to 2, so that the curvature of each direction depends on all of the u_i.
    """
    kinds = np.array([[1.0, 0.1, 0, 0], [0, 0.5, 3, 2], [0, 0.1, 2, 0]])  # q, l, k, d
    q, l, k, d = (jnp.asarray(kinds[np.arange(10) % 3, i], jnp.float32) for i in range(4))
    b = np.tril(np.random.default_rng(0).normal(0, 0.4, (10, 10)), -1)
    mix = (np.eye(10) + b) * np.geomspace(0.5, 2, 10)
    unmix = jnp.asarray(np.linalg.inv(mix), jnp.float32)

    def grad(theta, _):
        u = unmix @ theta
        return -(q * u**3 + l * u + k * jnp.tanh(u) + d) @ unmix

    def log_density(theta):
        u = unmix @ theta
        return -jnp.sum(q * u**4 / 4 + l * u**2 / 2 + k * jnp.logaddexp(u, -u) + d * u)

    grid = np.linspace(-12, 12, 24001)
    potentials = kinds @ np.stack([grid**4 / 4, grid**2 / 2, np.logaddexp(grid, -grid), grid])
    densities = np.exp(potentials.min(1, keepdims=True) - potentials)
    second: Any = simpson(grid**2 * densities, x=grid) / simpson(densities, x=grid)
    quantiles = [_quantile(grid, p) for p in densities]

    def starts(rng, n):
        return np.stack([quantiles[i % 3](rng.random(n)) for i in range(10)], 1) @ mix.T

    posterior = Posterior(log_density, init=jnp.zeros(10))
    return Known(grad, lambda theta: (unmix @ theta) ** 2, second[np.arange(10) % 3], starts, posterior)


def rare(reduced: bool) -> Known:
    """The target of :func:`_rare`; if `reduced`, with a control variate at the mode."""
    target, posterior, mode = _rare()
    return target._replace(grad=control_variate(posterior, mode).grad) if reduced else target


@cache
def _rare() -> tuple[Known, Posterior, Array]:
    """Logistic regression of a rare event on minibatches of 50 out of 512, with h_i = (θ_i − Eθ_i)².

    Intercept and slope have a prior N(0, 3²) each. About 4 % of the data are ones, which makes the posterior skewed. θ
    is in units in which the Hessian at the mode is I.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=DATA)
    sign = np.where(rng.random(DATA) < 1 / (1 + np.exp(3.6 - 0.8 * x)), 1, -1)
    rows, mode, hessian = sign[:, None] * np.stack([np.ones(DATA), x], 1), np.zeros(2), np.eye(2)
    for _ in range(30):  # Newton's method
        p = 1 / (1 + np.exp(rows @ mode))
        hessian = (rows.T * (p * (1 - p))) @ rows + np.eye(2) / 9
        mode = mode + np.linalg.solve(hessian, rows.T @ p - mode / 9)
    unit = np.linalg.inv(np.linalg.cholesky(hessian)).T
    rows, mode, prior = rows @ unit, np.linalg.solve(unit, mode), unit.T @ unit / 9

    def log_density(*theta):
        each = np.logaddexp(0, -np.tensordot(rows, np.stack(theta), 1)).sum(0)
        return -each - 0.5 * np.einsum("i...,ij,j...", np.stack(theta), prior, np.stack(theta))

    grids = [np.linspace(m - 9, m + 9, 181) for m in mode]
    density, places = _density(log_density, *grids), np.stack(np.meshgrid(*grids, indexing="ij"))
    mean = (density * places).sum((1, 2))
    exact = (density * (places - mean[:, None, None]) ** 2).sum((1, 2))

    data, precision = jnp.asarray(rows, jnp.float32), jnp.asarray(prior, jnp.float32)
    posterior = Posterior(
        lambda theta: -0.5 * theta @ precision @ theta,
        lambda theta, row: jax.nn.log_sigmoid(row @ theta),
        data,
        init=jnp.zeros(2),
    )

    def minibatch(key):
        return data[jax.random.bits(key, (BATCH,), jnp.uint16) % DATA]

    centre = jnp.asarray(mean, jnp.float32)
    starts = _from_grid(density, *grids)
    target = Known(posterior.grad, lambda theta: (theta - centre) ** 2, exact, starts, posterior, minibatch)
    return target, posterior, jnp.asarray(mode, jnp.float32)


def _density(log_density: Callable, *grids: np.ndarray) -> np.ndarray:
    """The density on a grid, normalised by its sum: as good as an integral if it is smooth and vanishes at the
    edges."""
    log = log_density(*np.meshgrid(*grids, indexing="ij"))
    density = np.exp(log - log.max())
    return density / density.sum()


def _from_grid(density: np.ndarray, *grids: np.ndarray) -> Callable[[np.random.Generator, int], np.ndarray]:
    """A function that draws from a two-dimensional density, uniformly within the cells of a grid."""
    cumulated = np.cumsum(density.ravel())

    def draw(rng, n):
        cells = np.unravel_index(np.searchsorted(cumulated, rng.random(n) * cumulated[-1]), [len(g) for g in grids])
        return np.stack([g[c] + (g[1] - g[0]) * (rng.random(n) - 0.5) for g, c in zip(grids, cells)], 1)

    return draw


def _quantile(grid: np.ndarray, density: np.ndarray) -> PchipInterpolator:
    """The quantile function of a density on a grid."""
    cumulated = np.cumsum(density) / density.sum()
    rising = np.r_[True, np.diff(cumulated) > 1e-14]
    return PchipInterpolator(cumulated[rising], grid[rising])


def targets() -> dict[str, tuple[Callable[[], Known], Callable[[Grad], dict[str, Sampler]]]]:
    """Each target by name, and the samplers for it."""
    full: Any = {"gamma": 1.0, "damping": 0.0, "cosine": 0.0}
    still: Any = full | {"metric": None}

    def published(grad):
        return {
            "SGLD": sgld(grad),
            "naive M=2": naive(grad, memory=2, **full),
            "HAMCMC M=2": hamcmc(grad, memory=2, **full),
            "HAMCMC M=3": hamcmc(grad, memory=3, **full),
        }

    def on_ridge(grad):
        return published(grad) | {
            "ensemble, neighbours, m=1": ensemble_hamcmc(grad, pairs=1, update="neighbours", **still),
            "ensemble, neighbours, m=2": ensemble_hamcmc(grad, pairs=2, update="neighbours", **still),
            "ensemble, block, m=1": ensemble_hamcmc(grad, pairs=1, **still),
            "ensemble, block, m=2": ensemble_hamcmc(grad, pairs=2, **still),
            "ensemble, block, m=1, γ auto": ensemble_hamcmc(grad, pairs=1, **still | {"gamma": "auto"}),
            "ensemble, underdamped, m=2": ensemble_underdamped(grad, pairs=2, **still),
        }

    def on_ten(grad):
        return published(grad) | {
            "ensemble, neighbours, m=2": ensemble_hamcmc(grad, pairs=2, update="neighbours", **still),
            "ensemble, block, m=2": ensemble_hamcmc(grad, pairs=2, **still),
            "ensemble, block, m=10": ensemble_hamcmc(grad, pairs=10, **still),
            "ensemble, underdamped, m=10": ensemble_underdamped(grad, pairs=10, **still),
        }

    def on_rare(grad):
        return {k: v for k, v in published(grad).items() if k in ("SGLD", "HAMCMC M=2")} | {
            "ensemble, block, m=2": ensemble_hamcmc(grad, pairs=2, **still),
            "ensemble, block, m=2, fresh": ensemble_hamcmc(grad, pairs=2, fresh=True, **still),
        }

    return {
        "2-d ridge": (ridge, on_ridge),
        "10-d": (ten, on_ten),
        "minibatches": (lambda: rare(False), on_rare),
        "minibatches, control variate": (lambda: rare(True), on_rare),
    }
