"""The store of draws: arrays in ArviZ's layout (chain, draw, …), of their final size, filled from the front."""

import math
import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hamcmc.store.errors import RunError
from hamcmc.store.files import guard_disk, reading, remove_tree
from hamcmc.store.memory import MemoryGroup

CHUNK_BYTES = 4 * 2**20
MOST_OF_DISK = 0.95  # of what is free, so that checkpoints find room
MOST_IN_CHUNK = 4096  # draws; it bounds how many small draws wait in memory to be written
DTYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)))


class Array(NamedTuple):
    """Name, type, and shape without (chain, draw), of something recorded at each draw."""

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: str


def size_of(arrays: Iterable[Array], chains: int, num_samples: int) -> int:
    """Bytes that so many draws take, before compression."""
    return sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in arrays) * chains * num_samples


def readable(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def require_room(path: Path, arrays: list[Array], chains: int, num_samples: int) -> None:
    """Raise if the draws of a run would fill the disk.

    Raises:
        RunError: there is too little room; the message says how much is needed and what takes it.
    """
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    needed, free = size_of(arrays, chains, num_samples), shutil.disk_usage(there).free
    if needed <= free * MOST_OF_DISK:
        return
    largest = max(arrays, key=lambda a: math.prod(a.shape))
    raise RunError(
        f"the draws would take {readable(needed)} ({num_samples:,} of each of {chains:,} chains, most of it "
        f"{largest.name}), and {there} has {readable(free)} free: store fewer (num_samples, with a larger "
        "thin), or a part of the parameters (store)"
    )


class Draws:
    """A store of draws that is being written. Draws wait in memory until a chunk is full."""

    def __init__(self, path: Path | None, root: Any, arrays: list[Array], chunk: int, written: int):
        self.path, self.root, self.arrays, self.chunk = path, root, arrays, chunk
        self.written, self.pending = written, 0
        self._buffer: list[dict[str, np.ndarray]] = []

    @classmethod
    def open(
        cls, path: Path | None, arrays: list[Array], chains: int, num_samples: int, *, written: int | None
    ) -> "Draws":
        """A store in a directory, or in memory where `path` is None.

        Args:
            path: the store's directory.
            arrays: what is recorded at each draw.
            chains: chains that each array has.
            num_samples: draws per chain that there will be.
            written: draws per chain that an existing store holds; None makes a new store.
        """
        chunk = min(chunk_draws(arrays, chains), num_samples)
        if path is None:
            return cls(None, _in_memory(arrays, chains, num_samples, chunk), arrays, chunk, 0)
        if written is not None:
            return cls(path, open_store(path, arrays, written, "r+"), arrays, chunk, written)
        import zarr

        with guard_disk(path):
            remove_tree(path)  # left over from a run that was killed before its first checkpoint
            root = zarr.create_group(path)
            for group in dict.fromkeys(a.group for a in arrays):
                _create_group(root, group, arrays, chains, num_samples, chunk)
        return cls(path, root, arrays, chunk, 0)

    def append(self, draws: dict[str, np.ndarray]) -> None:
        """Take draws as (draw, chain, …) by ``group/name``, and write once a chunk is full."""
        n = len(next(iter(draws.values())))
        if n:
            self._buffer.append(draws)
            self.pending += n
        if (self.written + self.pending) // self.chunk > self.written // self.chunk:
            self.flush()

    def flush(self) -> None:
        """Write all that is pending."""
        if not self.pending:
            return
        end = self.written + self.pending
        with guard_disk(self.path), _every_chunk(self.path):
            for a in self.arrays:
                key = f"{a.group}/{a.name}"
                block = np.concatenate([b[key] for b in self._buffer])
                self.root[key][:, self.written : end] = np.moveaxis(block, 0, 1)
        self._buffer, self.written, self.pending = [], end, 0

    def cut(self) -> None:
        """Shorten the arrays to the draws that were written: no more will follow."""
        for a in [*self.arrays, *(Array(g, "draw", (), "") for g in {a.group for a in self.arrays})]:
            with guard_disk(self.path):
                array = self.root[f"{a.group}/{a.name}"]
                array.resize((self.written,) if a.name == "draw" else (array.shape[0], self.written, *a.shape))

    def put_moments(self, summary: Mapping[str, np.ndarray]) -> None:
        """Write running means and variances, (chain, …) each."""
        if self.path is None:
            self.root.put("moments", summary)
            return
        with guard_disk(self.path):
            group = self.root.create_group("moments", overwrite=True)
            for name, value in summary.items():
                dims = ("chain", *(f"{name}_dim_{i}" for i in range(value.ndim - 1)))
                group.create_array(name, data=value, dimension_names=dims)


def _every_chunk(path: Path | None) -> AbstractContextManager:
    """Write a chunk of zeros like any other, so that a missing chunk is a lost one."""
    if path is None:
        return nullcontext()
    import zarr

    return zarr.config.set({"array.write_empty_chunks": True})


def _in_memory(arrays: list[Array], chains: int, num_samples: int, chunk: int) -> MemoryGroup:
    """Empty arrays in memory."""
    root = MemoryGroup()
    for a in arrays:
        empty = np.nan if np.dtype(a.dtype).kind == "f" else 0
        root.put(a.group, {a.name: np.full((chains, num_samples, *a.shape), empty, a.dtype)}, chunk)
        root.put(a.group, {"draw": np.arange(num_samples)})
    return root


def open_store(path: Path, arrays: list[Array], draws: int, mode: Any) -> Any:
    """Open the store of a run; raises unless every array is there as described, with at least `draws` draws."""
    import zarr

    with reading(path, "is missing or damaged"):
        root = zarr.open_group(path, mode=mode, zarr_format=3)
        chains = {_check_stored(root[f"{a.group}/{a.name}"], a, draws) for a in arrays}
        if len(chains) > 1:
            raise ValueError(f"its arrays have {' or '.join(map(str, sorted(chains)))} chains")
    return root


def _check_stored(stored: Any, a: Array, draws: int) -> int:
    """How many chains a stored array has; raises unless the array is as described."""
    if stored.ndim < 2 or stored.shape[1] < draws:
        raise ValueError(f"{a.name} has {stored.shape[1] if stored.ndim > 1 else 0} draws of {draws}")
    codecs = {codec.to_dict()["name"] for codec in stored.metadata.codecs}
    if stored.dtype.name not in DTYPES or not codecs <= {"bytes", "zstd"}:
        raise ValueError(f"{a.name} has {stored.dtype}, encoded by {', '.join(sorted(codecs))}")
    if a.dtype and (stored.dtype != a.dtype or stored.shape[2:] != tuple(a.shape)):
        raise ValueError(f"{a.name} has {stored.dtype}{stored.shape[2:]} where {a.dtype}{tuple(a.shape)} is expected")
    if 0 not in stored.shape:
        _check_chunks(stored, draws)
    return stored.shape[0]


def _check_chunks(stored: Any, draws: int) -> None:
    """Raise if a file with draws is missing: zarr would read it as NaN or 0."""
    folder = Path(getattr(stored.store, "root", ""), stored.path)
    for i in range(-(-draws // stored.chunks[1])):
        if not folder.joinpath("c", "0", str(i), *("0" for _ in stored.shape[2:])).exists():
            raise ValueError(f"{stored.basename} has no chunk {i}")


def chunk_draws(arrays: list[Array], chains: int) -> int:
    """Draws in one chunk of the store: about 4 MiB of the largest array, at most `MOST_IN_CHUNK`."""
    largest = max(int(np.prod(a.shape, dtype=np.int64)) * np.dtype(a.dtype).itemsize for a in arrays)
    return int(np.clip(CHUNK_BYTES // (largest * chains), 1, MOST_IN_CHUNK))


def _create_group(root: Any, group: str, arrays: list[Array], chains: int, num_samples: int, chunk: int) -> None:
    """Create a group with its coordinates and empty arrays."""
    from zarr.codecs import ZstdCodec

    target = root.create_group(group, attributes={"inference_library": "hamcmc"})
    for name, length in (("chain", chains), ("draw", num_samples)):
        target.create_array(name, data=np.arange(length), dimension_names=(name,))
    for a in (a for a in arrays if a.group == group):
        dtype = np.dtype(a.dtype)
        target.create_array(
            a.name,
            shape=(chains, num_samples, *a.shape),
            chunks=(chains, chunk, *a.shape) if 0 not in a.shape else "auto",
            dtype=dtype,
            fill_value=np.nan if dtype.kind == "f" else 0,
            compressors=ZstdCodec(level=0, checksum=True),
            dimension_names=("chain", "draw", *(f"{a.name}_dim_{i}" for i in range(len(a.shape)))),
        )
