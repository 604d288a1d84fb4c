"""Hamiltonian trajectories of many replicas with a Metropolis test, which learn all that they need in warm-up."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.ensemble import pace as paces
from hamcmc.samplers.ensemble.mass import Mass, identity, observe
from hamcmc.samplers.ensemble.metric import DENSE
from hamcmc.samplers.ensemble.pace import Pace
from hamcmc.target.protocol import DensityTarget

MOST_STEPS = 512  # leapfrog steps of one trajectory
MOST_AT_FIRST = 64  # the same in the first eighth of the warm-up, when the metric may still be bad
TYPICAL_STEPS = 8  # leapfrog steps that are thought to be usual where nothing is known yet
HOPELESS = 0.02  # an acceptance counts as at least this in the harmonic mean, so that one stuck replica cannot rule
ROUGH = 0.01  # share of transitions with hardly a chance, above which some are made with care
MOST_CARE = 1 / 4  # a smaller factor of h than this shortens the path, so that care costs at most twice the gradients
Flat = Float[Array, "replica D"]
Evaluate = Callable[[Flat], tuple[Float[Array, " replica"], Flat]]


class HamiltonianState(NamedTuple):
    """All replicas, and what they have learned.

    Attributes:
        position: all replicas.
        log_density: the log-density at each of them.
        grad: its gradients, flat.
        mass: the metric.
        pace: time step and path length.
        step: the number of transitions made.
        leapfrogs: the number of gradients that each replica has evaluated.
        adapt: the number of transitions in which the ensemble learns. It is here, and not in the compiled program, so
            that one program serves warm-ups of all lengths.
    """

    position: PyTree
    log_density: Float[Array, " replica"]
    grad: Flat
    mass: Mass
    pace: Pace
    step: Int[Array, ""]
    leapfrogs: Int[Array, ""]
    adapt: Int[Array, ""]


class HamiltonianInfo(NamedTuple):
    """What a transition did.

    Attributes:
        acceptance: the mean probability of acceptance.
        time_step: h, in the metric's coordinates.
        path_length: the time that a trajectory lasts at most.
        leapfrogs: leapfrog steps of this transition.
    """

    acceptance: Float[Array, ""]
    time_step: Float[Array, ""]
    path_length: Float[Array, ""]
    leapfrogs: Int[Array, ""]


class Trajectory(NamedTuple):
    """The end of a trajectory of each replica.

    Attributes:
        position: where it ends.
        momentum: the momentum there.
        log_density: the log-density there.
        grad: the gradient there.
        chance: the Metropolis probability of its acceptance; 0 where anything is not finite.
    """

    position: Flat
    momentum: Flat
    log_density: Float[Array, " replica"]
    grad: Flat
    chance: Float[Array, " replica"]


def ensemble_hmc(
    target: DensityTarget,
    *,
    replicas: int = 16,
    metric: str = "auto",
    acceptance: float = 0.8,
    adapt: int = 600,
) -> Sampler:
    r"""Hamiltonian Monte Carlo with an ensemble of replicas that learn metric, time step and path length together.

    .. math:: dθ = S p\,dt, \qquad dp = S^⊤ ∇\log π(θ)\,dt, \qquad S S^⊤ = G

    A transition draws momenta p ~ N(0, I), follows the dynamics by L leapfrog steps of size h, and accepts where it
    arrives with the Metropolis probability. It is exact at every h. All replicas take the same L, a jittered share of
    the path length between its half and the whole. In the first `adapt` steps the ensemble learns

    * the metric G, the geometric mean of the covariance of the positions and the inverse covariance of the gradients,
      which is right long before the replicas have spread over the posterior;
    * h, by dual averaging towards the wanted acceptance;
    * the path length, by stochastic ascent of the expected change of the squared distance from the mean (ChEES), in
      the coordinates of the metric.

    Afterwards all three are fixed, and the replicas are independent chains. With ε for the drift and 2ε for the noise
    variance of a single leapfrog step, :math:`h = s\sqrt{2ε}` with s learned, so ε has no effect but on where the
    search for s begins.

    The test is right only on all data: :func:`hamcmc.sample` refuses a `batch_size`. The support may have no mirror.

    Args:
        target: a :class:`~hamcmc.Posterior`, or another target with a log-density.
        replicas: how many, at least 4.
        metric: ``"dense"``, ``"diagonal"``, or ``"auto"`` (dense up to 300 dimensions).
        acceptance: what h is adapted to, in (0, 1).
        adapt: transitions in which the ensemble learns, at least 20.

    Returns:
        A :class:`Sampler` with `replicas` replicas; positions have a leading axis of that length.

    References:
        Hoffman, Radul and Sountsov, An adaptive MCMC scheme for setting trajectory lengths in Hamiltonian Monte Carlo,
        AISTATS 2021.
    """
    if target.mirror is not None:
        raise ValueError("ensemble_hmc cannot use a mirror: give the parameters a bijection instead")
    count = _check.at_least("replicas", replicas, 4)
    wanted = _check.open_fraction("acceptance", acceptance)
    warmup = _check.at_least("adapt", adapt, 20)
    _check.one_of("metric", metric, ("auto", "dense", "diagonal"))
    each = jax.vmap(jax.value_and_grad(target.log_density), (0, None))

    def init(position: PyTree) -> HamiltonianState:
        for leaf in jax.tree.leaves(position):
            if leaf.shape[:1] != (count,):
                raise ValueError(f"an ensemble of {count} replicas starts from as many, got shape {leaf.shape}")
        x, _ = flattened(position)
        dense = metric == "dense" or (metric == "auto" and x.shape[1] <= DENSE)
        none = jnp.zeros((), jnp.int32)
        # The density and the gradient of the start are not known before the first transition, which stays where it is.
        unknown, zeros = jnp.full(count, -jnp.inf, x.dtype), jnp.zeros_like(x)
        mass, pace = identity(x.shape[1], x.dtype, dense), paces.start(x.shape[1], x.dtype)
        return HamiltonianState(position, unknown, zeros, mass, pace, none, none, jnp.full((), warmup, jnp.int32))

    def step(key, state: HamiltonianState, minibatch: PyTree, step_size) -> tuple[HamiltonianState, HamiltonianInfo]:
        x, restore = flattened(state.position)

        def evaluate(flat: Flat) -> tuple[Float[Array, " replica"], Flat]:
            values, grads = each(restore(flat), minibatch)
            return values, flattened(grads)[0]

        adapt = state.adapt
        learning, moving = state.step < adapt, state.step > 0
        h, path = state.pace.now(learning)
        h = (h * jnp.sqrt(2 * step_size)).astype(x.dtype)
        care = careful(state.step, state.pace.rough)
        share = (1 + van_der_corput(state.step + 1, x.dtype)) / 2
        most = jnp.where(state.step < adapt // 8, MOST_AT_FIRST, MOST_STEPS)
        steps = jnp.where(
            moving, jnp.clip(jnp.ceil(share * path / (h * jnp.maximum(care, MOST_CARE))), 1, most), 1
        ).astype(jnp.int32)
        p, uniform = momenta(key, x)
        start = (x, p, state.log_density, state.grad)
        made = trajectory(start, state.mass, evaluate, jnp.where(moving, h * care, 0), steps)
        accept = uniform < made.chance
        x_new, grad = (
            jnp.where(accept[:, None], new, old) for new, old in ((made.position, x), (made.grad, state.grad))
        )
        log_density = jnp.where(accept, made.log_density, state.log_density)

        mass, renewed = observe(state.mass, x_new, grad, state.step, adapt)
        early = state.step < adapt // 3
        observed = jnp.where(early, harmonic_mean(made.chance), jnp.mean(made.chance))
        slope = share * path * path_slope(x, made, state.mass)
        hopeless = jnp.mean((made.chance < HOPELESS).astype(x.dtype))
        pace = paces.learned(state.pace, observed, hopeless, slope, wanted, state.step, adapt)
        pace = jax.tree.map(lambda a, b: jnp.where(renewed, a, b), paces.restarted(pace, x.shape[1], state.step), pace)
        pace = jax.tree.map(lambda a, b: jnp.where(learning & moving & (care == 1), a, b), pace, state.pace)
        info = HamiltonianInfo(jnp.mean(made.chance), h * care, path, steps)
        after = (restore(x_new), log_density, grad, mass, pace, state.step + 1, state.leapfrogs + steps, adapt)
        return HamiltonianState(*after), info

    settings = {
        "sampler": "ensemble_hmc",
        "replicas": count,
        "metric": metric,
        "acceptance": wanted,
        "adapt": warmup,
    }
    return Sampler(
        init=init,
        step=step,
        settings=settings,
        gradients_per_step=count * TYPICAL_STEPS,
        replicas=count,
        coupled=False,
        warmup=warmup,
        needs_all_data=True,
        adapts_step=True,
    )


def momenta(key: Array, x: Flat) -> tuple[Flat, Float[Array, " replica"]]:
    """Standard normal momenta, and a number in (0, 1) for each replica.

    They come from one call of the generator, because each call takes XLA a tenth of a second to compile.
    """
    lowest = jnp.nextafter(jnp.asarray(-1, x.dtype), jnp.asarray(0, x.dtype))
    u = jax.random.uniform(key, (x.shape[0], x.shape[1] + 1), x.dtype, lowest, 1.0)
    return math.sqrt(2) * lax.erf_inv(u[:, 1:]), (u[:, 0] + 1) / 2


def careful(step: Array, rough: Array) -> Array:
    """The factor of h in this transition: 1, but for every third one of an ensemble that has rough places to cross.

    Where the curvature varies, as in a funnel, no h suits all places, and a replica may be stuck where h is far too
    large. Transitions with a much smaller h set it free. The choice does not depend on the positions, so that each
    transition keeps the target.
    """
    shorter = jnp.where(step % 6 == 2, 1 / 4, 1 / 16)
    return jnp.where((step % 3 == 2) & (rough > ROUGH), shorter, 1.0).astype(rough.dtype)


def trajectory(start: tuple, mass: Mass, evaluate: Evaluate, h: Array, steps: Array) -> Trajectory:
    """Leapfrog steps of all replicas from (position, momentum, log-density, gradient)."""
    _, p, log_density, _ = start

    def leap(_: Array, now: tuple) -> tuple:
        x, p, _, g = now
        p = p + h / 2 * mass.pull(g)
        x = x + h * mass.push(p)
        log_density, g = evaluate(x)
        return x, p + h / 2 * mass.pull(g), log_density, g

    x_new, p_new, value, g = lax.fori_loop(0, steps, leap, start)
    gain = value - log_density + (jnp.sum(p**2, 1) - jnp.sum(p_new**2, 1)) / 2
    sound = jnp.isfinite(value) & jnp.isfinite(jnp.sum(g, 1)) & jnp.isfinite(jnp.sum(x_new, 1)) & ~jnp.isnan(gain)
    chance = jnp.where(sound, jnp.exp(jnp.minimum(gain, 0)), 0)
    return Trajectory(x_new, p_new, value, g, chance)


def path_slope(x: Flat, made: Trajectory, mass: Mass) -> Float[Array, ""]:
    """The derivative by time of E (|x' − m'|² − |x − m|²)² / 4, weighted by acceptance, in the metric's coordinates."""
    arrived = made.chance > 1e-3
    after = jnp.where(arrived[:, None], made.position, x)
    q, old = (mass.whiten(v - jnp.mean(v, 0)) for v in (after, x))
    along = jnp.where(arrived, jnp.sum(q * jnp.where(arrived[:, None], made.momentum, 0), 1), 0)
    signal = made.chance * (jnp.sum(q**2, 1) - jnp.sum(old**2, 1)) * along
    total = jnp.sum(signal) / jnp.maximum(jnp.sum(made.chance), 1e-6)
    largest = jnp.asarray(1e15, total.dtype)  # its square must stay a number
    return jnp.clip(jnp.nan_to_num(total), -largest, largest)


def harmonic_mean(chance: Float[Array, " replica"]) -> Float[Array, ""]:
    """The harmonic mean, which heeds the replicas that are stuck."""
    return 1 / jnp.mean(1 / jnp.maximum(chance, HOPELESS))


def van_der_corput(number: Array, kind: Any) -> Array:
    """The binary digits of a number mirrored at the point: numbers that fill (0, 1) evenly, however many there are."""
    x = number.astype(jnp.uint32)
    for mask, shift in ((0x55555555, 1), (0x33333333, 2), (0x0F0F0F0F, 4), (0x00FF00FF, 8)):
        x = ((x & mask) << shift) | ((x >> shift) & mask)
    x = (x << 16) | (x >> 16)
    return jnp.maximum(x.astype(kind) * 2.0**-32, 1e-6)


def flattened(position: PyTree) -> tuple[Flat, Callable[[Flat], PyTree]]:
    """All replicas as rows, and the way back."""
    unravel = ravel_pytree(jax.tree.map(lambda x: x[0], position))[1]
    return jax.vmap(lambda p: ravel_pytree(p)[0])(position), jax.vmap(unravel)
