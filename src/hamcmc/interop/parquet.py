"""Columns of tables as arrays; those of Parquet files on disk, where rows can be read in any order.

Parquet keeps a column together, and compressed: to read single rows, as minibatches need them, it would decode
thousands. So columns are written once, in flat memory, to ``.npy`` files in which a row stands together.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc._check import nearest
from hamcmc._renamed import renamed
from hamcmc._require import needs
from hamcmc.interop import delimited
from hamcmc.store.files import replacing
from hamcmc.target import tables

HELD = 2**26  # bytes of rows that are decoded at once


class ParquetError(ValueError):
    """A Parquet file that cannot be used. The message names the file and the column."""


@renamed(path="table")
def columns(
    table: Any, arrays: Mapping[str, str | Sequence[str]], *, cache: str | Path | None = None
) -> dict[str, Any]:
    """Columns of a table as arrays, for a :class:`~hamcmc.Posterior`.

    The table is one of pandas, polars or Arrow, a Zarr group, a mapping of arrays, or the path of a Parquet, CSV or TSV
    file. Text files must have a header, and are read into memory.

    Columns of a Parquet file become memory-mapped arrays, which a posterior streams. The first call writes them to
    ``.npy`` files, a part of the rows at a time, and needs as much room on the disk as they have bytes. Later calls
    open these files, as long as the Parquet file has not changed. It needs Polars: ``pip install 'hamcmc[parquet]'``.
    A Zarr group is written to the disk if there is a `cache`, anew at each call, because it does not say when it
    changed.

    Args:
        table: the table, or the path of a file.
        arrays: a name for each array, and the column that it has, for an array (N,), or a list of columns, for an array
            (N, K). Columns of one array get the type that holds them all.
        cache: the folder for the ``.npy`` files; by default one beside the Parquet file, whose name ends with
            ``.columns``. It can be deleted at any time when no run uses it.

    Returns:
        A dict with the names of `arrays`.

    Raises:
        ParquetError: the file is damaged, a column is missing or has no numbers, or some of its values are missing.
        ColumnError: the same of a table (:class:`hamcmc.target.tables.ColumnError`).

    Example:
        >>> data = hamcmc.columns("rides.parquet", {"x": ["age", "km"], "y": "paid"})  # doctest: +SKIP
        >>> posterior = hamcmc.Posterior(log_prior, log_likelihood, data, init=init)  # doctest: +SKIP
    """
    if not isinstance(table, str | Path):
        if cache is not None and hasattr(table, "array_keys"):
            return _on_disk(table, arrays, Path(cache))
        if cache is not None:
            raise tables.ColumnError("cache is for Parquet files and Zarr groups: this table is in memory")
        return tables.stacked(tables.table(table, "the table"), arrays)
    path = Path(table)
    if path.suffix in delimited.DELIMITERS:
        if cache is not None:
            raise tables.ColumnError("cache is for Parquet files and Zarr groups: text files are read into memory")
        names = {c for of in arrays.values() for c in ([of] if isinstance(of, str) else of)}
        return tables.stacked(delimited.read(path, names), arrays)
    file = _File(path)
    wanted = {name: _Wanted(file, of) for name, of in arrays.items()}
    if not wanted:
        raise ParquetError(f"{path}: arrays names no columns")
    folder = path.with_name(path.name + ".columns") if cache is None else Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{_plain(name)}-{w.digest}.npy" for name, w in wanted.items()}
    if missing := [name for name, p in paths.items() if not p.exists()]:
        file.write({paths[name]: wanted[name] for name in missing})
    return {name: np.load(p, mmap_mode="r", allow_pickle=False) for name, p in paths.items()}


def _on_disk(group: Any, arrays: Mapping[str, str | Sequence[str]], folder: Path) -> dict[str, np.ndarray]:
    """Arrays of a Zarr group as memory maps, written a part of the rows at a time."""
    known = tables.Columns({n: group[n] for n in group.array_keys()})
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, of in arrays.items():
        parts = [known[c] for c in ([of] if isinstance(of, str) else of)]
        for column, x in zip([of] if isinstance(of, str) else of, parts):
            if x.dtype.kind not in tables.NUMBERS:
                raise tables.ColumnError(f"the table: column {column!r} has no numbers, but {x.dtype}")
        if not parts or len({x.shape for x in parts}) > 1:
            shapes = ", ".join(f"{c} {x.shape}" for c, x in zip(of, parts)) or "no columns"
            raise tables.ColumnError(f"{name}: columns of one array must have one shape, got {shapes}")
        kind, rows = np.result_type(*(x.dtype for x in parts)), parts[0].shape[0]
        step = max(1, HELD // max(1, sum(x.nbytes for x in parts) // max(1, rows)))
        path = folder / f"{_plain(name)}.npy"
        with replacing(path) as partial, open(partial, "xb") as f:
            shape = parts[0].shape if isinstance(of, str) else (rows, len(parts), *parts[0].shape[1:])
            header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(f, header)
            for start in range(0, rows, step):
                blocks = [np.asarray(x[start : start + step], kind) for x in parts]
                f.write(np.ascontiguousarray(blocks[0] if isinstance(of, str) else np.stack(blocks, 1)).data)
        found[name] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def all_columns(path: Path) -> dict[str, np.ndarray]:
    """All columns of a Parquet file as memory-mapped arrays, each (N,); see :func:`columns`."""
    return columns(path, {name: name for name in _File(path).types})


def read(path: Path) -> tables.Columns:
    """All columns of a Parquet file in memory, each as an array (N,); those without numbers are faults."""
    file = _File(path)
    with file.readable():
        frame = file.frame()
    return tables.table(frame, str(path))


def read_arrow(path: Path) -> tables.Columns:
    """All columns of an Arrow file (Feather) in memory."""
    with needs("polars", "parquet"):
        import polars
    try:
        frame = polars.read_ipc(path)
    except (polars.exceptions.PolarsError, OSError) as error:
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise tables.ColumnError(f"{path} cannot be read as Arrow: {text}") from error
    return tables.table(frame, str(path))


def read_zarr(path: Path) -> tables.Columns:
    """All arrays of a Zarr group in memory."""
    import zarr

    try:
        group = zarr.open_group(str(path), mode="r")
    except Exception as error:  # zarr has many of its own
        raise tables.ColumnError(f"{path} cannot be read as a Zarr group: {error}") from error
    return tables.table(group, str(path))


class _File:
    """A Parquet file: its columns and their types, its length, and its rows in parts."""

    def __init__(self, path: Path):
        with needs("polars", "parquet"):
            import polars
        self.path, self._polars = path, polars
        with self.readable():
            found = path.stat()
            self._scan = polars.scan_parquet(path)
            self.types = dict(self._scan.collect_schema())
            self.rows = int(self._scan.select(polars.len()).collect().item())
        self.state = f"{found.st_size} {found.st_mtime_ns} {self.rows}"

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Name the file in whatever Polars or the system says about it."""
        try:
            yield
        except (self._polars.exceptions.PolarsError, OSError) as error:
            text = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ParquetError(f"{self.path} cannot be read as Parquet: {text}") from error

    def frame(self) -> Any:
        """All of it."""
        return self._scan.collect()

    def kind(self, column: str) -> np.dtype:
        """The type of a column as NumPy has it."""
        if column not in self.types:
            known = ", ".join(self.types) + nearest(column, self.types)
            raise ParquetError(f"{self.path} has no column {column!r}: it has {known}")
        found = self.types[column]
        if not (found.is_float() or found.is_integer() or found == self._polars.Boolean):
            raise ParquetError(f"{self.path}: the column {column!r} has no numbers, but {found}")
        return self._polars.Series([], dtype=found).to_numpy().dtype

    def parts(self, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """The first row of each part, and the part as a table without missing values."""
        length = max(1, HELD // sum(self.kind(c).itemsize for c in names))
        chosen = self._scan.select(names)
        for start in range(0, self.rows, length):
            with self.readable():
                frame = chosen.slice(start, length).collect()
            if len(frame) != min(length, self.rows - start):
                raise ParquetError(f"{self.path} changed while it was read: there are rows missing from {start:,} on")
            for column in frame:
                if bad := column.null_count():
                    where = start + tables.first(column.is_null().to_numpy())
                    raise ParquetError(
                        f"{self.path}: {bad:,} values of the column {column.name!r} are missing from row {where:,} on"
                    )
            yield start, frame

    def write(self, files: "Mapping[Path, _Wanted]") -> None:
        """Write arrays to files, all of them in one pass over the rows; files appear when they are complete."""
        names = list(dict.fromkeys(c for w in files.values() for c in w.columns))
        with ExitStack() as stack:
            opened = []
            for path, w in files.items():
                f = stack.enter_context(open(stack.enter_context(replacing(path)), "xb"))
                shape = (self.rows, *w.trailing)
                header = {"descr": np.lib.format.dtype_to_descr(w.kind), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(f, header)
                opened.append((f, w))
            for _, frame in self.parts(names):
                for f, w in opened:
                    f.write(w.block(frame).data)


class _Wanted:
    """An array that is wanted of a file."""

    def __init__(self, file: _File, of: str | Sequence[str]):
        self.columns = (of,) if isinstance(of, str) else tuple(of)
        if not self.columns:
            raise ParquetError(f"{file.path}: an array of no columns was asked for")
        self.trailing = () if isinstance(of, str) else (len(self.columns),)
        self.kind = np.result_type(*map(file.kind, self.columns))
        text = f"{file.state} {self.columns} {self.trailing} {self.kind}"
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def block(self, frame: Any) -> np.ndarray:
        """The array's part that belongs to a part of the rows."""
        if not self.trailing:
            return np.ascontiguousarray(frame[self.columns[0]].to_numpy(), self.kind)
        found = np.empty((len(frame), *self.trailing), self.kind)
        for i, column in enumerate(self.columns):
            found[:, i] = frame[column].to_numpy()
        return found


def _plain(name: str) -> str:
    """A name for a file."""
    return "".join(c if c.isalnum() else "_" for c in name)[:40]
