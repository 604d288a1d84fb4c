"""The input of ``hamcmc sample``: a Python file with a model, and a file with data."""

import hashlib
import importlib.util
import inspect
import struct
import sys
import traceback
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hamcmc import _processes
from hamcmc._check import nearest
from hamcmc._types import Record
from hamcmc.interop import delimited
from hamcmc.samplers import Sampler, build
from hamcmc.samplers.registry import requires, takes
from hamcmc.store.errors import RunError
from hamcmc.store.files import reading
from hamcmc.target.posterior import Posterior
from hamcmc.target.tables import ColumnError, Columns

MAPPED = 2**30  # bytes; a larger array stays on disk and is streamed
NO_COLUMNS: Mapping[str, list[str]] = {}
HINTS = {  # what to do about errors whose own text is about the inside of JAX
    "TracerBoolConversionError": " Parameters and data have no values while JAX compiles: use jnp.where, not if.",
    "TracerArrayConversionError": ": use jax.numpy there, not numpy.",
}
OPTIONS = ("fisher", "metric")  # arguments of samplers that a model file may define


class ModelFileError(ValueError):
    """A model or data file that cannot be used. The message names the file and the place in it."""


class Model(NamedTuple):
    """What a model file defines.

    Attributes:
        posterior: what the file's ``posterior(data)`` returned.
        init: the file's ``init``: parameters, or a function of a key that draws them.
        options: what else the file defines for samplers: ``fisher`` (for sgrld) and ``metric`` (for the quasi-Newton
            samplers).
    """

    posterior: Posterior
    init: Any
    options: Record

    def sampler(self, name: str, settings: Record) -> Sampler:
        """A sampler by name, with what the model file defines for it."""
        return build(name, self.posterior, **settings, **self.own_options(name))

    def own_options(self, name: str) -> Record:
        """What the model file has for a sampler."""
        if requires(name, "fisher") and "fisher" not in self.options:
            raise ModelFileError(f"{name} needs the expected Fisher information: define `fisher` in the model file")
        return {option: value for option, value in self.options.items() if takes(name, option)}


def load(path: Path, data: Path | None, columns: Mapping[str, list[str]] = NO_COLUMNS) -> Model:
    """Run a model file and build its posterior. The file is code: run only files that you trust."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ModelFileError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if (beside := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, beside)  # so that it can import modules that lie beside it, as a script can
    with blamed(path):
        spec.loader.exec_module(module)
    for name in ("posterior", "init"):
        if not hasattr(module, name):
            raise ModelFileError(f"{path} does not define `{name}`: a model file has posterior(data) and init")
    if not callable(module.posterior):
        raise ModelFileError(f"{path}: `posterior` must be a function of the data")
    wants_data = bool(inspect.signature(module.posterior).parameters)
    if wants_data and data is None:
        raise ModelFileError(f"{path}: posterior(data) needs data: give --data")
    if data is not None and not wants_data:
        raise ModelFileError(f"{path}: posterior() takes no data, but --data was given")
    if columns and data is None:
        raise ModelFileError("--columns names columns of a file: give --data")
    given = () if data is None else (read_data(data, columns),)
    with blamed(path):
        posterior = module.posterior(*given)
    if not isinstance(posterior, Posterior):
        raise ModelFileError(f"{path}: posterior(data) must return a hamcmc.Posterior, got {type(posterior).__name__}")
    options = {k: getattr(module, k) for k in OPTIONS if hasattr(module, k)}
    return Model(posterior, module.init, options)


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Turn an error in a function of the model file into a short one that names the line.

    The functions of a model are called by JAX, whose own part of a traceback tells its reader nothing.
    """
    try:
        yield
    except (RunError, ModelFileError):
        raise
    except SyntaxError as error:
        if error.filename is None or not _same(error.filename, path):
            raise
        raise ModelFileError(f"{path}:{error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _same(f.filename, path)]
        if not frames:
            raise
        at, said = frames[-1], str(error).strip().partition("\n")[0]
        where = f"in {at.name}, " if at.name.isidentifier() else ""
        hint = HINTS.get(type(error).__name__, "")
        message = f"{path}:{at.lineno}: {where}{at.line!r}: {type(error).__name__}: {said}{hint}"
        raise ModelFileError(message) from error


def _same(name: str, path: Path) -> bool:
    """Whether a frame of a traceback belongs to a file."""
    return Path(name).resolve() == path.resolve()


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def parse_columns(given: Sequence[str]) -> dict[str, list[str]]:
    """``["x=age,km", "y=paid"]`` as ``{"x": ["age", "km"], "y": ["paid"]}``."""
    found: dict[str, list[str]] = {}
    for text in given:
        name, equals, of = text.partition("=")
        names = [c.strip() for c in of.split(",")]
        if not (name.strip() and equals and all(names)):
            raise ModelFileError(f"--columns needs NAME=COLUMN,COLUMN,…, got {text!r}")
        if name.strip() in found:
            raise ModelFileError(f"--columns has {name.strip()!r} twice")
        found[name.strip()] = names
    return found


def read_data(path: Path, columns: Mapping[str, list[str]] = NO_COLUMNS) -> Any:
    """Read arrays from a file; with `columns`, arrays (N,) or (N, K) from columns of it.

    An ``.npy`` file gives an array; above 1 GiB, it stays on disk. An ``.npz`` file, a folder of ``.npy`` files, a
    ``.csv`` or ``.tsv`` file with a header, a Zarr group, a ``.parquet`` and an ``.arrow`` or ``.feather`` file give a
    dict of arrays by column name. For a table that is larger than memory, the model file calls :func:`hamcmc.columns`.
    Where several processes share the rows, ``.npy``, ``.parquet`` and uncompressed ``.npz`` files stay on disk, and
    each process reads its own part of them.
    """
    if columns:
        return _read_columns(path, columns)
    with reading(path, "cannot be read", ModelFileError):
        if path.is_dir() and not is_zarr(path):
            files = sorted(path.glob("*.npy"))
            if not files:
                raise ModelFileError(f"{path}: no .npy files in this folder")
            return Columns({f.stem: _read_npy(f) for f in files})
        if path.suffix == ".npy":
            return _read_npy(path)
        if path.suffix == ".npz":
            with open(path, "rb") as f, np.load(f, allow_pickle=False) as arrays:
                if isinstance(arrays, np.ndarray):
                    raise ValueError("it is not an .npz file")
                if _processes.several() and (mapped := _mapped_npz(path)):
                    return mapped
                return Columns({name: _numbers(array, f"{path}: {name}") for name, array in arrays.items()})
        if path.suffix in delimited.DELIMITERS:
            return _read_table(path)
    from hamcmc.interop import parquet

    if is_zarr(path):
        return parquet.read_zarr(path)
    if path.suffix == ".parquet":
        if _processes.several():  # the first one writes columns as arrays, which all of them then map
            _processes.all_or_none(lambda: parquet.all_columns(path) if _processes.writes() else None, ValueError)
            return parquet.all_columns(path)
        return parquet.read(path)
    if path.suffix in (".arrow", ".feather", ".ipc"):
        return parquet.read_arrow(path)
    raise ModelFileError(
        f"{path}: data must be .npy, .npz, .csv, .tsv, .parquet, .arrow, .feather, a Zarr group or a folder of .npy "
        "files"
    )


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr group."""
    return path.is_dir() and any((path / name).exists() for name in ("zarr.json", ".zgroup"))


def _read_columns(path: Path, columns: Mapping[str, list[str]]) -> dict[str, np.ndarray]:
    """Arrays from columns of a table. Other columns of the file need not be numbers."""
    if path.suffix == ".parquet":
        from hamcmc.interop.parquet import columns as of_parquet

        return of_parquet(path, {name: of if len(of) > 1 else of[0] for name, of in columns.items()})
    if path.suffix in delimited.DELIMITERS:
        with reading(path, "cannot be read", ModelFileError):
            table = _read_table(path, {c for of in columns.values() for c in of})
    else:
        table = read_data(path)
    if not isinstance(table, dict):
        raise ModelFileError(f"{path} has one array and no columns: leave --columns out")
    for name in (c for of in columns.values() for c in of):
        if name not in table:
            raise ModelFileError(f"{path} has no column {name!r}{nearest(name, table)}")
        if len(columns) and table[name].ndim != 1:
            raise ModelFileError(f"{path}: {name} has shape {table[name].shape}: --columns takes arrays (N,)")
    return {
        name: table[of[0]] if len(of) == 1 else np.stack([table[c] for c in of], axis=1) for name, of in columns.items()
    }


def _read_npy(path: Path) -> np.ndarray:
    mapped = "r" if path.stat().st_size > MAPPED or _processes.several() else None
    with open(path, "rb") as f:
        if f.read(6) != b"\x93NUMPY":
            raise ValueError("it is not an .npy file")
    return _numbers(np.load(path, mmap_mode=mapped, allow_pickle=False), str(path))


def _mapped_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file as memory maps; none if it is compressed."""
    found = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                return {}
            file.seek(entry.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))  # lengths, in the header before the array itself
            file.seek(name + extra, 1)
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, kind = read(file)
            if kind.hasobject:
                raise ModelFileError(f"{path}: {entry.filename} must have numbers, not {kind}")
            array = np.memmap(path, kind, "r", file.tell(), shape, "F" if fortran else "C")
            found[entry.filename.removesuffix(".npy")] = _numbers(array, f"{path}: {entry.filename}")
    return found


def _numbers(array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise ModelFileError(f"{where} must have numbers, not {array.dtype}")
    return array


def _read_table(path: Path, wanted: Collection[str] | None = None) -> Columns:
    """The columns of a text file, or those that are wanted."""
    try:
        return delimited.read(path, wanted)
    except ColumnError as error:
        raise ModelFileError(str(error)) from None
