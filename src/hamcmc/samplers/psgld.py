"""Preconditioned SGLD: a diagonal metric from a running average of squared gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from hamcmc import _check
from hamcmc._renamed import renamed
from hamcmc._types import PyTree
from hamcmc.samplers.base import WHOLE, Info, Mirror, Sampler, Space, langevin, require_data, step_info
from hamcmc.target.protocol import Target


class PSGLDState(NamedTuple):
    """The newest draw, the running average v of ḡ∘ḡ, its derivative along each coordinate, and the steps taken."""

    position: PyTree
    v: PyTree
    dv: PyTree
    step: Array


@renamed(posterior="target")
def psgld(
    target: Target,
    *,
    decay: float = 0.99,
    regularizer: float = 1e-5,
    correction: bool = False,
    mirror: Mirror | None = None,
    space: Space = WHOLE,
) -> Sampler:
    r"""Preconditioned SGLD (RMSprop metric), with or without the correction term Γ.

    .. math::

        θ_t &= θ_{t-1} + ε_t [-H_t ∇Ũ(θ_{t-1}) + Γ_t] + η_t, \qquad η_t ∼ N(0, 2 ε_t H_t) \\
        H_t &= \mathrm{diag}(1 / (λ + \sqrt{v_t})), \qquad v_t = α v_{t-1} + (1-α)\, ḡ_Ω ∘ ḡ_Ω

    Here ḡ is the **mean** over the minibatch of the per-datum log-likelihood gradients at θ_{t−1} (no prior, no N).
    ε is the factor of the drift and 2ε that of the noise covariance. v starts at the first minibatch's ḡ∘ḡ.

    Without Γ (as published and as used in practice) a bias remains as ε → 0. With `correction`, Γ is exact:
    :math:`Γ_i = ∂H_{ii}/∂θ_i = -H_{ii}^2\, (∂v_i/∂θ_i) / (2\sqrt{v_i})`. As ε → 0 the whole running average follows θ,
    and not only its newest term, so ∂v is averaged as v is. The correction takes D Hessian-vector products per step: it
    is a reference for small D.

    Args:
        target: a :class:`~hamcmc.Posterior`, or another target with data.
        decay: α in [0, 1).
        regularizer: λ > 0.
        correction: add Γ.
        mirror: map that folds a position back into its support (``posterior.mirror``).
        space: how sums and noise are made if a position is spread over devices.

    Returns:
        A :class:`Sampler`.

    References:
        Li, Chen, Carlson and Carin, Preconditioned stochastic gradient Langevin dynamics for deep neural networks,
        AAAI 2016.
    """
    alpha = _check.fraction("decay", decay)
    _check.positive("regularizer", regularizer)
    require_data(target, "psgld builds its metric from likelihood gradients")

    def squared_gradient(position: PyTree, minibatch: PyTree) -> tuple[PyTree, PyTree, PyTree]:
        """ḡ, ḡ∘ḡ and ∂(ḡ_i²)/∂θ_i, which is 0 without the correction."""
        g_bar = target.mean_likelihood_grad(position, minibatch)
        square = jax.tree.map(jnp.square, g_bar)
        if not correction:
            return g_bar, square, jax.tree.map(jnp.zeros_like, square)
        diagonal = hessian_diagonal(lambda x: target.mean_likelihood_grad(x, minibatch), position)
        return g_bar, square, jax.tree.map(lambda g, h: 2 * g * h, g_bar, diagonal)

    def init(position: PyTree) -> PSGLDState:
        zeros = jax.tree.map(jnp.zeros_like, position)
        return PSGLDState(position, zeros, zeros, jnp.zeros((), jnp.int32))

    def step(key, state: PSGLDState, minibatch: PyTree, step_size) -> tuple[PSGLDState, Info]:
        theta = state.position
        g_bar, square, dsquare = squared_gradient(theta, minibatch)
        g = target.combine(theta, g_bar)

        old = jnp.where(state.step == 0, 0.0, alpha)

        def average(a, b):
            return (old * a + (1 - old) * b).astype(a.dtype)

        v = jax.tree.map(average, state.v, square)
        dv = jax.tree.map(average, state.dv, dsquare)
        h = jax.tree.map(lambda v: 1 / (regularizer + jnp.sqrt(v)), v)

        drift = jax.tree.map(jnp.multiply, h, g)
        if correction:
            drift = jax.tree.map(lambda d, h, v, dv: d + _gamma(h, v, dv), drift, h, v, dv)
        z = space.normal(key, theta)
        noise = jax.tree.map(lambda h, z: jnp.sqrt(h) * z, h, z)
        position = langevin(theta, drift, noise, step_size, mirror)
        return PSGLDState(position, v, dv, state.step + 1), step_info(g, drift, noise, step_size, space)

    settings = {"sampler": "psgld", "decay": alpha, "regularizer": regularizer, "correction": correction}
    return Sampler(init=init, step=step, settings=settings)


def _gamma(h: Array, v: Array, dv: Array) -> Array:
    """Γ_i = ∂H_ii/∂θ_i; 0 where v is 0, because dv is 0 there, too."""
    root = jnp.sqrt(v)
    return -(h**2) * dv / (2 * jnp.where(root > 0, root, 1))


def hessian_diagonal(grad: Callable[[PyTree], PyTree], position: PyTree) -> PyTree:
    """∂grad_i/∂θ_i for every coordinate, by one Hessian-vector product each."""
    flat, unravel = ravel_pytree(position)

    def flat_grad(x):
        return ravel_pytree(grad(unravel(x)))[0]

    def entry(i):
        unit = jnp.zeros_like(flat).at[i].set(1)
        return jax.jvp(flat_grad, (flat,), (unit,))[1][i]

    return unravel(jax.lax.map(entry, jnp.arange(flat.size), batch_size=min(flat.size, 64)))
