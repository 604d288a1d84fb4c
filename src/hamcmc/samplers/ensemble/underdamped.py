"""Underdamped Langevin dynamics, preconditioned by an ensemble's curvature."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hamcmc import _check
from hamcmc._types import PyTree, Scalar
from hamcmc.samplers import curvature
from hamcmc.samplers.base import Grad, Mirror, Sampler, squared, standard_normal
from hamcmc.samplers.ensemble.metric import Spread, multiply
from hamcmc.samplers.ensemble.resting import (
    EnsembleInfo,
    Resting,
    RestingHalf,
    cut,
    half_move_info,
    halves,
    joined,
    replica_axis,
    row_squares,
)
from hamcmc.samplers.sghmc import kick

EXCESS = 0.02  # of the variance, that the noise of gradients may add
DOUBT = 4.0  # times 1/√(D t), about what a measured noise of 0 deviates by after t steps
FIRST_STEPS = 64  # in which steps grow, because few pairs may not have shown the steep directions yet
LEAST = -8.0  # of what a step says about the noise: a long way to the posterior is soon forgotten
BASE_STEP = 0.5  # times the inverse curvature is γ = "auto": on a Gaussian a base step leaves positions without bias


class SquareRoot(NamedTuple):
    """S = √γ P + V G Vᵀ in the coordinates of the base metric, and √β, by which it is less for the replicas' mean."""

    resting: Resting
    g: Float[Array, "m m"]
    slow: Float[Array, ""]


class UnderdampedState(NamedTuple):
    """Two halves of replicas with momenta, one half at rest.

    Attributes:
        position: all 2(m+1) replicas; the first half moves in even steps, the second in odd ones.
        momentum: the momentum of each of them, N(0, I) whatever H is.
        grad: gradients at the half that moves next, from when it was at rest.
        before: the mean over the half that rests next of its gradients when it was last at rest.
        last: S of the last half-move. The second half of that move's kick waits for the gradient there.
        noise: the variance of Sᵀg that minibatches make, per dimension, for the sum of m+1 replicas over √(m+1).
        steepest: the curvature that γ is made for, from all steps since the metric was learned.
        spread: what a metric that is learned in warm-up knows so far.
        step: the number of half-moves made.
    """

    position: PyTree
    momentum: PyTree
    grad: PyTree
    before: PyTree
    last: SquareRoot
    noise: Float[Array, ""]
    steepest: Float[Array, ""]
    spread: Spread | None
    step: Int[Array, ""]


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

    This keeps :math:`π(θ) N(p; 0, I)` for every S in which the moving half has no part. As in
    :func:`hamcmc.ensemble_hamcmc`, a step moves one half of the replicas, and S comes from the other. The move is
    B A O A B: a kick by the gradient, half of the way, friction and noise, the other half, and a kick again, all with
    one S. The last kick is made in the next step, when the gradient there is known. A Gaussian's positions have the
    exact variance at every stable ε, that is if ε times the largest eigenvalue of H∇²U is below 2.

    As for :func:`hamcmc.sghmc` the time step is :math:`h = \sqrt{2ε}`, so that with all momentum forgotten (a → 1) the
    drift is ε and the noise variance 2ε, averaged over two steps. The factor N/n of the minibatch gradient is inside
    `grad`. One gradient per sample.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        pairs: m ≥ 1, the number of pairs; the ensemble has 2(m+1) replicas.
        friction: a in (0, 1), the share of the momentum that a step forgets. Use less of it if H does not know the slow
            directions.
        gamma, metric, damping, cosine, adapt: as in :func:`hamcmc.ensemble_hamcmc`; ``gamma="auto"`` is 0.5 / L here,
            because on a Gaussian a base step leaves the positions without bias.
        mirror: map that folds a position back into its support (``posterior.mirror``). Folded replicas get new momenta.

    Returns:
        A :class:`Sampler` with 2(m+1) replicas; positions have a leading axis of that length.

    References:
        Leimkuhler and Matthews, Rational construction of stochastic numerical methods for molecular sampling, 2013.
    """
    _check.gradient(grad)
    a = _check.open_fraction("friction", friction)
    half = RestingHalf(
        pairs, gamma=gamma, metric=metric, damping=damping, cosine=cosine, adapt=adapt, base_step=BASE_STEP
    )
    each = jax.vmap(grad, (0, None))

    def init(position: PyTree) -> UnderdampedState:
        half.check(position)
        zeros = jax.tree.map(jnp.zeros_like, position)
        one = jax.tree.map(lambda x: x[: pairs + 1], zeros)
        spread = half.metric.start(position)
        nothing = jax.eval_shape(lambda: square_root(half.make(one, one, spread)[0], jnp.float32(1)))
        last = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)
        none = jnp.zeros((), last.g.dtype)
        return UnderdampedState(
            position,
            zeros,
            one,
            jax.tree.map(lambda x: x[:1], zeros),
            last._replace(slow=none + 1),
            none,
            none,
            spread,
            jnp.zeros((), jnp.int32),
        )

    def step(key, state: UnderdampedState, minibatch: PyTree, step_size) -> tuple[UnderdampedState, EnsembleInfo]:
        first = 1.0 if half.metric.learning else jnp.minimum(1.0, (state.step + 1) / FIRST_STEPS)
        step_size = step_size * half.pace(state.step) * first
        (x, p), (x_rest, p_rest) = halves((state.position, state.momentum), state.step)
        at_rest = each(x_rest, minibatch)
        pull = force(state.last, at_rest)
        noise = state.noise + measured(state, pull, step_size * (2 - a)) * 2 / (
            state.step + 2
        )  # an average that forgets the beginning
        p_rest = kick(p_rest, slowed(tamed(pull, step_size), state.last.slow), jnp.sqrt(2 * step_size) / 2)
        r, spread = half.make(x_rest, at_rest, state.spread, state.steepest)
        steepest = steeper(state.steepest, r.steepest, state.step - half.metric.learning)
        sure = noise - DOUBT * jax.lax.rsqrt(r.size * (state.step + 1.0))
        heat = step_size * sure / 2 * (2 - a) / a / (pairs + 1)
        s = square_root(r, jnp.sqrt(EXCESS / jnp.maximum(heat, EXCESS)).astype(noise.dtype))
        moved, p, info = transition(key, s, x, p, state.grad, step_size, a, mirror)
        position, momentum = joined((moved, p), (x_rest, p_rest), state.step)
        before = jax.tree.map(lambda g: jnp.mean(g, 0, keepdims=True), state.grad)
        return UnderdampedState(position, momentum, at_rest, before, s, noise, steepest, spread, state.step + 1), info

    settings = {
        "sampler": "ensemble_underdamped",
        "pairs": pairs,
        "friction": a,
        "gamma": gamma,
        "metric": half.metric.name,
        "damping": damping,
        "cosine": cosine,
        "adapt": adapt,
    }
    return Sampler(
        init=init,
        step=step,
        settings=settings,
        gradients_per_step=pairs + 1,
        replicas=half.replicas,
        pairs=pairs,
        warmup=half.metric.learning,
    )


def transition(
    key: Array,
    s: SquareRoot,
    x: PyTree,
    p: PyTree,
    g: PyTree,
    step_size: Scalar,
    friction: float,
    mirror: Mirror | None = None,
) -> tuple[PyTree, PyTree, EnsembleInfo]:
    """One transition of the moving half, B A O A, where g are the gradients at x. The last B is for the next step."""
    h, kept = jnp.sqrt(2 * step_size), 1 - friction
    key_noise, key_fold = jax.random.split(key)
    z = standard_normal(key_noise, x)
    p = kick(p, slowed(tamed(force(s, g), step_size), s.slow), h / 2)
    z = jax.tree.map(lambda z: jnp.sqrt(1 - kept**2) * z, z)
    # The two A, with the momentum before and after the friction, are one move with their sum.
    drift = push(s, slowed(jax.tree.map(lambda p: h / 2 * (1 + kept) * p, p), s.slow))
    noise = push(s, slowed(jax.tree.map(lambda z: h / 2 * z, z), s.slow))
    p = jax.tree.map(lambda p, z: (kept * p + z).astype(p.dtype), p, z)
    moved = jax.tree.map(lambda x, d, n: (x + d + n).astype(x.dtype), x, drift, noise)
    if mirror is not None:
        outside, moved = fold(mirror, moved)
        anew = standard_normal(key_fold, p)
        p = jax.tree.map(lambda new, p: jnp.where(replica_axis(outside, p), new, p), anew, p)
    return moved, p, half_move_info(s.resting, g, drift, noise)


def square_root(r: Resting, slow: Float[Array, ""]) -> SquareRoot:
    """S of a resting half, with a factor for the mean of the moving one."""
    return SquareRoot(r, curvature.block_root(r.factor, r.gram), slow)


def steeper(old: Float[Array, ""], new: Float[Array, ""], steps: Int[Array, ""]) -> Float[Array, ""]:
    """The fourth root of the mean fourth power of curvatures, where newer ones count for more.

    A single pair that happens to lie along a flat direction says nothing of a steep one. γ for the flat direction alone
    would be far too large for the steep one, and what makes it larger than a pair allows also rejects that pair.
    """
    share, largest = 2 / (jnp.maximum(steps, 0) + 2), jnp.maximum(jnp.maximum(old, new), jnp.finfo(new.dtype).tiny)
    return largest * ((1 - share) * (old / largest) ** 4 + share * (new / largest) ** 4) ** 0.25


def tamed(pull: PyTree, step_size: Scalar) -> PyTree:
    """Forces Sᵀg, each cut to the longest that a step believes, because their mean moves all replicas."""
    size = sum(x[0].size for x in jax.tree.leaves(pull))
    kept = cut(row_squares(pull), jnp.float32(size), step_size)
    return jax.tree.map(lambda x: (replica_axis(kept, x) * x).astype(x.dtype), pull)


def slowed(tree: PyTree, slow: Float[Array, ""]) -> PyTree:
    """Vectors of all replicas with their mean multiplied by a factor."""
    return jax.tree.map(lambda x: (x - (1 - slow) * jnp.mean(x, 0)).astype(x.dtype), tree)


def measured(state: UnderdampedState, pull: PyTree, moves: Scalar) -> Float[Array, ""]:
    """By how much this step changes the estimate of the noise, from the forces on the resting half.

    The replicas of a half share a minibatch, so nearly all of its noise is in their mean, and differs from that of the
    half's last gradient. Half of the squared difference of the two holds the noise and what a move changes, which is
    ε(2 − a)/2 if H is Newton's. Less the product of the two, where a pull from a distant start prevails, and plus what
    that product is in the posterior by the replicas' scatter, a pull is not taken for noise.
    """
    before = force(state.last, state.before)
    replicas = jax.tree.leaves(pull)[0].shape[0]
    mean = jax.tree.map(lambda x: jnp.mean(x, 0), pull)
    both = squared(jax.tree.map(lambda a, b: a + b[0], mean, before))
    apart = squared(jax.tree.map(lambda a, b: a - b[0], mean, before))
    scatter = squared(jax.tree.map(jnp.subtract, pull, mean)) / (replicas - 1)
    size = sum(x.size for x in jax.tree.leaves(mean))
    found = (replicas * (apart / 2 - (both - apart) / 4) + scatter) / size - moves
    return jnp.where(state.step > 2, jnp.maximum(found, LEAST) - state.noise, 0)


def push(s: SquareRoot, p: PyTree) -> PyTree:
    """S p for every replica."""
    f, m, basis = s.resting.factor, s.g.shape[0], s.resting.basis
    along = curvature.inner(basis, p).T
    on_s = (along[:, :m] @ f.weights @ s.g - jnp.sqrt(f.gamma) * along[:, m:] @ f.dual) @ f.weights.T
    return multiply(_sum(f.gamma, p, basis, on_s, jnp.zeros_like(on_s)), s.resting.root)


def force(s: SquareRoot, gradient: PyTree) -> PyTree:
    """Sᵀ times the gradient of every replica."""
    f, m, basis = s.resting.factor, s.g.shape[0], s.resting.basis
    scaled = multiply(gradient, s.resting.root)
    a = curvature.inner(basis, scaled).T[:, :m] @ f.weights
    return _sum(f.gamma, scaled, basis, a @ s.g @ f.weights.T, -jnp.sqrt(f.gamma) * a @ f.dual.T)


def _sum(gamma: Array, own: PyTree, basis: PyTree, on_s: Array, on_y: Array) -> PyTree:
    """√γ times each replica's own vector, plus its combination of the basis."""
    coefficients = jnp.concatenate([on_s, on_y], 1)

    def leaf(x, b):
        return (jnp.sqrt(gamma) * x + jnp.tensordot(coefficients.astype(b.dtype), b, 1)).astype(x.dtype)

    return jax.tree.map(leaf, own, basis)


def fold(mirror: Mirror, position: PyTree) -> tuple[Bool[Array, " replica"], PyTree]:
    """Which replicas the mirror moves, and all of them after it."""
    folded = jax.vmap(mirror)(position)
    changed = jax.tree.map(lambda a, b: jnp.any((a != b).reshape(len(a), -1), 1), folded, position)
    return jnp.any(jnp.stack(jax.tree.leaves(changed)), 0), folded
