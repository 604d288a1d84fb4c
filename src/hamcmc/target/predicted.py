"""A posterior with a second-order control variate whose likelihood sees a few linear predictors of each row."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from hamcmc._compile import jit, may_block, put
from hamcmc._types import PyTree
from hamcmc.target import disk
from hamcmc.target.estimators import SecondOrder
from hamcmc.target.importance import Importance
from hamcmc.target.minibatch import gather
from hamcmc.target.passes import linearized
from hamcmc.target.posterior import Posterior
from hamcmc.target.predictors import Predictors, find, is_quadratic
from hamcmc.target.protocol import unbiased
from hamcmc.target.sharded import shards_of
from hamcmc.target.whitened import WhiteAtAnchor

MOST = 2  # predictors of a row: with more of them the plain gradient costs no more
LINE = 16  # numbers in a cache line, of which the table's rows have whole ones
NARROW = 64  # numbers in a row of the table, up to which a product takes out columns faster than slices do
CHUNK = 2**20  # numbers of the table that are computed at once
CHECKED = 5  # rows on which predictors are compared with the likelihood
ROUGH = 1e-3  # the relative difference that rounding may make there
SHARE = 4  # the table may take one part in so many of the memory


class Rows(NamedTuple):
    """A row of the data, or rows, as :class:`Predicted` has them.

    Attributes:
        table: (…, k, W): for each predictor its row of A S, then û, ℓ' and the weight, then its row of ℓ'', and zeros.
        rest: those columns of the data that ℓ needs beside the predictors.
    """

    table: Array
    rest: list[Array]


class Predicted(WhiteAtAnchor):
    r"""The estimator of :class:`WhiteAtAnchor`, for a likelihood that sees θ only by predictors u = û + A (θ − θ̂).

    .. math:: N (ḡ_Ω(θ) - ḡ_Ω(θ̂) - H_Ω(θ̂)(θ-θ̂))
        = \frac{N}{n} \sum_{i∈Ω} w_i A_i^⊤ [ℓ'(u_i) - ℓ'(û_i) - ℓ''(û_i)(u_i - û_i)]

    Everything at θ̂ is computed once for each row, and so is A S: then u − û = (A S) z, and the gradient with respect to
    z is (A S)ᵀ times the sum's brackets. That makes two matrix products where the general form has six. They are the
    same numbers up to rounding.

    Args:
        plain: the posterior with its control variate, on uniform rows or on rows by importance.
        like, root: as for :class:`WhiteAtAnchor`.
        predictors: of the likelihood, by :func:`predictors_of`.
    """

    def __init__(self, plain: SecondOrder, like: PyTree, root: np.ndarray, predictors: Predictors):
        super().__init__(plain, like, root)
        model, weights, data = _model(plain), None, plain.data
        if isinstance(plain.plain, Importance):
            data, weights = plain.data
        self._leaves, self._structure = jax.tree.flatten(data)
        self._needed = predictors.columns(jax.tree.map(_of_one, data))
        self._predictors = predictors
        self.settings = {**plain.settings, "predictors": predictors.number}
        self.extra_gradients = self.extra_products = 0  # what is at the anchor is known
        prior = jax.grad(model._log_prior)
        self._bent = None if is_quadratic(model._log_prior, like) else prior
        slope = unbiased(prior(plain.anchor.position), plain.anchor.mean_grad, plain.size)
        self._slope = self._back(slope)  # zero at the mode, but for rounding
        table = self._table(data, weights)
        rest = [x for x, needed in zip(self._leaves, self._needed) if needed]
        self.data = Rows(table, rest)

    @property
    def _width(self) -> int:
        """W."""
        return _width(self.centre.size, self._predictors.number)

    def grad_at(self, position: Array, image: PyTree, minibatch: Rows) -> Array:  # type: ignore[override]
        """The gradient with respect to z, given θ̂ + S z too."""
        return unbiased(self._common(image), self._remainder(position, minibatch), self.size) - position

    def log_density(self, position: Array, minibatch: Rows) -> Array:  # type: ignore[override]
        """−Ũ at θ̂ + S z."""
        return unbiased(self._log_prior(position), self._mean(position, minibatch), self.size)

    def mean_likelihood_grad(self, position: Array, minibatch: Rows) -> Array:
        """The estimate of Sᵀ ḡ."""
        prior = self._back(jax.grad(self.plain._log_prior)(self.position(position)))
        return (self.grad(position, minibatch) - prior) / self.size

    def per_datum_grads(self, position: Array, minibatch: Rows) -> Array:
        """The estimator on each datum alone."""
        one = jax.tree.map(lambda x: x[:, None], minibatch)
        return jax.vmap(self.mean_likelihood_grad, (None, 0))(position, one)

    def log_likelihoods(self, parameters: PyTree, rows: Rows) -> Array:  # type: ignore[override]
        """log p(x_i|θ) of each of many rows, with its weight."""
        return self._each(self.unconstrain_unchecked(parameters), rows)

    def _mean(self, position: Array, minibatch: Rows) -> Array:
        return jnp.mean(self._each(position, minibatch))

    def _each(self, position: Array, minibatch: Rows) -> Array:
        at, _, weight, *_ = self._columns(minibatch.table)
        away = self._away(position, minibatch.table)
        return weight[:, 0] * jax.vmap(self._predictors.likelihood)(at + away, self._rows(minibatch))

    def _remainder(self, position: Array, minibatch: Rows) -> Array:
        """Sᵀ (ḡ_Ω(θ) − ḡ_Ω(θ̂) − H_Ω(θ̂)(θ−θ̂))."""
        table = minibatch.table
        if isinstance(self.plain.plain, Importance):
            self.plain.plain.require_few(len(table))
        at, slope, weight, *bend = self._columns(table)
        away = self._away(position, table)
        slopes = jax.vmap(jax.grad(self._predictors.likelihood))(at + away, self._rows(minibatch))
        straight = sum(bend[j] * away[:, j, None] for j in range(self._predictors.number))  # XLA adds up slowly
        left = weight * (slopes - slope - straight)
        # Products with whole rows of the table: to take only its first columns would be to copy them.
        back = jnp.matmul(left.reshape(-1), table.reshape(-1, self._width), precision="highest")
        return back[: position.size] / len(table)

    def _away(self, position: Array, table: Array) -> Array:
        """u − û of each row, (n, k)."""
        z = jnp.pad(position, (0, self._width - position.size))
        return jnp.matmul(table.reshape(-1, self._width), z, precision="highest").reshape(table.shape[:-1])

    def _common(self, image: PyTree) -> Array:
        """What the estimator has beside −z and the rows: nothing for a normal prior at the mode."""
        if self._bent is None:
            return self._slope
        anchor = self.plain.anchor.position
        there, curved = linearized(self._bent, anchor)
        straight = curved(jax.tree.map(jnp.subtract, image, anchor))
        left = jax.tree.map(lambda here, there, s: here - there - s, self._bent(image), there, straight)
        return self._slope + self._back(left)

    def _rows(self, minibatch: Rows) -> PyTree:
        """Rows of the data, with zeros in columns that the likelihood does not look at."""
        rest, count = iter(minibatch.rest), len(minibatch.table)
        every = [
            next(rest) if needed else jnp.zeros((count, *x.shape[1:]), x.dtype)
            for x, needed in zip(self._leaves, self._needed)
        ]
        return jax.tree.unflatten(self._structure, every)

    def _columns(self, table: Array) -> Array:
        """û, ℓ', the weight and ℓ'', each (n, k).

        A product puts each side by side, where slices have gaps. In wide rows it costs more than the gaps.
        """
        d, k = self.centre.size, self._predictors.number
        if self._width > NARROW:
            return jnp.moveaxis(table[..., d : d + 3 + k], -1, 0)
        chosen = np.eye(3 + k, self._width, d, dtype=table.dtype)
        return jnp.matmul(chosen, table.reshape(-1, self._width).T, precision="highest").reshape(-1, *table.shape[:-1])

    def _table(self, data: PyTree, weights: Array | None) -> Array:
        """The table of all rows, chunk by chunk."""
        k, d, width, size, kind = self._predictors.number, self.centre.size, self._width, self.size, self.centre.dtype
        length = min(size, disk.whole(max(1, CHUNK // (k * width))))
        table = disk.room((size, k, width), kind)
        ones, largest = np.ones(1, kind), float(np.finfo(kind).max)

        def one(theta: Array, row: PyTree) -> tuple[Array, Array, Array, Array]:
            p = self._predictors
            u = p.values(theta, row)
            return p.matrix(theta, row), u, jax.grad(p.likelihood)(u, row), jax.hessian(p.likelihood)(u, row)

        @jit
        def part(theta: Array, root: Array, data: PyTree, weights: Array, indices: Array) -> Array:
            rows = gather(data, indices)
            a, u, slope, bend = jax.vmap(one, (None, 0))(theta, rows)
            white = jnp.matmul(a.reshape(-1, d), root, precision="highest").reshape(a.shape)
            weight = jnp.broadcast_to(gather(weights, indices)[:, None], u.shape)
            u = jnp.clip(u, -largest, largest)  # one that is infinite would make products with the table NaN
            found = jnp.concatenate([white, *(x[..., None] for x in (u, slope, weight)), bend], -1)
            return jnp.pad(found, ((0, 0), (0, 0), (0, width - found.shape[-1]))).astype(kind)

        def given(start: int) -> tuple:
            places = np.minimum(np.arange(start, start + length), size - 1)
            each = put(ones) if weights is None else weights
            return self.centre, self.root, data, each, put(places, np.int32)

        def work(start: int) -> None:
            end = min(start + length, size)
            table[start:end] = np.asarray(part(*given(start)))[: end - start]

        for _ in disk.ahead(work, range(0, size, length), alone=may_block(part, *given(0))):
            pass
        return disk.on_device(table)


def predictors_of(posterior: Posterior, like: PyTree, *, crowded: bool = False) -> Predictors | None:
    """The linear predictors of a posterior's likelihood; None if it has none, too many, or no room for their table.

    Args:
        posterior: without an estimator.
        like: an unconstrained position of it.
        crowded: whether to use them even where their table takes more than its share of the memory, as a run does that
            had room when it began.
    """
    if posterior.size == 0 or posterior.streamed or posterior.precision is not None or shards_of(posterior) is not None:
        return None
    flat, unravel = ravel_pytree(like)
    log_likelihood = _flat(posterior, unravel)
    found = find(log_likelihood, flat, jax.tree.map(_of_one, posterior.data), MOST)
    if found is None or not _agree(found, log_likelihood, flat, posterior):
        return None
    numbers = posterior.size * found.number * _width(flat.size, found.number)
    return found if crowded or numbers * flat.dtype.itemsize * SHARE <= disk.memory() else None


def _flat(posterior: Posterior, unravel: Callable[[Array], PyTree]) -> Callable[[Array, PyTree], Array]:
    """The log-likelihood of a row as a function of a flat position."""

    def log_likelihood(flat: Array, row: PyTree) -> Array:
        return posterior._log_likelihood(posterior.constrain(unravel(flat)), row)

    return log_likelihood


def _agree(found: Predictors, log_likelihood: Callable, flat: Array, posterior: Posterior) -> bool:
    """Whether the predictors are affine and give the gradients of the likelihood, on a few rows at two places.

    If they are not, an operation does other than its name says. The general form is right whatever it does.
    """
    places = np.linspace(0, posterior.size - 1, CHECKED).astype(np.int32)
    shift = np.random.default_rng(0).standard_normal(flat.size)

    @jit
    def both(theta: Array, other: Array, data: PyTree, places: Array) -> tuple[Array, ...]:
        def one(row: PyTree) -> tuple[Array, ...]:
            u, a = found.values(theta, row), found.matrix(theta, row)
            by_predictors = jax.grad(found.likelihood)(u, row) @ a
            return (
                found.values(other, row) - u,
                a @ (other - theta),
                by_predictors,
                jax.grad(log_likelihood)(theta, row),
            )

        return jax.vmap(one)(gather(data, places))

    there = put(np.asarray(flat) + 0.1 * shift, flat.dtype)
    for theta, other in ((flat, there), (there, flat)):
        moved, straight, quick, plain = map(np.asarray, both(theta, other, posterior.data, put(places)))
        for one, two in ((moved, straight), (quick, plain)):
            scale = np.max(np.abs(two), initial=1e-6, where=np.isfinite(two))
            if not np.allclose(one, two, rtol=ROUGH, atol=ROUGH * scale, equal_nan=True):
                return False
    return True


def _model(plain: SecondOrder) -> Posterior:
    """The posterior without estimator and weights."""
    return plain.plain.plain if isinstance(plain.plain, Importance) else plain.plain


def _width(dimension: int, count: int) -> int:
    """W, the numbers of a predictor in the table."""
    return -(-(dimension + 3 + count) // LINE) * LINE


def _of_one(x: Array) -> jax.ShapeDtypeStruct:
    """Shape and type of one row."""
    return jax.ShapeDtypeStruct(x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype))
