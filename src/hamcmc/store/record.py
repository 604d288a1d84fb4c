"""A run on disk: settings, draws, checkpoints, events.

    run.json        what was asked: settings, seed, versions, checksum of the data
    draws.zarr/     posterior/…, sample_stats/…, moments/… in ArviZ's layout (chain, draw, …)
    checkpoint      state of all chains, with a SHA-256 over all of it; replaced atomically
    events.jsonl    what happened when

Draws are written before the checkpoint that counts them, so a run killed at any moment resumes from its checkpoint and
writes the same bytes again. Times stand in the log and the checkpoint only: the store of draws is a function of the
settings. No file is ever unpickled, what is read is compared with what `run.json` says, and nothing is written through
a symbolic link inside of the directory.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile

import jax
import numpy as np

from hamcmc.store.errors import RunError

PyTree = Any
MAGIC = b"hamcmc checkpoint 1\n"
CHUNK_BYTES = 4 * 2**20
OWN = ("run.json", "checkpoint", "events.jsonl", "draws.zarr", "ratings", "blocks")  # names in a run's directory
DTYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)))
KINDS = {"status": str, "iteration": int, "draws": int, "seconds": (int, float), "message": str, "gradients": int}


class Array(NamedTuple):
    """Name, shape without (chain, draw) and type of something recorded at each draw."""

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: str


class Checkpoint(NamedTuple):
    """Where a run stands: counters and every array that it needs to go on."""

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]


class Directory:
    """A run's directory, open for writing by one process until the end of a ``with`` block."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = _lock(path)

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, *_) -> None:
        os.close(self._lock)

    @classmethod
    def create(cls, path: str | os.PathLike, settings: dict[str, Any], *, overwrite: bool = False) -> "Directory":
        """Make a new run directory; an existing one is replaced only if asked to, and only if it is a run."""
        path = Path(path)
        check_free(path, overwrite=overwrite)
        with guard_disk(path):
            path.mkdir(parents=True, exist_ok=True)
        directory = cls(path)
        try:
            check_free(path, overwrite=overwrite)  # again, now that nobody else can write
            with guard_disk(path):
                for name in OWN:
                    if name in ("checkpoint", "events.jsonl") or (path / name).is_symlink():
                        (path / name).unlink(missing_ok=True)
                _remove_tree(path / "draws.zarr")
                write_atomically(path / "run.json", (json.dumps(settings, indent=2) + "\n").encode())
        except BaseException:
            directory.__exit__()
            raise
        return directory

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Directory":
        """Open an existing run to continue it."""
        path = Path(path)
        read_settings(path)
        for link in _links(path):
            raise RunError(f"{link} is a symbolic link: a run is continued only within its own directory")
        return cls(path)

    def log(self, event: str, **facts: Any) -> None:
        """Append a line to the log of events."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        with guard_disk(self.path), open(self.path / "events.jsonl", "a") as f:
            f.write(json.dumps(line) + "\n")

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        meta = checkpoint.meta | {"run_json": _digest_of_settings(self.path)}
        with guard_disk(self.path):
            write_atomically(self.path / "checkpoint", encode(checkpoint._replace(meta=meta)))


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise if a new run may not be written there."""
    exists = f"{path} exists already: choose another directory, resume it, or overwrite it (--overwrite)"
    with guard_disk(path):
        if path.is_symlink() and not path.exists():
            raise RunError(f"{path} is a link to nowhere: choose another directory")
        if path.exists() and not path.is_dir():
            raise RunError(exists)
        found = {file.name for file in path.iterdir()} if path.exists() else set()
    found -= {"run.json.partial"}  # of a start that was killed
    if found and not overwrite:
        raise RunError(exists)
    if found and "run.json" not in found:
        raise RunError(f"{path} exists and is not a run: it will not be overwritten")


def read_settings(path: Path) -> dict[str, Any]:
    """What `run.json` says."""
    file = path / "run.json"
    if not file.is_file():
        raise RunError(f"{path} is not a run: it has no run.json")
    try:
        settings = json.loads(file.read_text())
        if not isinstance(settings, dict) or not isinstance(settings.get("arrays"), list):
            raise ValueError("not the settings of a run")
        for array in settings["arrays"]:
            _check_array(array)
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(f"{file} is damaged: {error}") from error
    return settings


def require(content: Mapping[str, Any], file: Path, kinds: Mapping[str, Any]) -> None:
    """Raise if what a file says lacks something, or has it of another type than it should be."""
    for name, kind in kinds.items():
        value = content.get(name, ...)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wrong = "is missing" if value is ... else f"is {str(value)[:40]!r}"
            raise RunError(f"{file} is damaged: {name} {wrong}")


def _check_array(array: Any) -> None:
    """Raise if an entry of ``arrays`` in run.json names no array that a run can have."""
    if not isinstance(array, dict) or set(array) != set(Array._fields):
        raise ValueError(f"arrays has {str(array)[:80]}")
    names, shape = (array["group"], array["name"]), array["shape"]
    if not all(isinstance(n, str) and n and "/" not in n and n not in (".", "..") for n in names):
        raise ValueError(f"arrays has the name {str(names)[:80]}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"arrays has the shape {str(shape)[:80]}")
    if array["dtype"] not in DTYPES:
        raise ValueError(f"arrays has the type {str(array['dtype'])[:80]}")


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint, verified; None if there is none yet."""
    file = path / "checkpoint"
    if not file.is_file():
        return None
    checkpoint = decode(file.read_bytes(), str(file))
    if checkpoint.meta.get("run_json") != _digest_of_settings(path):
        raise RunError(f"{path / 'run.json'} is not the one that {file} was made with: it was edited or replaced")
    return checkpoint


def _digest_of_settings(path: Path) -> str:
    return hashlib.sha256((path / "run.json").read_bytes()).hexdigest()


def encode(checkpoint: Checkpoint) -> bytes:
    """Bytes of a checkpoint: a line that names the format, the digest, the counters as JSON, the arrays as npz."""
    body = io.BytesIO()
    body.write(json.dumps(checkpoint.meta).encode() + b"\n")
    np.savez(body, allow_pickle=False, **checkpoint.arrays)
    payload = body.getvalue()
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def decode(content: bytes, name: str) -> Checkpoint:
    """A checkpoint from its bytes; raises on any change of them."""
    digest, newline, payload = content[len(MAGIC) :].partition(b"\n")
    if not content.startswith(MAGIC) or not newline:
        raise RunError(f"{name} is not a checkpoint of this version, or is truncated")
    if hashlib.sha256(payload).hexdigest().encode() != digest:
        raise RunError(f"{name} is truncated or was edited: its checksum does not match. The run cannot be resumed")
    header, _, arrays = payload.partition(b"\n")
    with reading(name):
        meta = json.loads(header)
        for key, value in meta.items():
            if key in KINDS and (not isinstance(value, KINDS[key]) or (not isinstance(value, str) and value < 0)):
                raise ValueError(f"{key} is {str(value)[:40]!r}")
        with ZipFile(io.BytesIO(arrays)) as members:
            if any(m.compress_type != ZIP_STORED for m in members.infolist()):
                raise ValueError("its arrays are compressed")
        with np.load(io.BytesIO(arrays), allow_pickle=False) as loaded:
            found = dict(loaded)
        if not all(isinstance(array, np.ndarray) for array in found.values()):
            raise ValueError("it has something else than arrays")
        return Checkpoint(meta, found)


class Draws:
    """The store of draws: arrays of their final size, filled from the front."""

    def __init__(self, path: Path | None, root: Any, arrays: list[Array], chunk: int, written: int):
        self.path, self.root, self.arrays, self.chunk = path, root, arrays, chunk
        self.written, self.pending = written, 0
        self._buffer: list[dict[str, np.ndarray]] = []

    @classmethod
    def open(
        cls, path: Path | None, arrays: list[Array], chains: int, num_samples: int, *, written: int | None
    ) -> "Draws":
        """A store in a directory, or in memory; a new one where nothing is `written` yet."""
        import zarr
        from zarr.storage import MemoryStore

        chunk = min(chunk_draws(arrays, chains), num_samples)
        if path is not None and written is not None:
            return cls(path, open_store(path, arrays, written, "r+"), arrays, chunk, written)
        with guard_disk(path):
            if path is not None:
                _remove_tree(path)  # of a run killed before its first checkpoint
            root = zarr.create_group(path if path is not None else MemoryStore())
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
        import zarr

        end = self.written + self.pending
        for a in self.arrays:
            key = f"{a.group}/{a.name}"
            block = np.concatenate([b[key] for b in self._buffer])
            # A chunk of zeros is written like any other: one that is not there was lost.
            with guard_disk(self.path), zarr.config.set({"array.write_empty_chunks": True}):
                self.root[key][:, self.written : end] = np.moveaxis(block, 0, 1)
        self._buffer, self.written, self.pending = [], end, 0

    def cut(self) -> None:
        """Drop the room for draws that will never come."""
        for a in [*self.arrays, *(Array(g, "draw", (), "") for g in {a.group for a in self.arrays})]:
            with guard_disk(self.path):
                array = self.root[f"{a.group}/{a.name}"]
                array.resize((self.written,) if a.name == "draw" else (array.shape[0], self.written, *a.shape))

    def put_moments(self, summary: Mapping[str, np.ndarray]) -> None:
        """Write running means and variances: (chain, …) each."""
        with guard_disk(self.path):
            group = self.root.create_group("moments", overwrite=True)
            for name, value in summary.items():
                dims = ("chain", *(f"{name}_dim_{i}" for i in range(value.ndim - 1)))
                group.create_array(name, data=value, dimension_names=dims)


def open_store(path: Path, arrays: list[Array], draws: int, mode: Any) -> Any:
    """The store of a run, which has every array, as described, with at least `draws` draws."""
    import zarr

    with reading(path, "is missing or damaged"):
        root = zarr.open_group(path, mode=mode, zarr_format=3)
        chains = {_check_stored(root[f"{a.group}/{a.name}"], a, draws) for a in arrays}
        if len(chains) > 1:
            raise ValueError(f"its arrays have {' or '.join(map(str, sorted(chains)))} chains")
    return root


def _check_stored(stored: Any, a: Array, draws: int) -> int:
    """The chains of an array that is as it should be; raises if it is not."""
    if stored.ndim < 2 or stored.shape[1] < draws:
        raise ValueError(f"{a.name} has {stored.shape[1] if stored.ndim > 1 else 0} draws of {draws}")
    codecs = {codec.to_dict()["name"] for codec in stored.metadata.codecs}
    if stored.dtype.name not in DTYPES or not codecs <= {"bytes", "zstd"}:
        raise ValueError(f"{a.name} has {stored.dtype}, encoded by {', '.join(sorted(codecs))}")
    if a.dtype and (stored.dtype != a.dtype or stored.shape[2:] != tuple(a.shape)):
        raise ValueError(f"{a.name} has {stored.dtype}{stored.shape[2:]} where {a.dtype}{tuple(a.shape)} belongs")
    if 0 not in stored.shape:
        _check_chunks(stored, draws)
    return stored.shape[0]


def _check_chunks(stored: Any, draws: int) -> None:
    """Raise if a file with draws is missing, which would read as NaN or 0."""
    folder = Path(getattr(stored.store, "root", ""), stored.path)
    for i in range(-(-draws // stored.chunks[1])):
        if not folder.joinpath("c", "0", str(i), *("0" for _ in stored.shape[2:])).exists():
            raise ValueError(f"{stored.basename} has no chunk {i}")


def _remove_tree(path: Path) -> None:
    """Delete a store. After a failed write in this process, others may still be ending in zarr's own thread."""
    if path.is_symlink():
        path.unlink()
    for patience in (0.1, 0.3, 1.0, 0.0):
        if not path.exists():
            return
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not patience:
                raise
            time.sleep(patience)


def chunk_draws(arrays: list[Array], chains: int) -> int:
    """Draws in one chunk of the store: about 4 MiB of the largest array, at most 4096."""
    largest = max(int(np.prod(a.shape, dtype=np.int64)) * np.dtype(a.dtype).itemsize for a in arrays)
    return int(np.clip(CHUNK_BYTES // (largest * chains), 1, 4096))


def _create_group(root, group: str, arrays: list[Array], chains: int, num_samples: int, chunk: int) -> None:
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


def remove_partial_writes(path: Path) -> None:
    """Delete the temporary files of writes that were cut short."""
    for file in (*path.glob("*.partial"), *(path / "draws.zarr").rglob("*.partial")):
        file.unlink(missing_ok=True)


def write_atomically(file: Path, content: bytes) -> None:
    """Write a file whole or not at all, and make it last."""
    temporary = file.with_name(file.name + ".partial")
    temporary.unlink(missing_ok=True)  # of a killed run, or a link to somewhere else
    try:
        with open(temporary, "xb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def guard_disk(path: Path | None):
    """Turn an operating system's refusal to write into a message."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise RunError(
                f"no room left on the disk of {path}: what was checkpointed is safe; free some space, then resume"
            ) from error
        raise RunError(f"cannot write to {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def reading(what: Any, wrong: str = "is damaged", kind: type[Exception] = RunError) -> Iterator[None]:
    """Say of a file what its reader, whichever library's it is, could not make sense of."""
    try:
        yield
    except kind:
        raise
    except Exception as error:  # libraries raise all kinds of errors on files that nobody wrote
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise kind(f"{what} {wrong}: {text}") from error


def _links(path: Path) -> Iterator[Path]:
    """Symbolic links where a run writes."""
    for name in OWN:
        if (path / name).is_symlink():
            yield path / name
    for folder, folders, names in os.walk(path / "draws.zarr"):
        yield from (Path(folder, n) for n in (*folders, *names) if Path(folder, n).is_symlink())


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunError(f"{path} is being written by another process") from error
    except OSError:
        pass  # a file system without locks
    return descriptor


def pack(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """The leaves of a pytree as named host arrays."""
    return {f"{prefix}.{i}": np.asarray(x) for i, x in enumerate(jax.device_get(jax.tree.leaves(tree)))}


def unpack(arrays: Mapping[str, np.ndarray], prefix: str, like: PyTree) -> PyTree:
    """The inverse of :func:`pack`; raises where shapes or types are not those of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    try:
        found = [arrays[f"{prefix}.{i}"] for i in range(len(leaves))]
    except KeyError as error:
        raise RunError(f"the checkpoint is of another sampler or model: {error} is missing") from error
    for old, new in zip(leaves, found):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise RunError(
                "the checkpoint is of another sampler or model: "
                f"{new.dtype}{new.shape} where {old.dtype}{old.shape} belongs"
            )
    return treedef.unflatten(found)
