"""The gradient of sparse matrix factorization and the noise of a step: our kernels against formulations in XLA.

All of them compute the same gradients of the same ratings, which is checked first. They are timed in the way samplers
use them, in a compiled loop that moves W and H and reuses its memory. XLA may use every core.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.measure import Burst, Table, interleave, ratio, require_kernels
from hamcmc.factorization import native
from hamcmc.factorization.native import Blocks, twin
from hamcmc.samplers import noise

BLOCKS, ROWS, WIDTH, RATINGS = 4, 971, 1510, 56_250  # one part of MovieLens 1M cut in 4 × 4: 225 000 of 3884 × 6040
ITERATIONS = 5  # in a burst

Form = Callable[[Array, Array], tuple[Array, Array]]  # the gradients in W and H


class Ratings(NamedTuple):
    """The ratings of a part with row and column numbers of the whole matrix, ordered by row."""

    row: np.ndarray
    column: np.ndarray
    value: np.ndarray


def run(quick: bool) -> list[Table]:
    """Gradients at two ranks, then noise."""
    require_kernels()
    ratings = simulate(np.random.default_rng(0))
    rounds = 11 if quick else 41
    rows = [row for rank in (10, 50) for row in gradients(ratings, rank, rounds)]
    noises = [row for rank in (10, 50) for row in draws(rank, rounds)]
    return [
        Table(f"Gradient on {len(ratings.row):,} ratings, {BLOCKS * ROWS:,} × {BLOCKS * WIDTH:,}, float32", rows),
        Table(f"Noise for the {BLOCKS * (ROWS + WIDTH):,} rows of W and H, float32", noises),
    ]


def simulate(rng: np.random.Generator) -> Ratings:
    """Distinct pairs in each block; activity of rows and popularity of columns have heavy tails, as in MovieLens."""
    pairs = []
    for b in range(BLOCKS):
        row, column = (np.exp(1.2 * rng.standard_normal(size)) for size in (ROWS, WIDTH))
        clock = rng.exponential(size=(ROWS, WIDTH)) / np.outer(row, column)
        first = np.sort(np.argpartition(clock.ravel(), RATINGS)[:RATINGS])
        pairs.append(np.stack([first // WIDTH + b * ROWS, first % WIDTH + b * WIDTH]))
    row, column = np.concatenate(pairs, axis=1).astype(np.int32)
    return Ratings(row, column, rng.normal(3.5, 1.0, len(row)).astype(np.float32))


def gradients(ratings: Ratings, rank: int, rounds: int) -> list[dict]:
    """Time every form in one interleaved run."""
    rng = np.random.default_rng(rank)
    start = lambda size: jnp.asarray((0.5 + 0.1 * rng.standard_normal((size, rank))).astype(np.float32))
    W, H = start(BLOCKS * ROWS), start(BLOCKS * WIDTH)
    slots = lambda x: jnp.pad(x, ((0, 0), (0, -rank % native.LANES))).reshape(BLOCKS, len(x) // BLOCKS, -1)
    padded, plain = (slots(W), slots(H)), (W, H)
    forms: dict[str, tuple[Form, tuple[Array, Array]]] = {
        "kernel, 1 thread": (kernel(ratings, 1), padded),
        "kernel, 2 threads": (kernel(ratings, 2), padded),
        "kernel's form in XLA": (kernel(ratings, 0), padded),
        "autodiff, gather and scatter": (autodiff(ratings), plain),
        "sorted segment_sum": (segments(ratings), plain),
        "segmented ELL, 8": (segmented_ell(ratings, 8), plain),
        "segmented ELL, 16": (segmented_ell(ratings, 16), plain),
    }
    wanted = [np.array(x) for x in autodiff(ratings)(W, H)]
    bursts = {}
    for name, (form, factors) in forms.items():
        for x, y in zip(form(*factors), wanted):
            x = np.array(x).reshape(len(y), -1)[:, :rank]
            np.testing.assert_allclose(x, y, atol=1e-4 * np.abs(y).max(), err_msg=name)
        bursts[name] = partial(descend(form), *factors)
    return timings(bursts, rounds, rank, len(ratings.row) * rank, "ns per rating and factor")


def descend(form: Form) -> Form:
    """A compiled loop of small gradient steps."""

    def body(_, factors):
        return tuple(x + 1e-7 * g for x, g in zip(factors, form(*factors)))

    return jax.jit(lambda W, H: lax.fori_loop(0, ITERATIONS, body, (W, H)))


def kernel(ratings: Ratings, threads: int) -> Form:
    """Ours: factors padded to a multiple of 8, one slot per block. No threads: what runs without a compiled library."""
    counts = np.bincount(ratings.row, minlength=BLOCKS * ROWS).reshape(BLOCKS, 1, ROWS)
    indptr = np.concatenate([np.zeros((BLOCKS, 1, 1)), np.cumsum(counts, axis=2)], axis=2).astype(np.int32)
    columns = (ratings.column % WIDTH).reshape(BLOCKS, RATINGS)
    blocks = Blocks(*map(jnp.asarray, (indptr, columns, ratings.value.reshape(BLOCKS, RATINGS))))
    if threads == 0:
        return lambda W, H: twin.gradient(W, H, blocks, jnp.int32(0))[:2]
    return lambda W, H: native.gradient(W, H, blocks, 0, threads=threads)[:2]


def autodiff(ratings: Ratings) -> Form:
    """What one writes first."""
    row, column, value = map(jnp.asarray, ratings)
    half_error = lambda W, H: -0.5 * jnp.sum((value - jnp.sum(W[row] * H[column], axis=1)) ** 2)
    return jax.grad(half_error, (0, 1))


def segments(ratings: Ratings) -> Form:
    """Sums over sorted rows, and over columns of a second copy that is sorted by them."""
    by_row = [jnp.asarray(x) for x in ratings]
    order = np.argsort(ratings.column, kind="stable")
    by_column = [jnp.asarray(x[order]) for x in ratings]

    def gradient(W, H):
        def half(row, column, value, of_row):
            w, h = W[row], H[column]
            e = value - jnp.sum(w * h, axis=1)
            to, x, n = (row, h, len(W)) if of_row else (column, w, len(H))
            return jax.ops.segment_sum(e[:, None] * x, to, n, indices_are_sorted=True)

        return half(*by_row, True), half(*by_column, False)

    return gradient


def segmented_ell(ratings: Ratings, length: int) -> Form:
    """Rows cut in pieces of one length, each a small dense product; columns likewise."""

    def pieces(sorted_by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row of each piece, and which ratings (in this order) it holds, or none: their number."""
        counts = np.bincount(sorted_by)
        each = -(-counts // length)
        row = np.repeat(np.arange(len(counts)), each)
        place = (np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each))[:, None] * length + np.arange(length)
        held = (np.cumsum(counts) - counts)[row][:, None] + place
        return row, np.where(place < counts[row][:, None], held, len(sorted_by))

    by_column = np.argsort(ratings.column, kind="stable")
    w_row, w_held = pieces(ratings.row)
    h_row, h_held = pieces(ratings.column[by_column])
    h_held = np.append(by_column, len(by_column))[h_held]
    slot = np.empty(w_held.max() + 1, np.int64)
    slot[w_held.ravel()] = np.arange(w_held.size)  # where the error of each rating stands
    slot[-1] = w_held.size
    pad = lambda x: np.append(x, x[:1] * 0)
    device = lambda x: jnp.asarray(x, jnp.int32 if x.dtype == np.int64 else None)
    there, value, column = map(
        device, (w_held < len(by_column), pad(ratings.value)[w_held], pad(ratings.column)[w_held])
    )
    w_row, h_row, row, slot = map(device, (w_row, h_row, pad(ratings.row)[h_held], slot[h_held]))

    def gradient(W, H):
        total = lambda x, to, n: jax.ops.segment_sum(x, to, n, indices_are_sorted=True)
        h = H[column]
        e = jnp.where(there, value - jnp.einsum("pk,plk->pl", W[w_row], h), 0)
        of_W = total(jnp.einsum("pl,plk->pk", e, h), w_row, len(W))
        e = jnp.append(e.ravel(), 0.0)[slot]
        return of_W, total(jnp.einsum("pl,plk->pk", e, W[row]), h_row, len(H))

    return gradient


def draws(rank: int, rounds: int) -> list[dict]:
    """Noise of the padded size by every generator, added up in a compiled loop."""
    shape = (BLOCKS * (ROWS + WIDTH), rank + -rank % native.LANES)
    rows = jnp.arange(shape[0], dtype=jnp.uint32)
    ours = lambda threads: lambda key: native.normal(jax.random.key_data(key), rows, shape[1], threads=threads)
    forms = {
        "kernel, 1 thread": ours(1),
        "kernel, 2 threads": ours(2),
        "jax.random.normal": lambda key: jax.random.normal(key, shape),
        "hamcmc.samplers.noise.normal": lambda key: noise.normal(key, shape, jnp.float32),
    }

    def walk(form):
        body = lambda t, x: x + form(jax.random.fold_in(jax.random.key(0), t))
        return jax.jit(lambda x: lax.fori_loop(0, ITERATIONS, body, x))

    bursts = {name: partial(walk(form), jnp.zeros(shape)) for name, form in forms.items()}
    return timings(bursts, rounds, rank, shape[0] * shape[1], "ns per draw")


def timings(bursts: dict[str, Burst], rounds: int, rank: int, size: int, unit: str) -> list[dict]:
    """Rows of a table: time per item with quartiles and minimum, and the ratio to the kernel on one thread."""
    seconds = interleave(bursts, rounds)
    rows = []
    for name, s in seconds.items():
        each = s / ITERATIONS / size * 1e9
        low, median, high = np.quantile(each, [0.25, 0.5, 0.75])
        rows.append(
            {
                "K": rank,
                "form": name,
                "ms": f"{np.median(s) / ITERATIONS * 1e3:.2f}",
                unit: f"{median:.2f} ({low:.2f}–{high:.2f})",
                "best": f"{each.min():.2f}",
                "times the kernel": ratio(s, seconds["kernel, 1 thread"]),
            }
        )
    return rows
