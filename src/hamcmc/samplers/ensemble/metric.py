"""The base metric of an ensemble: H⁰ = γ times it, given by the user or learned from the replicas."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.hamcmc import root_of

DENSE = 300  # dimensions up to which "auto" is dense: beyond, the products cost more than most gradients
WORDS = ("auto", "dense", "diagonal", "resting")
RIDGE = 1e-5  # share of a covariance's diagonal that is added to it, so that it has an inverse


class Dense(NamedTuple):
    """A symmetric square root of a dense metric over the flat position, and its inverse."""

    root: Float[Array, "D D"]
    inverse: Float[Array, "D D"]


Root = PyTree | Dense | None  # √d as a pytree for a diagonal metric, None for the identity


class Spread(NamedTuple):
    """What a metric that is learned in warm-up knows so far.

    Attributes:
        position: running mean squares of the replicas' contrasts, as a pytree (diagonal) or a matrix (dense).
        grad: the same for the contrasts of their gradients.
        steps: how many steps entered, at most `adapt`.
        root: the dense metric in use.
    """

    position: PyTree
    grad: PyTree
    steps: Int[Array, ""]
    root: Dense | None = None


class Metric:
    """The option ``metric`` of the ensemble samplers.

    Attributes:
        word: the user's word, or None for a metric of the user's own.
        name: for the record.
        learning: how many steps the metric is learned for; 0 if it is not learned.
    """

    def __init__(self, metric: PyTree | str | None, adapt: int):
        self.adapt = _check.at_least("adapt", adapt, 1)
        self.word = _check.one_of("metric", metric, WORDS) if isinstance(metric, str) else None
        self.name = metric if metric is None or self.word else "given"
        self.learning = self.adapt if self.word and self.word != "resting" else 0
        self._given = None if self.word else root_of(metric)

    def start(self, position: PyTree) -> Spread | None:
        """What is known before the first step."""
        kind = self._kind(position)
        if kind not in ("diagonal", "dense"):
            return None
        ones, steps = jax.tree.map(lambda x: jnp.ones_like(x[0]), position), jnp.zeros((), jnp.int32)
        if kind == "diagonal":
            return Spread(ones, ones, steps)
        identity = jnp.eye(dimension(position), dtype=jnp.result_type(*jax.tree.leaves(position)))
        return Spread(identity, identity, steps, Dense(identity, identity))

    def root(self, s: PyTree, y: PyTree, spread: Spread | None) -> Root:
        """The metric's root for this step, where s are contrasts of positions and y of gradients."""
        if self.word is None:
            return self._given
        if spread is not None and spread.root is not None:
            return spread.root
        return _diagonal(spread or Spread(_mean_square(s), _mean_square(y), jnp.zeros(())))

    def learn(self, near: Float[Array, "m m"], s: PyTree, y: PyTree, spread: Spread | None) -> Spread | None:
        """What is known after this step, where `near` combines the contrasts so that lost replicas count for little."""
        if spread is None:
            return None

        def turn(i: Any, old: Spread) -> Spread:
            tied, pairs, _ = lax.optimization_barrier((near, (s, y), i))
            drawn = jax.tree.map(lambda x: jnp.tensordot(tied.astype(x.dtype), x, 1), pairs)
            return _learn(old, drawn[0], drawn[1], self.adapt)

        # A loop of one turn or none: once the metric is kept, a step is spared the products that it was learned from.
        return lax.fori_loop(0, (spread.steps < self.adapt).astype(jnp.int32), turn, spread)

    def whitens(self, spread: Spread | None) -> Array | bool:
        """Whether a dense metric was learned to the end, so that all curvatures are about 1 in its coordinates."""
        return spread is not None and spread.root is not None and spread.steps >= self.adapt

    def known(self, spread: Spread | None) -> Array | bool:
        """Whether a dense metric was made, though perhaps not yet the last one."""
        return spread is not None and spread.root is not None and spread.steps >= renewals(self.adapt)[0]

    def _kind(self, half: PyTree) -> str | None:
        return self.word if self.word != "auto" else "dense" if dimension(half) <= DENSE else "diagonal"


def multiply(tree: PyTree, root: Root) -> PyTree:
    """Every replica times the metric's root."""
    if isinstance(root, Dense):
        return _matrix(tree, root.root)
    return tree if root is None else jax.tree.map(jnp.multiply, tree, root)


def divide(tree: PyTree, root: Root) -> PyTree:
    """Every replica divided by the metric's root."""
    if isinstance(root, Dense):
        return _matrix(tree, root.inverse)
    return tree if root is None else jax.tree.map(jnp.divide, tree, root)


def dimension(replicas: PyTree) -> int:
    """D, the size of one replica."""
    return sum(x[0].size for x in jax.tree.leaves(replicas))


def _flat(tree: PyTree) -> Float[Array, "replica D"]:
    return jnp.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(tree)], 1)


def _matrix(tree: PyTree, matrix: Float[Array, "D D"]) -> PyTree:
    """A symmetric matrix times every replica's flat position."""
    leaves, structure = jax.tree.flatten(tree)
    product = jnp.matmul(_flat(tree), matrix, precision="highest")
    ends = np.cumsum([x[0].size for x in leaves])[:-1]
    parts = jnp.split(product, ends, axis=1)
    return structure.unflatten([p.reshape(x.shape).astype(x.dtype) for p, x in zip(parts, leaves)])


def _mean_square(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.mean(x * x, 0), tree)


def _mean_product(tree: PyTree) -> Float[Array, "D D"]:
    return jnp.matmul(_flat(tree).T, _flat(tree), precision="highest") / len(jax.tree.leaves(tree)[0])


def renewals(adapt: int) -> np.ndarray:
    """The steps after which a dense metric is made anew."""
    return np.unique([max(adapt // 8, 1), max(adapt // 4, 1), max(adapt // 2, 1), adapt])


def _learn(spread: Spread, s: PyTree, y: PyTree, adapt: int) -> Spread:
    """Update the mean squares. The first steps, which are the least settled, lose their weight."""
    rate = 4 / (4 + spread.steps)

    def moved(old: PyTree, new: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: (a + rate * (b - a)).astype(a.dtype), old, new)

    steps = spread.steps + 1
    if spread.root is None:
        return Spread(moved(spread.position, _mean_square(s)), moved(spread.grad, _mean_square(y)), steps)
    position, grad = moved(spread.position, _mean_product(s)), moved(spread.grad, _mean_product(y))
    due = jnp.any(steps == renewals(adapt))

    def turn(i: Any, old: Dense) -> Dense:
        # The barrier ties the matrices to the turn; without it the compiler would take their roots before every loop.
        x, g, _ = lax.optimization_barrier((position, grad, i))
        return _dense(x, g, old)

    # A loop of one turn or none: under vmap a condition would compute both of its sides at every step.
    return Spread(position, grad, steps, lax.fori_loop(0, due.astype(jnp.int32), turn, spread.root))


def _diagonal(spread: Spread) -> PyTree:
    """√d with d = √(mean square of positions / mean square of gradients); 1 where that ratio says nothing."""

    def leaf(x, g):
        ratio = (x / jnp.where(g > 0, g, 1)) ** 0.25
        return jnp.where((g > 0) & (x > 0) & jnp.isfinite(ratio), ratio, 1.0).astype(x.dtype)

    return jax.tree.map(leaf, spread.position, spread.grad)


def _dense(position: Float[Array, "D D"], grad: Float[Array, "D D"], old: Dense) -> Dense:
    """The root of the geometric mean G of Cov(s) and Cov(y)⁻¹, the matrix with G Cov(y) G = Cov(s).

    For y = A s it is A⁻¹ wherever the replicas are, and so long before they have spread over the posterior.
    """
    scale = _diagonal(Spread(jnp.diagonal(position), jnp.diagonal(grad), jnp.zeros(())))
    x, y = _ridge(position / jnp.outer(scale, scale)), _ridge(grad * jnp.outer(scale, scale))
    y_root, y_inverse = _power(y, 0.5), _power(y, -0.5)
    g = _dot(_dot(y_inverse, _power(_dot(_dot(y_root, x), y_root), 0.5)), y_inverse)
    g = jnp.outer(scale, scale) * g
    new = Dense(_power(g, 0.5), _power(g, -0.5))
    good = jnp.isfinite(new.root).all() & jnp.isfinite(new.inverse).all()
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)


def _ridge(c: Float[Array, "D D"]) -> Float[Array, "D D"]:
    return c + RIDGE * jnp.diag(jnp.diagonal(c))


def _dot(a: Float[Array, "D D"], b: Float[Array, "D D"]) -> Float[Array, "D D"]:
    return jnp.matmul(a, b, precision="highest")


def _power(c: Float[Array, "D D"], exponent: float) -> Float[Array, "D D"]:
    """A power of a symmetric positive definite matrix."""
    values, q = jnp.linalg.eigh((c + c.T) / 2)
    floor = jnp.finfo(c.dtype).eps * values[-1]
    return jnp.matmul(q * jnp.maximum(values, floor) ** exponent, q.T, precision="highest")
