"""Small sparse matrices for tests."""

import numpy as np

from hamcmc.factorization.ratings import Ratings


def power_law(rows, columns, n, seed):
    """Places of n ratings, many in few rows and columns, sorted so that the first rows have most."""
    rng = np.random.default_rng(seed)
    weights = np.outer(1 / (3 + np.arange(rows)) ** 0.7, 1 / (3 + np.arange(columns)) ** 0.7).ravel()
    flat = rng.choice(rows * columns, n, replace=False, p=weights / weights.sum())
    return flat // columns, flat % columns, (rows, columns)


def low_rank(rows, columns, n, rank=2, noise=0.5, seed=0):
    """(row, column, value, shape) of a noisy matrix of low rank with biases around 3."""
    row, column, shape = power_law(rows, columns, n, seed)
    rng = np.random.default_rng(seed + 1)
    W, H = rng.normal(0, 0.7, (rows, rank)), rng.normal(0, 0.7, (columns, rank))
    a, b = rng.normal(0, 0.4, rows), rng.normal(0, 0.4, columns)
    mean = 3 + a[row] + b[column] + (W[row] * H[column]).sum(1)
    return row, column, (mean + rng.normal(0, noise, n)).astype(np.float32), shape


def ratings_of(row, column, value, shape):
    """As read from a file."""
    users, items = (np.array([str(i) for i in range(n)]) for n in shape)
    return Ratings(users, items, row.astype(np.int32), column.astype(np.int32), value, np.zeros(len(row), bool))
