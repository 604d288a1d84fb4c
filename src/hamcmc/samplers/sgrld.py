"""Stochastic gradient Riemannian Langevin dynamics."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from hamcmc.samplers.base import (
    Grad,
    Info,
    Mirror,
    PyTree,
    Sampler,
    langevin,
    standard_normal,
    step_info,
)


class State(NamedTuple):
    """The newest draw and the number of steps taken."""

    position: PyTree
    step: Array


def sgrld(
    grad: Grad,
    fisher: Array | Callable[[PyTree], Array],
    *,
    correction: bool = True,
    mirror: Mirror | None = None,
) -> Sampler:
    r"""Stochastic gradient Riemannian Langevin dynamics.

    .. math:: θ_t = θ_{t-1} + ε_t [-H ∇Ũ(θ_{t-1}) + Γ(θ_{t-1})] + η_t, \quad η_t ∼ N(0, 2 ε_t H), \quad H = F(θ)^{-1}

    with F the expected Fisher information of the whole data set, prior included, and
    :math:`Γ_i = \sum_j ∂H_{ij}/∂θ_j`, by automatic differentiation. ε is the factor of the drift, 2ε that of the
    noise covariance. The factor N/n of the minibatch gradient is inside `grad`.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        fisher: F, a (D, D) matrix over the flattened position (``jax.flatten_util.ravel_pytree``); constant, then it is
            factored once and Γ = 0, or a function of the position, then it is factored at every step and Γ is added.
        correction: add Γ; without it a bias remains as ε → 0 unless F is constant.
        mirror: map that folds a position back into its support (``posterior.mirror``).

    Returns:
        A :class:`Sampler`.

    References:
        Patterson and Teh, Stochastic gradient Riemannian Langevin dynamics on the probability simplex, NeurIPS 2013.
        Xifara et al., Langevin diffusions and the Metropolis-adjusted Langevin algorithm, 2014 (the form of Γ).
    """
    constant = None if callable(fisher) else _factor(jnp.asarray(fisher))

    def metric(flat: Array, unravel) -> tuple[Array, Array]:
        """R = L⁻¹ of the Cholesky factorization F(θ) = L Lᵀ, so that H = RᵀR, and Γ(θ)."""
        if constant is not None:
            return constant, jnp.zeros_like(flat)
        f = lambda x: fisher(unravel(x))  # type: ignore[operator]
        root = _invert(jnp.linalg.cholesky(f(flat)))
        return root, correction_term(f, flat, root) if correction else jnp.zeros_like(flat)

    def init(position: PyTree) -> State:
        return State(position, jnp.zeros((), jnp.int32))

    def step(key, state: State, minibatch: PyTree, step_size) -> tuple[State, Info]:
        flat, unravel = ravel_pytree(state.position)
        g = grad(state.position, minibatch)
        root, gamma = metric(flat, unravel)
        drift = root.T @ (root @ ravel_pytree(g)[0]) + gamma
        noise = root.T @ ravel_pytree(standard_normal(key, state.position))[0]  # covariance RᵀR = F⁻¹
        position = langevin(state.position, unravel(drift), unravel(noise), step_size, mirror)
        return State(position, state.step + 1), step_info(g, drift, noise, step_size)

    settings = {
        "sampler": "sgrld",
        "fisher": "constant" if constant is not None else "function",
        "correction": correction,
    }
    return Sampler(init, step, settings)


def correction_term(fisher: Callable[[Array], Array], flat: Array, root: Array) -> Array:
    """Γ_i = Σ_j ∂(F⁻¹)_ij/∂θ_j = −[F⁻¹ Σ_j (∂_j F) F⁻¹ e_j]_i."""
    inverse = root.T @ root
    derivative = jax.jacfwd(fisher)(flat)  # (i, k, j): ∂F_ik/∂θ_j
    return -inverse @ jnp.einsum("ikj,kj->i", derivative, inverse)


def _factor(fisher: Array) -> Array:
    if fisher.ndim != 2 or fisher.shape[0] != fisher.shape[1]:
        raise ValueError(f"fisher must be a square matrix over the flattened position, got shape {fisher.shape}")
    root = jnp.linalg.cholesky(fisher)
    if not bool(jnp.isfinite(root).all()):
        raise ValueError("fisher must be positive definite")
    return _invert(root)


def _invert(lower: Array) -> Array:
    """The inverse of a lower triangular matrix."""
    return solve_triangular(lower, jnp.eye(lower.shape[0], dtype=lower.dtype), lower=True)
