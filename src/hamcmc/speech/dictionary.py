"""Dictionaries of speech: spectra whose mixtures with non-negative weights are the spectra of clean speech."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hamcmc.inference.display import shown
from hamcmc.inference.progress import Progress, Status
from hamcmc.speech import audio, spectrum
from hamcmc.store.files import reading, replacing

ALPHA = 1.2  # the index of speech
BINS = 257  # up to 8 kHz
FRAMES = 60_000  # how many frames training keeps of all the speech that it reads: eight minutes
FLOOR = 1e-3  # a frame with less power than this, relative to the mean of its file, is a pause
SHIPPED = "dictionary.npz"


class DictionaryError(ValueError):
    """A file that is not a dictionary."""


class Dictionary(NamedTuple):
    """Spectra of speech.

    Attributes:
        W: (bins, components), with columns that add up to 1; bin f is at f · 31.25 Hz.
        alpha: the index of the stable law. The spectra are its scales to the power α.
        source: where the speech came from, and its licence.
    """

    W: np.ndarray
    alpha: float = ALPHA
    source: str = ""

    def rows(self, bins: int) -> np.ndarray:
        """The spectra up to the given number of bins."""
        return self.W[:bins]


def load(path: Path | None = None) -> Dictionary:
    """A dictionary from a file, or the one that comes with the package."""
    if path is None:
        with resources.as_file(resources.files("hamcmc.speech") / "data" / SHIPPED) as shipped:
            return load(shipped)
    if not path.exists():
        raise FileNotFoundError(f"no dictionary at {path}")
    with reading(path, "is not a dictionary", DictionaryError):
        if not is_zipfile(path):
            raise ValueError("it is not an .npz file")
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            W, alpha = np.asarray(file["W"], np.float32), float(file["alpha"])
            spacing, source = float(file["bin_hertz"]), str(file["source"])
    if W.ndim != 2 or not np.all(np.isfinite(W)) or np.any(W < 0) or not 0 < alpha <= 2:
        raise ValueError(f"{path} is not a dictionary: W must be a finite non-negative matrix, and 0 < alpha <= 2")
    if spacing != spectrum.BIN_HERTZ:
        raise ValueError(f"{path} has bins of {spacing} Hz, but spectra here have bins of {spectrum.BIN_HERTZ} Hz")
    return Dictionary(W, alpha, source)


def save(dictionary: Dictionary, path: Path) -> None:
    """Write a dictionary, whole or not at all."""
    with replacing(path, path.with_name(f".{path.name}.partial")) as partial, partial.open("xb") as file:
        np.savez_compressed(
            file,
            W=dictionary.W.astype(np.float16),
            alpha=dictionary.alpha,
            bin_hertz=spectrum.BIN_HERTZ,
            source=dictionary.source,
        )


def train(
    files: Sequence[Path],
    *,
    rank: int = 100,
    alpha: float = ALPHA,
    updates: int = 200,
    seed: int = 0,
    source: str = "",
    progress: bool | Progress | None = None,
) -> Dictionary:
    """Learn a dictionary from files of clean speech.

    It reads one file after the other and keeps a random sample of their frames, all equally likely, so that memory does
    not grow with the speech. Then it fits :math:`|X|^α ≈ WH` by multiplicative updates for the Kullback–Leibler
    divergence.

    Args:
        files: audio files.
        rank: components.
        alpha: index of speech.
        updates: multiplicative updates.
        seed: everything random follows from it.
        source: where the speech comes from, to be stored with the dictionary.
        progress: True for a progress bar, None for one if stderr is a terminal, or a function that is called with a
            :class:`~hamcmc.inference.progress.Status`.
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, not {rank}")
    with shown(progress, "training") as show:
        frames = _some_frames(files, seed, show)
        if len(frames) < rank:
            raise ValueError(f"these files have only {len(frames)} frames of speech: too few for {rank} components")
        V = jnp.asarray(frames.T**alpha + 1e-7)
        W = jax.random.choice(jax.random.key(seed), V, (rank,), replace=False, axis=1) + 1e-6
        factors = W / W.sum(0), jnp.broadcast_to(V.sum(0) / rank, (rank, V.shape[1]))
        for done in range(0, updates, 10):
            factors = update(V, factors, min(10, updates - done))
            show(Status(0.5 + 0.5 * min(done + 10, updates) / updates, "fitting"))
    return Dictionary(np.asarray(factors[0]), alpha, source)


def _some_frames(files: Sequence[Path], seed: int, show: Progress) -> np.ndarray:
    """At most :data:`FRAMES` random frames of all files, by reservoir sampling."""
    generator = np.random.default_rng(seed)
    kept, seen = np.zeros((FRAMES, BINS), np.float32), 0
    for i, path in enumerate(files):
        for frames in speech_frames(path):
            for frame in frames:
                place = seen if seen < FRAMES else int(generator.integers(seen + 1))
                if place < FRAMES:
                    kept[place] = frame
                seen += 1
        show(Status((i + 1) / len(files) / 2, "reading"))
    return kept[:seen]


def speech_frames(path: Path) -> Iterator[np.ndarray]:
    """Magnitudes (frames, bins) of all frames but pauses, at unit mean power over the file.

    They are zero above half of the file's sample rate.
    """
    source = audio.info(path)
    total, count = 0.0, 0
    for block in audio.blocks(source, 30.0):
        total, count = total + float(np.sum(block.astype(np.float64) ** 2)), count + block.size
    if total == 0:
        return
    for block in audio.blocks(source, 30.0):
        for channel in block.T:
            magnitude = np.abs(spectrum.analyse(channel, source.rate))[:BINS, ::2].T / np.sqrt(total / count)
            loud = magnitude[np.mean(magnitude**2, 1) > FLOOR]
            yield np.pad(loud, ((0, 0), (0, BINS - loud.shape[1]))).astype(np.float32)


@jax.jit
def update(V: jax.Array, factors: tuple[jax.Array, jax.Array], times: int) -> tuple[jax.Array, jax.Array]:
    """Multiplicative updates of V ≈ WH. The columns of W add up to 1."""

    def once(_, factors):
        W, H = factors
        H = H * (W.T @ (V / (W @ H)))
        W = W * ((V / (W @ H)) @ H.T) / H.sum(1)
        total = W.sum(0)
        return jnp.maximum(W / total, 1e-9), H * total[:, None] + 1e-12

    return lax.fori_loop(0, times, once, factors)
