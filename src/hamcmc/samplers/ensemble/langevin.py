"""HAMCMC as an alternating ensemble: one gradient per sample, and none of the published method's bias."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from hamcmc import _check
from hamcmc._renamed import adjusted_apart
from hamcmc._types import PyTree, Scalar
from hamcmc.samplers.base import WHOLE, Grad, Mirror, Sampler, Space
from hamcmc.samplers.ensemble.metric import Spread
from hamcmc.samplers.ensemble.resting import (
    EnsembleInfo,
    Resting,
    RestingHalf,
    displacement,
    half_move_info,
    halves,
    joined,
)


class EnsembleState(NamedTuple):
    """Two halves of m+1 replicas, one at rest.

    Attributes:
        position: all 2(m+1) replicas; the first half moves in even steps, the second in odd ones.
        grad: gradients at the half that moves next, from when it was at rest (`fresh`: at the half that moved last).
        spread: what a metric that is learned in warm-up knows so far.
        step: the number of half-moves made.
    """

    position: PyTree
    grad: PyTree
    spread: Spread | None
    step: Int[Array, ""]


@adjusted_apart
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
    differences of the resting positions. Along V the step is Newton's and the term in ε² is known, so that the step is
    exact for a Gaussian: ε may be as large as 1, where a step draws afresh along V. The base takes steps of εγ, and its
    term in ε² uses the mean curvature.

    ε is the factor of the drift and 2ε that of the noise covariance, up to the term in ε². The factor N/n of the
    minibatch gradient is inside `grad`. Every gradient is used twice, for the pairs and then for the drift of its own
    replica: one gradient per sample. The moving half's gradient and H then come from different minibatches.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        pairs: m ≥ 1, the number of pairs; the ensemble has 2(m+1) replicas.
        gamma: scale γ of the base. ``"auto"`` is 0.1 / L from the resting half's gradients, where L is a mean of the
            curvatures weighted by themselves (0.5 / L once a dense metric was learned).
        metric: base metric, H⁰ = γ times it. ``"dense"`` and ``"diagonal"`` are learned in the first `adapt` steps from
            differences of positions and of gradients, and then kept: the warm-up of a run must be as long. ``"auto"``
            is dense up to 300 dimensions and diagonal beyond. ``"resting"`` is a diagonal from the resting half, made
            anew at each step. A pytree like a position, with positive entries, is a diagonal of your own; None is the
            identity.
        damping: λ ≥ 0; H then approximates (∇²U + λI)⁻¹.
        cosine: c of the acceptance rule: a pair enters H only if sᵀy ≥ c‖s‖‖y‖ (in the metric's coordinates).
        update: ``"block"``, or ``"neighbours"``: L-BFGS on the differences of neighbours, with noise N(0, 2εH).
        fresh: take the moving half's gradient anew. With minibatches this also removes the coupling of order ε between
            a gradient's noise in H and in the drift. It costs two gradients per sample.
        adapt: steps in which a metric is learned. In the first eighth of them ε grows to the given value.
        mirror: map that folds a position back into its support (``posterior.mirror``).
        space: how sums and noise are made if a position is spread over devices.

    Returns:
        A :class:`Sampler` with 2(m+1) replicas; positions have a leading axis of that length.
    """
    _check.gradient(grad)
    half = RestingHalf(
        pairs, gamma=gamma, metric=metric, damping=damping, cosine=cosine, adapt=adapt, update=update, space=space
    )
    at_each = jax.vmap(grad, (0, None))

    def init(position: PyTree) -> EnsembleState:
        half.check(position)
        zeros = jax.tree.map(lambda x: jnp.zeros_like(x[: pairs + 1]), position)
        return EnsembleState(position, zeros, half.metric.start(position), jnp.zeros((), jnp.int32))

    def step(key, state: EnsembleState, minibatch: PyTree, step_size) -> tuple[EnsembleState, EnsembleInfo]:
        step_size = step_size * half.pace(state.step)
        moving, resting = halves(state.position, state.step)
        if fresh:
            g, at_rest = at_each(moving, minibatch), state.grad
        else:
            g, at_rest = state.grad, at_each(resting, minibatch)
        r, spread = half.make(resting, at_rest, state.spread)
        moved, info = transition(key, r, moving, g, step_size, mirror, space)
        kept = at_each(moved, minibatch) if fresh else at_rest
        return EnsembleState(joined(moved, resting, state.step), kept, spread, state.step + 1), info

    settings = {
        "sampler": "ensemble_hamcmc",
        "pairs": pairs,
        "gamma": gamma,
        "metric": half.metric.name,
        "damping": damping,
        "cosine": cosine,
        "update": update,
        "fresh": fresh,
        "adapt": adapt,
    }
    return Sampler(
        init=init,
        step=step,
        settings=settings,
        gradients_per_step=(1 + fresh) * (pairs + 1),
        replicas=half.replicas,
        pairs=pairs,
        warmup=half.metric.learning,
    )


def transition(
    key: Array,
    r: Resting,
    moving: PyTree,
    g: PyTree,
    step_size: Scalar,
    mirror: Mirror | None = None,
    space: Space = WHOLE,
) -> tuple[PyTree, EnsembleInfo]:
    """One transition of the moving half: ``θ + ε H g + η``, where H is that of the resting half."""
    drift, noise = displacement(key, r, g, step_size, space, tame=True)
    moved = jax.tree.map(lambda x, d, z: x + d + z, moving, drift, noise)
    if mirror is not None:
        moved = jax.vmap(mirror)(moved)
    return moved, half_move_info(r, g, drift, noise, space)
