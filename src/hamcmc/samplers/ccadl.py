"""Covariance-controlled adaptive Langevin thermostat."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from hamcmc import _check
from hamcmc._renamed import renamed
from hamcmc._types import PyTree
from hamcmc.samplers.base import Info, Mirror, Sampler, norm, require_data, standard_normal
from hamcmc.samplers.sghmc import fly, kick
from hamcmc.samplers.sgnht import rub
from hamcmc.target.protocol import PerDatumTarget


class CCADLState(NamedTuple):
    """The newest draw, its momentum (unit mass), the thermostat ξ, the gradient's covariance Σ, and the steps taken.

    Σ is over the flattened position: (D,), its diagonal, or (D, D).
    """

    position: PyTree
    momentum: PyTree
    xi: Array
    covariance: Array
    step: Array


@renamed(posterior="target")
def ccadl(
    target: PerDatumTarget,
    *,
    friction: float = 0.1,
    rate: float = 0.01,
    decay: float = 0.99,
    full: bool = False,
    mirror: Mirror | None = None,
) -> Sampler:
    r"""Covariance-controlled adaptive Langevin thermostat.

    .. math::

        θ_{t+1/2} &= θ_t + \tfrac h2 p_t, \qquad
        p_{t+1/2} = e^{-F_t} p_t + \sqrt{A F_t^{-1} (1 - e^{-2F_t})}\; z_t, \qquad
        F_t = ξ_t I + ε_t Σ_t, \quad z_t ∼ N(0, I), \quad A = -\log(1-a) \\
        ξ_{t+1} &= ξ_t + \tfrac rD [u_t^⊤ u_t + \mathrm{tr}\, A F_t^{-1} (1 - e^{-F_t})/2 - D], \qquad
        u_t = (p_t + p_{t+1/2})/2 \\
        θ_{t+1} &= θ_{t+1/2} + \tfrac h2 p_{t+1/2}, \quad p_{t+1} = p_{t+1/2} - h ∇Ũ(θ_{t+1}), \quad h = \sqrt{2 ε_t} \\
        Σ_{t+1} &= α Σ_t + (1-α) \tfrac{N^2}{n}\, \mathrm{cov}_{i ∈ Ω_t}\, ∇\log p(x_i|θ_{t+1})

    A kick's noise has the covariance 2εΣ, and the friction εΣ removes it again, direction by direction and position by
    position. The thermostat of :func:`sgnht` corrects what the estimate misses. ε means the same as for :func:`sghmc`:
    it is SGLD's drift factor, the noise has variance 2ε if all momentum is forgotten, and steps are stable for
    ε < 2 / (largest curvature). The factor N/n of the minibatch gradient is inside the target's gradient. The momentum
    starts at rest, and a mirror reverses it as in :func:`sghmc`. A step takes one gradient, of each datum.

    Args:
        target: a :class:`~hamcmc.Posterior`, or another target with data and the gradient of each datum.
        friction: a in (0, 1), the share of the momentum that a step forgets in addition to the friction εΣ.
        rate: r > 0, how fast ξ follows. ξ has the variance r/D; r = a² is large for D = 1.
        decay: α in [0, 1), weight of the past in the running average Σ. A minibatch of all N data has no noise: Σ = 0.
        full: use the whole matrix Σ instead of its diagonal. Each step then computes its eigenvectors, in O(D³).
        mirror: map that folds a position back into its support (``posterior.mirror``).

    Returns:
        A :class:`Sampler`.

    References:
        Shang, Zhu, Leimkuhler and Storkey, Covariance-controlled adaptive Langevin thermostat for large-scale Bayesian
        sampling, NeurIPS 2015.
    """
    a = _check.open_fraction("friction", friction)
    r = _check.positive("rate", rate)
    alpha = _check.fraction("decay", decay)
    require_data(target, "ccadl estimates the gradient's noise from data")

    def init(position: PyTree) -> CCADLState:
        flat, _ = ravel_pytree(position)
        covariance = jnp.zeros((flat.size,) * (2 if full else 1), flat.dtype)
        xi = (-jnp.log1p(-a)).astype(flat.dtype)
        return CCADLState(position, jax.tree.map(jnp.zeros_like, position), xi, covariance, jnp.zeros((), jnp.int32))

    def step(key, state: CCADLState, minibatch: PyTree, step_size) -> tuple[CCADLState, Info]:
        half = jnp.sqrt(step_size / 2)
        position, p = fly(state.position, state.momentum, half, mirror)
        old, unravel = ravel_pytree(p)
        z = ravel_pytree(standard_normal(key, p))[0]
        if full:  # in the basis of its eigenvectors the friction is diagonal
            values, vectors = jnp.linalg.eigh(state.covariance)
            kept, noise, heat = rub(vectors.T @ old, state.xi + step_size * values, z, a)
            kept, noise = vectors @ kept, vectors @ noise
        else:
            kept, noise, heat = rub(old, state.xi + step_size * state.covariance, z, a)
        xi = state.xi + r * (heat.mean() - 1)
        position, p = fly(position, unravel(kept + noise), half, mirror)
        g, covariance = gradient(position, minibatch)
        past = jnp.where(state.step == 0, 0.0, alpha).astype(old.dtype)
        covariance = past * state.covariance + (1 - past) * covariance
        info = Info(norm(g), half * norm(old + kept), half * norm(noise))
        return CCADLState(position, kick(p, g, 2 * half), xi, covariance, state.step + 1), info

    def gradient(position: PyTree, minibatch: PyTree) -> tuple[PyTree, Array]:
        """The stochastic gradient, and this minibatch's estimate of the covariance of its noise."""
        each = target.per_datum_grads(position, minibatch)
        g_bar = jax.tree.map(lambda x: x.mean(0), each)
        centred = jax.vmap(lambda g: ravel_pytree(g)[0])(jax.tree.map(jnp.subtract, each, g_bar))
        n, N = len(centred), target.size
        factor = N**2 / n / max(n - 1, 1) if n < N else 0.0
        scatter = centred.T @ centred if full else jnp.sum(centred**2, 0)
        return target.combine(position, g_bar), factor * scatter

    settings = {"sampler": "ccadl", "friction": a, "rate": r, "decay": alpha, "full": full}
    return Sampler(init=init, step=step, settings=settings)
