"""Underdamped Langevin dynamics, preconditioned by an ensemble's curvature."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hamcmc.samplers import curvature
from hamcmc.samplers.base import Grad, Mirror, PyTree, Sampler, standard_normal
from hamcmc.samplers.ensemble.langevin import Info
from hamcmc.samplers.ensemble.resting import (
    Resting,
    Spread,
    check_replicas,
    eigenvalue_bound,
    gathering_pace,
    halves,
    joined,
    learning_steps,
    multiply,
    replica_axis,
    resting_half,
    rms_norms,
)
from hamcmc.samplers.sghmc import kick, open_fraction


class Root(NamedTuple):
    """S = √γ P + V G Vᵀ in the coordinates of the base metric."""

    resting: Resting
    g: Array


class State(NamedTuple):
    """Two halves of replicas with momenta, one half at rest.

    Attributes:
        position: all 2(m+1) replicas; the first half moves in even steps, the second in odd ones.
        momentum: of each of them, N(0, I) whatever H is.
        grad: gradients at the half that moves next, from when it was at rest.
        last: S of the last half-move, whose second half of the kick waits for the gradient there.
        spread: what a metric learned in warm-up knows so far.
        step: the number of half-moves made.
    """

    position: PyTree
    momentum: PyTree
    grad: PyTree
    last: "Root"
    spread: Spread | None
    step: Array


def ensemble_underdamped(
    grad: Grad,
    *,
    pairs: int = 10,
    friction: float = 0.5,
    gamma: float | str = "auto",
    metric: PyTree | str | None = "auto",
    damping: float = 0.0,
    cosine: float = 0.0,
    adapt: int = 1000,
    mirror: Mirror | None = None,
) -> Sampler:
    r"""Underdamped Langevin dynamics with the curvature of an ensemble's resting half.

    .. math:: dθ = S p\,dt, \qquad dp = -S^⊤ ∇U(θ)\,dt - a p\,dt + \sqrt{2a}\,dw, \qquad S S^⊤ = H

    keeps :math:`π(θ) N(p; 0, I)` for every S that the moving half has no part in. As in
    :func:`hamcmc.ensemble_hamcmc`, a step moves one half of the replicas, and S comes from the other. The move is
    B A O A B, a kick by the gradient, half of the way, friction and noise, the other half, and a kick again, all with
    one S: the last kick is made when the gradient there is known, in the next step. A Gaussian's positions have the
    exact variance at every stable ε, that is where ε times the largest eigenvalue of H∇²U is below 2.

    As for :func:`hamcmc.sghmc` the time step is :math:`h = \sqrt{2ε}`, so that with all momentum forgotten (a → 1) the
    drift is ε and the noise variance 2ε, averaged over two steps. The factor N/n of the minibatch gradient is inside
    `grad`. One gradient per sample.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        pairs: m ≥ 1, the number of pairs; the ensemble has 2(m+1) replicas.
        friction: a in (0, 1), the share of the momentum that a step forgets: less for directions that H does not know.
        gamma, metric, damping, cosine, adapt: as in :func:`hamcmc.ensemble_hamcmc`; ``gamma="auto"`` is 0.5 / L here,
            because its positions have no bias from a base step on a Gaussian.
        mirror: map that folds a position back into its support (``posterior.mirror``); momenta of replicas that were
            folded are drawn anew.

    Returns:
        A :class:`Sampler` with 2(m+1) replicas; positions have a leading axis of that length.

    References:
        Leimkuhler and Matthews, Rational construction of stochastic numerical methods for molecular sampling, 2013.
    """
    a = open_fraction("friction", friction)
    start, make = resting_half(
        pairs, gamma=gamma, metric=metric, damping=damping, cosine=cosine, update="block", adapt=adapt, base_step=0.5
    )
    each = jax.vmap(grad, (0, None))

    def init(position: PyTree) -> State:
        check_replicas(position, pairs)
        zeros = jax.tree.map(jnp.zeros_like, position)
        half = jax.tree.map(lambda x: x[: pairs + 1], zeros)
        spread = start(position)
        nothing = jax.eval_shape(lambda: root_of(make(half, half, spread)[0]))
        last = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)
        return State(position, zeros, half, last, spread, jnp.zeros((), jnp.int32))

    learning = learning_steps(metric, adapt)

    def step(key, state: State, minibatch: PyTree, step_size) -> tuple[State, Info]:
        step_size = step_size * gathering_pace(state.step, learning)
        (x, p), (x_rest, p_rest) = halves((state.position, state.momentum), state.step)
        h, kept = jnp.sqrt(2 * step_size), 1 - a
        at_rest = each(x_rest, minibatch)
        p_rest = kick(p_rest, force(state.last, at_rest), h / 2)
        r, spread = make(x_rest, at_rest, state.spread)
        key_noise, key_fold = jax.random.split(key)
        z = standard_normal(key_noise, x)

        # The two A, with the momentum before and after the friction, are one move with their sum.
        s = root_of(r)
        move = lambda p: push(s, p)
        p = kick(p, force(s, state.grad), h / 2)
        z = jax.tree.map(lambda z: jnp.sqrt(1 - kept**2) * z, z)
        drift = move(jax.tree.map(lambda p: h / 2 * (1 + kept) * p, p))
        noise = move(jax.tree.map(lambda z: h / 2 * z, z))
        p = jax.tree.map(lambda p, z: (kept * p + z).astype(p.dtype), p, z)
        moved = jax.tree.map(lambda x, d, n: (x + d + n).astype(x.dtype), x, drift, noise)
        if mirror is not None:
            outside, moved = fold(mirror, moved)
            anew = standard_normal(key_fold, p)
            p = jax.tree.map(lambda new, p: jnp.where(replica_axis(outside, p), new, p), anew, p)
        grad_norm, drift_norm, noise_norm = rms_norms((state.grad, drift, noise))
        info = Info(
            grad_norm,
            drift_norm,
            noise_norm,
            jnp.sum(r.factor.accepted),
            eigenvalue_bound(r),
            r.factor.gamma,
        )
        position, momentum = joined((moved, p), (x_rest, p_rest), state.step)
        return State(position, momentum, at_rest, s, spread, state.step + 1), info

    settings = {
        "sampler": "ensemble_underdamped",
        "pairs": pairs,
        "friction": a,
        "gamma": gamma,
        "metric": metric if metric is None or isinstance(metric, str) else "given",
        "damping": damping,
        "cosine": cosine,
        "adapt": adapt,
    }
    return Sampler(init, step, settings, pairs + 1, 2 * (pairs + 1), learning, pairs=pairs)


def root_of(r: Resting) -> Root:
    """S of a resting half."""
    return Root(r, curvature.block_root(r.factor, r.gram))


def push(s: Root, p: PyTree) -> PyTree:
    """S p for every replica."""
    f, m, basis = s.resting.factor, s.g.shape[0], s.resting.basis
    along = curvature.inner(basis, p).T
    on_s = (along[:, :m] @ f.weights @ s.g - jnp.sqrt(f.gamma) * along[:, m:] @ f.dual) @ f.weights.T
    return multiply(_sum(f.gamma, p, basis, on_s, jnp.zeros_like(on_s)), s.resting.root)


def force(s: Root, gradient: PyTree) -> PyTree:
    """Sᵀ times the gradient of every replica."""
    f, m, basis = s.resting.factor, s.g.shape[0], s.resting.basis
    scaled = multiply(gradient, s.resting.root)
    a = curvature.inner(basis, scaled).T[:, :m] @ f.weights
    return _sum(f.gamma, scaled, basis, a @ s.g @ f.weights.T, -jnp.sqrt(f.gamma) * a @ f.dual.T)


def _sum(gamma: Array, own: PyTree, basis: PyTree, on_s: Array, on_y: Array) -> PyTree:
    coefficients = jnp.concatenate([on_s, on_y], 1)
    add = lambda x, b: (jnp.sqrt(gamma) * x + jnp.tensordot(coefficients.astype(b.dtype), b, 1)).astype(x.dtype)
    return jax.tree.map(add, own, basis)


def fold(mirror: Mirror, position: PyTree) -> tuple[Array, PyTree]:
    """Which replicas the mirror moves, and where to."""
    folded = jax.vmap(mirror)(position)
    changed = jax.tree.map(lambda a, b: jnp.any((a != b).reshape(len(a), -1), 1), folded, position)
    return jnp.any(jnp.stack(jax.tree.leaves(changed)), 0), folded
