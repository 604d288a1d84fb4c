"""Independent proposals with a Metropolis test, for a posterior that is nearly normal in its coordinates."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.ensemble.hamiltonian import Flat, flattened
from hamcmc.target.protocol import DensityTarget

FREEDOM = 4  # degrees of freedom of the heavy-tailed proposals


class IndependenceState(NamedTuple):
    """All replicas, the logarithm of π/q at each of them, and the number of steps made."""

    position: PyTree
    log_weight: Float[Array, " replica"]
    step: Int[Array, ""]


class IndependenceInfo(NamedTuple):
    """The mean probability of acceptance."""

    acceptance: Float[Array, ""]


def independence(target: DensityTarget, *, replicas: int = 16, heavy: float = 0.1) -> Sampler:
    r"""The independence sampler: proposals that do not depend on where a replica is.

    .. math:: θ' ∼ q = (1 - a) N(0, I) + a\,t_4(0, I), \qquad
        \text{accepted with probability}\; \min\Bigl(1, \frac{π(θ')\,q(θ)}{π(θ)\,q(θ')}\Bigr)

    It is exact for every posterior, and fast only where the posterior is nearly standard normal in the coordinates of
    the target: then nearly all proposals are accepted, and draws are nearly independent. An automatic run uses it in
    the coordinates of the Laplace approximation, where that approximation is good. The share a of proposals from a
    multivariate Student distribution bounds the weights π/q of any posterior with lighter tails, so that no replica
    gets stuck in a tail.

    A step evaluates one log-density for each replica, and no gradient. The step size ε has no effect.

    The test is right only on all data: :func:`hamcmc.sample` refuses a `batch_size`. The support may have no mirror.

    Args:
        target: a :class:`~hamcmc.Posterior`, or another target with a log-density.
        replicas: how many chains move side by side.
        heavy: a, the share of heavy-tailed proposals, in (0, 1).

    Returns:
        A :class:`Sampler` with `replicas` replicas; positions have a leading axis of that length.

    References:
        Tierney, Markov chains for exploring posterior distributions, Annals of Statistics 1994.
        Hesterberg, Weighted average importance sampling and defensive mixture distributions, Technometrics 1995.
    """
    if target.mirror is not None:
        raise ValueError("independence cannot use a mirror: give the parameters a bijection instead")
    count = _check.at_least("replicas", replicas, 2)
    share = _check.open_fraction("heavy", heavy)
    each = jax.vmap(target.log_density, (0, None))

    def init(position: PyTree) -> IndependenceState:
        for leaf in jax.tree.leaves(position):
            if leaf.shape[:1] != (count,):
                raise ValueError(f"an ensemble of {count} replicas starts from as many, got shape {leaf.shape}")
        leaf = jax.tree.leaves(position)[0]
        # The weight of the start is not known before the first step, which stays where it is.
        return IndependenceState(position, jnp.full(count, -jnp.inf, leaf.dtype), jnp.zeros((), jnp.int32))

    def step(key, state: IndependenceState, minibatch: PyTree, step_size) -> tuple[IndependenceState, IndependenceInfo]:
        x, restore = flattened(state.position)
        drawn, uniform = proposals(key, x, share)
        proposed = jnp.where(state.step > 0, drawn, x)
        log_weight = each(restore(proposed), minibatch) - log_proposal(proposed, share)
        chance = jnp.exp(jnp.minimum(log_weight - state.log_weight, 0))
        chance = jnp.where(jnp.isfinite(log_weight), chance, 0)
        accept = uniform < chance
        position = restore(jnp.where(accept[:, None], proposed, x))
        log_weight = jnp.where(accept, log_weight, state.log_weight)
        return IndependenceState(position, log_weight, state.step + 1), IndependenceInfo(jnp.mean(chance))

    settings = {"sampler": "independence", "replicas": count, "heavy": share}
    return Sampler(
        init=init,
        step=step,
        settings=settings,
        gradients_per_step=count,
        replicas=count,
        coupled=False,
        needs_all_data=True,
        adapts_step=True,
    )


def proposals(key: Array, like: Flat, heavy: float) -> tuple[Flat, Float[Array, " replica"]]:
    """A draw of q for each replica, and a number in (0, 1) for its test, from one call of the generator."""
    lowest = jnp.nextafter(jnp.asarray(-1, like.dtype), jnp.asarray(0, like.dtype))
    u = jax.random.uniform(key, (like.shape[0], like.shape[1] + 2 + FREEDOM // 2), like.dtype, lowest, 1.0)
    z, rest = math.sqrt(2) * lax.erf_inv(u[:, 2 + FREEDOM // 2 :]), (u[:, : 2 + FREEDOM // 2] + 1) / 2
    chi_squared = -2 * jnp.sum(jnp.log(rest[:, 2:]), 1)  # with an even number of degrees of freedom
    longer = jnp.where(rest[:, 1] < heavy, jnp.sqrt(FREEDOM / chi_squared), 1)
    return z * longer[:, None], rest[:, 0]


def log_proposal(x: Flat, heavy: float) -> Float[Array, " replica"]:
    """log q, up to the constant of the normal density."""
    dimension, squared = x.shape[1], jnp.sum(x**2, 1)
    constant = math.lgamma((FREEDOM + dimension) / 2) - math.lgamma(FREEDOM / 2) - dimension / 2 * math.log(FREEDOM / 2)
    student = constant - (FREEDOM + dimension) / 2 * jnp.log1p(squared / FREEDOM)
    return jnp.logaddexp(math.log(1 - heavy) - squared / 2, math.log(heavy) + student)
