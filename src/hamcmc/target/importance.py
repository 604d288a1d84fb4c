"""Minibatches by importance: rows that add more to the noise of the gradient are drawn more often.

Row i is drawn with probability p_i and counts with the weight 1/(N p_i), so the gradient stays unbiased. A share of the
draws is uniform, which bounds the weights.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc._compile import x64
from hamcmc._random import bits
from hamcmc._types import PyTree
from hamcmc.target import disk
from hamcmc.target.mode import Laplace
from hamcmc.target.noise import over_rows
from hamcmc.target.posterior import Posterior
from hamcmc.target.view import View

UNIFORM = 0.3  # share of the draws that ignore the scores
STEPS = int(2 / UNIFORM + 1).bit_length()  # of the search for a row: a bucket is at most as wide as two average rows
TICKS = 2**32  # probabilities are multiples of its inverse, so that integer arithmetic draws them exactly
DRAWS = (4, 32)  # of the Laplace approximation at which rows are compared, at least and at most
WORK = 2**30  # rows · parameters · draws
BLOCK = 2**18  # rows whose ticks are computed at once
STREAM = 1  # of random numbers, for the draws at which rows are compared
PROJECTED = 16  # random directions along which residuals are compared: enough for the mean of their squared lengths


class Weighted(NamedTuple):
    """A row of the data, or rows, and the weight 1/(N p_i)."""

    row: PyTree
    weight: Array | np.ndarray


class Importance(View):
    """A posterior whose minibatches are drawn row by row with given probabilities.

    Its data are those of `plain` and a weight for each row, and a likelihood is the weighted one.

    Args:
        plain: the posterior.
        probabilities: (N,), above zero, of sum 1.
    """

    def __init__(self, plain: Posterior, probabilities: np.ndarray):
        super().__init__(plain)
        last = disk.scratch(plain.size, np.uint32, plain.streamed)  # the last tick of each row
        weights = disk.scratch(plain.size, np.float64 if x64() else np.float32, plain.streamed)
        for rows, ends, ticks in _ticks(probabilities):
            last[rows], weights[rows] = ends, (1 / (plain.size * (ticks / TICKS)))
        self.last = last if plain.streamed else jnp.asarray(last)
        self._guide = None if plain.streamed else Guide.of(last)  # where to look; streamed rows are found on the host
        self.data = Weighted(plain.data, weights if plain.streamed else jnp.asarray(weights))
        self.settings = {**plain.settings, "rows": "importance"}

    @property
    def probabilities(self) -> np.ndarray:
        """p (N,), as rows are drawn."""
        return np.diff(np.asarray(self.last, np.int64), prepend=-1) / TICKS

    def log_likelihood(self, parameters: PyTree, datum: Weighted) -> Array:
        """log p(x_i|θ)/(N p_i)."""
        return jnp.asarray(datum.weight) * self.plain._log_likelihood(parameters, datum.row)

    def log_likelihoods(self, parameters: PyTree, rows: Weighted) -> Array:
        """log p(x_i|θ)/(N p_i) of each of many rows."""
        return jnp.asarray(rows.weight) * self.plain.log_likelihoods(parameters, rows.row)

    def _log_likelihood(self, parameters: PyTree, datum: Weighted) -> Array:
        return self.log_likelihood(parameters, datum)

    def mean_likelihood_grad(self, position: PyTree, minibatch: Weighted) -> PyTree:
        """ḡ_Ω(θ) = (1/n) Σ_{i∈Ω} ∇ log p(x_i|θ)/(N p_i)."""
        self.require_few(len(minibatch.weight))
        return super().mean_likelihood_grad(position, minibatch)

    def require_few(self, rows: int) -> None:
        """Raise if a minibatch has all rows, which would count by their weights as if they had been drawn."""
        if rows == self.size:
            raise ValueError("minibatches by importance must have fewer rows than the data: give a batch_size")

    def minibatch_indices(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """One row from each of n equally probable ranges of rows. `replace` plays no part."""
        ticks = drawn_ticks(key, iteration, batch_size)
        if self._guide is None:
            return jnp.searchsorted(jnp.asarray(self.last), ticks).astype(jnp.int32)
        return self._guide.rows(jnp.asarray(self.last), ticks)

    def drawn(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """The ticks of one minibatch, from which :meth:`found` makes the same rows on the host."""
        return drawn_ticks(key, iteration, batch_size)

    def found(self, drawn: np.ndarray) -> np.ndarray:
        """The rows that have these ticks."""
        return np.searchsorted(np.asarray(self.last), drawn).astype(np.int32)

    def checksum(self) -> str:
        """SHA-256 of data and probabilities."""
        digest = hashlib.sha256(self.plain.checksum().encode())
        digest.update(np.asarray(self.last).view(np.uint8).data)
        return digest.hexdigest()


class Guide(NamedTuple):
    """A table with which the row of a tick is found in a few steps, where a search among all rows takes log₂ N.

    Ticks fall into equal buckets, one for each row or two. The share of uniform draws bounds how many rows end in a
    bucket, and so it takes STEPS to find the right one of them. Probabilities without such a share may take more.

    Attributes:
        first: for each bucket, the row of its first tick.
        shift: a tick without its last so many bits is the number of its bucket.
        steps: of the search in a bucket.
    """

    first: Array
    shift: int
    steps: int

    @classmethod
    def of(cls, last: np.ndarray) -> "Guide":
        """The table for rows with these last ticks."""
        bits = max(1, len(last).bit_length() - 1)
        shift = 32 - bits
        ends = np.bincount(last >> np.uint32(shift), minlength=2**bits)
        # At least STEPS, so that data of the same size have the same program.
        steps = max(STEPS, int(ends.max()).bit_length())
        return cls(jnp.asarray((np.cumsum(ends) - ends).astype(np.int32)), shift, steps)

    def rows(self, last: Array, ticks: Array) -> Array:
        """The row of each tick, which is the first one whose last tick is not below it."""
        row = self.first[(ticks >> np.uint32(self.shift)).astype(jnp.int32)]
        for power in reversed(range(self.steps)):
            ahead = jnp.take(last, row + (2**power - 1), mode="clip")
            row = jnp.where(ahead < ticks, row + 2**power, row)
        return row


def require_uniform(posterior: Posterior, what: str) -> None:
    """Raise if rows are drawn by importance, for what draws rows uniformly itself."""
    if posterior.settings.get("rows") == "importance":
        raise ValueError(f"{what} draw rows uniformly: give the posterior without importance")


def scores(view: Posterior, laplace: Laplace, *, draws: int | None = None, seed: int = 0) -> np.ndarray:
    """How much each row adds to the noise of a gradient estimator, (N,).

    It is the root mean square over draws of the Laplace approximation of ‖Lᵀ(g_i − c)‖, where g_i is the estimator on
    row i alone, c is its part that is common to all rows, and L whitens. Rows drawn in proportion to it give the noise
    of the least trace in white coordinates.

    Args:
        view: a posterior, on uniform minibatches, whose `per_datum_grads` are the estimator on each row.
        laplace: the Laplace approximation of the posterior.
        draws: how many; by default as many as can be afforded, 4 to 32.
        seed: for the draws.
    """
    if draws is None:
        draws = int(np.clip(WORK // (view.size * laplace.dimension), *DRAWS))
    # Not the stream of `laplace.draw`: noise at the very draws to which rows are fitted looks too small.
    rng = np.random.default_rng((seed, STREAM))
    positions = laplace.unravel(laplace.spread(rng.standard_normal((draws, laplace.dimension))))
    roots = np.broadcast_to(laplace.root, (draws, *laplace.root.shape))
    if roots.ndim == 3 and laplace.dimension > PROJECTED:
        signs = rng.choice([-1.0, 1.0], (draws, laplace.dimension, PROJECTED))
        roots = np.stack([laplace.root @ turn for turn in signs])  # keeps the mean of squared lengths, up to a factor

    def squares(white: Array, _: Array) -> Array:
        return jnp.sum(white**2, 1)

    total = disk.scratch(view.size, np.float64, view.streamed)
    for _, rows, found in over_rows(view, positions, roots, None, None, squares):
        total[rows[0] : rows[-1] + 1] += found[:, : len(rows)].sum(0)
    total /= draws
    return np.sqrt(total, out=total)  # in place, as all that has a number for each row


def drawn_ticks(key: Array, iteration: Array, count: int) -> Array:
    """One tick from each of n ranges of equal length."""
    drawn = bits(jax.random.fold_in(key, iteration), count)
    if count == 1:  # the range of all ticks, whose length is no number of 32 bits
        return drawn
    edges = np.arange(count + 1) * TICKS // count
    return jnp.asarray(edges[:-1], jnp.uint32) + drawn % jnp.asarray(np.diff(edges), jnp.uint32)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """A mixture of uniform ones and ones in proportion to the scores, which they replace in place."""
    total = scores.sum()
    if not (np.isfinite(total) and total > 0):  # no score is below zero
        scores[...] = 1 / len(scores)
        return scores
    scores *= (1 - UNIFORM) / total
    scores += UNIFORM / len(scores)
    return scores


def _ticks(probabilities: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Whole numbers of sum 2³² in proportion to the probabilities, at least 1 each, in blocks of rows.

    Yields:
        The rows, the last tick of each, and how many ticks it has.
    """
    size, total = len(probabilities), float(probabilities.sum())
    if not abs(total - 1) < 1e-6:
        raise ValueError("probabilities must be above 0 and of sum 1")
    reached, before = 0.0, -1
    for start in range(0, size, BLOCK):
        part = np.array(probabilities[start : start + BLOCK], np.float64)
        if not (part > 0).all():
            raise ValueError("probabilities must be above 0 and of sum 1")
        part[0] += reached
        reached = np.cumsum(part, out=part)[-1]
        rows = slice(start, start + len(part))
        ends = (part * ((TICKS - size) / total)).astype(np.int64) + np.arange(rows.start, rows.stop)
        if rows.stop == size:
            ends[-1] = TICKS - 1
        yield rows, ends, np.diff(ends, prepend=before)
        before = ends[-1]
