"""Tables in text files: comma or tab between fields, and a header with the names of columns."""

import csv
import warnings
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import numpy as np

from hamcmc._check import nearest
from hamcmc.target.tables import ColumnError, Columns

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read(path: Path, wanted: Collection[str] | None = None) -> Columns:
    """The columns of a ``.csv`` or ``.tsv`` file with a header, or those that are wanted. They must have numbers.

    Raises:
        ColumnError: names the file, the line and the column that is at fault.
    """
    delimiter = DELIMITERS[path.suffix]
    with open(path, newline="", encoding="utf-8-sig") as f:
        reader = csv.reader(f, delimiter=delimiter)
        header = next(reader, None)
        if not header:
            raise ColumnError(f"{path}: the file is empty")
        names = [name.strip() for name in header]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ColumnError(f"{path}: two columns have the name {twice!r}")
        places = [i for i, name in enumerate(names) if wanted is None or name in wanted]
        if missing := [name for name in wanted or () if name not in names]:
            raise ColumnError(f"{path} has no column {missing[0]!r}{nearest(missing[0], names)}")
        begin = reader.line_num
        with suppress(ValueError), warnings.catch_warnings():  # of a table without rows
            warnings.simplefilter("ignore", UserWarning)
            table = np.loadtxt(f, delimiter=delimiter, comments=None, quotechar='"', ndmin=2)
            if len(table) and table.shape[1] == len(names):
                return Columns((names[i], np.ascontiguousarray(table[:, i])) for i in places)
    return _slowly(path, delimiter, begin, header, places)


def _slowly(path: Path, delimiter: str, begin: int, header: list[str], places: list[int]) -> Columns:
    """The columns at some places of a table of which not every field is a number. It finds the line that is at fault.

    Args:
        path: of the table.
        delimiter: what stands between fields.
        begin: the number of lines that the header has.
        header: the names of all columns.
        places: which of them are wanted.
    """
    rows = []
    with open(path, newline="", encoding="utf-8-sig") as f:
        reader = csv.reader(f, delimiter=delimiter)
        for row in reader:
            if not row or reader.line_num <= begin:
                continue
            if len(row) != len(header):
                raise ColumnError(f"{path}:{reader.line_num}: {len(row)} fields where the header has {len(header)}")
            try:
                rows.append([float(row[i]) for i in places])
            except ValueError:
                bad = next(i for i in places if not _is_number(row[i]))
                message = f"{path}:{reader.line_num}: column {header[bad]!r} is not a number: {row[bad]!r}"
                raise ColumnError(message) from None
    if not rows:
        raise ColumnError(f"{path}: data is empty: there is a header, but no rows")
    return Columns(zip((header[i].strip() for i in places), np.array(rows, np.float64).T))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
