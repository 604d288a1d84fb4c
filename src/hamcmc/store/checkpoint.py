"""Checkpoints: counters and arrays in one file, with a SHA-256 over all of it. Nothing in it is ever unpickled."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from zipfile import ZIP_STORED, ZipFile

import jax
import numpy as np

from hamcmc._types import PyTree, Record
from hamcmc.store.errors import DamagedRun
from hamcmc.store.files import reading
from hamcmc.store.settings import digest

MAGIC = b"hamcmc checkpoint 1\n"
KINDS = {"status": str, "iteration": int, "draws": int, "seconds": (int, float), "message": str, "gradients": int}


class Checkpoint(NamedTuple):
    """How far a run has come: its counters, and every array that it needs to continue."""

    meta: Record
    arrays: dict[str, np.ndarray]


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The verified checkpoint of a run's directory; None if there is none yet."""
    file = path / "checkpoint"
    if not file.is_file():
        return None
    checkpoint = decode(file.read_bytes(), str(file))
    if checkpoint.meta.get("run_json") != digest(path):
        raise DamagedRun(f"{path / 'run.json'} is not the one that {file} was made with: it was edited or replaced")
    return checkpoint


def encode(checkpoint: Checkpoint) -> bytes:
    """Bytes of a checkpoint: a line that names the format, the digest, the counters as JSON, the arrays as npz."""
    body = io.BytesIO()
    body.write(json.dumps(checkpoint.meta).encode() + b"\n")
    np.savez(body, allow_pickle=False, **checkpoint.arrays)
    payload = body.getvalue()
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def decode(content: bytes, name: str) -> Checkpoint:
    """A checkpoint from its bytes; raises :class:`DamagedRun` if any of them has changed."""
    checksum, newline, payload = content[len(MAGIC) :].partition(b"\n")
    if not content.startswith(MAGIC) or not newline:
        raise DamagedRun(f"{name} is not a checkpoint of this version, or is truncated")
    if hashlib.sha256(payload).hexdigest().encode() != checksum:
        raise DamagedRun(f"{name} is truncated or was edited: its checksum does not match. The run cannot be resumed")
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
            raise ValueError("it contains something other than arrays")
        return Checkpoint(meta, found)


def pack(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """The leaves of a pytree as named host arrays."""
    return {f"{prefix}.{i}": np.asarray(x) for i, x in enumerate(jax.device_get(jax.tree.leaves(tree)))}


OTHER = (
    "the checkpoint belongs to another sampler or model, or to a version of hamcmc whose sampler had another state "
    "(resume it with the version that run.json names)"
)


def unpack(arrays: Mapping[str, np.ndarray], prefix: str, like: PyTree) -> PyTree:
    """The inverse of :func:`pack`; raises where a shape or a type differs from that of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    try:
        found = [arrays[f"{prefix}.{i}"] for i in range(len(leaves))]
    except KeyError as error:
        raise DamagedRun(f"{OTHER}: {error} is missing") from error
    for old, new in zip(leaves, found):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise DamagedRun(f"{OTHER}: it has {new.dtype}{new.shape} where {old.dtype}{old.shape} is expected")
    return treedef.unflatten(found)
