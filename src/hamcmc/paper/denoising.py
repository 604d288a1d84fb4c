"""One run of figure 3: the speech of a noisy recording, by a sampler of the alpha-stable model.

The spectra are those of the paper: I = 256 bins (windows of 64 ms at 8 kHz; the bin at 0 Hz is empty) and about 140 to
220 frames. Speech is a source of α = 1.2 whose W is learned from clean speech and held fixed. Noise is a source of
α = 1.89 whose five components are free.
"""

import hashlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import ShortTimeFFT
from scipy.signal.windows import hann

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, silent
from hamcmc.speech import audio, dictionary, metrics
from hamcmc.stable import Prior, Source, separate
from hamcmc.stable.calibration import coverage
from hamcmc.store.errors import NonFinite

WINDOW, HOP = 512, 128  # samples
PADDED = 32  # recordings are padded to a multiple of so many frames, so that they share compiled programs
# Our changes to the paper's algorithm, as options of `separate`.
PAPER: Record = {"positivity": "mirror", "sweeps": 1, "proposal": "prior", "swap": False, "clip": None}
CHANGES: dict[str, Record] = {
    "log": {"positivity": "log"},
    "impulses": {"sweeps": 3, "proposal": "both", "swap": True},
    "clip": {"clip": 1.0},
}


class Recording(NamedTuple):
    """A noisy file, the clean file, the number of the sentence, and the name of the noise."""

    noisy: Path
    clean: Path
    sentence: int
    noise: str


class Outcome(NamedTuple):
    """SDR in dB (NaN if the chain was lost), the shares of true spectra in the 50, 90 and 99 % sets, and seconds."""

    sdr: float
    covered: tuple[float, ...]
    seconds: float


def read_corpus(path: Path) -> tuple[list[Recording], dict[int, Path]]:
    """Noisy files ``spNN_NOISE_sn5.wav`` and clean ones ``spNN.wav`` anywhere in a directory, as NOIZEUS has them.

    Copies of a file in several folders, as some collections have them, count once.
    """
    if not path.is_dir():
        raise ValueError(f"no directory at {path}")
    known: dict[str, Path] = {}
    for file in sorted(path.rglob("*.wav")):
        if re.fullmatch(r"sp\d+(_\w+_sn5)?\.wav", file.name):
            first = known.setdefault(file.name, file)
            if first != file and first.read_bytes() != file.read_bytes():
                raise ValueError(f"{first} and {file} have the same name and differ: leave one of them out")
    clean = {int(m[1]): f for name, f in known.items() if (m := re.fullmatch(r"sp(\d+)\.wav", name))}
    found = [(f, m) for name, f in sorted(known.items()) if (m := re.fullmatch(r"sp(\d+)_(\w+)_sn5\.wav", name))]
    noisy = [Recording(f, clean[int(m[1])], int(m[1]), m[2]) for f, m in found if int(m[1]) in clean]
    if not noisy:
        raise ValueError(f"{path} has no files spNN_NOISE_sn5.wav with clean ones spNN.wav, as NOIZEUS has them")
    return noisy, clean


def fingerprint(files: Iterable[Path]) -> str:
    """A digest of files' contents."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def samples(path: Path) -> np.ndarray:
    """The first channel, in double precision."""
    return audio.read(audio.info(path))[:, 0].astype(np.float64)


def transform() -> ShortTimeFFT:
    """Windows that give white noise of variance 1 power 1 in every bin."""
    window = np.sqrt(hann(WINDOW, sym=False))
    return ShortTimeFFT(window / np.linalg.norm(window), HOP, 1.0)


def analyse(x: np.ndarray) -> np.ndarray:
    """Spectra (bins, frames) without the bin at 0 Hz, padded with missing frames."""
    X = transform().stft(x)[1:]
    return np.pad(X, ((0, 0), (0, -X.shape[1] % PADDED)), constant_values=np.nan)


def synthesise(X: np.ndarray, length: int) -> np.ndarray:
    """The signal with the given number of samples."""
    return transform().istft(np.pad(np.nan_to_num(X), ((1, 0), (0, 0))), k1=length)[:length]


def train(files: Iterable[Path], rank: int, alpha: float, seed: int) -> np.ndarray:
    """W of clean speech (bins, rank), by 200 multiplicative updates of |X|^α ≈ WH; pauses are left out."""
    frames = []
    for file in files:
        x = samples(file)
        each = np.abs(transform().stft(x / np.sqrt(np.mean(x**2)))[1:]).T
        frames.append(each[np.mean(each**2, 1) > dictionary.FLOOR])
    V = jnp.asarray(np.concatenate(frames).T ** alpha + 1e-7, jnp.float32)
    W = jax.random.choice(jax.random.key(seed), V, (rank,), replace=False, axis=1) + 1e-6
    start = W / W.sum(0), jnp.broadcast_to(V.sum(0) / rank, (rank, V.shape[1]))
    return np.asarray(dictionary.update(V, start, 200)[0], np.float64) + 1e-7


def clean(
    recording: Recording,
    W: np.ndarray,
    sampler: str,
    parameters: Record,
    options: Record,
    asked: Record,
    seed: int,
    progress: Progress = silent,
) -> Outcome:
    """Run a sampler on a file and compare the posterior mean of the speech with the clean file.

    Args:
        recording: the files.
        W: spectra of speech.
        sampler: of W and H.
        parameters: its ``step_size``, if it has one, and its own options.
        options: of :func:`hamcmc.stable.separate`: :data:`PAPER`, with or without :data:`CHANGES`.
        asked: the settings of the reproduction.
        seed: everything random follows from it.
        progress: called with each status.
    """
    begun = time.perf_counter()
    x, s = samples(recording.noisy), samples(recording.clean)
    n = min(len(x), len(s))
    level = np.sqrt(np.mean(x[:n] ** 2))
    x, s = x[:n] / level, s[:n] / level
    X, S = analyse(x), analyse(s)
    # H of the noise is nearly constant, so that its components do not follow the speech; W holds the spectrum.
    speech = Source(W.shape[1], asked["speech_alpha"], W, prior_H=Prior(0.6, 1e-5))
    noise = Source(asked["noise_rank"], asked["noise_alpha"], prior_W=Prior(0.1), prior_H=Prior(20.0))
    own = {k: v for k, v in parameters.items() if k != "step_size"}
    averaged = asked["averaged"]
    iterations = asked["iterations"]
    if sampler == "gibbs":  # a step sees all entries, not a tenth of them
        averaged, iterations = averaged // 10, iterations // 10
        options = options | {"positivity": "log"}
    try:
        found = separate(
            X,
            [speech, noise],
            sampler=sampler,
            options=own or None,
            step_size=parameters.get("step_size"),
            warmup=iterations - averaged,
            num_samples=averaged,
            thin=1,
            truth=[S, X - S],
            seed=seed,
            progress=progress,
            **options,
        ).sources[0]
    except NonFinite:
        return Outcome(np.nan, (np.nan,) * 3, time.perf_counter() - begun)
    assert found.ranks is not None
    covered = coverage(found.ranks[:, ~np.isnan(X)])
    sdr = metrics.sdr(s, synthesise(found.gain * X, n))
    return Outcome(sdr, tuple(covered.values()), time.perf_counter() - begun)
