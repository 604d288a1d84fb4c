"""The ensemble with a Metropolis test: exact at any step size, on all data."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from hamcmc._types import PyTree, Scalar
from hamcmc.samplers import curvature
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.ensemble.metric import Spread, divide, multiply
from hamcmc.samplers.ensemble.resting import (
    Resting,
    RestingHalf,
    base_noise,
    displacement,
    half_move_info,
    halves,
    joined,
    replica_axis,
    span_noise,
)
from hamcmc.target.protocol import DensityTarget


class AdjustedState(NamedTuple):
    """All replicas with log-density and gradient at each; the metric's memory; the number of half-moves made."""

    position: PyTree
    log_density: Float[Array, " replica"]
    grad: PyTree
    spread: Spread | None
    step: Int[Array, ""]


class AdjustedInfo(NamedTuple):
    """An :class:`~hamcmc.samplers.ensemble.resting.EnsembleInfo`, and the share of the proposals that were accepted."""

    grad_norm: Float[Array, ""]
    drift_norm: Float[Array, ""]
    noise_norm: Float[Array, ""]
    pairs_accepted: Int[Array, ""]
    eigenvalue_bound: Float[Array, ""]
    gamma: Float[Array, ""]
    acceptance: Float[Array, ""]


class Evaluated(NamedTuple):
    """Replicas of one half, with log-density and gradient at each."""

    position: PyTree
    log_density: Float[Array, " replica"]
    grad: PyTree


def ensemble_adjusted(
    target: DensityTarget,
    *,
    pairs: int = 10,
    gamma: float | str = "auto",
    metric: PyTree | str | None = "auto",
    damping: float = 0.0,
    cosine: float = 0.0,
    adapt: int = 1000,
) -> Sampler:
    r"""The ensemble of :func:`hamcmc.ensemble_hamcmc` with a Metropolis–Hastings test: exact at any ε, on all data.

    A step proposes a move for each of the m+1 replicas of one half, as :func:`hamcmc.ensemble_hamcmc` makes it,

    .. math:: θ' = θ - ε H ∇U(θ) + η, \qquad η ∼ N(0, 2ε H - ε² H ∇²U H)

    and accepts it with probability :math:`\min(1, π(θ') q(θ|θ') / π(θ) q(θ'|θ))`. H comes from the other half, which
    rests, so that it is the same for the proposal and for its reverse. ε is the factor of the drift and 2ε that of the
    noise covariance, up to the term in ε². One gradient per sample.

    The test is right only on all data: :func:`hamcmc.sample` refuses a `batch_size`. The support may have no mirror.

    Args:
        target: a :class:`~hamcmc.Posterior`, or another target with a log-density.
        pairs: m ≥ 1, the number of pairs; the ensemble has 2(m+1) replicas.
        gamma, metric, damping, cosine, adapt: as in :func:`hamcmc.ensemble_hamcmc`.

    Returns:
        A :class:`Sampler` with 2(m+1) replicas; positions have a leading axis of that length. Its info has the
        acceptance.
    """
    if target.mirror is not None:
        raise ValueError("ensemble_adjusted cannot use a mirror: give the parameters a bijection instead")
    half = RestingHalf(pairs, gamma=gamma, metric=metric, damping=damping, cosine=cosine, adapt=adapt)
    evaluate = jax.vmap(jax.value_and_grad(target.log_density), (0, None))

    def init(position: PyTree) -> AdjustedState:
        half.check(position)
        leaf = jax.tree.leaves(position)[0]
        # A first proposal is always accepted: it brings the density that later ones are compared with.
        unknown = jnp.full(leaf.shape[:1], -jnp.inf, leaf.dtype)
        zeros = jax.tree.map(jnp.zeros_like, position)
        return AdjustedState(position, unknown, zeros, half.metric.start(position), jnp.zeros((), jnp.int32))

    def step(key, state: AdjustedState, minibatch: PyTree, step_size) -> tuple[AdjustedState, AdjustedInfo]:
        both = Evaluated(state.position, state.log_density, state.grad)
        moving, resting = halves(both, state.step)
        r, spread = half.make(resting.position, resting.grad, state.spread)
        moved, info = transition(key, r, moving, lambda x: evaluate(x, minibatch), step_size)
        position, log_density, grad = joined(moved, resting, state.step)
        return AdjustedState(position, log_density, grad, spread, state.step + 1), info

    settings = {
        "sampler": "ensemble_adjusted",
        "pairs": pairs,
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
        needs_all_data=True,
    )


def transition(
    key: Array, r: Resting, old: Evaluated, evaluate: Any, step_size: Scalar
) -> tuple[Evaluated, AdjustedInfo]:
    """One transition of the moving half: propose ``θ + ε H g + η`` for each replica, and accept or reject it.

    ``evaluate(position)`` returns log-density and gradient of each replica.
    """
    key, key_accept = jax.random.split(key)
    drift, noise = displacement(key, r, old.grad, step_size)
    position = jax.tree.map(lambda x, d, z: x + d + z, old.position, drift, noise)
    proposal = Evaluated(position, *evaluate(position))

    u = jax.tree.map(jnp.add, old.grad, proposal.grad)
    ratio = proposal.log_density - old.log_density + log_proposal_ratio(r, u, noise, step_size)
    accept = jnp.log(jax.random.uniform(key_accept, ratio.shape)) < ratio  # never if the new density is NaN
    moved = jax.tree.map(lambda new, old: jnp.where(replica_axis(accept, new), new, old), proposal, old)
    info = half_move_info(r, old.grad, drift, noise)
    return moved, AdjustedInfo(*info, jnp.mean(accept.astype(ratio.dtype)))


def log_proposal_ratio(r: Resting, u: PyTree, noise: PyTree, step_size: Scalar) -> Float[Array, " replica"]:
    """log q(x|x') − log q(x'|x) of each replica, where u is the sum of the gradients at x and at x'.

    Both proposals have the covariance Σ = 2ε(V K Vᵀ + kγ P Pᵀ), so the ratio is −½ηᵀe − ¼ε(H u)ᵀe with e = 2ε Σ⁻¹H u.
    Because VᵀU = I, e = u/k + U (K⁻¹ − 1/k) Vᵀu.
    """
    f, m = r.factor, r.gram.shape[0] // 2
    u, noise = multiply(u, r.root), divide(noise, r.root)
    along = curvature.inner(r.basis, u).T  # (replica, 2m)
    zeros = jnp.zeros_like(along)
    h = curvature.block_direction(f, r.gram, along, zeros, zeros[:, :m]).drift
    k = base_noise(r, step_size)
    e = ((along[:, :m] @ f.weights) * (1 / span_noise(f, step_size) - 1 / k)) @ f.dual.T  # coefficients over the y
    of_noise = rows(noise, u) / k + jnp.sum(curvature.inner(r.basis, noise).T[:, m:] * e, 1)
    # (H u)ᵀe with H u = γu + Σ h v and e = u/k + Σ e y
    of_h = f.gamma * (rows(u, u) / k + jnp.sum(along[:, m:] * e, 1)) + jnp.sum(h * along, 1) / k
    of_h += jnp.sum((h @ r.gram)[:, m:] * e, 1)
    return -of_noise / 2 - step_size * of_h / 4


def rows(a: PyTree, b: PyTree) -> Float[Array, " replica"]:
    """The inner product of each replica's a and b."""
    products = jax.tree.map(lambda x, y: jnp.sum((x * y).reshape(len(x), -1), 1), a, b)
    return sum(jax.tree.leaves(products))  # type: ignore[return-value]
