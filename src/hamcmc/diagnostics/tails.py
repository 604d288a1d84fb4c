"""The tails of draws: how heavy they are, whether moments exist, how well quantiles are known, and draws apart."""

from collections.abc import Callable

import numpy as np

SHARE = 0.02  # of the draws, on both sides together, that count as tails
FEWEST = 20  # draws in the tails that an estimate needs
NO_VARIANCE = 0.6  # an index above 1/2 means that there is no variance; the estimate has an error of about a tenth
BLOCK = 2**20  # numbers that are looked at together
APART, GAP = 3, 4.0  # draws apart from all others, and how much farther they are from the median


def in_blocks(of: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """A function of the columns of draws (n, D), a few of them at a time: it bounds the memory."""
    step = max(1, BLOCK // max(1, len(x)))
    parts = [of(x[:, k : k + step]) for k in range(0, x.shape[1], step)]
    return np.concatenate(parts) if parts else of(x)


def tail_index(x: np.ndarray) -> np.ndarray:
    """Hill's estimate of the tail index of each column of draws (n, D): 1/ν for Student's t with ν degrees of freedom.

    A variance exists if the index is below 1/2, a mean if it is below 1. Light tails give small values, because the
    outermost draws of a light tail are all of the same size. NaN for fewer than 1000 draws.
    """
    count = int(SHARE * len(x))
    if count < FEWEST:
        return np.full(x.shape[1], np.nan)
    size = np.abs(x - np.median(x, axis=0))
    outermost = np.partition(size, len(x) - count - 1, axis=0)[-count - 1 :]
    least = outermost.min(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(outermost / least).sum(0) / count
    return np.where(least > 0, found, np.nan)


def range_error(x: np.ndarray, effective: np.ndarray) -> np.ndarray:
    """The relative standard error of the range from 5 to 95 % of each column of draws (n, D).

    With n `effective` draws, the level p that a quantile stands for has a standard error of √(p (1 − p) / n).
    Where tails are heavy, a small error of the level is a large one of the quantile.
    """
    outer, found = 0.05, np.full(x.shape[1], np.nan)
    for j in np.nonzero(effective > 1 / outer)[0]:
        off = np.sqrt(outer * (1 - outer) / effective[j])
        low, high = max(outer - off, 0.0), outer + off
        a, b, c, d, left, right = np.quantile(x[:, j], [low, high, 1 - high, 1 - low, outer, 1 - outer])
        if right > left:
            found[j] = np.hypot(b - a, d - c) / 2 / (right - left)
    return found


def weight_apart(x: np.ndarray) -> np.ndarray:
    """By how much a few draws far from all others raise the standard deviation of each column of draws (n, D).

    They count if there are at least APART of them, all GAP times as far from the median as the next draw. Tails do not
    look like that: those of Student's t with 3 degrees of freedom do so once in 4⁹ times. A mode that is seldom visited
    does, and how much mass it has is then not known. Columns that hardly move are left to other checks.
    """
    found, most = np.zeros(x.shape[1]), int(SHARE * len(x))
    if most < APART:
        return found
    size = np.abs(x - np.median(x, axis=0))
    outermost = -np.sort(-np.partition(size, len(x) - most - 1, axis=0)[-most - 1 :], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = np.nan_to_num(outermost[APART - 1 : -1] / outermost[APART:])
    for j in np.nonzero(gaps.max(0) >= GAP)[0]:
        near = x[size[:, j] <= outermost[APART + int(np.argmax(gaps[:, j])), j], j]
        if np.isfinite(x[:, j]).all() and near.std() > 0:
            found[j] = x[:, j].std() / near.std() - 1
    return found
