"""The kernel Stein discrepancy: how far draws are from a density known by the gradient of its log."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc import _check


class Discrepancy(NamedTuple):
    """A squared kernel Stein discrepancy.

    Attributes:
        squared: the estimate of KSD². As a U-statistic it can be negative.
        null_sd: the U-statistic's standard deviation if the draws were independent and exact: beyond a few of them the
            draws are not from the target (or are strongly autocorrelated).
        draws: how many draws it was computed from.
    """

    squared: float
    null_sd: float
    draws: int

    @property
    def value(self) -> float:
        """The discrepancy itself, 0 where its square is negative."""
        return float(np.sqrt(max(self.squared, 0.0)))


def ksd(
    draws: np.ndarray,
    gradients: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    c: float = 1.0,
    beta: float = -0.5,
    max_draws: int = 2000,
    statistic: Literal["U", "V"] = "U",
) -> Discrepancy:
    r"""Kernel Stein discrepancy of draws from a density known by the gradient of its log, :math:`g = ∇ \log p`.

    With the inverse multiquadric :math:`k(x, y) = (c^2 + ‖x-y‖^2)^β`, KSD² is the mean over pairs of draws of

    .. math:: k_0(x, y) = g_x^⊤ g_y\, k + g_x^⊤ ∇_y k + g_y^⊤ ∇_x k + \operatorname{tr} ∇_x ∇_y k,

    whose expectation is 0 if the draws are from p, and above 0 otherwise.

    The U-statistic leaves out the pairs of a draw with itself. k₀ is bilinear in (g_x, 1) and (g_y, 1), so stochastic
    gradients, whose noise has mean zero and is independent of the draws and between draws, leave the expectation of
    each other pair as it is: U is unbiased with them, too. A draw's pair with itself has g_xᵀg_x, which takes up the
    noise's variance, so V wants exact gradients. V is a norm, never negative, and off by E k₀(x, x) / n.

    Autocorrelation raises both by about E k₀(x, x) / ESS: thin first to compare runs. Power falls with the dimension,
    because distances concentrate: of 1000 coordinates, all with an sd 5 % too large, 2000 draws show nothing.

    Args:
        draws: (n, D), unconstrained.
        gradients: (n, D), of the log-density at the draws.
        weights: (n,), such as step sizes; None for equal ones.
        c: scale of the kernel, above 0.
        beta: its exponent, in (−1, 0).
        max_draws: of more draws than these, evenly spaced ones are taken.
        statistic: ``"U"`` or ``"V"``.

    References:
        Gorham and Mackey, Measuring sample quality with kernels, ICML 2017.
        Liu, Lee and Jordan, A kernelized Stein discrepancy for goodness-of-fit tests, ICML 2016.
    """
    x, g = np.asarray(draws, np.float64), np.asarray(gradients, np.float64)
    if x.ndim != 2 or x.shape != g.shape:
        raise ValueError(f"draws and gradients must both be (n, D), got shapes {x.shape} and {g.shape}")
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if w.shape != (len(x),) or not (np.isfinite(w).all() and (w >= 0).all()):
        raise ValueError("weights must be n finite numbers, none below 0")
    if statistic not in ("U", "V"):
        raise ValueError(f"statistic must be 'U' or 'V', got {statistic!r}")
    if not -1 < beta < 0:
        raise ValueError(f"beta must be a number in (-1, 0), got {beta!r}")
    _check.positive("c", c)
    rows = spread(len(x), _check.at_least("max_draws", max_draws, 2))
    if np.count_nonzero(w[rows]) < 2:
        raise ValueError(f"the kernel Stein discrepancy needs 2 draws of some weight, got {np.count_nonzero(w[rows])}")
    x, g, w = x[rows], g[rows], w[rows] / w[rows].sum()
    for name, array in (("draws", x), ("gradients", g)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has entries that are NaN or infinite")

    # Centred, because the kernel knows only differences, which single precision then keeps.
    sums = _stein_sums(jnp.asarray(x - x.mean(0)), jnp.asarray(g), jnp.asarray(w * len(w)), float(c), float(beta))
    off_diagonal, squares, diagonal = sums / len(w) ** 2
    squares /= len(w) ** 2
    pairs = 1 - np.sum(w**2)  # the weight of all pairs of different draws
    squared = off_diagonal / pairs if statistic == "U" else off_diagonal + diagonal
    return Discrepancy(float(squared), float(np.sqrt(2 * squares) / pairs), len(x))


def stein_kernel(x: Array, y: Array, g_x: Array, g_y: Array, c: float, beta: float) -> Array:
    """k₀ of rows x (n, D) against rows y (m, D): (n, m), by matrix products."""
    dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    own = lambda a, b: jnp.sum(a * b, axis=1)
    d = x.shape[1]
    r2 = jnp.maximum(own(x, x)[:, None] + own(y, y)[None, :] - 2 * dot(x, y.T), 0.0)
    q = c**2 + r2
    along = own(g_x, x)[:, None] + own(g_y, y)[None, :] - dot(g_x, y.T) - dot(x, g_y.T)  # (g_x − g_y)ᵀ(x − y)
    first = -2 * beta * q ** (beta - 1) * (along + d)
    return dot(g_x, g_y.T) * q**beta + first - 4 * beta * (beta - 1) * r2 * q ** (beta - 2)


def _stein_sums(x: Array, g: Array, w: Array, c: float, beta: float, block: int = 512) -> np.ndarray:
    """Σ_{i≠j} w w k₀, Σ_{i≠j} (w w k₀)² and Σ_i w² k₀(x_i, x_i), by blocks of pairs, which bound the memory."""
    parts = [tuple(a[i : i + block] for a in (x, g, w)) for i in range(0, len(x), block)]
    total = np.zeros(3)
    for i, left in enumerate(parts):
        for right in parts[i:]:
            same = left is right
            sums = np.asarray(_block_sums(left, right, c, beta, same=same), np.float64)
            total += sums if same else 2 * sums  # k₀ is symmetric
    return total


@partial(jax.jit, static_argnames="same")
def _block_sums(left: tuple, right: tuple, c: float, beta: float, *, same: bool) -> Array:
    (x, g_x, w_x), (y, g_y, w_y) = left, right
    terms = w_x[:, None] * w_y[None, :] * stein_kernel(x, y, g_x, g_y, c, beta)
    own = jnp.diag(terms) if same else jnp.zeros(1)
    off = jnp.fill_diagonal(terms, 0.0, inplace=False) if same else terms
    return jnp.stack([jnp.sum(off), jnp.sum(off**2), jnp.sum(own)])


def spread(n: int, most: int) -> np.ndarray:
    """Indices of at most `most` of n things, evenly spaced, each the middle of its share."""
    return np.arange(n) if n <= most else ((np.arange(most) + 0.5) * n / most).astype(int)
