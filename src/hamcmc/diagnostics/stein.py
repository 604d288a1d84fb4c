"""The kernel Stein discrepancy: how far draws are from a density known by the gradient of its log."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.store.result import StoredRun
from hamcmc.target.frozen import is_function
from hamcmc.target.posterior import Posterior


class Discrepancy(NamedTuple):
    """A squared kernel Stein discrepancy.

    Attributes:
        squared: the estimate of KSD². As a U-statistic it can be negative.
        null_sd: the standard deviation that the U-statistic would have if the draws were independent and exact. An
            estimate of several times this size shows that the draws are not from the target, or that they are strongly
            autocorrelated.
        draws: the number of draws that it was computed from.
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

    The U-statistic leaves out the pairs of a draw with itself. k₀ is bilinear in (g_x, 1) and (g_y, 1). Noise in the
    gradients that has mean zero, and is independent of the draws and between draws, therefore leaves the expectation of
    all other pairs unchanged: U stays unbiased with stochastic gradients. The pair of a draw with itself contains
    g_xᵀg_x, which picks up the variance of the noise, so V needs exact gradients. V is a norm: it is never negative,
    and it is too large by E k₀(x, x) / n.

    Autocorrelation raises both statistics by about E k₀(x, x) / ESS: thin the draws before you compare runs. The power
    falls with the dimension, because distances concentrate: if all of 1000 coordinates have an sd that is 5 % too
    large, 2000 draws show nothing.

    Args:
        draws: (n, D), unconstrained.
        gradients: (n, D), of the log-density at the draws.
        weights: (n,), such as step sizes; None for equal ones.
        c: scale of the kernel, above 0.
        beta: exponent of the kernel, in (−1, 0).
        max_draws: if there are more draws, this many evenly spaced ones are used.
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

    # Centred: the kernel depends on differences only, and single precision then keeps them.
    sums = _stein_sums(jnp.asarray(x - x.mean(0)), jnp.asarray(g), jnp.asarray(w * len(w)), float(c), float(beta))
    off_diagonal, squares, diagonal = sums / len(w) ** 2
    squares /= len(w) ** 2
    pairs = 1 - np.sum(w**2)  # the weight of all pairs of different draws
    squared = off_diagonal / pairs if statistic == "U" else off_diagonal + diagonal
    return Discrepancy(float(squared), float(np.sqrt(2 * squares) / pairs), len(x))


def stein_kernel(x: Array, y: Array, g_x: Array, g_y: Array, c: float, beta: float) -> Array:
    """k₀ of rows x (n, D) against rows y (m, D): (n, m), by matrix products."""
    dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)

    def own(a: Array, b: Array) -> Array:
        """The inner product of each row of a with the same row of b."""
        return jnp.sum(a * b, axis=1)

    d = x.shape[1]
    r2 = jnp.maximum(own(x, x)[:, None] + own(y, y)[None, :] - 2 * dot(x, y.T), 0.0)
    q = c**2 + r2
    along = own(g_x, x)[:, None] + own(g_y, y)[None, :] - dot(g_x, y.T) - dot(x, g_y.T)  # (g_x − g_y)ᵀ(x − y)
    first = -2 * beta * q ** (beta - 1) * (along + d)
    return dot(g_x, g_y.T) * q**beta + first - 4 * beta * (beta - 1) * r2 * q ** (beta - 2)


def _stein_sums(x: Array, g: Array, w: Array, c: float, beta: float, block: int = 512) -> np.ndarray:
    """Σ_{i≠j} w w k₀, Σ_{i≠j} (w w k₀)² and Σ_i w² k₀(x_i, x_i), by blocks of pairs to bound the memory."""
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
    """The three sums of :func:`_stein_sums` over one block of pairs; `same` if it lies on the diagonal."""
    (x, g_x, w_x), (y, g_y, w_y) = left, right
    terms = w_x[:, None] * w_y[None, :] * stein_kernel(x, y, g_x, g_y, c, beta)
    own = jnp.diag(terms) if same else jnp.zeros(1)
    off = jnp.fill_diagonal(terms, 0.0, inplace=False) if same else terms
    return jnp.stack([jnp.sum(off), jnp.sum(off**2), jnp.sum(own)])


def spread(n: int, most: int) -> np.ndarray:
    """Evenly spaced indices of at most `most` out of n things, each in the middle of its share."""
    return np.arange(n) if n <= most else ((np.arange(most) + 0.5) * n / most).astype(int)


# --- of a run ---


def ksd_of(
    result: StoredRun,
    posterior: Posterior | None = None,
    *,
    init: PyTree | Callable[[jax.Array], PyTree] | None = None,
    scale: bool = True,
    max_draws: int = 2000,
    **options: Any,
) -> Discrepancy:
    """Kernel Stein discrepancy of a run, pooled over chains and weighted by step sizes.

    It uses the stored gradients (``store_gradients=True`` in :func:`hamcmc.sample`). For a run without them, the
    posterior computes gradients on all data at the draws that are used, at most `max_draws`.

    The discrepancy is computed in the unconstrained space, like the samplers' gradients. Mirrored parameters are taken
    as they are, which is right only if their density vanishes at the boundary.

    Args:
        result: a run.
        posterior: needed if gradients were not stored, or if parameters have a support by bijection.
        init: as given to :func:`hamcmc.sample`; needed if a position is neither an array nor a flat dict of arrays.
        scale: divide each coordinate by the sd of its draws and multiply its gradient by it. The kernel then treats all
            coordinates alike, and the value does not depend on units.
        max_draws: if there are more draws, this many evenly spaced ones are used.
        **options: `c`, `beta` and `statistic` of :func:`hamcmc.diagnostics.ksd`.
    """
    result.require_whole("the kernel Stein discrepancy")
    stored = bool(result.settings["store_gradients"])
    if not stored and posterior is None:
        raise ValueError("the run has no stored gradients: give its posterior, or sample with store_gradients=True")
    chains, names = result.settings["chains"], list(result.shapes)
    when = spread(result.draws, max(_check.at_least("max_draws", max_draws, 2) // chains, 1))

    def read(group: str) -> list[np.ndarray]:
        """The chosen draws of every parameter, pooled over chains."""
        arrays = [result.read_at(f"{group}/{n}", when) for n in names]
        return [a.reshape(-1, *a.shape[2:]) for a in arrays]

    positions: PyTree = read("posterior")
    if posterior is not None:
        tree = _structure(posterior, names, positions, init).unflatten(positions)
        positions = jax.vmap(posterior.unconstrain_unchecked)(tree)
    gradients = read("gradients") if stored or posterior is None else _full_gradients(posterior, positions)
    x, g = _flat(positions), _flat(gradients)
    if scale and len(x):
        sd = x.std(0)
        sd[sd == 0] = 1.0
        x, g = x / sd, g * sd
    return ksd(x, g, np.tile(result.weights[when], chains), max_draws=max(max_draws, len(x)), **options)


def _flat(tree: PyTree) -> np.ndarray:
    """Leaves with a leading axis of draws as one matrix (draw, coordinate) in double precision."""
    return np.concatenate([np.asarray(a, np.float64).reshape(len(a), -1) for a in jax.tree.leaves(tree)], 1)


def _structure(posterior: Posterior, names: list[str], leaves: list[np.ndarray], init: Any) -> Any:
    """The tree structure of a position, which a run does not record."""
    if init is not None:
        return jax.tree.structure(init(jax.random.key(0)) if is_function(init) else init)
    one = dict(zip(names, (jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in leaves)))
    if names == ["theta"]:  # a bare array is called so, and so may be a key
        try:
            jax.eval_shape(posterior.log_prior, one["theta"])
        except Exception:
            return jax.tree.structure(one)
        return jax.tree.structure(one["theta"])
    if any("." in n for n in names) or names != sorted(names):
        raise ValueError(f"the position is not a flat dict ({', '.join(names)}): give init, which shows its structure")
    return jax.tree.structure(one)


def _full_gradients(posterior: Posterior, positions: PyTree, rows: int = 8192) -> PyTree:
    """Gradients of the log-density on all data at each of the positions (leading axis)."""
    if posterior.size == 0:
        return jax.jit(partial(lax.map, posterior.grad))(positions)

    @jax.jit
    def of_part(positions: PyTree, part: PyTree) -> PyTree:
        """The mean likelihood gradient over part of the data at each position."""
        return lax.map(lambda p: posterior.mean_likelihood_grad(p, part), positions)

    mean = jax.tree.map(jnp.zeros_like, positions)
    for start in range(0, posterior.size, rows):
        part = jax.tree.map(lambda a, start=start: jnp.asarray(a[start : start + rows]), posterior.data)
        share = min(rows, posterior.size - start) / posterior.size
        mean = jax.tree.map(lambda m, g, share=share: m + share * g, mean, of_part(positions, part))
    return jax.vmap(posterior.combine)(positions, mean)
