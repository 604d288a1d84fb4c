"""Stochastic gradient Nosé–Hoover thermostat."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import Grad, Info, Mirror, Sampler, norm, standard_normal
from hamcmc.samplers.sghmc import fly, kick


class SGNHTState(NamedTuple):
    """The newest draw, its momentum (unit mass), the thermostat ξ, () or (D,), and the number of steps taken."""

    position: PyTree
    momentum: PyTree
    xi: Array
    step: Array


def sgnht(
    grad: Grad,
    *,
    friction: float = 0.1,
    rate: float = 0.01,
    multivariate: bool = False,
    mirror: Mirror | None = None,
) -> Sampler:
    r"""Stochastic gradient Nosé–Hoover thermostat: a friction that adapts to the gradient's noise by itself.

    .. math::

        θ_{t+1/2} &= θ_t + \tfrac h2 p_t, \qquad
        p_{t+1/2} = e^{-ξ_t} p_t + \sqrt{A (1 - e^{-2ξ_t})/ξ_t}\; z_t, \qquad z_t ∼ N(0, I), \quad A = -\log(1-a) \\
        ξ_{t+1} &= ξ_t + r\, [u_t^⊤ u_t / D + A (1 - e^{-ξ_t})/(2ξ_t) - 1], \qquad u_t = (p_t + p_{t+1/2})/2 \\
        θ_{t+1} &= θ_{t+1/2} + \tfrac h2 p_{t+1/2}, \qquad p_{t+1} = p_{t+1/2} - h ∇Ũ(θ_{t+1}), \qquad h = \sqrt{2 ε_t}

    The thermostat raises the friction ξ until the position moves as fast as it does at equilibrium. It so removes the
    heat that the gradient's noise brings in, provided that the noise is the same at all positions and, unless
    `multivariate`, along all coordinates. Without noise ξ stays around A, and this is :func:`sghmc` with friction a.
    ε means the same as there: it is SGLD's drift factor, the noise has variance 2ε if all momentum is forgotten, and
    steps are stable for ε < 2 / (largest curvature). The factor N/n of the minibatch gradient is inside `grad`. The
    momentum starts at rest, and a mirror reverses it as in :func:`sghmc`. One gradient per step.

    The thermostat measures the speed of the move, :math:`u = (θ_{t+1} - θ_t)/h`, and not Ding et al.'s p, which holds
    the newest kick's noise in full. With u the variance of a Gaussian is right even with noise as large as εV = 1 (V is
    the variance of the stochastic gradient), where p would leave it a third too small.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        friction: a in (0, 1), the share of the momentum that a step forgets if the gradient has no noise.
        rate: r > 0, how fast ξ follows. ξ has the variance r/D; r = a² is large for D = 1.
        multivariate: a thermostat for each coordinate, with D = 1.
        mirror: map that folds a position back into its support (``posterior.mirror``).

    Returns:
        A :class:`Sampler`.

    References:
        Ding, Fang, Babbush, Chen, Skeel and Neven, Bayesian sampling using stochastic gradient thermostats, NeurIPS
        2014.
    """
    _check.gradient(grad)
    a = _check.open_fraction("friction", friction)
    r = _check.positive("rate", rate)

    def init(position: PyTree) -> SGNHTState:
        flat, _ = ravel_pytree(position)
        xi = jnp.full(flat.shape if multivariate else (), -jnp.log1p(-a), flat.dtype)
        return SGNHTState(position, jax.tree.map(jnp.zeros_like, position), xi, jnp.zeros((), jnp.int32))

    def step(key, state: SGNHTState, minibatch: PyTree, step_size) -> tuple[SGNHTState, Info]:
        half = jnp.sqrt(step_size / 2)
        position, p = fly(state.position, state.momentum, half, mirror)
        old, unravel = ravel_pytree(p)
        kept, noise, heat = rub(old, state.xi, ravel_pytree(standard_normal(key, p))[0], a)
        xi = state.xi + r * ((heat if multivariate else heat.mean()) - 1)
        position, p = fly(position, unravel(kept + noise), half, mirror)
        g = grad(position, minibatch)
        info = Info(norm(g), half * norm(old + kept), half * norm(noise))
        return SGNHTState(position, kick(p, g, 2 * half), xi, state.step + 1), info

    settings = {"sampler": "sgnht", "friction": a, "rate": r, "multivariate": multivariate}
    return Sampler(init=init, step=step, settings=settings)


def rub(momentum: Array, xi: Array, z: Array, friction: float) -> tuple[Array, Array, Array]:
    """Friction ξ and diffusion A = −log(1 − a) for one step.

    Returns:
        The part of the momentum that is kept, the noise, and a measure of temperature. The noise has the variance
        A(1 − e^(−2ξ))/ξ of dp = −ξp dt + √(2A) dW after unit time. The measure has mean 1 at equilibrium, with or
        without noise in the gradient.
    """
    kept = jnp.exp(-xi) * momentum
    share = -jnp.log1p(-friction) * jnp.where(xi == 0, 1, -jnp.expm1(-xi) / jnp.where(xi == 0, 1, xi))
    noise = jnp.sqrt(share * (1 + jnp.exp(-xi))) * z
    speed = (momentum + kept + noise) / 2
    return kept.astype(z.dtype), noise.astype(z.dtype), (speed**2 + share / 2).astype(z.dtype)
