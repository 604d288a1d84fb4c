"""The gradient of sparse matrix factorization and the noise of a step: the kernels against forms that XLA compiles.

All forms find the same gradients of the same ratings, which is checked first. XLA may use every core.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.measure import Burst, Table, interleave, ratio
from hamcmc import native, noise
from hamcmc.native import Blocks

BLOCKS, ROWS, WIDTH, RATINGS = 4, 971, 1510, 56_250  # one part of MovieLens 1M cut in 4 × 4: 225 000 of 3884 × 6040
CALLS = 5  # in a burst


class Ratings(NamedTuple):
    """The ratings of a part with row and column numbers of the whole matrix, ordered by row."""

    row: np.ndarray
    column: np.ndarray
    value: np.ndarray


def run(quick: bool) -> list[Table]:
    """Gradients at two ranks, then noise."""
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
    start = lambda size: (0.5 + 0.1 * rng.standard_normal((size, rank))).astype(np.float32)
    W, H = jnp.asarray(start(BLOCKS * ROWS)), jnp.asarray(start(BLOCKS * WIDTH))
    forms: dict[str, Callable[[], tuple[Array, Array]]] = {
        "kernel, 1 thread": kernel(ratings, W, H, 1),
        "kernel, 2 threads": kernel(ratings, W, H, 2),
        "autodiff, gather and scatter": autodiff(ratings, W, H),
        "sorted segment_sum": segments(ratings, W, H),
        "segmented ELL, 8": segmented_ell(ratings, W, H, 8),
        "segmented ELL, 16": segmented_ell(ratings, W, H, 16),
    }
    wanted = [np.array(x) for x in forms["autodiff, gather and scatter"]()]
    for name, form in forms.items():
        for x, y in zip(form(), wanted):
            x = np.array(x).reshape(len(y), -1)[:, :rank]
            np.testing.assert_allclose(x, y, atol=1e-4 * np.abs(y).max(), err_msg=name)
    return timings(forms, rounds, rank, len(ratings.row) * rank, "ns per rating and factor")


def kernel(ratings: Ratings, W: Array, H: Array, threads: int) -> Callable:
    """Ours: factors padded to a multiple of 8, one slot per block."""
    counts = np.bincount(ratings.row, minlength=BLOCKS * ROWS).reshape(BLOCKS, 1, ROWS)
    indptr = np.concatenate([np.zeros((BLOCKS, 1, 1)), np.cumsum(counts, axis=2)], axis=2).astype(np.int32)
    columns = (ratings.column % WIDTH).reshape(BLOCKS, RATINGS)
    blocks = Blocks(*map(jnp.asarray, (indptr, columns, ratings.value.reshape(BLOCKS, RATINGS))))
    slots = lambda x: jnp.pad(x, ((0, 0), (0, -x.shape[1] % native.LANES))).reshape(BLOCKS, len(x) // BLOCKS, -1)
    gradient = jax.jit(lambda W, H, blocks: native.gradient(W, H, blocks, 0, threads=threads)[:2])
    W, H = slots(W), slots(H)
    return lambda: gradient(W, H, blocks)


def autodiff(ratings: Ratings, W: Array, H: Array) -> Callable:
    """What one writes first."""

    def half_error(factors, r):
        W, H = factors
        return -0.5 * jnp.sum((r.value - jnp.sum(W[r.row] * H[r.column], axis=1)) ** 2)

    gradient, r = jax.jit(jax.grad(half_error)), on_device(ratings)
    return lambda: gradient((W, H), r)


def segments(ratings: Ratings, W: Array, H: Array) -> Callable:
    """Sums over sorted rows, and over columns in a second order."""

    @jax.jit
    def gradient(W, H, r, order):
        total = lambda x, to, n: jax.ops.segment_sum(x, to, n, indices_are_sorted=True)
        w, h = W[r.row], H[r.column]
        e = r.value - jnp.sum(w * h, axis=1)
        column = r.column[order]
        return total(e[:, None] * h, r.row, len(W)), total((e[:, None] * w)[order], column, len(H))

    r, order = on_device(ratings), jnp.asarray(np.argsort(ratings.column, kind="stable"))
    return lambda: gradient(W, H, r, order)


def segmented_ell(ratings: Ratings, W: Array, H: Array, length: int) -> Callable:
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
    arrays = (w_row, pad(ratings.column)[w_held], pad(ratings.value)[w_held], w_held < len(by_column))
    arrays += (h_row, pad(ratings.row)[h_held], slot[h_held])

    @jax.jit
    def gradient(W, H, w_row, column, value, there, h_row, row, slot):
        total = lambda x, to, n: jax.ops.segment_sum(x, to, n, indices_are_sorted=True)
        h = H[column]
        e = jnp.where(there, value - jnp.einsum("pk,plk->pl", W[w_row], h), 0)
        of_W = total(jnp.einsum("pl,plk->pk", e, h), w_row, len(W))
        e = jnp.append(e.ravel(), 0.0)[slot]
        return of_W, total(jnp.einsum("pl,plk->pk", e, W[row]), h_row, len(H))

    arrays = [jnp.asarray(x, jnp.int32 if x.dtype == np.int64 else None) for x in arrays]
    return lambda: gradient(W, H, *arrays)


def draws(rank: int, rounds: int) -> list[dict]:
    """Noise of the padded size by every generator."""
    columns, size = rank + -rank % native.LANES, BLOCKS * (ROWS + WIDTH)
    rows, key = jnp.arange(size, dtype=jnp.uint32), jax.random.key(0)
    drawn = lambda threads: jax.jit(lambda w, r: native.normal(w, r, columns, threads=threads))
    one, two, words = drawn(1), drawn(2), jax.random.key_data(key)
    ours = jax.jit(lambda k: noise.normal(k, (size, columns), jnp.float32))
    jaxs = jax.jit(lambda k: jax.random.normal(k, (size, columns)))
    forms = {
        "kernel, 1 thread": lambda: one(words, rows),
        "kernel, 2 threads": lambda: two(words, rows),
        "jax.random.normal": lambda: jaxs(key),
        "hamcmc.noise.normal": lambda: ours(key),
    }
    return timings(forms, rounds, rank, size * columns, "ns per draw")


def timings(forms: dict[str, Callable], rounds: int, rank: int, size: int, unit: str) -> list[dict]:
    """Rows of a table: time per item with quartiles, and the ratio to the kernel on one thread."""
    repeat = lambda form: lambda: [jax.block_until_ready(form()) for _ in range(CALLS)]  # never two at once
    bursts: dict[str, Burst] = {name: repeat(form) for name, form in forms.items()}
    seconds = interleave(bursts, rounds)
    rows = []
    for name, s in seconds.items():
        low, median, high = np.quantile(s / CALLS, [0.25, 0.5, 0.75])
        rows.append(
            {
                "K": rank,
                "form": name,
                "ms": f"{median * 1e3:.2f}",
                unit: f"{median / size * 1e9:.2f} ({low / size * 1e9:.2f}–{high / size * 1e9:.2f})",
                "best": f"{s.min() / CALLS / size * 1e9:.2f}",
                "times the kernel": ratio(s, seconds["kernel, 1 thread"]),
            }
        )
    return rows


def on_device(ratings: Ratings) -> Ratings:
    """As JAX arrays."""
    return Ratings(*map(jnp.asarray, ratings))
