"""Files of ratings as tables: CSV, TSV, MovieLens' ``::`` and Parquet, every fault named with file and line."""

import csv
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from hamcmc._types import Record

NAMES = {  # usual names of columns, in lower case
    "user": ("user", "userid", "user_id", "uid"),
    "item": ("item", "itemid", "item_id", "movieid", "movie_id", "movie", "productid", "product_id", "iid"),
    "rating": ("rating", "score", "stars", "value"),
}
SEPARATORS = ("::", "\t", ",", ";")
LONGEST_ID = 255  # characters; ids are kept in arrays whose entries are all as wide as the widest


class RatingsError(ValueError):
    """A file of ratings that cannot be used. The message names file and line."""


class Table:
    """A file with columns of ids and ratings.

    Args:
        path: the file.
        names: the columns that are needed, each with the name that the user gave, or None.
    """

    def __init__(self, path: Path, names: dict[str, str | None]):
        self.path, self.names = path, names
        if path.is_dir():
            raise RatingsError(f"{path} is a directory: give a file with ratings")
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
            raise RatingsError(f"{path} is neither text nor Parquet: give CSV, TSV, '::' or Parquet")

    def read(self) -> Any:
        """A frame with user and item (text, never empty), rating if needed (as it is), and line, counted from 0."""
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
        """File and line for people. `line` counts records from 0, the header and empty ones included."""
        if self.parquet:
            return f"{self.path}, row {line + 1}"
        return f"{self.path}:{next(number for i, (number, _) in enumerate(self._records()) if i == line)}"

    def fail(self, line: int, message: str) -> NoReturn:
        """Raise with file and line. If the line has too few fields, say that instead: it is the likelier fault."""
        if not self.parquet:
            for i, (number, fields) in enumerate(self._records()):
                if i == line and len(fields) < self.fields:
                    raise RatingsError(f"{self.path}:{number}: {self._count(fields)}")
                if i == line:
                    raise RatingsError(f"{self.path}:{number}: {message}")
        raise RatingsError(f"{self.place(line)}: {message}")

    def _count(self, fields: Sequence[str]) -> str:
        return f"{len(fields)} field{'s' * (len(fields) != 1)} where {self.fields} belong"

    def _open(self) -> IO[bytes]:
        return gzip.open(self.path) if self.gzipped else open(self.path, "rb")  # type: ignore[return-value]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each record. This is slow, and only for messages."""

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
        options: Record = {"has_header": False, "infer_schema": False, "skip_lines": number - 1}
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
            raise RatingsError(f"{self.path} is a damaged Parquet file: {first_line(error)}") from error
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
        """The position of each column that is needed."""
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
        """Say why a file could not be parsed."""
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
                    return RatingsError(f"{self.path}:{number}: a quote is not closed")
        return RatingsError(f"{self.path} cannot be read: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
