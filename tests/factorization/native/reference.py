"""Ratings in blocks by chance, and what the kernels should find, in double precision."""

from typing import NamedTuple

import numpy as np
import pytest

from hamcmc.factorization import native
from hamcmc.factorization.native import Blocks

needs_kernel = pytest.mark.skipif(not native.available(), reason=f"no compiled kernel: {native.available().why_not}")


class Case(NamedTuple):
    """Arguments of the kernels, as numpy arrays."""

    W: np.ndarray
    H: np.ndarray
    blocks: Blocks


def case(seed: int = 0, rank: int = 16, *, q=3, parts=4, rows=7, width=9, most=5) -> Case:
    """Up to `most` ratings in each row of each part; some blocks have none, and the places at the end are junk."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most, (q, parts, rows), endpoint=True) * rng.integers(0, 2, (q, parts, 1))
    ends = np.cumsum(counts.reshape(q, -1), axis=1).reshape(q, parts, rows)
    indptr = np.concatenate([(ends - counts)[:, :, :1], ends], axis=2).astype(np.int32)
    size = q * parts * rows * most // q
    columns = rng.integers(0, width, (q, size), dtype=np.int32)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return Case(draw(q, rows, rank), draw(q, width, rank), Blocks(indptr, columns, draw(q, size)))


def expected(W, H, blocks: Blocks, part: int) -> dict[str, np.ndarray]:
    """Every result, rating by rating."""
    W, H = W.astype(np.float64), H.astype(np.float64)
    of_W, of_H, error, square = np.zeros_like(W), np.zeros_like(H), np.zeros(len(W)), np.zeros(len(W))
    mean = np.zeros(blocks.columns.shape)
    for b in range(len(W)):
        for i in range(W.shape[1]):
            for k in range(*blocks.indptr[b, part, i : i + 2]):
                j = blocks.columns[b, k]
                mean[b, k] = W[b, i] @ H[b, j]
                e = blocks.values[b, k] - mean[b, k]
                of_W[b, i] += e * H[b, j]
                of_H[b, j] += e * W[b, i]
                error[b] += e
                square[b] += e * e
    return {"gradient": (of_W, of_H, square), "squared_error": (error, square), "predict": (mean,)}


def agree(found, wanted, tolerance: float = 2e-6) -> None:
    """Compare to rounding, relative to the largest number."""
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(1.0, np.max(np.abs(y), initial=0)))
