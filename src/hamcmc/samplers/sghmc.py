"""Stochastic gradient Hamiltonian Monte Carlo, and the moves that the thermostats share with it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import all_leaves

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import WHOLE, Grad, Info, Mirror, Sampler, Space, squared


class SGHMCState(NamedTuple):
    """The newest draw, its momentum (unit mass), and the number of steps taken."""

    position: PyTree
    momentum: PyTree
    step: Array


def sghmc(
    grad: Grad, *, friction: float = 0.1, noise: Any = 0.0, mirror: Mirror | None = None, space: Space = WHOLE
) -> Sampler:
    r"""Stochastic gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics.

    .. math::

        θ_{t+1/2} &= θ_t + \tfrac h2 p_t, \qquad
        p_{t+1/2} = (1-a)\, p_t + \sqrt{1 - (1-a)^2 - \tfrac{ε_t}{2} (2-a)^2 V}\; z_t, \qquad z_t ∼ N(0, I) \\
        θ_{t+1} &= θ_{t+1/2} + \tfrac h2 p_{t+1/2}, \qquad p_{t+1} = p_{t+1/2} - h ∇Ũ(θ_{t+1}), \qquad h = \sqrt{2 ε_t}

    The leapfrog step is :math:`h = \sqrt{2ε}`, so that ε means the same as for the other samplers. If a step forgets
    the whole momentum (a → 1), it is :math:`θ - ε∇Ũ + \sqrt{2ε}\,(z_{t-1} + z_t)/2`: SGLD with averaged noise. Steps
    are stable for ε < 2 / (largest curvature). Below a = 1 a slow direction moves as under SGLD with ε(2−a)/a. The
    factor N/n of the minibatch gradient is inside `grad`.

    Positions follow the symmetric splitting BAOAB with one gradient per step. With full gradients their law is exact on
    a Gaussian at any stable ε, and for a near 1 the bias elsewhere is of order ε². The momentum starts at rest.

    The gradient's noise heats the chain: without `noise` the variance of a draw is too large by about the share
    εV(2−a)/(2a), where V is the variance of a coordinate of the stochastic gradient. If V is known, less noise is
    injected by as much.

    A mirror reverses the momentum as a wall reverses a ball's: it applies the mirror's derivative, which is −1 after an
    odd number of folds.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        friction: a in (0, 1), the share of the momentum that a step forgets. About :math:`2\sqrt{2εk}` is best for
            a direction of curvature k.
        noise: V, the variance of the stochastic gradient (N/n included), as a number or for each coordinate as a pytree
            like a position. It can be compensated up to εV = 2a / (2−a).
        mirror: map that folds a position back into its support (``posterior.mirror``).
        space: how sums and noise are made if a position is spread over devices.

    Returns:
        A :class:`Sampler`.

    References:
        Chen, Fox and Guestrin, Stochastic gradient Hamiltonian Monte Carlo, ICML 2014.
        Leimkuhler and Matthews, Rational construction of stochastic numerical methods for molecular sampling, 2013.
    """
    _check.gradient(grad)
    a = _check.open_fraction("friction", friction)
    variances = _variances(noise)

    def init(position: PyTree) -> SGHMCState:
        return SGHMCState(position, jax.tree.map(jnp.zeros_like, position), jnp.zeros((), jnp.int32))

    def step(key, state: SGHMCState, minibatch: PyTree, step_size) -> tuple[SGHMCState, Info]:
        half = jnp.sqrt(step_size / 2)

        def inject(v, z):
            return jnp.sqrt(jnp.maximum(1 - (1 - a) ** 2 - step_size / 2 * (2 - a) ** 2 * v, 0)) * z

        z = jax.tree.map(inject, variances(state.position), space.normal(key, state.position))

        position, p = fly(state.position, state.momentum, half, mirror)
        p = jax.tree.map(lambda p, z: ((1 - a) * p + z).astype(p.dtype), p, z)
        position, p = fly(position, p, half, mirror)
        g = grad(position, minibatch)
        sizes = jnp.sqrt(space.sizes(jnp.stack([squared(g), squared(state.momentum), squared(z)])))
        info = Info(sizes[0], half * (2 - a) * sizes[1], half * sizes[2])
        return SGHMCState(position, kick(p, g, 2 * half), state.step + 1), info

    settings = {"sampler": "sghmc", "friction": a, "noise": noise if isinstance(noise, int | float) else "diagonal"}
    return Sampler(init=init, step=step, settings=settings)


def fly(position: PyTree, momentum: PyTree, time: Any, mirror: Mirror | None) -> tuple[PyTree, PyTree]:
    """``θ + time·p``. Where the mirror folds the flight back, its derivative reverses the momentum."""
    moved = jax.tree.map(lambda x, p: (x + time * p).astype(x.dtype), position, momentum)
    return (moved, momentum) if mirror is None else jax.jvp(mirror, (moved,), (momentum,))


def kick(momentum: PyTree, force: PyTree, time: Any) -> PyTree:
    """``p + time·force``."""
    return jax.tree.map(lambda p, f: (p + time * f).astype(p.dtype), momentum, force)


def _variances(noise: Any) -> Callable[[PyTree], PyTree]:
    """The variance of each coordinate of a position, from one number or from a pytree with all of them."""
    if all_leaves([noise]) and np.ndim(noise) == 0:
        number = _check.non_negative("noise", noise)
        return lambda like: jax.tree.map(lambda _: number, like)
    _check.entries("noise", noise, zero=True)
    return lambda _: noise
