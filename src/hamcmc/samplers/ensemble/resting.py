"""What the ensemble samplers share: the inverse Hessian that a half at rest gives to the half that moves.

An ensemble is two halves of m+1 replicas. While one rests, its positions and the gradients there make H; nothing in H
has seen the moving half, which therefore moves as if H were a constant.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc import _check
from hamcmc.samplers import curvature
from hamcmc.samplers.base import WHOLE, PyTree, Space, squared

BASE_STEP = 0.1  # of the inverse curvature, for γ = "auto"; ε may be 1 then, and the base takes steps of εγ
WHITE_STEP = 0.5  # once a dense metric was learned and all curvatures are alike
DENSE = 300  # dimensions up to which metric="auto" is dense: beyond, its products cost more than most gradients
METRICS = ("auto", "dense", "diagonal", "resting")
FIRST_MOVE = 1e-3  # while all replicas are at one place nothing is known of any scale


class Resting(NamedTuple):
    """H of a resting half.

    Attributes:
        basis: its pairs, in the coordinates of the base metric.
        gram: their Gram matrix.
        factor: :class:`~hamcmc.samplers.curvature.Block` or :class:`~hamcmc.samplers.curvature.Factor`.
        curvature: the mean curvature, tr A / D, in these coordinates.
        root: of the base metric.
    """

    basis: PyTree
    gram: Array
    factor: Any
    curvature: Array
    root: "Root"


class Dense(NamedTuple):
    """A symmetric square root of a dense metric over the flat position, and its inverse."""

    root: Array
    inverse: Array


Root = PyTree | Dense | None  # √d as a pytree for a diagonal metric, None for the identity


class Spread(NamedTuple):
    """What a metric learned in warm-up knows so far.

    Attributes:
        position: running mean squares of the replicas' contrasts, as a pytree (diagonal) or a matrix (dense).
        grad: those of their gradients.
        steps: how many steps entered.
        root: the dense metric in use.
    """

    position: PyTree
    grad: PyTree
    steps: Array
    root: Dense | None = None


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
    space: Space = WHOLE,
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
    word = _check.one_of("metric", metric, METRICS) if isinstance(metric, str) else None
    if space is not WHOLE and (gamma == "auto" or word in ("auto", "dense")):
        raise ValueError("on several devices an ensemble takes a number for gamma, and no dense metric")
    if metric is not None and word is None:
        for leaf in jax.tree.leaves(metric):
            if not bool(jnp.all(jnp.isfinite(leaf) & (leaf > 0))):
                raise ValueError("metric must have finite entries above 0")
    contrast = helmert(m) if update == "block" else np.eye(m + 1)[1:] - np.eye(m + 1)[:-1]
    given_root = None if metric is None or word else jax.tree.map(jnp.sqrt, metric)
    kind = lambda half: word if word != "auto" else "dense" if _size(half) <= DENSE else "diagonal"

    def init(position: PyTree) -> Spread | None:
        if kind(position) not in ("diagonal", "dense"):
            return None
        ones, steps = jax.tree.map(lambda x: jnp.ones_like(x[0]), position), jnp.zeros((), jnp.int32)
        if kind(position) == "diagonal":
            return Spread(ones, ones, steps)
        identity = jnp.eye(_size(position), dtype=jnp.result_type(*jax.tree.leaves(position)))
        return Spread(identity, identity, steps, Dense(identity, identity))

    def make(resting: PyTree, grads: PyTree, spread: Spread | None) -> tuple[Resting, Spread | None]:
        contrasts = lambda tree: jax.tree.map(lambda x: jnp.tensordot(jnp.asarray(contrast, x.dtype), x, 1), tree)
        s = contrasts(resting)
        y = jax.tree.map(lambda g, s: damping * s - g, contrasts(grads), s)
        if spread is not None:
            spread = _learn(spread, s, y, adapt)
        root: Root = given_root
        if kind(resting) == "dense":
            root = spread.root  # type: ignore[union-attr]
        elif word:
            root = _diagonal(spread or Spread(_mean_square(s), _mean_square(y), jnp.zeros(())))
        basis = jax.tree.map(lambda s, y: jnp.concatenate([s, y]), divide(s, root), multiply(y, root))
        fused = space.total(jnp.append(curvature.inner(basis, basis), float(_size(resting))))
        gram, size = fused[:-1].reshape(2 * m, 2 * m), fused[-1]
        mean, largest = _curvatures(gram, size)
        scale: Any = gamma
        if gamma == "auto":
            step = (
                base_step
                if spread is None or spread.root is None
                else jnp.where(spread.steps < adapt, base_step, jnp.maximum(base_step, WHITE_STEP))
            )
            blind = _blind_step(multiply(grads, root))
            scale = jnp.where(largest > 0, step / jnp.where(largest > 0, largest, 1), blind)
        if update == "block":
            factor = curvature.block_factor(gram, scale, cosine)
        else:
            factor = curvature.factor(gram, curvature.acceptable(gram, cosine), scale)
        return Resting(basis, gram, factor, mean, root), spread

    return init, make


def displacement(key: Array, r: Resting, g: PyTree, step_size: Any, space: Space = WHOLE) -> tuple[PyTree, PyTree]:
    """Drift ``ε H g`` and noise of each replica of the moving half, whose gradients g are.

    For a block factor the noise has covariance V (2ε − ε² VᵀAV) Vᵀ + (2εγ − ε²γ²ā) P Pᵀ, where VᵀAV is known of the
    curvature A along V, and ā = tr A / D is its mean. That makes the step exact for a Gaussian along V, and along the
    rest as far as the curvatures there are alike, as after a good base metric.
    """
    key, own = jax.random.split(key)
    z = space.normal(key, g)
    scaled = multiply(g, r.root)
    along = space.total(jnp.stack([curvature.inner(r.basis, scaled), curvature.inner(r.basis, z)]))
    along_g, along_z = along[0].T, along[1].T
    if isinstance(r.factor, curvature.Block):
        shape = (along_z.shape[0], r.gram.shape[0] // 2)
        extra = jnp.sqrt(span_noise(r.factor, step_size)) * jax.random.normal(own, shape, r.gram.dtype)
        along_z = jnp.sqrt(base_noise(r, step_size)) * along_z
        d = jax.vmap(lambda a, b, e: curvature.block_direction(r.factor, r.gram, a, b, e))(along_g, along_z, extra)
    else:
        d = jax.vmap(lambda a, b: curvature.direction(r.factor, r.gram, a, b))(along_g, along_z)
    gamma, root = r.factor.gamma, jnp.sqrt(2 * step_size)
    base = jnp.sqrt(gamma * base_noise(r, step_size))
    move = lambda own, factor, coefficients: multiply(
        jax.tree.map(
            lambda x, b: (factor * x + jnp.tensordot(coefficients.astype(b.dtype), b, 1)).astype(x.dtype), own, r.basis
        ),
        r.root,
    )
    return move(scaled, step_size * gamma, step_size * d.drift), move(z, root * base, root * d.noise)


def span_noise(factor: curvature.Block, step_size: Any) -> Array:
    """(2ε − ε² VᵀAV) / 2ε along each column of V, and where a step overshoots wildly at least a little."""
    return jnp.maximum(1 - step_size * factor.newton / 2, 0.05)


def base_noise(r: Resting, step_size: Any) -> Array:
    """(2εγ − ε²γ²ā) / 2εγ, for a block factor."""
    if not isinstance(r.factor, curvature.Block):
        return jnp.ones_like(r.curvature)
    return jnp.maximum(1 - step_size * r.factor.gamma * r.curvature / 2, 0.05)


def eigenvalue_bound(r: Resting) -> Array:
    """An upper bound of H's largest eigenvalue, in the base metric's coordinates."""
    if isinstance(r.factor, curvature.Block):
        return curvature.block_eigenvalue_bound(r.factor, r.gram)
    return curvature.eigenvalue_bound(r.factor, r.gram)


def learning_steps(metric: Any, adapt: int) -> int:
    """How many steps a metric is learned for."""
    return adapt if isinstance(metric, str) and metric != "resting" else 0


def gathering_pace(step: Array, learning: int) -> Array | float:
    """The part of ε that is taken: it grows to 1 in the first eighth of the steps in which a metric is learned.

    Replicas start close together, and of the first, small differences H may be anything.
    """
    return jnp.minimum(1.0, (step + 1) / max(learning // 8, 1)) if learning else 1.0


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


def rms_norms(trees: tuple[PyTree, ...], space: Space = WHOLE) -> Array:
    """For each tree the root mean square over replicas of their Euclidean norms."""
    replicas = jax.tree.leaves(trees)[0].shape[0]
    return jnp.sqrt(space.total(jnp.stack([squared(tree) for tree in trees])) / replicas)


def multiply(tree: PyTree, root: Root) -> PyTree:
    """By the base metric's root, for every replica."""
    if isinstance(root, Dense):
        return _matrix(tree, root.root)
    return tree if root is None else jax.tree.map(jnp.multiply, tree, root)


def divide(tree: PyTree, root: Root) -> PyTree:
    """By the base metric's root, for every replica."""
    if isinstance(root, Dense):
        return _matrix(tree, root.inverse)
    return tree if root is None else jax.tree.map(jnp.divide, tree, root)


def _flat(tree: PyTree) -> Array:
    """(replica, D)."""
    return jnp.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(tree)], 1)


def _matrix(tree: PyTree, matrix: Array) -> PyTree:
    """A symmetric matrix times every replica's flat position."""
    leaves, structure = jax.tree.flatten(tree)
    product = jnp.matmul(_flat(tree), matrix, precision="highest")
    ends = np.cumsum([x[0].size for x in leaves])[:-1]
    parts = jnp.split(product, ends, axis=1)
    return structure.unflatten([p.reshape(x.shape).astype(x.dtype) for p, x in zip(parts, leaves)])


def helmert(m: int) -> np.ndarray:
    """m orthonormal contrasts of m+1 replicas: of independent replicas they are independent, with the same variance."""
    j = np.arange(1, m + 1)
    rows = np.tril(np.ones((m, m + 1)))
    rows[j - 1, j] = -j
    return rows / np.sqrt(j * (j + 1))[:, None]


def _curvatures(gram: Array, size: Array) -> tuple[Array, Array]:
    """tr A / D and tr A² / tr A of the curvature A, from the Gram matrix of the contrasts; 0 where nothing is known.

    For independent contrasts with covariance A, E(y_iᵀy_j)² = tr A² and E|y_i|² = tr A. Dividing by sᵀy / D, which is
    1 in the stationary law, makes it right for replicas that are closer or farther than that, too.
    """
    m = gram.shape[0] // 2
    y_y, s_y = gram[m:, m:], jnp.trace(gram[:m, m:])
    first, own = jnp.trace(y_y) / m, jnp.sum(jnp.diagonal(y_y) ** 2)
    known = (first > 0) & (s_y > 0)
    scale = jnp.where(known, m * size / jnp.where(known, s_y, 1), 0)
    mean = first / size
    # One pair has no other to be multiplied with: the mean then.
    second = (jnp.sum(y_y**2) - own) / (m * (m - 1)) / jnp.where(known, first, 1) if m > 1 else mean
    return scale * mean, scale * jnp.maximum(second, mean)


def _blind_step(g: PyTree) -> Array:
    """γ while all replicas are at one place: a noise and a drift of FIRST_MOVE at most."""
    steepest = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(g)]))
    return FIRST_MOVE**2 / jnp.maximum(1, FIRST_MOVE * steepest)


def _size(half: PyTree) -> int:
    return sum(x[0].size for x in jax.tree.leaves(half))


def _mean_square(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.mean(x * x, 0), tree)


def _learn(spread: Spread, s: PyTree, y: PyTree, adapt: int) -> Spread:
    """Move the mean squares on while steps < adapt; the first, least settled, steps lose their weight."""
    rate = jnp.where(spread.steps < adapt, 4 / (4 + spread.steps), 0.0)
    on = lambda old, new: jax.tree.map(lambda a, b: (a + rate * (b - a)).astype(a.dtype), old, new)
    steps = spread.steps + 1
    if spread.root is None:
        return Spread(on(spread.position, _mean_square(s)), on(spread.grad, _mean_square(y)), steps)
    outer = lambda tree: jnp.matmul(_flat(tree).T, _flat(tree), precision="highest") / len(jax.tree.leaves(tree)[0])
    position, grad = on(spread.position, outer(s)), on(spread.grad, outer(y))
    due = jnp.any(steps == np.unique([max(adapt // 8, 1), max(adapt // 4, 1), max(adapt // 2, 1), adapt]))

    def turn(i, old):
        # The barrier ties the matrices to the turn, or the compiler would take their roots ahead of every loop.
        x, g, _ = lax.optimization_barrier((position, grad, i))
        return _dense(x, g, old)

    # A loop of one turn or none: under vmap a condition would compute both of its sides at every step.
    return Spread(position, grad, steps, lax.fori_loop(0, due.astype(jnp.int32), turn, spread.root))


def _diagonal(spread: Spread) -> PyTree:
    """√d with d = √(mean square of positions / of gradients); 1 where that says nothing."""

    def leaf(x, g):
        ratio = (x / jnp.where(g > 0, g, 1)) ** 0.25
        return jnp.where((g > 0) & (x > 0) & jnp.isfinite(ratio), ratio, 1.0).astype(x.dtype)

    return jax.tree.map(leaf, spread.position, spread.grad)


def _dense(position: Array, grad: Array, old: Dense) -> Dense:
    """The root of the geometric mean G of Cov(s) and Cov(y)⁻¹, the matrix with G Cov(y) G = Cov(s).

    For y = A s that is A⁻¹ wherever the replicas are: also long before they have spread over the posterior.
    """
    scale = _diagonal(Spread(jnp.diagonal(position), jnp.diagonal(grad), jnp.zeros(())))
    ridge = lambda c: c + 1e-5 * jnp.diag(jnp.diagonal(c))
    x, y = ridge(position / jnp.outer(scale, scale)), ridge(grad * jnp.outer(scale, scale))
    dot = lambda a, b: jnp.matmul(a, b, precision="highest")
    y_root, y_inverse = _power(y, 0.5), _power(y, -0.5)
    g = dot(dot(y_inverse, _power(dot(dot(y_root, x), y_root), 0.5)), y_inverse)
    g = jnp.outer(scale, scale) * g
    new = Dense(_power(g, 0.5), _power(g, -0.5))
    good = jnp.isfinite(new.root).all() & jnp.isfinite(new.inverse).all()
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)


def _power(c: Array, exponent: float) -> Array:
    """A power of a symmetric positive definite matrix."""
    values, q = jnp.linalg.eigh((c + c.T) / 2)
    floor = jnp.finfo(c.dtype).eps * values[-1]
    return jnp.matmul(q * jnp.maximum(values, floor) ** exponent, q.T, precision="highest")
