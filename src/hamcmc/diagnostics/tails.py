"""How heavy the tails of draws are: whether a mean and a standard deviation exist."""

import numpy as np

SHARE = 0.02  # of the draws, on both sides together, that count as tails
FEWEST = 20  # draws in the tails that an estimate needs
NO_VARIANCE = 0.6  # an index above 1/2 means that there is no variance; the estimate has an error of about a tenth


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
