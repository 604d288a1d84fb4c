"""Ratings: read from a file, checked, numbered, split into training and test, and kept on disk for runs."""

import contextlib
import csv
import gzip
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hamcmc import _check
from hamcmc._require import needs
from hamcmc.store.files import guard_disk, reading

NAMES = {  # usual names of columns, in lower case
    "user": ("user", "userid", "user_id", "uid"),
    "item": ("item", "itemid", "item_id", "movieid", "movie_id", "movie", "productid", "product_id", "iid"),
    "rating": ("rating", "score", "stars", "value"),
}
SEPARATORS = ("::", "\t", ",", ";")
DUPLICATES = ("last", "mean", "error")
LONGEST_ID = 255  # characters; ids are kept in arrays whose entries are all as wide as the widest
BLOCK = 2**22  # entries hashed or written at once
# Ratings of 1, 2, …, 5 stars in MovieLens 1M, by 6040 users of 3706 films
MOVIELENS_1M = (56_174, 107_557, 261_197, 348_971, 226_310)


class RatingsError(ValueError):
    """A file of ratings that cannot be used, with a message that names file and line."""


class Ratings(NamedTuple):
    """Ratings as a sparse matrix: entry (row[n], column[n]) is value[n].

    Attributes:
        users: ids of the rows, sorted; as numbers where all of them are.
        items: ids of the columns, likewise.
        row: int32[N].
        column: int32[N].
        value: float32[N].
        test: bool[N], true where a rating is held out.
        duplicates_dropped: how many lines rated a pair that another line rates.
    """

    users: np.ndarray
    items: np.ndarray
    row: np.ndarray
    column: np.ndarray
    value: np.ndarray
    test: np.ndarray
    duplicates_dropped: int = 0

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

    CSV, TSV (also gzipped) and Parquet with named columns; without a header, user, item, rating in this order and
    anything after them: MovieLens' ``::`` format and its ``u.data``. Ids are kept as text. Empty lines are skipped.

    Args:
        path: the file.
        user: name of the column of users; the usual names are found without it.
        item: name of the column of items.
        rating: name of the column of ratings.
        duplicates: what becomes of a pair that is rated again: ``last`` line wins, ``mean``, or ``error``.

    Raises:
        RatingsError: with file and line, where something is wrong with the file.
    """
    _check.one_of("duplicates", duplicates, DUPLICATES)
    with _parsing(path):
        return _read(_Source(Path(path), {"user": user, "item": item, "rating": rating}), duplicates)


def _read(source: "_Source", duplicates: str) -> Ratings:
    import polars as pl

    frame = source.table()
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
    """Users and items of a file with pairs to predict, in its order; the rules are those of :func:`read`."""
    with _parsing(path):
        frame = _Source(Path(path), {"user": user, "item": item}).table()
        return frame["user"].to_numpy().astype(str), frame["item"].to_numpy().astype(str)


@contextlib.contextmanager
def _parsing(path: str | os.PathLike) -> Iterator[None]:
    """Whatever polars or a decompressor says of a file, as an error of ours."""
    with needs("polars", "ratings"):
        import polars as pl

    with reading(path, "cannot be read", RatingsError):
        try:
            yield
        except pl.exceptions.PanicException as error:  # which is no Exception
            raise ValueError(_first_line(error)) from None


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


def _merge(frame: Any, policy: str, source: "_Source") -> Any:
    """One line per pair."""
    import polars as pl

    if policy == "last":
        return frame.filter(pl.col("pair").is_last_distinct())
    if policy == "mean":
        return frame.group_by("pair", maintain_order=True).agg(pl.col("row", "column").first(), pl.col("value").mean())
    again = frame.filter(~pl.col("pair").is_first_distinct()).row(0, named=True)
    first = frame.filter(pl.col("pair") == again["pair"])["line"][0]
    return source.fail(again["line"], f"the same user and item as in {source.place(first)}")


class _Source:
    """A file with columns of ids and ratings."""

    def __init__(self, path: Path, names: dict[str, str | None]):
        self.path, self.names = path, names
        if path.is_dir():
            raise RatingsError(f"{path} is a directory: a file with ratings is needed")
        try:
            with open(path, "rb") as f:
                self.gzipped = f.read(2) == b"\x1f\x8b"
            with self._open() as f:
                start = f.read(2**16)
        except (OSError, EOFError) as error:
            raise RatingsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
        self.parquet = start.startswith(b"PAR1")
        if not start.strip(b"\xef\xbb\xbf\r\n\t "):
            raise RatingsError(f"{path} is empty")
        if start.startswith(b"PK\x03\x04"):
            raise RatingsError(f"{path} is a zip archive: unpack it first")
        if not self.parquet and (b"\0" in start or path.suffix == ".parquet"):
            raise RatingsError(f"{path} is neither text nor Parquet: CSV, TSV, '::' or Parquet is needed")

    def table(self) -> Any:
        """Columns user, item (text, none of them empty), rating if asked for (as it is), and line, counted from 0."""
        import polars as pl

        frame = self._read_parquet() if self.parquet else self._read_text()
        if not len(frame):
            raise RatingsError(f"{self.path} has no lines with data")
        for name in ("user", "item"):
            size = pl.col(name).str.len_chars()
            wrong = frame.filter(size.is_null() | (size == 0) | (size > LONGEST_ID)).head(1)
            if len(wrong):
                length = len(wrong[name].item() or "")
                self.fail(
                    wrong["line"].item(),
                    f"the {name} id has {length:,} characters: is a quote missing?" if length else f"no {name} id",
                )
        return frame

    def place(self, line: int) -> str:
        """File and line for people; `line` counts records, with the header and empty ones, from 0."""
        if self.parquet:
            return f"{self.path}, row {line + 1}"
        return f"{self.path}:{next(number for i, (number, _) in enumerate(self._records()) if i == line)}"

    def fail(self, line: int, message: str) -> NoReturn:
        """Raise with file and line; a line that is too short is the likelier fault."""
        if not self.parquet:
            for i, (number, fields) in enumerate(self._records()):
                if i == line and len(fields) < self.fields:
                    raise RatingsError(f"{self.path}:{number}: {self._count(fields)}")
                if i == line:
                    raise RatingsError(f"{self.path}:{number}: {message}")
        raise RatingsError(f"{self.place(line)}: {message}")

    def _count(self, fields: Sequence[str]) -> str:
        return f"{len(fields)} field{'s' * (len(fields) != 1)} where {self.fields} belong"

    def _open(self) -> Any:
        return gzip.open(self.path) if self.gzipped else open(self.path, "rb")

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each record, slowly: this is for messages."""

        def lines() -> Iterator[str]:
            with self._open() as f:
                for number, line in enumerate(f, 1):
                    try:
                        yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                    except UnicodeDecodeError:
                        raise RatingsError(f"{self.path}:{number}: not UTF-8 text") from None

        if self.separator == "::":
            for number, line in enumerate(lines(), 1):
                yield number, line.rstrip("\r\n").split("::") if line.strip() else []
            return
        reader, number = csv.reader(lines(), delimiter=self.separator), 1
        for fields in reader:
            yield number, fields
            number = reader.line_num + 1

    def _read_text(self) -> Any:
        import polars as pl

        with self._open() as f:
            first = next(line for line in f if line.strip(b"\xef\xbb\xbf\r\n\t ")).decode("utf-8-sig", "replace")
        self.separator = next((s for s in SEPARATORS if s in first), ",")
        number, head = next((number, fields) for number, fields in self._records() if any(fields))
        self.fields, self.header = len(head), True
        try:
            place = self._find(head, f"{self.path}:{number}")
        except RatingsError:
            if any(self.names.values()) or not 3 <= len(head) <= 4 or not _is_number(head[2]):
                raise
            self.header, place = False, {name: i for i, name in enumerate(self.names)}
        options: dict[str, Any] = {"has_header": False, "infer_schema": False, "skip_lines": number - 1}
        columns = [f"column_{i + 1}" for i in range(self.fields)]
        try:
            if self.separator == "::":
                lines = pl.read_csv(self.path, separator="\x1f", quote_char=None, new_columns=["all"], **options)
                pieces = pl.col("all").str.split_exact("::", self.fields).struct.rename_fields([*columns, "more"])
                frame = lines.select(pieces).unnest("all")
                if frame["more"].is_not_null().any():
                    raise pl.exceptions.ComputeError("more fields")
            else:
                schema = dict.fromkeys(columns, pl.String)
                frame = pl.read_csv(self.path, separator=self.separator, schema=schema, **options)
        except pl.exceptions.PolarsError as error:
            raise self._explain(error) from error
        texts = {name: pl.col(columns[i]).str.strip_chars() for name, i in place.items()}
        blank = pl.all_horizontal(pl.all().is_null() | (pl.all().str.strip_chars() == ""))
        line = pl.int_range(pl.len(), dtype=pl.Int64) + number - 1
        frame = frame.select(**texts, line=line, blank=blank).filter(~pl.col("blank"))
        return frame[1:] if self.header else frame

    def _read_parquet(self) -> Any:
        import polars as pl

        try:
            head = pl.read_parquet_schema(self.path)
            place = self._find(list(head), str(self.path))
            frame = pl.read_parquet(self.path, columns=[list(head)[i] for i in place.values()])
        except (pl.exceptions.PolarsError, OSError) as error:
            raise RatingsError(f"{self.path} is a damaged Parquet file: {_first_line(error)}") from error
        columns = {}
        for name, i in place.items():
            column = frame[list(head)[i]]
            if name == "rating":
                if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Null)):
                    raise RatingsError(f"{self.path}: the column {column.name!r} has no numbers, but {column.dtype}")
                columns[name] = column
                continue
            if column.dtype.is_float() and (column.drop_nulls() == column.drop_nulls().round()).all():
                column = column.cast(pl.Int64)  # ids that were numbers with gaps
            columns[name] = column.cast(pl.String).str.strip_chars()
        return pl.DataFrame(columns).with_columns(line=pl.int_range(pl.len(), dtype=pl.Int64))

    def _find(self, head: Sequence[str], where: str) -> dict[str, int]:
        """The place of each column that is needed."""
        lower = [h.strip().lower() for h in head]
        found = {}
        for column, asked in self.names.items():
            usual = (asked.strip().lower(),) if asked else NAMES[column]
            place = next((lower.index(n) for n in usual if n in lower), None)
            if place is None:
                wanted = repr(asked) if asked else f"{column} ({', '.join(usual)})"
                there = ", ".join(repr(h.strip()[:40]) for h in head[:20])
                raise RatingsError(f"{where}: no column {wanted}; there are {there}")
            found[column] = place
        return found

    def _explain(self, error: Exception) -> RatingsError:
        """What to say of a file that could not be parsed."""
        number = 0
        try:
            for number, fields in self._records():
                if len(fields) != self.fields and any(f.strip() for f in fields):
                    return RatingsError(f"{self.path}:{number}: {self._count(fields)}")
        except csv.Error as wrong:
            return RatingsError(f"{self.path}:{number + 1}: {wrong}")
        with self._open() as f:
            for number, line in enumerate(f, 1):
                if line.count(b'"') % 2:
                    return RatingsError(f"{self.path}:{number}: a quote has no partner")
        return RatingsError(f"{self.path} cannot be read: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def hold_out(ratings: Ratings, fraction: float, seed: int) -> Ratings:
    """Mark a random share of the ratings as test; a user or item may be left without any training rating."""
    _check.fraction("fraction", fraction)
    test = np.zeros(ratings.size, bool)
    chosen = np.random.default_rng(seed).permutation(ratings.size)[: round(fraction * ratings.size)]
    test[chosen] = True
    return ratings._replace(test=test)


def known(ratings: Ratings) -> str | None:
    """``MovieLens 1M`` if these are its ratings, by the published counts of users, films and stars; else None."""
    stars = tuple(int((ratings.value == s).sum()) for s in (1, 2, 3, 4, 5))
    shape = (len(ratings.users), len(ratings.items), ratings.size)
    same = shape == (6040, 3706, sum(MOVIELENS_1M)) and stars == MOVIELENS_1M
    return "MovieLens 1M" if same else None


def checksum(ratings: Ratings) -> str:
    """SHA-256 of ids, ratings and split."""
    digest = hashlib.sha256()
    for name, array in _arrays(ratings).items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        for start in range(0, len(array), BLOCK):
            digest.update(np.ascontiguousarray(array[start : start + BLOCK]).tobytes())
    return digest.hexdigest()


def save(ratings: Ratings, directory: str | os.PathLike) -> None:
    """Write the arrays as .npy files, each of them whole or not at all."""
    directory = Path(directory)
    with guard_disk(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, array in _arrays(ratings).items():
            temporary = directory / f"{name}.npy.partial"
            with open(temporary, "wb") as f:
                np.save(f, array, allow_pickle=False)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, directory / f"{name}.npy")


def load(directory: str | os.PathLike) -> Ratings:
    """Ratings that :func:`save` wrote, mapped from the disk and not read."""
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
                raise ValueError("places of ids that are not there")
    return ratings


def _arrays(ratings: Ratings) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in ratings._asdict().items() if name != "duplicates_dropped"}
