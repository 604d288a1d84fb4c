"""The ensemble with a Metropolis test: exact at any step size, on all data."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hamcmc.samplers import curvature
from hamcmc.samplers.base import PyTree, Sampler
from hamcmc.samplers.ensemble.resting import (
    Resting,
    Spread,
    base_noise,
    check_replicas,
    displacement,
    divide,
    eigenvalue_bound,
    halves,
    joined,
    learning_steps,
    multiply,
    replica_axis,
    resting_half,
    rms_norms,
    span_noise,
)


class State(NamedTuple):
    """All replicas with log-density and gradient at each; the metric's memory; the number of half-moves made."""

    position: PyTree
    log_density: Array
    grad: PyTree
    spread: Spread | None
    step: Array


class Info(NamedTuple):
    """As the ensemble's, and the share of the half's proposals that were accepted."""

    grad_norm: Array
    drift_norm: Array
    noise_norm: Array
    pairs_accepted: Array
    eigenvalue_bound: Array
    gamma: Array
    acceptance: Array


def adjusted(log_density: Callable, pairs: int, settings: dict, **options) -> Sampler:
    """The Metropolis-adjusted form of :func:`hamcmc.ensemble_hamcmc`, which documents it."""
    start, make = resting_half(pairs, update="block", **options)
    evaluate = jax.vmap(jax.value_and_grad(log_density), (0, None))

    def init(position: PyTree) -> State:
        check_replicas(position, pairs)
        leaf = jax.tree.leaves(position)[0]
        # A first proposal is always taken: it brings the density that later ones are compared with.
        unknown = jnp.full(leaf.shape[:1], -jnp.inf, leaf.dtype)
        zeros = jax.tree.map(jnp.zeros_like, position)
        return State(position, unknown, zeros, start(position), jnp.zeros((), jnp.int32))

    def step(key, state: State, minibatch: PyTree, step_size) -> tuple[State, Info]:
        both = (state.position, state.log_density, state.grad)
        (x, old, g), resting = halves(both, state.step)
        r, spread = make(resting[0], resting[2], state.spread)
        key, key_accept = jax.random.split(key)
        drift, noise = displacement(key, r, g, step_size)
        proposal = jax.tree.map(lambda x, d, z: x + d + z, x, drift, noise)
        new, g_new = evaluate(proposal, minibatch)

        ratio = new - old + log_proposal_ratio(r, jax.tree.map(jnp.add, g, g_new), noise, step_size)
        accept = jnp.log(jax.random.uniform(key_accept, ratio.shape)) < ratio  # never where the new density is NaN
        choose = lambda a, b: jnp.where(replica_axis(accept, a), a, b)
        moved = jax.tree.map(choose, (proposal, new, g_new), (x, old, g))
        grad_norm, drift_norm, noise_norm = rms_norms((g, drift, noise))
        info = Info(
            grad_norm,
            drift_norm,
            noise_norm,
            jnp.sum(r.factor.accepted),
            eigenvalue_bound(r),
            r.factor.gamma,
            jnp.mean(accept.astype(ratio.dtype)),
        )
        position, density, grad = joined(moved, resting, state.step)
        return State(position, density, grad, spread, state.step + 1), info

    learning = learning_steps(options["metric"], options["adapt"])
    return Sampler(init, step, settings, pairs + 1, 2 * (pairs + 1), learning, pairs=pairs, needs_all_data=True)


def log_proposal_ratio(r: Resting, u: PyTree, noise: PyTree, step_size) -> Array:
    """log q(x|x') − log q(x'|x) of each replica, with u the sum of the gradients at x and at x'.

    Both proposals have the covariance Σ = 2ε(V K Vᵀ + kγ P Pᵀ), so it is −½ηᵀe − ¼ε(H u)ᵀe with e = 2ε Σ⁻¹H u. Because
    VᵀU = I, that is e = u/k + U (K⁻¹ − 1/k) Vᵀu.
    """
    f, m = r.factor, r.gram.shape[0] // 2
    u, noise = multiply(u, r.root), divide(noise, r.root)
    along = curvature.inner(r.basis, u).T  # (replica, 2m)
    zeros = jnp.zeros_like(along)
    h = jax.vmap(lambda a, b: curvature.block_direction(f, r.gram, a, b, b[:m]))(along, zeros).drift
    k = base_noise(r, step_size)
    e = ((along[:, :m] @ f.weights) * (1 / span_noise(f, step_size) - 1 / k)) @ f.dual.T  # coefficients over the y
    of_noise = rows(noise, u) / k + jnp.sum(curvature.inner(r.basis, noise).T[:, m:] * e, 1)
    # (H u)ᵀe with H u = γu + Σ h v and e = u/k + Σ e y
    of_h = f.gamma * (rows(u, u) / k + jnp.sum(along[:, m:] * e, 1)) + jnp.sum(h * along, 1) / k
    of_h += jnp.sum((h @ r.gram)[:, m:] * e, 1)
    return -of_noise / 2 - step_size * of_h / 4


def rows(a: PyTree, b: PyTree) -> Array:
    """The inner product of each replica's a and b."""
    one = lambda x, y: jnp.sum((x * y).reshape(len(x), -1), 1)
    return sum(jax.tree.leaves(jax.tree.map(one, a, b)))  # type: ignore[return-value]
