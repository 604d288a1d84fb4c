"""Dictionaries of speech: spectra whose mixtures with non-negative weights are those of clean speech."""

from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hamcmc.speech import audio, spectrum
from hamcmc.store.files import reading

ALPHA = 1.2  # of speech
BINS = 257  # up to 8 kHz
FRAMES = 60_000  # kept of all the speech that training reads: eight minutes
FLOOR = 1e-3  # power below which a frame, relative to its file's mean, is a pause
SHIPPED = "dictionary.npz"


class DictionaryError(ValueError):
    """A file that is not a dictionary."""


class Dictionary(NamedTuple):
    """Spectra of speech.

    Attributes:
        W: (bins, components), the columns of which add up to 1; bin f is at f · 31.25 Hz.
        alpha: the index of the stable law whose scales to the power α they are.
        source: where the speech came from, and its licence.
    """

    W: np.ndarray
    alpha: float = ALPHA
    source: str = ""

    def rows(self, bins: int) -> np.ndarray:
        """Its spectra up to so many bins."""
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
            raise ValueError("it is no .npz file")
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
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(
                file,
                W=dictionary.W.astype(np.float16),
                alpha=dictionary.alpha,
                bin_hertz=spectrum.BIN_HERTZ,
                source=dictionary.source,
            )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def train(
    files: Sequence[Path],
    *,
    rank: int = 100,
    alpha: float = ALPHA,
    updates: int = 200,
    seed: int = 0,
    source: str = "",
    progress: Callable[[float], None] | None = None,
) -> Dictionary:
    """Learn a dictionary from files of clean speech.

    Reads file after file and keeps a random sample of their frames (equally likely, however many there are), so that
    memory does not grow with the speech. Then :math:`|X|^α ≈ WH` by the multiplicative updates for the Kullback–Leibler
    divergence.

    Args:
        files: audio files.
        rank: components.
        alpha: index of speech.
        updates: multiplicative updates.
        seed: of the sample and the start.
        source: to be kept with the dictionary.
        progress: gets the fraction done.
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, not {rank}")
    generator = np.random.default_rng(seed)
    kept, seen = np.zeros((FRAMES, BINS), np.float32), 0
    for i, path in enumerate(files):
        for frames in speech_frames(path):
            for frame in frames:  # reservoir sampling
                place = seen if seen < FRAMES else int(generator.integers(seen + 1))
                if place < FRAMES:
                    kept[place] = frame
                seen += 1
        if progress:
            progress((i + 1) / len(files) / 2)
    if seen < rank:
        raise ValueError(f"only {seen} frames of speech in these files: too few for {rank} components")
    V = jnp.asarray(kept[:seen].T ** alpha + 1e-7)
    W = jax.random.choice(jax.random.key(seed), V, (rank,), replace=False, axis=1) + 1e-6
    factors = W / W.sum(0), jnp.broadcast_to(V.sum(0) / rank, (rank, V.shape[1]))
    for done in range(0, updates, 10):
        factors = update(V, factors, min(10, updates - done))
        if progress:
            progress(0.5 + 0.5 * min(done + 10, updates) / updates)
    return Dictionary(np.asarray(factors[0]), alpha, source)


def speech_frames(path: Path) -> Iterator[np.ndarray]:
    """Magnitudes (frames, bins) of what is not pause, at unit mean power over the file; zero above its own rate."""
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
    """Multiplicative updates of V ≈ WH, where the columns of W add up to 1."""

    def once(_, factors):
        W, H = factors
        H = H * (W.T @ (V / (W @ H)))
        W = W * ((V / (W @ H)) @ H.T) / H.sum(1)
        total = W.sum(0)
        return jnp.maximum(W / total, 1e-9), H * total[:, None] + 1e-12

    return lax.fori_loop(0, times, once, factors)
