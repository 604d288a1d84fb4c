"""Stochastic gradient Fisher scoring."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve

from hamcmc import _check
from hamcmc._renamed import renamed
from hamcmc._types import PyTree
from hamcmc.samplers.base import Info, Mirror, Sampler, norm, require_data, standard_normal
from hamcmc.target.protocol import PerDatumTarget


class SGFSState(NamedTuple):
    """The newest draw, the running estimate Î of the per-datum Fisher information, and the steps taken."""

    position: PyTree
    fisher: Array
    step: Array


@renamed(posterior="target")
def sgfs(target: PerDatumTarget, *, base: float = 1.0, decay: float = 0.99, mirror: Mirror | None = None) -> Sampler:
    r"""Stochastic gradient Fisher scoring.

    .. math:: θ_t = θ_{t-1} + C_t [-∇Ũ(θ_{t-1}) + ξ_t], \quad ξ_t ∼ N(0, 2B/ε_t), \quad
              C_t = 2\,[γ N Î_t + 2B/ε_t]^{-1}, \quad γ = (n + N)/n

    where Î_t is a running average of the empirical covariance of the per-datum gradients in the minibatch and B = bI.
    For small ε this is :math:`θ + ε B^{-1}(-∇Ũ) + N(0, 2εB^{-1})`: SGLD with ε the factor of the drift and 2ε that of
    the noise (Ahn et al. write ε/2 and ε). For large ε it draws from the Gaussian approximation of the posterior, with
    the minibatch's noise. The factor N/n of the minibatch gradient is inside the target's gradient.

    Args:
        target: a :class:`~hamcmc.Posterior`, or another target with data and the gradient of each datum.
        base: b > 0.
        decay: weight of the past in the running average Î, in [0, 1).
        mirror: map that folds a position back into its support (``posterior.mirror``).

    Returns:
        A :class:`Sampler`. It keeps and inverts a D×D matrix.

    References:
        Ahn, Korattikara and Welling, Bayesian posterior sampling via stochastic gradient Fisher scoring, ICML 2012.
    """
    b = _check.positive("base", base)
    _check.fraction("decay", decay)
    require_data(target, "sgfs estimates the Fisher information from data")

    def init(position: PyTree) -> SGFSState:
        flat, _ = ravel_pytree(position)
        return SGFSState(position, jnp.zeros((flat.size, flat.size), flat.dtype), jnp.zeros((), jnp.int32))

    def step(key, state: SGFSState, minibatch: PyTree, step_size) -> tuple[SGFSState, Info]:
        flat, unravel = ravel_pytree(state.position)
        each = jax.vmap(lambda g: ravel_pytree(g)[0])(target.per_datum_grads(state.position, minibatch))
        n = each.shape[0]
        g_bar = each.mean(0)
        g = ravel_pytree(target.combine(state.position, unravel(g_bar)))[0]

        centred = each - g_bar
        old = jnp.where(state.step == 0, 0.0, decay).astype(flat.dtype)
        fisher = old * state.fisher + (1 - old) * (centred.T @ centred) / max(n - 1, 1)

        N = target.size
        identity = jnp.eye(flat.size, dtype=flat.dtype)
        precision = (n + N) / n * N * fisher + 2 * b / step_size * identity
        root = jnp.linalg.cholesky(precision)
        xi = jnp.sqrt(2 * b / step_size) * ravel_pytree(standard_normal(key, state.position))[0]
        drift, noise = (2 * cho_solve((root, True), v) for v in (g, xi))
        position = unravel((flat + drift + noise).astype(flat.dtype))
        if mirror is not None:
            position = mirror(position)
        return SGFSState(position, fisher, state.step + 1), Info(norm(g), norm(drift), norm(noise))

    return Sampler(init=init, step=step, settings={"sampler": "sgfs", "base": b, "decay": decay})
