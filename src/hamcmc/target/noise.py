"""The noise of a gradient estimator, in the coordinates in which the posterior is about standard normal."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from hamcmc import _check
from hamcmc._compile import jit, may_block
from hamcmc._types import PyTree
from hamcmc.target import disk
from hamcmc.target.minibatch import gather
from hamcmc.target.mode import Laplace
from hamcmc.target.posterior import Posterior
from hamcmc.target.view import View

CHUNK = 2**20  # rows · parameters at once
ROWS = 2**16  # of the data, at most
DRAWS = 32
TOGETHER = 4  # draws that are looked at side by side


class Noise(NamedTuple):
    r"""The noise of a gradient estimator at draws of the Laplace approximation, as :func:`gradient_noise` measures it.

    In white coordinates :math:`z = L^{-1}(θ - θ̂)` the Hessian of U is about the identity. The estimate on a minibatch
    of n rows is there :math:`L^T ĝ = -z + ξ` with :math:`\mathrm{Cov}\, ξ = C / n`. A Langevin step that is exact for
    the normal law, :math:`z' = z + ε L^T ĝ + (ε(2-ε))^{1/2} w`, then has the stationary variance v with
    :math:`v = (1-ε)^2 v + ε(2-ε) + ε^2 λ/n` in the direction of an eigenvector of C with eigenvalue λ:

    .. math:: v = 1 + \frac{ε}{2-ε} \frac{λ}{n}.

    The gradient's noise therefore inflates the variance by :meth:`inflation`, in any direction by no more than with the
    largest eigenvalue. A plain Euler step, with noise 2ε, has the variance :math:`(2 + ελ/n)/(2-ε)`.

    Attributes:
        covariance: C (D, D), of one row; only its diagonal (D,) for a Laplace approximation with a diagonal.
        bend: by how much the gradient differs from that of the normal law: the root mean square over draws and
            coordinates of :math:`L^T g(θ) + z`. It is 0 for a normal posterior, and about 1 or more where the Laplace
            approximation says nothing of it.
        rows: how many rows were looked at.
        most_bent: the same of the coordinate in which it is largest. A single curved parameter among many that are not
            hardly shows in the mean over all.
    """

    covariance: np.ndarray
    bend: float
    rows: int
    most_bent: float = 0.0

    @property
    def eigenvalues(self) -> np.ndarray:
        """The eigenvalues of C, rising."""
        return np.sort(self.covariance) if self.covariance.ndim == 1 else np.linalg.eigvalsh(self.covariance)

    @property
    def largest(self) -> float:
        """The largest eigenvalue of C."""
        return float(self.eigenvalues[-1])

    @property
    def trace(self) -> float:
        """The trace of C."""
        return float(self.covariance.sum() if self.covariance.ndim == 1 else np.trace(self.covariance))

    def inflation(self, step_size: float, batch_size: int) -> float:
        """By which share the gradient's noise inflates the variance in the worst direction."""
        return step_size / (2 - step_size) * self.largest / batch_size

    def batch_size(self, step_size: float, inflation: float) -> int:
        """The smallest minibatch with no more than this inflation."""
        return max(
            1, int(np.ceil(step_size / (2 - step_size) * self.largest / _check.positive("inflation", inflation)))
        )


def gradient_noise(
    posterior: Posterior, laplace: Laplace, *, draws: int = DRAWS, rows: int = ROWS, seed: int = 0
) -> Noise:
    """Measure the noise of a posterior's gradient estimator where its mass is, from the scatter between rows.

    It looks at all rows, or at as many as are allowed, drawn as a minibatch is. Rows that matter and are too rare to be
    among them are missed: for such data draw rows by importance. From few draws the largest eigenvalue comes out too
    large, because noise grows with the distance from the mode and each draw is far away in some direction.

    Args:
        posterior: a posterior, such as :func:`hamcmc.control_variate` returns.
        laplace: its Laplace approximation.
        draws: of the Laplace approximation at which to look.
        rows: the most rows of the data to look at.
        seed: for draws and rows.

    Returns:
        A :class:`~hamcmc.Noise` for minibatches of one row. That of n rows is n times less.
    """
    square, d = laplace.precision.ndim == 2, laplace.dimension
    white, positions = _draws(laplace, _check.at_least("draws", draws, 1), seed)
    common = _common(posterior, laplace, positions)
    if posterior.size == 0:
        return Noise(np.zeros(laplace.precision.shape), _rms(common + white), 0, _most(common + white))
    seen, chances = _rows(posterior, _check.at_least("rows", rows, 2), jax.random.key(seed))
    share = getattr(getattr(posterior, "shards", None), "share", None)  # of the rows, if several processes share them
    where, here = (posterior, seen) if share is None else (share.view(posterior), share.own(seen))
    chances = chances if len(here) == len(seen) else np.full(len(here), chances[0])
    mean, second = np.zeros((draws, d)), np.zeros(laplace.precision.shape)

    def moments(scatter: Array, chance: Array) -> tuple[Array, Array]:
        weighted = scatter * chance[:, None]
        return weighted.sum(0), weighted.T @ scatter if square else (weighted * scatter).sum(0)

    roots = np.broadcast_to(laplace.root, (draws, *laplace.root.shape))
    for which, _, (one, two) in over_rows(where, positions, roots, here, chances, moments, posterior.size):
        mean[which] += one
        second += two.sum(0) / draws
    mean, second = (mean, second) if share is None else share.total([mean, second])
    second -= (mean.T @ mean if square else (mean**2).sum(0)) / draws
    differ = common + mean + white
    return Noise(second, _rms(differ), len(seen), _most(differ))


def _rms(x: np.ndarray) -> float:
    """The root mean square of all numbers."""
    return float(np.sqrt(np.mean(x**2)))


def _most(x: np.ndarray) -> float:
    """The largest root mean square of a column."""
    return float(np.sqrt(np.max(np.mean(x**2, axis=0))))


def over_rows(
    posterior: Posterior,
    positions: PyTree,
    roots: np.ndarray,
    rows: np.ndarray | None,
    chances: np.ndarray | None,
    reduce: Callable[[Array, Array], PyTree],
    size: int | None = None,
) -> Iterator[tuple[slice, np.ndarray, PyTree]]:
    """What `reduce` makes of the residuals Lᵀ N (g_i − c) of rows i at each position, chunk by chunk.

    Here g_i is the estimator on row i alone, and c is its part that is common to all rows.

    Args:
        posterior: with `per_datum_grads`.
        positions: a pytree with a leading axis of length K.
        roots: L for each position, (K, D, any) or (K, D).
        rows: which rows of the data; None for all of them.
        chances: a weight for each row; None for equal weights of 1.
        reduce: a function of residuals (n, any) and weights (n,). Rows that only fill up a chunk have weight 0.
        size: N, where the posterior has some of the rows alone.

    Yields:
        Which positions these are, the places in `rows`, and the reduction at each of the positions (along a leading
        axis) in double precision.
    """
    kind = jax.tree.leaves(positions)[0].dtype
    count = posterior.size if rows is None else len(rows)
    if count == 0:
        return
    length = min(count, disk.whole(max(1, CHUNK // roots.shape[1])))
    kept = jnp.asarray(roots, kind)

    together = math.gcd(len(roots), TOGETHER)  # positions that share what the estimator computes at its anchor

    def one(position: PyTree, root: Array, rows: PyTree, weights: Array) -> PyTree:
        each = posterior.per_datum_grads(position, rows)
        apart = jax.tree.map(jnp.subtract, each, common_grad(posterior, position))
        flat = (size or posterior.size) * jax.vmap(lambda tree: ravel_pytree(tree)[0])(apart)
        return reduce(flat * root if root.ndim == 1 else flat @ root, weights)

    @jit
    def reduced(k, positions, roots, data, indices, weights):
        rows = data if indices is None else gather(data, indices)
        some = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, k, together), positions)
        their = lax.dynamic_slice_in_dim(roots, k, together)
        return jax.vmap(one, (0, 0, None, None))(some, their, rows, weights)

    def work(start: int) -> list[tuple[slice, np.ndarray, PyTree]]:
        places = np.arange(start, start + length)
        inside = np.minimum(places, count - 1)
        chance = 1.0 if chances is None else chances[inside]
        weights = jnp.asarray(np.where(places < count, chance, 0), kind)
        taken = inside if rows is None else rows[inside]
        data, indices = posterior.data, None
        if posterior.streamed and rows is None and start + length <= count:
            taken = slice(start, start + length)
        if posterior.streamed:
            data = jax.tree.map(lambda x: disk.on_device(disk.rows(x, taken)), data)
        else:
            indices = jnp.asarray(taken, jnp.int32)
        found = []
        for k in range(0, len(roots), together):
            some = reduced(k, positions, kept, data, indices, weights)
            in_double = jax.tree.map(lambda x: np.asarray(x, np.float64), some)
            found.append((slice(k, k + together), places[places < count], in_double))
        return found

    data, indices = posterior.data, jax.ShapeDtypeStruct((length,), np.int32)
    if posterior.streamed:
        data, indices = disk.shapes(posterior.data, length), None
    alone = may_block(reduced, 0, positions, kept, data, indices, jax.ShapeDtypeStruct((length,), kind))
    for found in disk.ahead(work, range(0, count, length), alone=alone):
        yield from found


def common_grad(posterior: Posterior, position: PyTree) -> PyTree:
    """The part of a gradient estimator that is the same for all rows."""
    return posterior.common_grad(position) if isinstance(posterior, View) else jax.tree.map(jnp.zeros_like, position)


def _draws(laplace: Laplace, draws: int, seed: int) -> tuple[np.ndarray, PyTree]:
    """Draws as rows in white coordinates (K, D), and as positions with a leading axis."""
    positions = laplace.draw(draws, seed)
    leaves = [np.asarray(x, np.float64).reshape(draws, -1) for x in jax.tree.leaves(positions)]
    return laplace.whiten(np.concatenate(leaves, 1)), positions


def _common(posterior: Posterior, laplace: Laplace, positions: PyTree) -> np.ndarray:
    """Lᵀ of the gradient's part that no row changes, (K, D): the prior's, and that of the control variate."""

    def each(position):
        if posterior.size == 0:
            return ravel_pytree(posterior.grad(position))[0]
        return ravel_pytree(posterior.combine(position, common_grad(posterior, position)))[0]

    flat = np.asarray(jit(partial(jax.lax.map, each))(positions), np.float64)
    return flat * laplace.root if laplace.root.ndim == 1 else flat @ laplace.root


def _rows(posterior: Posterior, most: int, key: Array) -> tuple[np.ndarray, np.ndarray]:
    """Rows to look at, and with which probability a minibatch has each of them."""
    if posterior.size > most:
        return posterior.some_rows(key, most), np.full(most, 1 / most)
    uniform = np.full(posterior.size, 1 / posterior.size)
    return np.arange(posterior.size), getattr(posterior, "probabilities", uniform)
