"""The ratings of figure 5: those of a file, or synthetic ones."""

from pathlib import Path

import numpy as np

from hamcmc.factorization import ratings as files
from hamcmc.factorization.ratings import Ratings
from hamcmc.factorization.synthetic import movielens_like


def load(path: Path | None, most: int | None, seed: int) -> tuple[Ratings, str]:
    """The ratings of a file, or synthetic ones, at most about `most` of random users; and a name for them."""
    if path is None:
        made = movielens_like(seed=seed) if most is None else movielens_like(1200, 800, most, seed=seed)
        ratings, name = made.ratings, "synthetic set like MovieLens 1M"
    else:
        ratings = files.read(path)
        name = files.known(ratings) or "a file that is not MovieLens 1M"
        if most is not None and ratings.size > most:
            ratings, name = some_users(ratings, most, seed), f"users of {name}"
    counts = f"{ratings.size:,} ratings, {len(ratings.users):,} × {len(ratings.items):,}"
    return ratings, name if name == "MovieLens 1M" else f"{name} ({counts})"


def some_users(ratings: Ratings, most: int, seed: int) -> Ratings:
    """The ratings of random users, at most `most` unless the first user has more."""
    counts = np.bincount(ratings.row, minlength=len(ratings.users))
    order = np.random.default_rng(seed).permutation(len(counts))
    users = np.sort(order[: max(1, np.searchsorted(np.cumsum(counts[order]), most, side="right"))])
    kept = np.isin(ratings.row, users)
    items, column = np.unique(ratings.column[kept], return_inverse=True)
    return ratings._replace(
        users=ratings.users[users],
        items=ratings.items[items],
        row=np.searchsorted(users, ratings.row[kept]).astype(np.int32),
        column=column.astype(np.int32),
        value=ratings.value[kept],
        test=ratings.test[kept],
    )
