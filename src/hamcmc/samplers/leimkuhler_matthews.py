"""Langevin dynamics whose noise is an average of two draws: exact for a Gaussian, second order otherwise."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import Grad, Info, Mirror, Sampler
from hamcmc.samplers.ensemble.metric import dimension
from hamcmc.samplers.ensemble.resting import cut, replica_axis, row_squares
from hamcmc.samplers.noise import standard_normal
from hamcmc.target.protocol import Chart


class LeimkuhlerMatthewsState(NamedTuple):
    """All replicas, the noise that the next step uses again, and the number of steps made.

    Attributes:
        position: the newest draws.
        noise: z_t of each replica.
        step: the number of steps made.
        image: the images of all replicas, if the target has a chart.
    """

    position: PyTree
    noise: PyTree
    step: Int[Array, ""]
    image: PyTree = None


def leimkuhler_matthews(
    grad: Grad, *, replicas: int = 16, mirror: Mirror | None = None, chart: Chart | None = None
) -> Sampler:
    r"""Langevin dynamics by the method of Leimkuhler and Matthews.

    .. math:: θ_{t+1} = θ_t - ε ∇Ũ(θ_t) + \sqrt{2ε}\,\tfrac12 (z_t + z_{t+1}), \qquad z_t ∼ N(0, I)

    Each step takes the mean of its own noise and of the noise before. That costs nothing, and it removes the error of
    order ε from the stationary law. On a Gaussian with unit covariance the law is exact for every ε < 2. On a posterior
    that differs a little from such a Gaussian, the change of its variances is right to first order in that difference,
    again for every ε < 2 (the docs have the calculation). So ε may be 1 where the posterior is nearly normal and its
    coordinates are white, as those of :func:`hamcmc.laplace` are. An automatic run on minibatches uses it there.

    ε is the factor of the drift. The covariance of the noise is εI, and its correlation with the step before adds the
    other ε, so that the diffusion is that of SGLD. The factor N/n of the minibatch gradient is inside `grad`. The noise
    σ² of a gradient adds σ² ε/(2 − ε) to a variance, as it does for SGLD. All replicas share a minibatch, so that
    gradients are matrix products. Drifts that no Gaussian would have are cut.

    Args:
        grad: estimator of the gradient of the log-density, −∇Ũ, such as ``posterior.grad``.
        replicas: how many chains move side by side.
        mirror: must be None. A position that is folded back no longer has the noise that the next step uses again.
        chart: the target's map of coordinates. The images of all replicas are then kept, and gradients are taken there.

    Returns:
        A :class:`Sampler` with `replicas` replicas; positions have a leading axis of that length.

    References:
        Leimkuhler and Matthews, Rational construction of stochastic numerical methods for molecular sampling, Applied
        Mathematics Research eXpress 2013.
    """
    _check.gradient(grad)
    if mirror is not None:
        raise ValueError("leimkuhler_matthews cannot use a mirror: give the parameters a bijection instead")
    count = _check.at_least("replicas", replicas, 2)

    def gradients(state: LeimkuhlerMatthewsState, minibatch: PyTree) -> PyTree:
        """At all replicas."""
        if chart is None:
            return jax.vmap(grad, (0, None))(state.position, minibatch)
        return jax.vmap(chart.grad, (0, 0, None))(state.position, state.image, minibatch)

    def images(position: PyTree) -> PyTree:
        """Of all replicas, if the target has a chart."""
        return None if chart is None else jax.vmap(chart.image)(position)

    def init(position: PyTree) -> LeimkuhlerMatthewsState:
        for leaf in jax.tree.leaves(position):
            if leaf.shape[:1] != (count,):
                raise ValueError(f"an ensemble of {count} replicas starts from as many, got shape {leaf.shape}")
        none = jax.tree.map(jnp.zeros_like, position)  # so the first step is shorter, which warm-up forgets
        return LeimkuhlerMatthewsState(position, none, jnp.zeros((), jnp.int32), images(position))

    def step(key, state: LeimkuhlerMatthewsState, minibatch: PyTree, step_size) -> tuple[LeimkuhlerMatthewsState, Info]:
        g = gradients(state, minibatch)
        z = standard_normal(key, state.position)
        squares: Float[Array, " replica"] = row_squares(g)
        size = jnp.asarray(float(dimension(g)), squares.dtype)
        drift = step_size * cut(squares, size, step_size)
        root = jnp.sqrt(step_size / 2)

        def move(x: Array, g: Array, old: Array, new: Array) -> Array:
            return (x + replica_axis(drift, g) * g + root * (old + new)).astype(x.dtype)

        position = jax.tree.map(move, state.position, g, state.noise, z)
        norms = jnp.sqrt(jnp.mean(jnp.stack([squares, drift**2 * squares, 2 * step_size * row_squares(z)]), 1))
        return LeimkuhlerMatthewsState(position, z, state.step + 1, images(position)), Info(*norms)

    return Sampler(
        init=init,
        step=step,
        settings={"sampler": "leimkuhler_matthews", "replicas": count},
        gradients_per_step=count,
        replicas=count,
    )
