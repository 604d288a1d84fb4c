"""Damaged files: every reader gives a right answer or an error of its own that names the file; nothing else, ever."""

import gzip
import hashlib
import json
import resource
import signal
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import soundfile as sf

from hamcmc.cli import model_file
from hamcmc.factorization import ratings
from hamcmc.speech import audio, dictionary
from hamcmc.store.checkpoint import MAGIC, Checkpoint, decode, encode, read_checkpoint
from hamcmc.store.errors import RunError
from hamcmc.store.settings import read_settings
from tests.hardening.mutate import damage, damage_json

PATIENCE = 60  # seconds until a read counts as hanging
MOST = 600 * 2**20  # bytes that damaged files of a few kB may take


class Reader(NamedTuple):
    """Files by name, how to read one, the error that it may raise, and what must hold of any answer."""

    files: Callable[[Path], dict[str, Any]]
    read: Callable[[Path], Any]
    error: type[Exception]
    check: Callable[[Any], None]


def ratings_files(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rows = [(int(u), int(i), float(r)) for u, i, r in zip(*rng.integers(1, 30, (2, 60)), rng.integers(1, 6, 60) / 2)]
    text = lambda separator, head="": head + "".join(separator.join(map(str, row)) + "\n" for row in rows)
    frame = pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row")
    for i, compression in enumerate(("zstd", "snappy", "uncompressed")):
        frame.write_parquet(folder / f"{i}.parquet", compression=compression)
    quoted = 'user,item,rating,title\n1,2,3,"a, b"\n4,5,1.5,"say ""x"""\n\nü,é,2,\n'
    return {
        "r.csv": text(",", "user,item,rating\n").encode(),
        "q.csv": quoted.encode(),
        "r.tsv": text("\t").encode(),
        "r.dat": text("::").encode(),
        "r.csv.gz": gzip.compress(text(",", "userId,movieId,rating\n").encode()),
        **{f"{i}.parquet": (folder / f"{i}.parquet").read_bytes() for i in range(3)},
    }


def check_ratings(found: ratings.Ratings) -> None:
    n = found.size
    assert n > 0
    assert found.row.shape == found.column.shape == found.value.shape == (n,)
    assert np.isfinite(found.value).all()
    assert len(set(zip(found.row.tolist(), found.column.tolist()))) == n
    for ids, places in ((found.users, found.row), (found.items, found.column)):
        assert len(set(ids.tolist())) == len(ids)
        assert all(ids.tolist())
        assert set(places.tolist()) == set(range(len(ids)))


def audio_files(folder: Path) -> dict[str, Any]:
    x = 0.3 * np.random.default_rng(0).standard_normal((2500, 2)).clip(-3, 3)
    kinds = [("a.wav", "PCM_16"), ("b.wav", "FLOAT"), ("c.flac", "PCM_16"), ("d.ogg", "VORBIS"), ("e.aiff", "PCM_24")]
    for name, subtype in kinds:
        sf.write(folder / name, x, 8000, subtype)
    sf.write(folder / "f.mp3", x, 16000)
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.suffix != ".parquet"}


def read_audio(path: Path) -> Any:
    found = audio.info(path)
    return found, list(audio.blocks(found, 0.1))


def check_audio(found: Any) -> None:
    info, pieces = found
    assert sum(map(len, pieces)) == info.frames > 0
    assert info.rate > 0
    assert all(p.shape[1] == info.channels and np.isfinite(p).all() for p in pieces)
    assert max(np.abs(p).max() for p in pieces) == pytest.approx(info.peak)


def dictionaries(folder: Path) -> dict[str, Any]:
    W = np.random.default_rng(0).random((257, 3)).astype(np.float32)
    dictionary.save(dictionary.Dictionary(W / W.sum(0), 1.2, "somewhere"), folder / "d.npz")
    np.savez(folder / "e.npz", W=W, alpha=1.0, bin_hertz=31.25, source="here")
    return {n: (folder / n).read_bytes() for n in ("d.npz", "e.npz")}


def check_dictionary(found: dictionary.Dictionary) -> None:
    assert found.W.ndim == 2
    assert (found.W >= 0).all()
    assert found.W.shape == (257, 3)
    assert found.alpha in (1.0, 1.2)


def data_files(folder: Path) -> dict[str, Any]:
    x = np.random.default_rng(0).random((20, 3))
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", x[:, 0].astype(np.float32))
    np.savez(folder / "x.npz", x=x, y=np.arange(20))
    np.savez_compressed(folder / "z.npz", x=x)
    text = "a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in x.tolist())
    (folder / "x.csv").write_text(text)
    (folder / "x.tsv").write_text(text.replace(",", "\t"))
    return {n: (folder / n).read_bytes() for n in ("x.npy", "y.npy", "x.npz", "z.npz", "x.csv", "x.tsv")}


def check_data(found: Any) -> None:
    arrays = found.values() if isinstance(found, dict) else [found]
    assert all(a.dtype.kind in "biuf" for a in arrays)
    if isinstance(found, dict):
        assert all(isinstance(n, str) for n in found)


def check_checkpoint(found: Checkpoint) -> None:
    assert all(a.dtype.kind in "biuf" for a in found.arrays.values())
    assert isinstance(found.meta, dict)


READERS = {
    "ratings": Reader(ratings_files, ratings.read, ratings.RatingsError, check_ratings),
    "pairs": Reader(
        ratings_files,
        lambda p: ratings.read_pairs(p) if "parquet" in p.name else ratings.read(p, duplicates="mean"),
        ratings.RatingsError,
        lambda found: None,
    ),
    "audio": Reader(audio_files, read_audio, audio.AudioError, check_audio),
    "dictionary": Reader(dictionaries, dictionary.load, ValueError, check_dictionary),
    "data": Reader(data_files, model_file.read_data, model_file.ModelFileError, check_data),
}


@contextmanager
def watched():
    """A read that hangs is interrupted, and one that takes too much memory is noticed."""

    def hangs(*_):
        raise AssertionError(f"no answer within {PATIENCE} s")

    old, before = signal.signal(signal.SIGALRM, hangs), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST, "too much memory"


def attempt(read: Callable, error: type[Exception], check: Callable, name: str) -> bool:
    """Whether a read gave an answer, which must be right; an error must be of the kind, and name the file."""
    with watched():
        try:
            found = read()
        except error as expected:
            if name not in str(expected):
                raise AssertionError(f"the error does not name {name}") from expected
            return False
    check(found)
    return True


def fuzz(reader: Reader, folder: Path, seed: int, times: int) -> int:
    """Read damaged files; returns how many of them were read nevertheless."""
    files = reader.files(folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        assert attempt(partial(reader.read, folder / name), reader.error, reader.check, name)
    names, answered = list(files), 0
    for i in range(times):
        rng = np.random.default_rng((seed, i))
        name, other = (names[k] for k in rng.integers(len(names), size=2))
        path = folder / name
        path.write_bytes(damage(files[name], rng, files[other]))
        try:
            answered += attempt(partial(reader.read, path), reader.error, reader.check, name)
        except BaseException as fault:
            fault.add_note(f"{name} damaged with seed ({seed}, {i})")
            raise
    return answered


@pytest.mark.parametrize("kind", READERS)
def test_files(kind, tmp_path):
    assert fuzz(READERS[kind], tmp_path, 0, 150) < 150


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_many_files(kind, tmp_path):
    assert fuzz(READERS[kind], tmp_path, 1, 20_000) < 20_000


def signed(meta: bytes, arrays: bytes) -> bytes:
    """A checkpoint with a right checksum, whatever is in it."""
    payload = meta + b"\n" + arrays
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def fuzz_checkpoints(folder: Path, seed: int, times: int) -> None:
    meta = {"status": "running", "iteration": 3, "draws": 2, "seconds": 0.5, "gradients": 7}
    whole = encode(Checkpoint(meta, {"state.0": np.arange(6.0), "state.1": np.int32(2)}))
    _, header, arrays = whole[len(MAGIC) :].split(b"\n", 2)
    read = lambda: decode(changed, "the checkpoint")
    for i in range(times):
        rng = np.random.default_rng((seed, i))
        changed = damage(whole, rng, header)
        if changed != whole:
            assert not attempt(read, RunError, check_checkpoint, "the checkpoint"), "a damaged checkpoint was read"
        other = json.dumps(damage_json(meta, rng)).encode() if rng.random() < 0.3 else header
        changed = signed(other, damage(arrays, rng, header) if rng.random() < 0.7 else arrays)
        attempt(read, RunError, check_checkpoint, "the checkpoint")


def fuzz_run(run: Any, seed: int, times: int) -> int:
    """Damage files of a run: its draws are then refused, or are what they were."""
    right, answered = run.look(), 0
    files = [f.relative_to(run.whole) for f in sorted(run.whole.rglob("*")) if f.is_file()]

    def same(found):
        np.testing.assert_equal(found, right)

    for i in range(times):
        rng = np.random.default_rng((seed, i))
        file, other = (run.whole / files[k] for k in rng.integers(len(files), size=2))
        target = run.path / file.relative_to(run.whole)
        if rng.random() < 0.1:
            target.unlink()
        else:
            target.write_bytes(damage(file.read_bytes(), rng, other.read_bytes()))
        try:
            answered += attempt(run.look, RunError, same, str(run.path))
        except BaseException as fault:
            fault.add_note(f"{target} damaged with seed ({seed}, {i})")
            raise
        target.write_bytes(file.read_bytes())
    return answered


def fuzz_settings(run: Any, seed: int, times: int) -> None:
    """Wrong values in run.json, which the checkpoint agrees with."""
    settings, checkpoint = read_settings(run.path), read_checkpoint(run.path)
    for i in range(times):
        rng = np.random.default_rng((seed, i))
        (run.path / "run.json").write_text(json.dumps(damage_json(settings, rng)))
        digest = hashlib.sha256((run.path / "run.json").read_bytes()).hexdigest()
        meta = damage_json(checkpoint.meta, rng) if rng.random() < 0.3 else checkpoint.meta
        meta = meta | {"run_json": digest} if isinstance(meta, dict) else meta
        (run.path / "checkpoint").write_bytes(encode(checkpoint._replace(meta=meta)))
        try:
            attempt(run.look, RunError, lambda found: None, str(run.path))
        except BaseException as fault:
            fault.add_note(f"run.json damaged with seed ({seed}, {i})")
            raise


def test_checkpoints(tmp_path):
    fuzz_checkpoints(tmp_path, 0, 300)


def test_runs(a_run):
    assert 0 < fuzz_run(a_run, 0, 60) < 40
    a_run.mend()
    fuzz_settings(a_run, 0, 60)


def test_factorizations(a_factorization):
    assert 0 < fuzz_run(a_factorization, 0, 40) < 40
    a_factorization.mend()
    fuzz_settings(a_factorization, 0, 30)


@pytest.mark.slow
def test_many_runs(tmp_path, a_run):
    fuzz_checkpoints(tmp_path, 1, 10_000)
    fuzz_run(a_run, 1, 1_500)
    a_run.mend()
    fuzz_settings(a_run, 1, 1_500)


@pytest.mark.slow
def test_many_factorizations(a_factorization):
    fuzz_run(a_factorization, 1, 1_500)
    a_factorization.mend()
    fuzz_settings(a_factorization, 1, 1_500)


def test_a_recording_that_its_decoder_gives_up_on(tmp_path):
    """A FLAC file of unknown length, where only the decoder can tell that something is missing."""
    path = tmp_path / "x.flac"
    sf.write(path, 0.1 * np.random.default_rng(0).standard_normal(40_000), 8000, "PCM_16")
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0  # 36 bits of the header are the number of samples; 0 stands for unknown
    content[22:26] = bytes(4)
    path.write_bytes(content)
    assert not audio.info(path).truncated
    half = len(content) // 2
    content[half : half + 200] = bytes(200)
    path.write_bytes(content)
    found, pieces = read_audio(path)
    assert found.truncated
    assert 0 < found.frames < 30_000
    check_audio((found, pieces))
