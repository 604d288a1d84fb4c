"""HAMCMC as an alternating ensemble: without the published method's bias, one gradient per sample."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hamcmc.samplers.base import WHOLE, Grad, Mirror, PyTree, Sampler, Space
from hamcmc.samplers.ensemble.adjusted import adjusted as metropolis
from hamcmc.samplers.ensemble.resting import (
    Spread,
    check_replicas,
    displacement,
    eigenvalue_bound,
    gathering_pace,
    halves,
    joined,
    learning_steps,
    resting_half,
    rms_norms,
)


class State(NamedTuple):
    """Two halves of m+1 replicas, one at rest.

    Attributes:
        position: all 2(m+1) replicas; the first half moves in even steps, the second in odd ones.
        grad: gradients at the half that moves next, from when it was at rest (`fresh`: at the half that moved last).
        spread: what a metric learned in warm-up knows so far.
        step: the number of half-moves made.
    """

    position: PyTree
    grad: PyTree
    spread: Spread | None
    step: Array


class Info(NamedTuple):
    """Sizes of a half-move (root mean squares over its replicas), the pairs that made H, a bound of H's largest
    eigenvalue, and the base's scale γ (both in the base metric's coordinates)."""

    grad_norm: Array
    drift_norm: Array
    noise_norm: Array
    pairs_accepted: Array
    eigenvalue_bound: Array
    gamma: Array


def ensemble_hamcmc(
    grad: Grad,
    *,
    pairs: int = 10,
    gamma: float | str = "auto",
    metric: PyTree | str | None = "auto",
    damping: float = 0.0,
    cosine: float = 0.0,
    update: str = "block",
    fresh: bool = False,
    adapt: int = 1000,
    adjusted: bool = False,
    log_density: Callable | None = None,
    mirror: Mirror | None = None,
    space: Space = WHOLE,
) -> Sampler:
    r"""HAMCMC as an ensemble of two halves that move in turn.

    A step moves the m+1 replicas of one half,

    .. math:: θ ← θ - ε H ∇Ũ(θ) + η, \qquad η ∼ N(0, 2ε H - ε² H ∇²U H)

    with H made from the m+1 positions of the *other* half and the gradients there, on one minibatch. H has seen nothing
    of the moving half, so Γ = 0 and :math:`π ⊗ … ⊗ π` is kept as ε → 0, whatever the target (the docs have the proof).
    Positions that differ on the scale of the posterior point along its long axes, which is what H should know.

    H is the block quasi-Newton approximation :math:`H = V V^⊤ + γ P P^⊤` of :mod:`hamcmc.samplers.curvature` on all
    differences of the resting positions. Along V it is Newton's, the term in ε² is known, and the step is exact for a
    Gaussian, so ε may be as large as 1, where a step draws afresh along V. The base takes steps of εγ; its term in ε²
    is taken with the mean curvature.

    ε is the factor of the drift, 2ε that of the noise covariance up to the term in ε². The factor N/n of the minibatch
    gradient is inside `grad`. Every gradient is used twice, for the pairs and then for its own replica's drift: one
    gradient per sample. The moving half's gradient and H then come from different minibatches.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        pairs: m ≥ 1, the number of pairs; the ensemble has 2(m+1) replicas.
        gamma: scale γ of the base; ``"auto"``: 0.1 / L from the resting half's gradients, L a mean of the curvatures
            weighted by themselves (0.5 / L once a dense metric was learned).
        metric: base metric, H⁰ = γ times it. ``"dense"`` and ``"diagonal"`` are learned in the first `adapt` steps from
            differences of positions and of gradients, then kept: the warm-up of a run must be as long. ``"auto"`` is
            dense up to 300 dimensions. ``"resting"`` is diagonal, taken anew from the resting half at each step. A
            pytree like a position with positive entries is a diagonal of your own; None is the identity.
        damping: λ ≥ 0; H then approximates (∇²U + λI)⁻¹.
        cosine: c of the acceptance rule: a pair enters H only if sᵀy ≥ c‖s‖‖y‖ (in the metric's coordinates).
        update: ``"block"``, or ``"neighbours"``: L-BFGS on the differences of neighbours, with noise N(0, 2εH).
        fresh: take the moving half's gradient anew, which with minibatches also removes the coupling of order ε between
            the noise of a gradient in H and in the drift; two gradients per sample.
        adapt: steps in which a metric is learned; in the first eighth of them ε grows to what was given.
        adjusted: accept or reject each replica's move by Metropolis and Hastings: exact at any ε, for use on all data
            only, with ``update="block"`` and without a mirror. Info then has the acceptance.
        log_density: ``log_density(position, data)``, for `adjusted`, such as ``posterior.log_density``.
        mirror: map that folds a position back into its support (``posterior.mirror``).
        space: where positions live; for positions spread over devices.

    Returns:
        A :class:`Sampler` with 2(m+1) replicas; positions have a leading axis of that length.
    """
    settings = {
        "sampler": "ensemble_hamcmc",
        "pairs": pairs,
        "gamma": gamma,
        "metric": metric if metric is None or isinstance(metric, str) else "given",
        "damping": damping,
        "cosine": cosine,
        "update": update,
        "fresh": fresh,
        "adapt": adapt,
        "adjusted": adjusted,
    }
    options = {"gamma": gamma, "metric": metric, "damping": damping, "cosine": cosine, "adapt": adapt}
    if adjusted:
        if log_density is None or mirror is not None or update != "block":
            raise ValueError("adjusted needs log_density and update='block', and goes with no mirror: use a bijection")
        return metropolis(log_density, pairs, settings, **options)
    start, make = resting_half(pairs, update=update, space=space, **options)
    each = jax.vmap(grad, (0, None))

    def init(position: PyTree) -> State:
        check_replicas(position, pairs)
        grad = jax.tree.map(lambda x: jnp.zeros_like(x[: pairs + 1]), position)
        return State(position, grad, start(position), jnp.zeros((), jnp.int32))

    learning = learning_steps(metric, adapt)

    def step(key, state: State, minibatch: PyTree, step_size) -> tuple[State, Info]:
        step_size = step_size * gathering_pace(state.step, learning)
        moving, resting = halves(state.position, state.step)
        if fresh:
            g, at_rest = each(moving, minibatch), state.grad
        else:
            g, at_rest = state.grad, each(resting, minibatch)
        r, spread = make(resting, at_rest, state.spread)
        drift, noise = displacement(key, r, g, step_size, space)
        moved = jax.tree.map(lambda x, d, z: x + d + z, moving, drift, noise)
        if mirror is not None:
            moved = jax.vmap(mirror)(moved)
        kept = each(moved, minibatch) if fresh else at_rest
        grad_norm, drift_norm, noise_norm = rms_norms((g, drift, noise), space)
        info = Info(
            grad_norm,
            drift_norm,
            noise_norm,
            jnp.sum(r.factor.accepted),
            eigenvalue_bound(r),
            r.factor.gamma,
        )
        return State(joined(moved, resting, state.step), kept, spread, state.step + 1), info

    return Sampler(init, step, settings, (1 + fresh) * (pairs + 1), 2 * (pairs + 1), learning, pairs=pairs)
