"""The metric of Hamiltonian trajectories, learned from the positions and gradients of all replicas."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from hamcmc.samplers.ensemble.metric import RIDGE

RENEWALS = (10 * 1.35 ** np.arange(40)).astype(np.int32)  # steps at which the metric is renewed: 10, 13, 18, …
LAST_RENEWAL = 90  # per cent of the warm-up; the rest is for the time step
REACH = 3.0  # times the median distance, beyond which a replica is drawn nearer
MEMORY = 12  # steps that the metric of the start is worth


class Mass(NamedTuple):
    """S with S Sᵀ = G, and what is known about the two covariances that G comes from.

    ``S p = scale · (root p)``, with a symmetric root, keeps its digits when coordinates differ by many powers of ten.

    Attributes:
        scale: (D,), the diagonal part.
        root: (D, D), symmetric; None for a diagonal metric.
        inverse: its inverse.
        positions: the running covariance of the positions, or its diagonal.
        gradients: the same for the gradients.
    """

    scale: Float[Array, " D"]
    root: Float[Array, "D D"] | None
    inverse: Float[Array, "D D"] | None
    positions: Array
    gradients: Array

    def push(self, p: Float[Array, "replica D"]) -> Float[Array, "replica D"]:
        """S p for every replica."""
        return self.scale * (p if self.root is None else _dot(p, self.root))

    def pull(self, g: Float[Array, "replica D"]) -> Float[Array, "replica D"]:
        """Sᵀ g for every replica."""
        return self.scale * g if self.root is None else _dot(self.scale * g, self.root)

    def whiten(self, x: Float[Array, "replica D"]) -> Float[Array, "replica D"]:
        """S⁻¹ x for every replica."""
        return x / self.scale if self.inverse is None else _dot(x / self.scale, self.inverse)


def identity(dimension: int, kind: Any, dense: bool) -> Mass:
    """The metric before anything is known."""
    ones = jnp.ones(dimension, kind)
    if not dense:
        return Mass(ones, None, None, ones, ones)
    eye = jnp.eye(dimension, dtype=kind)
    return Mass(ones, eye, eye, eye, eye)


def renewed_at(step: Array, adapt: Array) -> Bool[Array, ""]:
    """Whether the metric is renewed at a step: often at first, when each renewal makes the next steps better."""
    last = jnp.maximum(1, adapt * LAST_RENEWAL // 100)
    return (jnp.any(step == RENEWALS) & (step < last)) | (step == last)


def observe(
    mass: Mass, x: Float[Array, "replica D"], g: Float[Array, "replica D"], step: Array, adapt: Array
) -> tuple[Mass, Bool[Array, ""]]:
    """What is known after one more step, and whether the metric was renewed. After `adapt` steps nothing changes.

    Step t has a weight of about t³, because the first steps, far from the posterior, are the least to be trusted. A
    replica counts as no farther away than three times the median one, so that a few lost ones cannot rule the metric.
    """
    rate = jnp.where(step < adapt, 4 / (MEMORY + step), 0.0).astype(x.dtype)

    def mixed(old: Array, new: Float[Array, "replica D"], white: Callable) -> Array:
        """The running covariance with that of the replicas."""
        away = new - jnp.median(new, 0)
        size = jnp.sqrt(jnp.sum(white(away) ** 2, 1, keepdims=True))
        away = away * jnp.minimum(1, REACH * jnp.median(size) / jnp.maximum(size, jnp.finfo(x.dtype).tiny))
        now = _dot(away.T, away) if old.ndim == 2 else jnp.sum(away**2, 0)
        return old + rate * (now / (len(away) - 1) - old)

    positions, gradients = mixed(mass.positions, x, mass.whiten), mixed(mass.gradients, g, mass.pull)
    mass = mass._replace(positions=positions, gradients=gradients)
    due = renewed_at(step, adapt)

    def turn(i: Any, old: tuple) -> tuple:
        # The barrier ties the matrices to the turn; without it the compiler would take their roots at every step.
        a, b, _ = lax.optimization_barrier((positions, gradients, i))
        return _renewed(a, b, old)

    # A loop of one turn or none: under vmap a condition would compute both of its sides at every step.
    made = lax.fori_loop(0, due.astype(jnp.int32), turn, (mass.scale, mass.root, mass.inverse))
    return mass._replace(scale=made[0], root=made[1], inverse=made[2]), due


def _renewed(positions: Array, gradients: Array, old: tuple) -> tuple:
    """Scale, root and inverse root of G, the geometric mean of the positions' covariance and the gradients' inverse.

    G is the matrix with ``G Cov(g) G = Cov(x)``. For g = −A x it is A⁻¹ wherever the replicas are, and so long before
    they have spread over the posterior. The old metric stays where the new one is not finite.
    """
    dense = positions.ndim == 2
    a, b = (jnp.diagonal(c) if dense else c for c in (positions, gradients))
    ratio = (a / jnp.where(b > 0, b, 1)) ** 0.25
    scale = jnp.where((a > 0) & (b > 0) & jnp.isfinite(ratio) & (ratio > 0), ratio, old[0])
    if not dense:
        return scale, None, None
    around = jnp.outer(scale, scale)
    x, y = _ridge(positions / around), _ridge(gradients * around)
    y_root, y_inverse = _powers(y, 0.5)
    middle, _ = _powers(_dot(_dot(y_root, x), y_root), 0.5)
    root, inverse = _powers(_dot(_dot(y_inverse, middle), y_inverse), 0.5)
    good = jnp.isfinite(root).all() & jnp.isfinite(inverse).all()
    return tuple(jnp.where(good, new, before) for new, before in zip((scale, root, inverse), old))


def _ridge(c: Float[Array, "D D"]) -> Float[Array, "D D"]:
    return c + RIDGE * jnp.diag(jnp.diagonal(c))


def _powers(c: Float[Array, "D D"], exponent: float) -> tuple[Float[Array, "D D"], Float[Array, "D D"]]:
    """A power of a symmetric positive definite matrix, and its inverse."""
    values, q = jnp.linalg.eigh((c + c.T) / 2)
    values = jnp.maximum(values, jnp.finfo(c.dtype).eps * values[-1])
    return _dot(q * values**exponent, q.T), _dot(q * values**-exponent, q.T)


def _dot(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
