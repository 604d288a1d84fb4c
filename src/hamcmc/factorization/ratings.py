"""Ratings as a sparse matrix: read from a file, split into training and test, and kept on disk for runs."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hamcmc import _check
from hamcmc._require import needs
from hamcmc.factorization.table import RatingsError, Table, first_line
from hamcmc.store.files import guard_disk, reading, replacing

DUPLICATES = ("last", "mean", "error")
BLOCK = 2**22  # entries hashed or written at once
# Users, films, and ratings of 1, 2, …, 5 stars
KNOWN = {
    "MovieLens 1M": (6040, 3706, (56_174, 107_557, 261_197, 348_971, 226_310)),
    "MovieLens 100k": (943, 1682, (6_110, 11_370, 27_145, 34_174, 21_201)),
}


class Ratings(NamedTuple):
    """Ratings as a sparse matrix: entry (row[n], column[n]) is value[n].

    Attributes:
        users: ids of the rows, sorted (as numbers if all of them are numbers).
        items: ids of the columns, likewise.
        row: int32[N].
        column: int32[N].
        value: float32[N].
        test: bool[N], true where a rating is held out.
        duplicates_dropped: how many lines of the file were dropped because another line rates the same pair.
    """

    users: np.ndarray
    items: np.ndarray
    row: np.ndarray
    column: np.ndarray
    value: np.ndarray
    test: np.ndarray
    duplicates_dropped: int = 0

    def __repr__(self) -> str:
        low, high = self.range
        by = f"{self.size:,} ratings from {low:g} to {high:g} by {len(self.users):,} users of {len(self.items):,} items"
        return f"<Ratings: {by}, {int(np.sum(self.test)):,} held out>"

    @property
    def size(self) -> int:
        """The number of ratings, training and test."""
        return len(self.value)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest rating."""
        return float(self.value.min()), float(self.value.max())


def read(
    path: str | os.PathLike,
    *,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    duplicates: str = "last",
) -> Ratings:
    """Read a file of ratings.

    The file is CSV or TSV (also gzipped) or Parquet with named columns. Without a header, the columns are user, item
    and rating in this order, and anything after them is ignored: MovieLens' ``::`` format and its ``u.data``. Ids are
    kept as text. Empty lines are skipped.

    Args:
        path: the file.
        user: name of the column of users; the usual names need not be given.
        item: name of the column of items.
        rating: name of the column of ratings.
        duplicates: what to do with a pair that is rated again: the ``last`` line counts, the ``mean``, or ``error``.

    Raises:
        RatingsError: something is wrong with the file; the message names the line.
    """
    _check.one_of("duplicates", duplicates, DUPLICATES)
    with _parsing(path):
        return _read(Table(Path(path), {"user": user, "item": item, "rating": rating}), duplicates)


def _read(source: Table, duplicates: str) -> Ratings:
    import polars as pl

    frame = source.read()
    number = pl.col("rating").cast(pl.Float64, strict=False).cast(pl.Float32, strict=False, wrap_numerical=False)
    frame = frame.with_columns(number.alias("value"))
    wrong = frame.filter(pl.col("value").is_null() | ~pl.col("value").is_finite()).head(1)
    if len(wrong):
        source.fail(wrong["line"].item(), _what_is_wrong_with(wrong["rating"].item()))
    users, row = _number(frame["user"])
    items, column = _number(frame["item"])
    pair = row.cast(pl.Int64) * len(items) + column
    frame = frame.select("line", "value", row=row, column=column, pair=pair)
    lines = len(frame)
    if frame["pair"].n_unique() < lines:
        frame = _merge(frame, duplicates, source)
    values = (frame[c].to_numpy() for c in ("row", "column", "value"))
    return Ratings(users, items, *values, test=np.zeros(len(frame), bool), duplicates_dropped=lines - len(frame))


def read_pairs(
    path: str | os.PathLike, *, user: str | None = None, item: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Users and items of a file with pairs to predict, in its order. The format is that of :func:`read`."""
    with _parsing(path):
        frame = Table(Path(path), {"user": user, "item": item}).read()
        return frame["user"].to_numpy().astype(str), frame["item"].to_numpy().astype(str)


@contextlib.contextmanager
def _parsing(path: str | os.PathLike) -> Iterator[None]:
    """Turn whatever polars or a decompressor raises into a :class:`RatingsError`."""
    with needs("polars", "ratings"):
        import polars as pl

    with reading(path, "cannot be read", RatingsError):
        try:
            yield
        except pl.exceptions.PanicException as error:  # which is not an Exception
            raise ValueError(first_line(error)) from None


def _what_is_wrong_with(rating: Any) -> str:
    try:
        float(rating)
    except (TypeError, ValueError):
        return "the rating is empty" if rating is None else f"the rating {str(rating)[:40]!r} is not a number"
    return f"the rating {str(rating)[:40]!r} is not a finite number"


def _number(ids: Any) -> tuple[np.ndarray, Any]:
    """The different ids in order, and the place of each id among them."""
    import polars as pl

    numbers = ids.cast(pl.Int64, strict=False)
    if numbers.cast(pl.String).eq_missing(ids).all():
        order, places = np.unique(numbers.to_numpy(), return_inverse=True)
        return pl.Series(order).cast(pl.String).to_numpy().astype(str), pl.Series(places.astype(np.int32))
    names = ids.unique().sort()
    places = pl.Series(np.arange(len(names), dtype=np.int32))
    return names.to_numpy().astype(str), ids.replace_strict(names, places, return_dtype=pl.Int32)


def _merge(frame: Any, policy: str, source: Table) -> Any:
    """Keep one line per pair."""
    import polars as pl

    if policy == "last":
        return frame.filter(pl.col("pair").is_last_distinct())
    if policy == "mean":
        return frame.group_by("pair", maintain_order=True).agg(pl.col("row", "column").first(), pl.col("value").mean())
    again = frame.filter(~pl.col("pair").is_first_distinct()).row(0, named=True)
    first = frame.filter(pl.col("pair") == again["pair"])["line"][0]
    return source.fail(again["line"], f"the same user and item as in {source.place(first)}")


def hold_out(ratings: Ratings, fraction: float, seed: int) -> Ratings:
    """Mark a random share of the ratings as test. A user or an item may be left without training ratings."""
    _check.fraction("fraction", fraction)
    test = np.zeros(ratings.size, bool)
    chosen = np.random.default_rng(seed).permutation(ratings.size)[: round(fraction * ratings.size)]
    test[chosen] = True
    return ratings._replace(test=test)


def known(ratings: Ratings) -> str | None:
    """Which of the public sets these ratings are, judged by published counts of users, films and stars; else None."""
    stars = tuple(int((ratings.value == s).sum()) for s in (1, 2, 3, 4, 5))
    found = (len(ratings.users), len(ratings.items), stars)
    whole = ratings.size == sum(stars)
    return next((name for name, counts in KNOWN.items() if whole and counts == found), None)


def checksum(ratings: Ratings) -> str:
    """SHA-256 of ids, ratings and split."""
    digest = hashlib.sha256()
    for name, array in _arrays(ratings).items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        for start in range(0, len(array), BLOCK):
            digest.update(np.ascontiguousarray(array[start : start + BLOCK]).tobytes())
    return digest.hexdigest()


def save(ratings: Ratings, directory: str | os.PathLike) -> None:
    """Write the arrays as .npy files, each whole or not at all."""
    directory = Path(directory)
    with guard_disk(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, array in _arrays(ratings).items():
            with replacing(directory / f"{name}.npy") as temporary, open(temporary, "xb") as f:
                np.save(f, array, allow_pickle=False)


def load(directory: str | os.PathLike) -> Ratings:
    """Ratings that :func:`save` wrote. They are mapped into memory, not read."""
    directory = Path(directory)
    with reading(directory, "has no ratings, or they are damaged", RatingsError):
        mapped = (np.load(directory / f"{n}.npy", mmap_mode="r", allow_pickle=False) for n in Ratings._fields[:6])
        ratings = Ratings(*mapped)
        kinds = [a.dtype.str for a in ratings[2:6]]
        if kinds != ["<i4", "<i4", "<f4", "|b1"] or len({a.shape for a in ratings[2:6]}) != 1:
            raise ValueError(f"arrays of other types or lengths: {kinds}")
        for ids, places in ((ratings.users, ratings.row), (ratings.items, ratings.column)):
            if ids.dtype.kind != "U" or ids.ndim != 1 or places.ndim != 1:
                raise ValueError(f"ids are {ids.dtype}{ids.shape}")
            if not (len(places) and places.min() >= 0 and places.max() < len(ids)):
                raise ValueError("it has ratings of ids that are missing")
    return ratings


def _arrays(ratings: Ratings) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in ratings._asdict().items() if name != "duplicates_dropped"}
