"""Stochastic gradient Riemannian Langevin dynamics."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import Grad, Info, Mirror, Sampler, langevin, standard_normal, step_info


class SGRLDState(NamedTuple):
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

    Here F is the expected Fisher information of the whole data set, prior included, and
    :math:`Γ_i = \sum_j ∂H_{ij}/∂θ_j` comes from automatic differentiation. ε is the factor of the drift and 2ε that of
    the noise covariance. The factor N/n of the minibatch gradient is inside `grad`.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        fisher: F, a (D, D) matrix over the flattened position (``jax.flatten_util.ravel_pytree``). A constant F is
            factored once, and Γ = 0. A function of the position is factored at every step, and Γ is added.
        correction: add Γ. Without it a bias remains as ε → 0 unless F is constant.
        mirror: map that folds a position back into its support (``posterior.mirror``).

    Returns:
        A :class:`Sampler`.

    References:
        Patterson and Teh, Stochastic gradient Riemannian Langevin dynamics on the probability simplex, NeurIPS 2013.
        Xifara et al., Langevin diffusions and the Metropolis-adjusted Langevin algorithm, 2014 (the form of Γ).
    """
    _check.gradient(grad)
    constant = None if callable(fisher) else _inverse_factor(jnp.asarray(fisher))

    def metric(flat: Array, unravel) -> tuple[Callable, Callable, Array]:
        """H·, S· with S Sᵀ = H = F⁻¹, and Γ(θ)."""
        if (r := constant) is not None:  # L⁻¹ is known, and products are faster than solves
            return lambda v: r.T @ (r @ v), lambda z: r.T @ z, jnp.zeros_like(flat)

        def f(x: Array) -> Array:
            return fisher(unravel(x))  # type: ignore[operator]

        root = jnp.linalg.cholesky(f(flat))
        shift = correction_term(f, flat, root) if correction else jnp.zeros_like(flat)
        return lambda v: cho_solve((root, True), v), lambda z: solve_triangular(root, z, lower=True, trans=1), shift

    def init(position: PyTree) -> SGRLDState:
        return SGRLDState(position, jnp.zeros((), jnp.int32))

    def step(key, state: SGRLDState, minibatch: PyTree, step_size) -> tuple[SGRLDState, Info]:
        flat, unravel = ravel_pytree(state.position)
        g = grad(state.position, minibatch)
        h, s, gamma = metric(flat, unravel)
        drift = h(ravel_pytree(g)[0]) + gamma
        noise = s(ravel_pytree(standard_normal(key, state.position))[0])
        position = langevin(state.position, unravel(drift), unravel(noise), step_size, mirror)
        return SGRLDState(position, state.step + 1), step_info(g, drift, noise, step_size)

    settings = {
        "sampler": "sgrld",
        "fisher": "constant" if constant is not None else "function",
        "correction": correction,
    }
    return Sampler(init=init, step=step, settings=settings)


def correction_term(fisher: Callable[[Array], Array], flat: Array, root: Array) -> Array:
    """Γ_i = Σ_j ∂(F⁻¹)_ij/∂θ_j = −[F⁻¹ Σ_j (∂_j F) F⁻¹ e_j]_i."""
    inverse = cho_solve((root, True), jnp.eye(flat.size, dtype=flat.dtype))
    derivative = jax.jacfwd(fisher)(flat)  # (i, k, j): ∂F_ik/∂θ_j
    return -inverse @ jnp.einsum("ikj,kj->i", derivative, inverse)


def _inverse_factor(fisher: Array) -> Array:
    """L⁻¹ of F = L Lᵀ."""
    if fisher.ndim != 2 or fisher.shape[0] != fisher.shape[1]:
        raise ValueError(f"fisher must be a square matrix over the flattened position, got shape {fisher.shape}")
    root = jnp.linalg.cholesky(fisher)
    if not isinstance(root, Tracer) and not bool(jnp.isfinite(root).all()):
        raise ValueError("fisher must be positive definite")
    return solve_triangular(root, jnp.eye(root.shape[0], dtype=root.dtype), lower=True)
