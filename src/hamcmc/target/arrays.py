"""The data of a posterior as arrays of one length, checked, and read block by block."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from hamcmc._compile import put
from hamcmc._types import PyTree
from hamcmc.target import disk, tables

ROUNDED = 0.01  # share of a standard deviation that rounding may move numbers by, unsaid
PRECISELY = 'compute in double precision with jax.config.update("jax_enable_x64", True)'
LOOKED_AT = 1024  # rows that tell how far from 0 a column is
SAMPLED = 2**30  # bytes; the checksum and the NaN check read only evenly spaced blocks of a larger array


def checksum(data: PyTree) -> str:
    """SHA-256 of the names, shapes, types and values of arrays."""
    digest = hashlib.sha256()
    for path, leaf in tree_leaves_with_path(data):
        digest.update(f"{keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        for block in blocks(leaf):
            digest.update(np.ascontiguousarray(block).view(np.uint8).data)
    return digest.hexdigest()


def blocks(leaf: Any) -> Iterator[np.ndarray]:
    """Blocks of about 1 MiB: all of them in succession, or evenly spaced ones of an array above 1 GiB."""
    leaf = leaf if isinstance(leaf, np.memmap) else np.asarray(leaf)
    rows = max(1, len(leaf) * 2**20 // max(1, leaf.nbytes))
    starts = range(0, len(leaf), rows)
    if leaf.nbytes > SAMPLED:
        starts = np.linspace(0, len(leaf) - rows, 512).astype(int).tolist()
    for start in starts:
        yield disk.rows(leaf, slice(start, start + rows))


def _bad(array: Any, is_bad: Callable[[np.ndarray], np.ndarray]) -> tuple[int, str]:
    """How many entries are bad, and where the first of them is, if all were looked at."""
    bad, begin, where = 0, 0, ""
    for block in blocks(array):
        found = is_bad(block)
        if found.any() and not bad and array.nbytes <= SAMPLED:
            where = f", the first in row {begin + tables.first(found.reshape(len(found), -1).any(1)):,}"
        bad, begin = bad + int(found.sum()), begin + len(block)
    return bad, where


def _require_representable(name: str, array: Any) -> None:
    """Raise if numbers are not finite, or too large for the type in which JAX takes them."""
    own, kind = np.dtype(array.dtype), jax.dtypes.canonicalize_dtype(array.dtype)
    if own.kind in "fc":
        bad, where = _bad(array, lambda x: ~np.isfinite(x))
        if bad:
            raise ValueError(f"{name} has {bad} entries that are NaN or infinite{where}")
    if own != kind:
        _require_in_range(name, array, kind)
    if own != kind and own.kind == "f" and (lost := _lost(array, kind)) > ROUNDED:
        warnings.warn(
            f"{name} loses digits in {np.dtype(kind)}: rounding moves its numbers by {lost:.0%} of their standard "
            f"deviation. Subtract an offset from them before they go into the posterior, or {PRECISELY}",
            stacklevel=4,
        )
    else:
        _warn_of_offset(name, array, kind)


def _require_in_range(name: str, array: Any, kind: Any) -> None:
    """Raise if numbers are beyond the largest of the type."""
    own = np.dtype(array.dtype)
    limits = np.iinfo(kind) if own.kind in "iu" else np.finfo(kind)
    low, high = own.type(limits.min), own.type(limits.max)

    def outside(x: np.ndarray) -> np.ndarray:
        parts = (np.real(x), np.imag(x)) if own.kind == "c" else (x,)
        return np.logical_or.reduce([(part < low.real) | (part > high.real) for part in parts])

    bad, where = _bad(array, outside)
    if bad:
        raise ValueError(
            f"{name} has {bad} entries beyond {limits.max:.3g}, the largest number of {np.dtype(kind)}{where}: change "
            f"its unit, or {PRECISELY}"
        )


def _warn_of_offset(name: str, array: Any, kind: Any) -> None:
    """Warn of a column like the seconds since 1970: beside an intercept it is the same number in every row."""
    if array.dtype.kind not in "iuf" or len(array) < 2:
        return
    x = np.asarray(array[:: -(-len(array) // LOOKED_AT)], np.float64).reshape(-1, math.prod(array.shape[1:]))
    scale = x.std(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where(scale > 0, np.abs(x.mean(0)) / scale, 0.0)
    digits = np.finfo(kind if np.dtype(kind).kind == "f" else jax.dtypes.canonicalize_dtype(float))
    if np.max(far, initial=0.0) <= 1 / np.sqrt(digits.eps):
        return
    column = int(np.argmax(far))
    place = f"column {column} of {name}" if array.ndim > 1 else name
    also = f", or {PRECISELY}" if digits.bits < 64 else ""
    warnings.warn(
        f"{place} is {far[column]:,.0f} standard deviations away from 0: in {digits.dtype} it can hardly be told from "
        f"an intercept, and the mode may not be found. Subtract its mean{also}",
        stacklevel=5,
    )


def _lost(array: Any, kind: Any) -> float:
    """The root mean square of rounding errors over the standard deviation, in the column where that is largest."""
    count, first, total, squares, errors = 0, None, 0.0, 0.0, 0.0
    for block in blocks(array):
        x = np.asarray(block).reshape(len(block), -1)
        first = x[:1] if first is None else first
        away = x - first  # without an offset, which would hide the variance
        count += len(x)
        total = total + away.sum(0)
        squares = squares + (away**2).sum(0)
        errors = errors + ((x - x.astype(kind)) ** 2).sum(0)
    if not count:
        return 0.0
    variance = squares / count - (total / count) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.sqrt(np.where(variance > 0, errors / count / variance, 0.0))
    return float(np.max(share, initial=0.0))


def checked(data: PyTree) -> tuple[PyTree, int]:
    """The data as arrays of one length, and that length. Raises with the name of the leaf at fault."""
    if data is None:
        return None, 0
    data = tables.as_arrays(data)
    lengths: dict[str, int] = {}
    for path, leaf in tree_leaves_with_path(data):
        name = f"data{keystr(path)}"
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if array.dtype.kind not in "fiub" and array.dtype.kind != "c":
            raise ValueError(f"{name} must be numeric, got dtype {array.dtype}")
        if array.ndim == 0:
            raise ValueError(f"{name} must be an array with one row per datum, got a scalar")
        lengths[name] = array.shape[0]
        _require_representable(name, array)
    if not lengths:
        raise ValueError("data has no arrays")
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "data arrays must have one common length, got " + ", ".join(f"{k}: {n}" for k, n in lengths.items())
        )
    size = next(iter(lengths.values()))
    if size == 0:
        raise ValueError("data is empty: it has 0 rows")
    streamed = any(isinstance(x, np.memmap) for x in jax.tree.leaves(data))

    def kept(x: Any) -> Any:
        """A memory map as it is. What stands beside one stays on the host, where rows are read."""
        if isinstance(x, np.memmap):
            return x
        return np.asarray(x, jax.dtypes.canonicalize_dtype(x.dtype)) if streamed else put(x)

    return jax.tree.map(kept, data), size
