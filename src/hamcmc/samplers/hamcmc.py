"""Hessian Approximated MCMC, as published (with its errata)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import WHOLE, Grad, Mirror, Sampler, Space
from hamcmc.samplers.curvature import Memory, empty_memory, precondition, remember


class HAMCMCState(NamedTuple):
    """M interleaved chains, each with its last move.

    Attributes:
        position: the newest draw, θ_t.
        chains: positions, a leading axis of length M on every leaf.
        memory: the last (s, y) of each chain, and the Gram matrix of all of them.
        step: the number of steps taken; chain ``step mod M`` moves next.
    """

    position: PyTree
    chains: PyTree
    memory: Memory
    step: Array


class HAMCMCInfo(NamedTuple):
    """Sizes of one step, how many of the M−1 pairs made H, and an upper bound on H's largest eigenvalue."""

    grad_norm: Array
    drift_norm: Array
    noise_norm: Array
    pairs_accepted: Array
    eigenvalue_bound: Array


def hamcmc(
    grad: Grad,
    *,
    memory: int = 3,
    gamma: float | str = 1.0,
    metric: PyTree | None = None,
    damping: float = 0.0,
    cosine: float = 0.1,
    mirror: Mirror | None = None,
    space: Space = WHOLE,
) -> Sampler:
    r"""Hessian Approximated MCMC.

    .. math:: θ_t = θ_{t-M} - ε_t H_t ∇Ũ_{Ω_t}(θ_{t-M}) + \sqrt{2 ε_t}\, S_t z_t, \qquad S_t S_t^⊤ = H_t

    where H_t is the L-BFGS inverse Hessian on the M−1 pairs :math:`s_τ = θ_τ - θ_{τ-M}`,
    :math:`y_τ = ∇Ũ_{Ω_τ}(θ_τ) - ∇Ũ_{Ω_τ}(θ_{τ-M}) + λ s_τ`, τ = t−M+1 … t−1, oldest first. In other words, there are M
    interleaved chains. Chain t mod M moves, preconditioned by the latest move of each other chain.

    ε is the factor of the drift and 2ε that of the noise covariance. The factor N/n of the minibatch gradient is inside
    `grad`. Each step takes two gradients on one minibatch.

    If the curvature of the target varies, a small bias remains as ε → 0 (see the docs on the proposition).

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        memory: M, the number of interleaved chains, at least 2.
        gamma: scale γ of the base H⁰ = γI, or ``"newest"``: γ = sᵀy / yᵀy of the newest accepted pair.
        metric: static diagonal base, a pytree d like a position with positive entries: H⁰ = γ diag(d).
        damping: λ ≥ 0; L-BFGS then approximates (∇²U + λI)⁻¹.
        cosine: c of the acceptance rule: a pair enters H only if sᵀy ≥ c‖s‖‖y‖ (in the metric's coordinates).
        mirror: map that folds a position back into its support (``posterior.mirror``).
        space: how sums and noise are made if a position is spread over devices.

    Returns:
        A :class:`Sampler`.

    References:
        Şimşekli, Badeau, Cemgil and Richard, Stochastic quasi-Newton Langevin Monte Carlo, ICML 2016.
    """
    _check.gradient(grad)
    M = _check.at_least("memory", memory, 2)
    move = quasi_newton(gamma=gamma, metric=metric, damping=damping, cosine=cosine, mirror=mirror, space=space)

    def init(position: PyTree) -> HAMCMCState:
        chains = jax.tree.map(lambda x: jnp.broadcast_to(x, (M, *x.shape)), position)
        return HAMCMCState(position, chains, empty_memory(position, M), jnp.zeros((), jnp.int32))

    def step(key, state: HAMCMCState, minibatch: PyTree, step_size) -> tuple[HAMCMCState, HAMCMCInfo]:
        moving = state.step % M
        others = (moving + 1 + jnp.arange(M - 1)) % M  # oldest first
        theta = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, moving, 0, keepdims=False), state.chains)

        new, pairs, info = move(grad, key, theta, state.memory, moving, others, minibatch, step_size)
        chains = jax.tree.map(lambda x, n: lax.dynamic_update_index_in_dim(x, n, moving, 0), state.chains, new)
        return HAMCMCState(new, chains, pairs, state.step + 1), info

    settings = {
        "sampler": "hamcmc",
        "memory": M,
        "gamma": gamma,
        "metric": None if metric is None else "diagonal",
        "damping": damping,
        "cosine": cosine,
    }
    return Sampler(init=init, step=step, settings=settings, gradients_per_step=2, interleaved=M, pairs=M - 1)


def quasi_newton(
    *,
    gamma: float | str,
    metric: PyTree | None,
    damping: float,
    cosine: float,
    mirror: Mirror | None,
    space: Space = WHOLE,
) -> Callable:
    """Check the options, and return the transition that HAMCMC and the naive sampler share.

    Returns:
        ``move(grad, key, theta, memory, slot, order, minibatch, step_size) -> (theta, memory, info)``: a Langevin move
        of θ, preconditioned by the pairs in `order` (oldest first). The move's own pair goes to `slot`.
    """
    if gamma != "newest":
        _check.positive("gamma", gamma)
    _check.non_negative("damping", damping)
    _check.fraction("cosine", cosine)
    scale_up, scale_down = scaling(metric)

    def move(grad, key, theta, memory, slot, order, minibatch, step_size):
        g = grad(theta, minibatch)
        z = space.normal(key, theta)
        rule = {"gamma": gamma, "cosine": cosine, "total": space.total}
        p = precondition(memory, order[-1], order, scale_up(g), z, step_size, **rule)
        new = jax.tree.map(jnp.add, theta, scale_up(p.displacement))
        if mirror is not None:
            new = mirror(new)

        # Both gradients are on one minibatch: otherwise y would measure the change of minibatch, too.
        s = jax.tree.map(jnp.subtract, new, theta)
        y = jax.tree.map(lambda a, b, s: a - b + damping * s, g, grad(new, minibatch), s)
        info = HAMCMCInfo(p.grad_norm, p.drift_norm, p.noise_norm, p.pairs_accepted, p.eigenvalue_bound)
        return new, remember(p.memory, slot, scale_down(s), scale_up(y)), info

    return move


def scaling(metric: PyTree | None) -> tuple[Callable[[PyTree], PyTree], Callable[[PyTree], PyTree]]:
    """Multiplication and division by √d, which turns the base diag(d) into the identity."""
    root = root_of(metric)

    def scale_up(tree: PyTree) -> PyTree:
        return tree if root is None else jax.tree.map(jnp.multiply, root, tree)

    def scale_down(tree: PyTree) -> PyTree:
        return tree if root is None else jax.tree.map(lambda r, x: x / r, root, tree)

    return scale_up, scale_down


def root_of(metric: PyTree | None) -> PyTree | None:
    """√d of a diagonal metric that the user gave, after a check of its entries; None for the identity."""
    if metric is None:
        return None
    _check.entries("metric", metric)
    return jax.tree.map(jnp.sqrt, metric)
