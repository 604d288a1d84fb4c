"""The naive quasi-Newton Langevin sampler, which shows what goes wrong without HAMCMC."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import Grad, Mirror, Sampler
from hamcmc.samplers.curvature import Memory, empty_memory
from hamcmc.samplers.hamcmc import HAMCMCInfo, quasi_newton


class NaiveState(NamedTuple):
    """The newest draw, its last M−1 moves, and the number of steps taken."""

    position: PyTree
    memory: Memory
    step: Array


def naive(
    grad: Grad,
    *,
    memory: int = 3,
    gamma: float | str = 1.0,
    damping: float = 0.0,
    cosine: float = 0.1,
    mirror: Mirror | None = None,
) -> Sampler:
    r"""Langevin dynamics preconditioned by the L-BFGS inverse Hessian of the chain's own past.

    .. math:: θ_t = θ_{t-1} - ε_t H_t(θ_{t-M:t-1}) ∇Ũ(θ_{t-1}) + η_t, \qquad η_t ∼ N(0, 2 ε_t H_t)

    H_t depends on the current position and the correction Γ is missing, so this does **not** sample the posterior
    unless its curvature is constant (the paper's proposition). Use it to see the bias, not to infer anything.

    ε is the factor of the drift and 2ε that of the noise covariance. The factor N/n of the minibatch gradient is inside
    `grad`. Each step takes two gradients on one minibatch.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        memory: M; the M−1 newest pairs ``s_τ = θ_τ − θ_{τ−1}`` make H.
        gamma: scale γ of the base γI, or ``"newest"``: γ = sᵀy / yᵀy of the newest accepted pair.
        damping: λ ≥ 0, added as λs to y.
        cosine: c of the acceptance rule sᵀy ≥ c‖s‖‖y‖.
        mirror: map that folds a position back into its support (``posterior.mirror``).

    Returns:
        A :class:`Sampler`.
    """
    _check.gradient(grad)
    slots = _check.at_least("memory", memory, 2) - 1
    move = quasi_newton(gamma=gamma, metric=None, damping=damping, cosine=cosine, mirror=mirror)

    def init(position: PyTree) -> NaiveState:
        return NaiveState(position, empty_memory(position, slots), jnp.zeros((), jnp.int32))

    def step(key, state: NaiveState, minibatch: PyTree, step_size) -> tuple[NaiveState, HAMCMCInfo]:
        oldest = state.step % slots
        order = (oldest + jnp.arange(slots)) % slots
        new, pairs, info = move(grad, key, state.position, state.memory, oldest, order, minibatch, step_size)
        return NaiveState(new, pairs, state.step + 1), info

    settings = {"sampler": "naive", "memory": slots + 1, "gamma": gamma, "damping": damping, "cosine": cosine}
    return Sampler(init=init, step=step, settings=settings, gradients_per_step=2, pairs=slots)
