"""What simple predictions of ratings achieve, to compare a factorization with."""

from typing import NamedTuple

import numpy as np

from hamcmc.factorization.ratings import Ratings

SWEEPS = 10  # of alternating means, after which the biases hardly change
SHRINKAGES = (1.0, 3.0, 10.0, 30.0)  # ratings at the mean that are added to those of each user and item


class Baselines(NamedTuple):
    """Root mean square errors on the held-out ratings.

    Attributes:
        mean: of the mean of all training ratings.
        biases: of this mean plus a bias for each user and each item.
    """

    mean: float
    biases: float


def baselines(ratings: Ratings) -> Baselines:
    """Fit both on the training ratings, and measure them on the held-out ones.

    The shrinkage of the biases is the one of a few that suits the held-out ratings best. This favours the baseline.
    """
    test = np.asarray(ratings.test)
    row, column, value = (np.asarray(x) for x in (ratings.row, ratings.column, ratings.value))
    value = value.astype(np.float64)
    if not test.any() or test.all():
        raise ValueError("baselines need ratings that are held out, and others to fit")
    centre = value[~test].mean()
    seen, held = (np.flatnonzero(x) for x in (~test, test))

    def error(shrinkage: float) -> float:
        """The error of biases that are shrunk so much."""
        users, items = np.zeros(len(ratings.users)), np.zeros(len(ratings.items))
        for _ in range(SWEEPS):
            items = _means(column[seen], value[seen] - centre - users[row[seen]], len(items), shrinkage)
            users = _means(row[seen], value[seen] - centre - items[column[seen]], len(users), shrinkage)
        return _rms(value[held] - centre - users[row[held]] - items[column[held]])

    return Baselines(_rms(value[held] - centre), min(map(error, SHRINKAGES)))


def _means(place: np.ndarray, value: np.ndarray, size: int, shrinkage: float) -> np.ndarray:
    return np.bincount(place, value, size) / (np.bincount(place, minlength=size) + shrinkage)


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))
