"""Stochastic gradient Langevin dynamics."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import WHOLE, Grad, Info, Mirror, Sampler, Space, langevin, step_info


class SGLDState(NamedTuple):
    """The newest draw and the number of steps taken."""

    position: PyTree
    step: Array


def sgld(grad: Grad, *, mirror: Mirror | None = None, space: Space = WHOLE) -> Sampler:
    r"""Stochastic gradient Langevin dynamics.

    .. math:: θ_t = θ_{t-1} - ε_t ∇Ũ(θ_{t-1}) + η_t, \qquad η_t ∼ N(0, 2 ε_t I)

    ε is the factor of the drift and 2ε the variance of the noise. The factor N/n of the minibatch gradient is inside
    `grad`.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        mirror: map that folds a position back into its support (``posterior.mirror``).
        space: how sums and noise are made if a position is spread over devices.

    Returns:
        A :class:`Sampler`.

    References:
        Welling and Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011.
    """
    _check.gradient(grad)

    def init(position: PyTree) -> SGLDState:
        return SGLDState(position, jnp.zeros((), jnp.int32))

    def step(key, state: SGLDState, minibatch: PyTree, step_size) -> tuple[SGLDState, Info]:
        g = grad(state.position, minibatch)
        z = space.normal(key, state.position)
        position = langevin(state.position, g, z, step_size, mirror)
        return SGLDState(position, state.step + 1), step_info(g, g, z, step_size, space)

    return Sampler(init=init, step=step, settings={"sampler": "sgld"})
