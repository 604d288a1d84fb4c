"""Tables as arrays by column name: pandas, polars, Arrow, Zarr groups, and dicts of arrays.

None of these libraries is imported here. A table is known by the module of its type.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import jax
import numpy as np

from hamcmc._check import nearest

LARGEST = 2**31  # bytes of a Zarr group that are read into memory
NUMBERS = "fiub"  # kinds of NumPy types that a likelihood can use


class ColumnError(ValueError):
    """A table or a column that cannot be used. The message names the column, and the first row at fault."""


class UnknownColumn(ColumnError, KeyError):
    """A name that no column has."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would put it in quotes


class Columns(dict):
    """Arrays by the names of their columns. A wrong name is answered with the nearest one.

    Attributes:
        faults: column → why it cannot be used. Such a column is an error only for those who ask for it.
    """

    def __init__(self, arrays: Mapping[str, Any] | Iterable = (), faults: Mapping[str, str] | None = None):
        super().__init__(arrays)
        self.faults = dict(faults or {})

    def __missing__(self, name: str) -> Any:
        if name in self.faults:
            raise ColumnError(self.faults[name])
        known = [*map(str, self), *self.faults]
        shown = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
        raise UnknownColumn(f"there is no column {name!r}: there are {shown}{nearest(name, known)}")


def _flatten(columns: Columns) -> tuple[list[tuple[Any, Any]], tuple]:
    names = sorted(columns)
    return [(jax.tree_util.DictKey(n), columns[n]) for n in names], tuple(names)


def _unflatten(names: tuple, arrays: Iterable) -> Columns:
    return Columns(zip(names, arrays))


jax.tree_util.register_pytree_with_keys(Columns, _flatten, _unflatten)


def is_table(data: Any) -> bool:
    """Whether something is a table of another library, and not a single column of one."""
    return hasattr(data, MARKS.get(_library(data), "_no table"))


def as_arrays(data: Any) -> Any:
    """A table as arrays by column name; anything else as it is.

    Raises:
        ColumnError: a column has no numbers, or some of them are missing.
    """
    if isinstance(data, Columns) or is_table(data):
        found = data if isinstance(data, Columns) else table(data)
        for fault in found.faults.values():
            raise ColumnError(f"{fault}; choose the columns that you need, as hamcmc.columns does, or encode it")
        return found
    if isinstance(data, Mapping) and not isinstance(data, dict):
        return dict(data)
    return data


def table(data: Any, where: str = "data") -> Columns:
    """All columns of a table, of which some may be faulty.

    Args:
        data: a table of pandas, polars, Arrow or Zarr, or a mapping of arrays.
        where: how to call it in messages.

    Raises:
        ColumnError: it is no table, or has no rows or no columns.
    """
    if not is_table(data) and not isinstance(data, Mapping):
        raise ColumnError(f"{where} is no table, but of type {type(data).__name__}")
    arrays, faults = {}, {}
    for name, column in (READERS[_library(data)] if is_table(data) else _of_mapping)(data):
        if name in arrays or name in faults:
            raise ColumnError(f"{where}: two columns have the name {name!r}")
        if isinstance(column, str):
            faults[name] = f"{where}: column {name!r} {column}"
        else:
            arrays[name] = column
    if not arrays and not faults:
        raise ColumnError(f"{where} has no columns")
    return Columns(arrays, faults)


def stacked(columns: Columns, wanted: Mapping[str, str | Sequence[str]]) -> dict[str, np.ndarray]:
    """Arrays (N,) of single columns, and (N, K) of lists of columns."""
    if not wanted:
        raise ColumnError("arrays names no columns")
    found = {}
    for name, of in wanted.items():
        if isinstance(of, str):
            found[name] = columns[of]
        elif not of:
            raise ColumnError(f"{name}: an array of no columns was asked for")
        else:
            found[name] = np.stack([np.asarray(columns[c]) for c in of], axis=1)
    return found


def first(bad: Any) -> int:
    """The first row of which something is true."""
    return int(np.argmax(np.asarray(bad)))


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _missing(bad: Any) -> str:
    bad = np.asarray(bad)
    return f"has {int(bad.sum()):,} missing values, the first in row {first(bad):,}: fill or drop them"


def _no_numbers(kind: Any, values: Iterable) -> str:
    """What a column without numbers has, and where."""
    for row, value in enumerate(values):
        if not isinstance(value, Number):
            return f"has no numbers, but {kind}: row {row:,} has {value!r}"
    return f"has no numbers, but {kind}"


def _of_pandas(frame: Any) -> Iterator[tuple[str, Any]]:
    """Columns of a pandas DataFrame. An integer column with missing values is one of floats there."""
    for place, name in enumerate(frame.columns):
        series = frame.iloc[:, place]
        kind = getattr(series.dtype, "kind", "O")
        missing = series.isna().to_numpy()
        if kind not in NUMBERS:
            yield str(name), _no_numbers(series.dtype, series)
        elif missing.any():
            yield str(name), _missing(missing)
        else:
            yield str(name), series.to_numpy(getattr(series.dtype, "numpy_dtype", series.dtype))


def _of_polars(frame: Any) -> Iterator[tuple[str, Any]]:
    """Columns of a polars DataFrame."""
    if not hasattr(frame, "get_columns"):
        raise ColumnError(f"data is a polars {type(frame).__name__}, which has no rows yet: call .collect() first")
    for series in frame.get_columns():
        kind = series.dtype
        if not (kind.is_float() or kind.is_integer() or str(kind) == "Boolean"):
            yield series.name, _no_numbers(kind, series)
        elif series.null_count():
            yield series.name, _missing(series.is_null().to_numpy())
        else:
            yield series.name, series.to_numpy()


def _of_arrow(data: Any) -> Iterator[tuple[str, Any]]:
    """Columns of an Arrow Table or RecordBatch."""
    for name, column in zip(data.schema.names, data.columns):
        kind = str(column.type)
        if not kind.startswith(("int", "uint", "float", "double", "halffloat", "bool")):
            yield name, _no_numbers(kind, (value.as_py() for value in column))
        elif column.null_count:
            yield name, _missing(column.is_null().to_numpy(zero_copy_only=False))
        else:
            yield name, column.to_numpy(zero_copy_only=False)


def _of_zarr(group: Any) -> Iterator[tuple[str, Any]]:
    """Arrays of a Zarr group, in memory."""
    arrays = {n: group[n] for n in sorted(group.array_keys())}
    size = sum(x.nbytes for x in arrays.values())
    if size > LARGEST:
        raise ColumnError(
            f"the Zarr group has {size / 2**30:.1f} GiB, too much for memory: write it to the disk once with "
            "hamcmc.columns(group, {…}, cache=folder), which gives arrays that are streamed"
        )
    for name, x in arrays.items():
        yield name, np.asarray(x[:]) if x.dtype.kind in NUMBERS else f"has no numbers, but {x.dtype}"


def _of_mapping(data: Mapping) -> Iterator[tuple[str, Any]]:
    """A dict of arrays, which may be memory maps."""
    for name, x in data.items():
        array = x if hasattr(x, "dtype") else np.asarray(x)
        yield str(name), array if array.dtype.kind in NUMBERS else _no_numbers(array.dtype, array.ravel()[:1000])


MARKS = {"pandas": "columns", "polars": "lazy", "pyarrow": "schema", "zarr": "array_keys"}  # what only tables have
READERS = {"pandas": _of_pandas, "polars": _of_polars, "pyarrow": _of_arrow, "zarr": _of_zarr}
