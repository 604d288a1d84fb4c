"""What the ensemble samplers share: the inverse Hessian that a half at rest gives to the half that moves.

An ensemble is two halves of m+1 replicas. While one rests, its positions and the gradients there make H; nothing in H
has seen the moving half, which therefore moves as if H were a constant.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc import _check, curvature
from hamcmc.samplers.base import PyTree, norm, standard_normal

BASE_STEP = 0.1  # of the inverse curvature, for γ = "auto"; ε may be 1 then, and the base takes steps of εγ
FIRST_MOVE = 1e-3  # while all replicas are at one place nothing is known of any scale


class Resting(NamedTuple):
    """H of a resting half: its pairs in the coordinates of the base metric, their Gram matrix, its factor, and √d."""

    basis: PyTree
    gram: Array
    factor: Any  # Block or Factor
    root: PyTree | None


class Spread(NamedTuple):
    """Running mean squares of the replicas' contrasts, in position and in gradient, and how many steps entered."""

    position: PyTree
    grad: PyTree
    steps: Array


def resting_half(
    pairs: int,
    *,
    gamma: float | str,
    metric: PyTree | str | None,
    damping: float,
    cosine: float,
    update: str,
    adapt: int,
    base_step: float = BASE_STEP,
) -> tuple[Callable[[PyTree], Spread | None], Callable[..., tuple[Resting, Spread | None]]]:
    """Check the options, and return (init, make): the start of a learned metric, and the function that makes H.

    ``make(resting, grads, spread) -> (Resting, spread)``.
    """
    m = _check.at_least("pairs", pairs, 1)
    if gamma != "auto":
        _check.positive("gamma", gamma)
    _check.non_negative("damping", damping)
    _check.fraction("cosine", cosine)
    _check.one_of("update", update, ("block", "neighbours"))
    _check.at_least("adapt", adapt, 1)
    learned = _check.one_of("metric", metric, ("warmup", "resting")) if isinstance(metric, str) else None
    if metric is not None and learned is None:
        for leaf in jax.tree.leaves(metric):
            if not bool(jnp.all(jnp.isfinite(leaf) & (leaf > 0))):
                raise ValueError("metric must have finite entries above 0")
    contrast = helmert(m) if update == "block" else np.eye(m + 1)[1:] - np.eye(m + 1)[:-1]
    given_root = None if metric is None or learned else jax.tree.map(jnp.sqrt, metric)

    def init(position: PyTree) -> Spread | None:
        if learned != "warmup":
            return None
        ones = jax.tree.map(lambda x: jnp.ones_like(x[0]), position)
        return Spread(ones, ones, jnp.zeros((), jnp.int32))

    def make(resting: PyTree, grads: PyTree, spread: Spread | None) -> tuple[Resting, Spread | None]:
        contrasts = lambda tree: jax.tree.map(lambda x: jnp.tensordot(jnp.asarray(contrast, x.dtype), x, 1), tree)
        s = contrasts(resting)
        y = jax.tree.map(lambda g, s: damping * s - g, contrasts(grads), s)
        if spread is not None:
            spread = _learn(spread, s, y, adapt)
        root = given_root
        if learned:
            root = _root(spread or Spread(_mean_square(s), _mean_square(y), jnp.zeros(())))
        basis = jax.tree.map(lambda s, y: jnp.concatenate([s, y]), divide(s, root), multiply(y, root))
        gram = curvature.inner(basis, basis)
        scale: Any = gamma
        if gamma == "auto":
            scale = base_step * _inverse_curvature(gram, _size(resting), multiply(grads, root))
        if update == "block":
            factor = curvature.block_factor(gram, scale, cosine)
        else:
            factor = curvature.factor(gram, curvature.acceptable(gram, cosine), scale)
        return Resting(basis, gram, factor, root), spread

    return init, make


def displacement(key: Array, r: Resting, g: PyTree, step_size: Any) -> tuple[PyTree, PyTree]:
    """Drift ``ε H g`` and noise of each replica of the moving half, whose gradients g are.

    For a block factor the noise has covariance 2εγ P Pᵀ + V (2ε − ε² VᵀU) Vᵀ: along V, where VᵀU is known of the
    curvature, that makes the step exact for a Gaussian.
    """
    key, own = jax.random.split(key)
    z = standard_normal(key, g)
    scaled = multiply(g, r.root)
    along_g, along_z = curvature.inner(r.basis, scaled).T, curvature.inner(r.basis, z).T
    if isinstance(r.factor, curvature.Block):
        shape = (along_z.shape[0], r.gram.shape[0] // 2)
        extra = jnp.sqrt(span_noise(r.factor, step_size)) * jax.random.normal(own, shape, r.gram.dtype)
        d = jax.vmap(lambda a, b, e: curvature.block_direction(r.factor, r.gram, a, b, e))(along_g, along_z, extra)
    else:
        d = jax.vmap(lambda a, b: curvature.direction(r.factor, r.gram, a, b))(along_g, along_z)
    gamma, root = r.factor.gamma, jnp.sqrt(2 * step_size)
    move = lambda own, factor, coefficients: multiply(
        jax.tree.map(
            lambda x, b: (factor * x + jnp.tensordot(coefficients.astype(b.dtype), b, 1)).astype(x.dtype), own, r.basis
        ),
        r.root,
    )
    return move(scaled, step_size * gamma, step_size * d.drift), move(z, root * jnp.sqrt(gamma), root * d.noise)


def span_noise(factor: curvature.Block, step_size: Any) -> Array:
    """(2ε − ε² VᵀU) / 2ε along each column of V, and where a step overshoots wildly at least a little."""
    return jnp.maximum(1 - step_size * factor.newton / 2, 0.05)


def eigenvalue_bound(r: Resting) -> Array:
    """An upper bound of H's largest eigenvalue, in the base metric's coordinates."""
    if isinstance(r.factor, curvature.Block):
        return curvature.block_eigenvalue_bound(r.factor, r.gram)
    return curvature.eigenvalue_bound(r.factor, r.gram)


def check_replicas(position: PyTree, pairs: int) -> None:
    """Raise unless every leaf has a leading axis of 2(m+1) replicas."""
    for leaf in jax.tree.leaves(position):
        if leaf.shape[:1] != (2 * (pairs + 1),):
            raise ValueError(
                f"an ensemble with {pairs} pairs starts from {2 * (pairs + 1)} replicas, got shape {leaf.shape}"
            )


def halves(tree: PyTree, step: Array) -> tuple[PyTree, PyTree]:
    """(moving, resting): the halves change roles with every step."""
    even = step % 2 == 0
    cut = lambda x: (x[: len(x) // 2], x[len(x) // 2 :])
    pick = lambda one, other: jax.tree.map(lambda x: jnp.where(even, cut(x)[one], cut(x)[other]), tree)
    return pick(0, 1), pick(1, 0)


def joined(moved: PyTree, resting: PyTree, step: Array) -> PyTree:
    """All replicas, each always at its own place."""
    even = step % 2 == 0
    both = lambda a, b: jnp.concatenate([jnp.where(even, a, b), jnp.where(even, b, a)])
    return jax.tree.map(both, moved, resting)


def replica_axis(of_replica: Array, like: Array) -> Array:
    """A number for each replica, shaped to go with a leaf."""
    return of_replica.reshape(-1, *[1] * (like.ndim - 1))


def rms_norm(tree: PyTree) -> Array:
    """Root mean square over replicas of their Euclidean norms."""
    return norm(tree) / jnp.sqrt(jax.tree.leaves(tree)[0].shape[0])


def multiply(tree: PyTree, root: PyTree | None) -> PyTree:
    """By √d, for every replica."""
    return tree if root is None else jax.tree.map(jnp.multiply, tree, root)


def divide(tree: PyTree, root: PyTree | None) -> PyTree:
    """By √d, for every replica."""
    return tree if root is None else jax.tree.map(jnp.divide, tree, root)


def helmert(m: int) -> np.ndarray:
    """m orthonormal contrasts of m+1 replicas: of independent replicas they are independent, with the same variance."""
    j = np.arange(1, m + 1)
    rows = np.tril(np.ones((m, m + 1)))
    rows[j - 1, j] = -j
    return rows / np.sqrt(j * (j + 1))[:, None]


def _inverse_curvature(gram: Array, size: int, g: PyTree) -> Array:
    """1/L with L = tr A² / tr A of the curvature A, estimated from the Gram matrix of the gradients' contrasts.

    For independent contrasts with covariance A, E(y_iᵀy_j)² = tr A² and E|y_i|² = tr A. Dividing by sᵀy / D, which is
    1 in the stationary law, makes it right for replicas that are closer or farther than that, too.
    """
    m = gram.shape[0] // 2
    y_y, s_y = gram[m:, m:], jnp.trace(gram[:m, m:])
    total, own = jnp.sum(y_y**2), jnp.sum(jnp.diagonal(y_y) ** 2)
    first = jnp.trace(y_y) / m
    # One pair has no other to be multiplied with: tr A / D then.
    second = (total - own) / (m * (m - 1)) / jnp.where(first > 0, first, 1) if m > 1 else first / size
    mean = first / size
    curved = jnp.maximum(second, mean) / (s_y / (m * size))
    known = jnp.isfinite(curved) & (curved > 0)
    steepest = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(g)]))
    blind = FIRST_MOVE**2 / jnp.maximum(1, FIRST_MOVE * steepest)
    return jnp.where(known, 1 / jnp.where(known, curved, 1), blind).astype(gram.dtype)


def _size(half: PyTree) -> int:
    return sum(x[0].size for x in jax.tree.leaves(half))


def _mean_square(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.mean(x * x, 0), tree)


def _learn(spread: Spread, s: PyTree, y: PyTree, adapt: int) -> Spread:
    """Move the mean squares on while count < adapt; the first, least settled, steps lose their weight."""
    rate = jnp.where(spread.steps < adapt, 4 / (4 + spread.steps), 0.0)
    on = lambda old, new: jax.tree.map(lambda a, b: (a + rate * (b - a)).astype(a.dtype), old, new)
    return Spread(on(spread.position, _mean_square(s)), on(spread.grad, _mean_square(y)), spread.steps + 1)


def _root(spread: Spread) -> PyTree:
    """√d with d = √(mean square of positions / of gradients); 1 where that says nothing."""

    def leaf(x, g):
        ratio = (x / jnp.where(g > 0, g, 1)) ** 0.25
        return jnp.where((g > 0) & (x > 0) & jnp.isfinite(ratio), ratio, 1.0).astype(x.dtype)

    return jax.tree.map(leaf, spread.position, spread.grad)
