"""Made ratings have the shape that they promise, and their noise floor is what the truth reaches."""

import numpy as np
import pytest

from hamcmc.factorization.ratings import known
from hamcmc.factorization.synthetic import movielens_like


def test_it_has_the_shape_of_movielens():
    made = movielens_like()
    ratings = made.ratings
    by_user, by_item = np.bincount(ratings.row, minlength=6040), np.bincount(ratings.column, minlength=3706)
    assert (ratings.size, len(ratings.users), len(ratings.items)) == (1_000_209, 6040, 3706)
    assert len(np.unique(ratings.row.astype(np.int64) * 3706 + ratings.column)) == ratings.size
    assert by_user.min() >= 20
    assert by_user.max() > 10 * np.median(by_user)  # a heavy tail
    assert by_item.max() > 10 * np.median(by_item)
    assert set(np.unique(ratings.value)) == {1, 2, 3, 4, 5}
    assert 3.4 < ratings.value.mean() < 3.8
    assert known(ratings) is None
    # The floor is the error of the truth, which is calibrated: no shift or scale of it does better.
    residual = ratings.value - made.mean
    assert np.sqrt(np.mean(residual**2)) == pytest.approx(made.noise_floor, rel=1e-5)
    assert 0.79 < made.noise_floor < 0.83
    assert abs(residual.mean()) < 4 * made.noise_floor / np.sqrt(ratings.size)
    assert abs(np.corrcoef(residual, made.mean)[0, 1]) < 4 / np.sqrt(ratings.size)
    # Means of rows and columns leave more than the truth does: there is something to factorize.
    rows = np.bincount(ratings.row, ratings.value) / by_user
    columns = np.bincount(ratings.column, ratings.value - rows[ratings.row], minlength=3706) / np.maximum(by_item, 1)
    biases = ratings.value - rows[ratings.row] - columns[ratings.column]
    assert 0.87 < biases.std() < 0.93


def test_small_sets_follow_from_the_seed():
    first, again, other = (movielens_like(30, 20, 300, rank=2, seed=s).ratings for s in (0, 0, 1))
    assert (first.value == again.value).all()
    assert (first.column == again.column).all()
    assert (first.column != other.column).any()
    assert np.bincount(first.row, minlength=30).min() >= 10
    full = movielens_like(5, 4, 20, rank=1).ratings
    assert np.bincount(full.row).tolist() == [4] * 5
    with pytest.raises(ValueError, match="ratings must be between 5 and 20"):
        movielens_like(5, 4, 21)
