"""Sums over all data in chunks: the log-density, its gradient and its second derivatives, added up in double precision.

A chunk has a fixed number of rows, and rows that only fill up the last chunk have weight 0. So one compiled program
serves all chunks of all passes, on all data, on a random part of them, and on streamed data. Threads work on several
chunks side by side, and read those that are on disk; the sums are added up in the order of the chunks.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from hamcmc._compile import jit, may_block, put
from hamcmc._types import PyTree
from hamcmc.target import disk
from hamcmc.target.minibatch import gather
from hamcmc.target.posterior import Posterior

CHUNK = 2**20  # numbers of the data, or of a parameter for each row, in a chunk: some MiB
MOST_ROWS = 2**14  # in a chunk: longer sums lose digits in single precision
TILE = 2**14  # numbers that a gradient takes at once: they stay in a core's own cache, also in double precision
BLOCK = 2**27  # rows · parameters · basis vectors of one matrix product
MANY = 64  # chunks from which on it pays to try the Hessian's products in single precision
TRIED = 8  # chunks on which both precisions are compared
ROUGH = 1e-3  # the relative error of a curvature, in any direction, up to which single precision is enough


def quiet() -> np.errstate:
    """Without NumPy's warnings: far away a density may overflow, and callers look at that."""
    return np.errstate(over="ignore", invalid="ignore")


class Parts(NamedTuple):
    """A sum over data in two parts, flat and in double precision: that of the prior, and that of the likelihood."""

    prior: Any
    likelihood: Any

    @property
    def total(self) -> Any:
        """The part of the prior and that of the likelihood together."""
        with quiet():
            return self.prior + self.likelihood


class Places(NamedTuple):
    """Where a chunk is: the places from `start` to `stop` in the data, or in a list of rows."""

    start: int
    stop: int
    rows: np.ndarray | None


class Passes:
    """The log-density of a posterior and its derivatives, as functions of a flat unconstrained position.

    Programs run in double precision where the model can be traced in it, whatever precision the session has: the digits
    of a mode and of a Hessian are worth the time. A model that insists on single precision gets single precision, and
    still its chunks are added up in double precision. The Hessian of many chunks is a sum of products in single
    precision where these are exact enough (:meth:`_roughly`).

    Attributes:
        dimension: D.
        kind: the type of the session's positions. Positions are rounded to it (:meth:`rounded`).
        double: whether programs run in double precision.
        chunk: rows of a chunk.
        part: the same if one process has all rows, so that it is a number on which processes agree.
        spent: the work so far, in gradients on all data. A Hessian costs as much as D of them.
    """

    def __init__(self, posterior: Posterior, position: PyTree):
        self.posterior = posterior = plain(posterior)
        self._own = vars(posterior).get("share")  # of several processes, each adds up its own rows
        self._held = held = posterior if self._own is None else self._own.held
        flat, self._to_session = ravel_pytree(position)
        self.dimension, self.kind, self.spent = flat.size, np.dtype(flat.dtype), 0.0
        leaves = jax.tree.leaves(held.data)
        widest = max([self.dimension, *(int(np.prod(x.shape[1:])) for x in leaves)])
        self.part, _ = _chunk(posterior.size, widest)
        self.chunk, self._tiles = _chunk(held.size, widest)
        most = max(1, BLOCK // (max(1, self.chunk) * self.dimension))  # basis vectors at once
        self._block = -(-self.dimension // -(-self.dimension // most))  # blocks of about equal size waste no work
        self._sums, self._second, self._products = map(jit, (self._first, self._hessian, self._along))
        # JAX converts a NumPy array that a model closes over only once, and keeps the outcome as long as something
        # refers to it. So the session comes first, and what it got is held: otherwise the session would later meet
        # numbers in double precision. A model with such arrays then fails to be traced in double precision.
        self.double = False
        self._prepare(position)
        first = next(self._chunks(None))
        self._session = jax.make_jaxpr(self._first)(self._device(np.asarray(flat)), *self._read(first))
        self._alone: dict[Callable, bool] = {}  # of each program, once it is known
        self.double = True
        try:
            self._prepare(position)
            with self._precision():
                self._sums.lower(self._device(np.asarray(flat)), *self._read(first))
        except Exception:  # whatever the model raises: in single precision it runs, or raises it again
            self.double = False
            self._prepare(position)

    def _prepare(self, position: PyTree) -> None:
        self._ones: Array | None = None  # of the precision that is set now
        with self._precision():
            kind = np.float64 if self.double else None
            self._unravel = ravel_pytree(jax.tree.map(lambda x: put(np.asarray(x), kind), position))[1]

    # --- positions ---

    @property
    def precision(self) -> float:
        """The relative error of one number that a program computes."""
        return float(np.finfo(np.float64 if self.double else self.kind).eps)

    def flat(self, position: PyTree) -> np.ndarray:
        """A position as one vector in double precision."""
        return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(position)])

    def position(self, x: np.ndarray) -> PyTree:
        """The pytree of a flat position, in the session's precision."""
        return self._to_session(put(x, self.kind))

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """The nearest position that the session can represent."""
        with quiet():
            return x.astype(self.kind).astype(np.float64)

    def fold(self, x: np.ndarray) -> np.ndarray:
        """The position folded back into the mirrored supports."""
        if self.posterior.mirror is None:
            return x
        with self._precision():
            return np.asarray(ravel_pytree(self.posterior.mirror(self._unravel(self._device(x))))[0], np.float64)

    # --- sums over the data, or over given rows with the weight N/n ---

    def value_and_grad(self, x: np.ndarray, rows: np.ndarray | None = None) -> tuple[Parts, Parts]:
        """The log-density and its gradient, each in two parts."""
        value, grad = self._total(self._sums, x, rows, ())
        self.spent += self._share(rows)
        return value, grad

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None) -> Parts:
        """∇² of the log-density (D, D) in two parts, as matrix products."""
        program = self._rough if self._roughly(x, rows) else self
        found = program._total(program._second, x, rows, ())[0]
        self.spent += self.dimension * self._share(rows)
        with quiet():
            return Parts(*((h + h.T) / 2 for h in found))

    def products(self, x: np.ndarray, vectors: np.ndarray, rows: np.ndarray | None = None) -> Parts:
        """∇² of the log-density times each row of `vectors` (K, D)."""
        with self._precision():
            given = (self._device(vectors),)
        self.spent += len(vectors) * self._share(rows)
        return self._total(self._products, x, rows, given)[0]

    def _roughly(self, x: np.ndarray, rows: np.ndarray | None) -> bool:
        """Whether products in single precision are exact enough for a Hessian.

        A few chunks are computed in both precisions. Their mean difference E, in coordinates in which their mean
        Hessian is the identity, estimates the largest relative error of a curvature. Rounding that differs between
        chunks averages out in the sum of all, so the estimate should be too large. Columns that nearly depend on each
        other make E large.
        """
        chunks = list(self._chunks(rows))
        if not (self.double and self.kind == np.float32) or len(chunks) < MANY or (self.rounded(x) != x).any():
            return False
        exact, off = np.zeros((2, self.dimension, self.dimension))
        for chunk in chunks[:: -(-len(chunks) // TRIED)]:
            here, there = (p._of_chunk(p._second, p._at(x), chunk, ())[0] for p in (self, self._rough))
            with quiet():
                exact -= here.likelihood + here.prior / len(chunks)
                off += there.likelihood - here.likelihood
        if not (np.isfinite(exact).all() and np.isfinite(off).all()):
            return False
        try:
            root = np.linalg.inv(np.linalg.cholesky((exact + exact.T) / 2))
        except np.linalg.LinAlgError:
            return False
        return bool(np.linalg.norm(root @ off @ root.T, 2) < ROUGH)

    @cached_property
    def _rough(self) -> "Passes":
        """The same sums, in the precision of a session in single precision."""
        twin = copy(self)
        twin.double, twin._unravel, twin._ones = False, self._to_session, None
        twin._second = jit(twin._hessian)
        return twin

    def _share(self, rows: np.ndarray | None) -> float:
        return 1.0 if rows is None else len(rows) / self.posterior.size

    def _total(self, program: Callable, x: np.ndarray, rows: np.ndarray | None, given: tuple) -> tuple[Parts, ...]:
        """The program's sums over chunks. The first chunk counts for the prior, which is the same in all of them."""
        found: tuple[Parts, ...] = ()
        at = self._at(x)
        work = partial(self._of_chunk, program, at, given=given)
        for new in disk.ahead(work, self._chunks(rows), alone=self._runs_alone(program, at, rows, given)):
            with quiet():
                found = tuple(Parts(a.prior, a.likelihood + b.likelihood) for a, b in zip(found, new)) or new
        if self._own is not None:
            if not found:  # none of the rows is here
                found = tuple(p._replace(likelihood=0 * p.prior) for p in work(Places(0, 1, None)))
            sums = self._own.total([p.likelihood for p in found])
            found = tuple(p._replace(likelihood=s) for p, s in zip(found, sums))
        scale = 1.0 if rows is None else self.posterior.size / len(rows)
        with quiet():
            return tuple(Parts(a.prior, scale * a.likelihood) for a in found)

    def _runs_alone(self, program: Callable, at: Array, rows: np.ndarray | None, given: tuple) -> bool:
        """Whether the program must not run beside another one of its kind."""
        if program not in self._alone and (chunk := next(self._chunks(rows), None)) is not None:
            with self._precision():
                if self._held.streamed:  # without reading any
                    read = disk.shapes(self._held.data, self.chunk), None, self._weights(self.chunk)
                else:
                    read = self._read(chunk)
                self._alone[program] = may_block(program, at, *read, *given)
        return self._alone.get(program, True)

    def _at(self, x: np.ndarray) -> Array:
        """A flat position as the programs take it."""
        with self._precision():
            return self._device(x)

    def _of_chunk(self, program: Callable, at: Array, chunk: Places | None, given: tuple) -> tuple[Parts, ...]:
        """The program's sums over one chunk, in double precision."""
        with self._precision():  # which is a setting of the thread
            parts = program(at, *self._read(chunk), *given)
            return tuple(Parts(*(np.array(part, np.float64) for part in parts_of)) for parts_of in parts)

    def _chunks(self, rows: np.ndarray | None) -> Iterator[Places | None]:
        """Where each chunk is; None without data."""
        if self.posterior.size == 0:
            yield None
            return
        rows = rows if self._own is None else self._own.own(rows)
        if rows is not None and self._held.streamed:
            rows = np.sort(rows)  # so that those of a chunk are near to each other on disk
        count = self._held.size if rows is None else len(rows)
        for start in range(0, count, self.chunk):
            yield Places(start, min(start + self.chunk, count), rows)

    def _read(self, at: Places | None) -> tuple[PyTree, Array | None, Array | None]:
        """Data, which of their rows to take (None for all of them), and the rows' weights, for a chunk."""
        if at is None:
            return None, None, None
        weights = self._weights(at.stop - at.start)
        if not self._held.streamed and at.rows is None and self.chunk == self._held.size:
            return self._held.data, None, weights
        if not self._held.streamed:
            place = np.minimum(np.arange(at.start, at.start + self.chunk), at.stop - 1)
            return self._held.data, put(place if at.rows is None else at.rows[place], np.int32), weights
        taken = slice(at.start, at.stop)
        taken = taken if at.rows is None else at.rows[taken]

        def read(x: np.ndarray) -> Array:
            return disk.on_device(_padded(disk.rows(x, taken), self.chunk))

        return jax.tree.map(read, self._held.data), None, weights

    def _weights(self, count: int) -> Array:
        """1 for each of so many rows of a chunk, 0 for those that only fill it up; made once for a full chunk."""
        if count < self.chunk:
            return self._device((np.arange(self.chunk) < count).astype(np.float64))
        if self._ones is None:
            self._ones = self._device(np.ones(self.chunk))
        return self._ones

    # --- what is compiled ---

    def _precision(self) -> AbstractContextManager:
        return jax.enable_x64(True) if self.double else nullcontext()

    def _device(self, x: np.ndarray) -> Array:
        return put(x, np.float64 if self.double else self.kind)

    def _densities(self, data: PyTree, indices: Any, weights: Any) -> tuple[Callable, Callable]:
        """The log-prior and the weighted log-likelihood of a chunk, as functions of a flat position."""

        def prior(x: Array) -> Array:
            return self._held._log_prior(self._unravel(x))

        def likelihood(x: Array) -> Array:
            if weights is None:
                return jnp.zeros((), x.dtype)
            rows = jax.tree.map(self._cast, data if indices is None else gather(data, indices))
            parameters = self._held.constrain(self._unravel(x))
            return jnp.sum(weights * self._held.log_likelihoods(parameters, rows))

        return prior, likelihood

    def _cast(self, leaf: Array) -> Array:
        kind = jnp.result_type(leaf.dtype, jnp.float64) if self.double else leaf.dtype
        return leaf.astype(kind) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

    def _first(self, x: Array, data: PyTree, indices: Any, weights: Any) -> tuple[Parts, Parts]:
        prior, likelihood = self._densities(data, indices, weights)
        at_prior = jax.value_and_grad(prior)(x)
        if self._tiles == 1 or weights is None:
            at_likelihood = jax.value_and_grad(likelihood)(x)
        else:
            rows = data if indices is None else gather(data, indices)
            tiles = jax.tree.map(lambda a: a.reshape(self._tiles, -1, *a.shape[1:]), (rows, weights))

            def tile(part: tuple[PyTree, Array]) -> tuple[Array, Array]:
                return jax.value_and_grad(self._densities(part[0], None, part[1])[1])(x)

            at_likelihood = jax.tree.map(lambda a: a.sum(0), lax.map(tile, tiles))
        return tuple(Parts(*both) for both in zip(at_prior, at_likelihood))  # type: ignore[return-value]

    def _hessian(self, x: Array, *chunk: Any) -> tuple[Parts]:
        blocks = -(-self.dimension // self._block)
        basis = jnp.eye(blocks * self._block, self.dimension, dtype=x.dtype).reshape(blocks, self._block, -1)

        def square(f: Callable) -> Array:
            product = linearized(jax.grad(f), x)[1]
            return lax.map(jax.vmap(product), basis).reshape(-1, self.dimension)[: self.dimension]

        return (Parts(*map(square, self._densities(*chunk))),)

    def _along(self, x: Array, data: PyTree, indices: Any, weights: Any, vectors: Array) -> tuple[Parts]:
        densities = self._densities(data, indices, weights)
        return (Parts(*(jax.vmap(linearized(jax.grad(f), x)[1])(vectors) for f in densities)),)


def linearized(grad: Callable[[PyTree], PyTree], x: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """A gradient at x, and ``v -> H v`` by its derivative H there."""
    try:
        return jax.linearize(grad, x)
    except TypeError:  # a function with a reverse-mode rule of its own; H is symmetric
        value, transposed = jax.vjp(grad, x)
        return value, lambda v: transposed(v)[0]


def _chunk(size: int, widest: int) -> tuple[int, int]:
    """Rows of a chunk, for so many rows of so many numbers, and its tiles for gradients."""
    rows = min(size, max(1, min(MOST_ROWS, CHUNK // widest)))
    tiles = max(1, -(-rows * widest // TILE))
    tile = -(-rows // tiles)
    return tiles * (tile if rows == size else disk.whole(tile)), tiles


def plain(posterior: Posterior) -> Posterior:
    """The posterior that a gradient estimator is a view of, or the posterior itself."""
    while "plain" in vars(posterior):
        posterior = posterior.plain  # type: ignore[attr-defined]
    return posterior


def _padded(x: np.ndarray, length: int) -> np.ndarray:
    """The rows, followed by copies of the last one up to the given length."""
    return np.concatenate([x, np.repeat(x[-1:], length - len(x), axis=0)]) if len(x) < length else x
