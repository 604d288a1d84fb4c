"""What the ensemble samplers share: the inverse Hessian that a half at rest gives to the half that moves.

An ensemble is two halves of m+1 replicas. While one half rests, its positions and the gradients there make H. H has
seen nothing of the moving half, which therefore moves as if H were a constant.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hamcmc import _check
from hamcmc._types import PyTree, Scalar
from hamcmc.samplers import curvature
from hamcmc.samplers.base import WHOLE, Space, squared
from hamcmc.samplers.ensemble.metric import Metric, Root, Spread, dimension, divide, multiply
from hamcmc.samplers.noise import normal

BASE_STEP = 0.1  # times the inverse curvature is γ = "auto": ε may be 1, and the base takes steps of εγ
WHITE_STEP = 0.5  # the same once a dense metric was learned, and all curvatures are alike
SLACK, TAIL = 1.25, 2.5  # how far √(gᵀHg) may go, see `longest`: by the noise of gradients, by the tail of a χ
FIRST_MOVE = 1e-3  # the largest move while all replicas are at one place, and no scale is known
REACH = 3.0  # times the median distance, beyond which a resting replica counts as no farther away
WIDEST = 1.25  # the longest column of V in the coordinates of a dense metric, where all lengths should be 1
LEAST_NOISE = 0.05  # share of the noise that is left where the term in ε² would take all of it


class Resting(NamedTuple):
    """H of a resting half.

    Attributes:
        basis: its pairs, in the coordinates of the base metric.
        gram: their Gram matrix.
        factor: :class:`~hamcmc.samplers.curvature.Block` or :class:`~hamcmc.samplers.curvature.Factor`.
        curvature: the mean curvature, tr A / D, in these coordinates.
        steepest: an estimate of the largest one.
        size: D, over all devices.
        root: the root of the base metric.
    """

    basis: PyTree
    gram: Float[Array, "n n"]
    factor: Any
    curvature: Float[Array, ""]
    steepest: Float[Array, ""]
    size: Float[Array, ""]
    root: Root


class EnsembleInfo(NamedTuple):
    """One half-move.

    Attributes:
        grad_norm: size of the gradient, a root mean square over the moving replicas.
        drift_norm: size of the drift, likewise.
        noise_norm: size of the noise, likewise.
        pairs_accepted: how many pairs made H.
        eigenvalue_bound: an upper bound on H's largest eigenvalue, in the base metric's coordinates.
        gamma: the base's scale γ, in the same coordinates.
    """

    grad_norm: Float[Array, ""]
    drift_norm: Float[Array, ""]
    noise_norm: Float[Array, ""]
    pairs_accepted: Int[Array, ""]
    eigenvalue_bound: Float[Array, ""]
    gamma: Float[Array, ""]


class RestingHalf:
    """Makes H from a resting half: the options that all ensemble samplers share, after their check.

    Attributes:
        pairs: m.
        replicas: 2(m+1).
        metric: the base metric; ``metric.start(position)`` is the start of a learned one.
    """

    def __init__(
        self,
        pairs: int,
        *,
        gamma: float | str,
        metric: PyTree | str | None,
        damping: float,
        cosine: float,
        adapt: int,
        update: str = "block",
        base_step: float = BASE_STEP,
        space: Space = WHOLE,
    ):
        self.pairs = _check.at_least("pairs", pairs, 1)
        self.replicas = 2 * (self.pairs + 1)
        if gamma != "auto":
            _check.positive("gamma", gamma)
        _check.non_negative("damping", damping)
        _check.fraction("cosine", cosine)
        _check.one_of("update", update, ("block", "neighbours"))
        self.metric = Metric(metric, adapt)
        if space is not WHOLE and (gamma == "auto" or self.metric.word in ("auto", "dense")):
            raise ValueError("on several devices an ensemble needs a number for gamma, and takes no dense metric")
        self._gamma, self._damping, self._cosine = gamma, damping, cosine
        self._block, self._base_step, self._space = update == "block", base_step, space
        self._contrast = helmert(pairs) if self._block else np.eye(pairs + 1)[1:] - np.eye(pairs + 1)[:-1]

    def check(self, position: PyTree) -> None:
        """Raise unless every leaf has a leading axis of 2(m+1) replicas."""
        for leaf in jax.tree.leaves(position):
            if leaf.shape[:1] != (self.replicas,):
                raise ValueError(
                    f"an ensemble with {self.pairs} pairs starts from {self.replicas} replicas, got shape {leaf.shape}"
                )

    def make(
        self, resting: PyTree, grads: PyTree, spread: Spread | None, steepest: Scalar = 0.0
    ) -> tuple[Resting, Spread | None]:
        """H from the resting positions and the gradients there; and what the metric knows then.

        ``gamma="auto"`` takes curvatures to be as large as `steepest` at least.
        """
        m, s = self.pairs, self._contrasts(resting)
        y = jax.tree.map(lambda g, s: self._damping * s - g, self._contrasts(grads), s)
        root = self.metric.root(s, y, spread)
        basis = jax.tree.map(lambda s, y: jnp.concatenate([s, y]), divide(s, root), multiply(y, root))
        fused = self._space.total(jnp.append(curvature.inner(basis, basis), float(dimension(resting))))
        gram, size = fused[:-1].reshape(2 * m, 2 * m), fused[-1]
        near = nearer(gram[:m, :m], self._contrast) if self._block else jnp.eye(m, dtype=gram.dtype)
        local = near_gram(gram, near)
        mean, seen = _curvatures(local, size)
        gamma: Any = self._gamma
        white, known = self.metric.whitens(spread), self.metric.known(spread)
        if gamma == "auto":
            step = jnp.where(white, jnp.maximum(self._base_step, WHITE_STEP), self._base_step)
            largest = jnp.where(known, jnp.maximum(seen, 1), seen)  # H is no wider than the metric
            largest = jnp.where(largest > 0, jnp.maximum(largest, steepest), largest)
            blind = _blind_step(multiply(grads, root))
            gamma = jnp.where(largest > 0, step / jnp.where(largest > 0, largest, 1), blind)
        if self._block:
            widest = jnp.where(known, WIDEST, jnp.inf)
            factor = curvature.block_factor(local, gamma, self._cosine, widest)
            factor = factor._replace(weights=near.T @ factor.weights, dual=near.T @ factor.dual)
        else:
            factor = curvature.factor(gram, curvature.acceptable(gram, self._cosine), gamma)
        return Resting(basis, gram, factor, mean, seen, size, root), self.metric.learn(near, s, y, spread)

    def pace(self, step: Int[Array, ""]) -> Array | float:
        """The share of ε that is taken: it grows to 1 in the first eighth of the steps in which a metric is learned.

        Replicas start close together, and their first, small differences may give any H.
        """
        learning = self.metric.learning
        return jnp.minimum(1.0, (step + 1) / max(learning // 8, 1)) if learning else 1.0

    def _contrasts(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.tensordot(jnp.asarray(self._contrast, x.dtype), x, 1), tree)


def displacement(
    key: Array, r: Resting, g: PyTree, step_size: Scalar, space: Space = WHOLE, tame: bool = False
) -> tuple[PyTree, PyTree]:
    """Drift ``ε H g`` and noise of each moving replica, where g are the gradients at the moving replicas.

    For a block factor the noise has covariance V (2ε − ε² VᵀAV) Vᵀ + (2εγ − ε²γ²ā) P Pᵀ, where VᵀAV is what is known of
    the curvature A along V, and ā = tr A / D is its mean. The step is then exact for a Gaussian along V, and along the
    rest as far as the curvatures there are alike, as they are in a good base metric. With `tame`, a drift is cut where
    gᵀHg is beyond :func:`longest`.
    """
    key, own = jax.random.split(key)
    z = space.normal(key, g)
    scaled = multiply(g, r.root)
    squares = row_squares(scaled)
    products = curvature.inner(jax.tree.map(lambda *x: jnp.concatenate(x), scaled, z), r.basis)
    fused = space.total(jnp.append(products, squares))
    along_g, along_z = fused[: products.size].reshape(2, len(squares), -1)
    squares = fused[products.size :]
    if isinstance(r.factor, curvature.Block):
        shape = (len(squares), r.gram.shape[0] // 2)
        extra = jnp.sqrt(span_noise(r.factor, step_size)) * normal(own, shape, r.gram.dtype)
        along_z = jnp.sqrt(base_noise(r, step_size)) * along_z
        d = curvature.block_direction(r.factor, r.gram, along_g, along_z, extra)
    else:
        d = jax.vmap(lambda a, b: curvature.direction(r.factor, r.gram, a, b))(along_g, along_z)
    gamma, root = r.factor.gamma, jnp.sqrt(2 * step_size)
    base = jnp.sqrt(gamma * base_noise(r, step_size))
    drift, own = step_size * d.drift, jnp.full_like(squares, step_size * gamma)
    if tame:
        kept = cut(gamma * squares + jnp.sum(along_g * d.drift, 1), r.size, step_size)
        drift, own = kept[:, None] * drift, kept * own

    def move(vectors: PyTree, factor: Array, coefficients: Array) -> PyTree:
        def leaf(x, b):
            return (replica_axis(factor, x) * x + jnp.tensordot(coefficients.astype(b.dtype), b, 1)).astype(x.dtype)

        return multiply(jax.tree.map(leaf, vectors, r.basis), r.root)

    return move(scaled, own, drift), move(z, jnp.full_like(squares, root * base), root * d.noise)


def longest(size: Float[Array, ""], step_size: Scalar) -> Float[Array, ""]:
    """The largest √(gᵀHg) that a step believes.

    On a Gaussian it is at most a χ of D degrees of freedom, which is beyond √D + TAIL in one step of ten thousand.
    SLACK leaves room for the noise of minibatches. Below ε = 1/2 the bound grows like 1/√ε, because smaller steps bear
    more noise, and it is gone as ε → 0: as in tamed Euler schemes, the limit has no bias.
    """
    return (SLACK * jnp.sqrt(size) + TAIL) * jnp.maximum(1, (2 * step_size) ** -0.5)


def cut(square: Float[Array, " replica"], size: Float[Array, ""], step_size: Scalar) -> Float[Array, " replica"]:
    """The share of each replica's drift that is taken, given its gᵀHg."""
    bound = longest(size, step_size)
    return bound / jnp.maximum(bound, jnp.sqrt(jnp.maximum(square, 0)))


def span_noise(factor: curvature.Block, step_size: Scalar) -> Float[Array, " m"]:
    """(2ε − ε² VᵀAV) / 2ε along each column of V, and at least a little where a step overshoots wildly."""
    return jnp.maximum(1 - step_size * factor.newton / 2, LEAST_NOISE)


def base_noise(r: Resting, step_size: Scalar) -> Float[Array, ""]:
    """(2εγ − ε²γ²ā) / 2εγ for a block factor, and 1 otherwise."""
    if not isinstance(r.factor, curvature.Block):
        return jnp.ones_like(r.curvature)
    return jnp.maximum(1 - step_size * r.factor.gamma * r.curvature / 2, LEAST_NOISE)


def half_move_info(r: Resting, g: PyTree, drift: PyTree, noise: PyTree, space: Space = WHOLE) -> EnsembleInfo:
    """The :class:`EnsembleInfo` of a half-move."""
    if isinstance(r.factor, curvature.Block):
        bound = curvature.block_eigenvalue_bound(r.factor, r.gram)
    else:
        bound = curvature.eigenvalue_bound(r.factor, r.gram)
    grad_norm, drift_norm, noise_norm = rms_norms((g, drift, noise), space)
    return EnsembleInfo(grad_norm, drift_norm, noise_norm, jnp.sum(r.factor.accepted), bound, r.factor.gamma)


def rms_norms(trees: tuple[PyTree, ...], space: Space = WHOLE) -> Float[Array, " trees"]:
    """For each tree the root mean square over replicas of their Euclidean norms."""
    replicas = jax.tree.leaves(trees)[0].shape[0]
    return jnp.sqrt(space.total(jnp.stack([squared(tree) for tree in trees])) / replicas)


def halves(tree: PyTree, step: Int[Array, ""]) -> tuple[PyTree, PyTree]:
    """(moving, resting): the halves change roles with every step."""
    even = step % 2 == 0

    def cut(x):
        return x[: len(x) // 2], x[len(x) // 2 :]

    def pick(one, other):
        return jax.tree.map(lambda x: jnp.where(even, cut(x)[one], cut(x)[other]), tree)

    return pick(0, 1), pick(1, 0)


def joined(moved: PyTree, resting: PyTree, step: Int[Array, ""]) -> PyTree:
    """All replicas, each in its own place at every step."""
    even = step % 2 == 0
    return jax.tree.map(lambda a, b: jnp.concatenate([jnp.where(even, a, b), jnp.where(even, b, a)]), moved, resting)


def row_squares(tree: PyTree) -> Float[Array, " replica"]:
    """The square of each replica's length."""
    squares = jax.tree.map(lambda x: jnp.sum((x * x).reshape(len(x), -1), 1), tree)
    return sum(jax.tree.leaves(squares))  # type: ignore[return-value]


def replica_axis(of_replica: Float[Array, " replica"], like: Array) -> Array:
    """One number for each replica, shaped to be broadcast with a leaf."""
    return of_replica.reshape(-1, *[1] * (like.ndim - 1))


def helmert(m: int) -> np.ndarray:
    """m orthonormal contrasts of m+1 replicas. For independent replicas they are independent, with equal variances."""
    j = np.arange(1, m + 1)
    rows = np.tril(np.ones((m, m + 1)))
    rows[j - 1, j] = -j
    return rows / np.sqrt(j * (j + 1))[:, None]


def nearer(s_s: Float[Array, "m m"], contrast: np.ndarray) -> Float[Array, "m m"]:
    """The matrix that turns contrasts of the resting replicas into those with far replicas drawn nearer.

    A replica whose median distance to the others is beyond REACH times the middle one of these counts with a weight w
    that makes up for it: w(x − x̄) stands for its position and w(g − ḡ) for its gradient. For a quadratic y = A s holds
    as before, so the pairs stay right; but a single lost replica no longer makes H as long as its distance.
    """
    c = jnp.asarray(contrast, s_s.dtype)
    inner = c.T @ s_s @ c  # of positions around their mean
    square, half = jnp.diagonal(inner), len(c) // 2
    away = smallest(square[:, None] + square - 2 * inner, half + 1)  # the very smallest is the distance to itself
    middle = REACH**2 * smallest(away, half)
    w = jnp.sqrt(jnp.where(away > middle, middle / jnp.where(away > middle, away, 1), 1))
    return (c * w) @ (c.T - (w / jnp.sum(w)) @ c.T)


def smallest(x: Float[Array, "... n"], k: int) -> Float[Array, "..."]:
    """The entry that k others are smaller than. For a few entries counting takes a tenth of the time of sorting."""
    rank = jnp.sum(x[..., None, :] < x[..., :, None], -1)
    return jnp.max(jnp.where(rank <= k, x, -jnp.inf), -1)


def near_gram(gram: Float[Array, "n n"], near: Float[Array, "m m"]) -> Float[Array, "n n"]:
    """The Gram matrix of the contrasts after :func:`nearer`."""
    m = len(near)
    blocks = gram.reshape(2, m, 2, m).swapaxes(1, 2)  # of positions and gradients
    blocks = jnp.matmul(jnp.matmul(near, blocks, precision="highest"), near.T, precision="highest")
    return blocks.swapaxes(1, 2).reshape(gram.shape)


def _curvatures(gram: Float[Array, "n n"], size: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """tr A / D and tr A² / tr A of the curvature A, from the Gram matrix of the contrasts; 0 where nothing is known.

    For independent contrasts with covariance A, E(y_iᵀy_j)² = tr A² and E|y_i|² = tr A. Division by sᵀy / D, which is
    1 in the stationary law, makes both right for replicas that are closer together or farther apart than that.
    """
    m = gram.shape[0] // 2
    y_y, s_y = gram[m:, m:], jnp.trace(gram[:m, m:])
    first, own = jnp.trace(y_y) / m, jnp.sum(jnp.diagonal(y_y) ** 2)
    known = (first > 0) & (s_y > 0)
    scale = jnp.where(known, m * size / jnp.where(known, s_y, 1), 0)
    mean = first / size
    # A single pair has no other to be multiplied with: the mean stands in.
    second = (jnp.sum(y_y**2) - own) / (m * (m - 1)) / jnp.where(known, first, 1) if m > 1 else mean
    return scale * mean, scale * jnp.maximum(second, mean)


def _blind_step(g: PyTree) -> Float[Array, ""]:
    """γ while all replicas are at one place: noise and drift are then at most FIRST_MOVE."""
    steepest = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(g)]))
    return FIRST_MOVE**2 / jnp.maximum(1, FIRST_MOVE * steepest)
