"""Denoise a file: read, clean, write, stretch by stretch."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hamcmc._check import at_least
from hamcmc.inference.progress import Progress
from hamcmc.speech import audio
from hamcmc.speech.denoise import denoise

STRETCH = 10.0  # seconds per read
COLUMNS = 1200  # of a picture against time: as many as a screen can show


class Pooled:
    """A picture of power over time, with at most `COLUMNS` columns, to which frames are added as they come in.

    Attributes:
        seconds: the time that the picture covers.
        frequencies: of its rows, in Hz.
    """

    def __init__(self, seconds: float, columns: int = COLUMNS):
        self.seconds, self.frequencies = seconds, np.zeros(0)
        self._sums, self._counts, self._frames = np.zeros((0, columns)), np.zeros(columns), 0

    def add(self, power: np.ndarray, frequencies: np.ndarray, frame_seconds: float) -> None:
        """Append power (frequencies, frames)."""
        if not len(self._sums):
            self.frequencies, self._sums = frequencies, np.zeros((len(frequencies), len(self._counts)))
        when = (self._frames + np.arange(power.shape[1])) * frame_seconds
        at = np.minimum((when / self.seconds * len(self._counts)).astype(int), len(self._counts) - 1)
        np.add.at(self._sums.T, at, power.T)
        np.add.at(self._counts, at, 1)
        self._frames += power.shape[1]

    @property
    def rms(self) -> np.ndarray:
        """Root of the mean power (frequencies, columns), without columns that got no frame, as in a short recording."""
        there = self._counts > 0
        return np.sqrt(self._sums[:, there] / self._counts[there])


class Done(NamedTuple):
    """A recording that has been cleaned.

    Attributes:
        source: the noisy recording.
        files: the clean one, then the posterior draws.
        gains: the gain of each file, 1 unless it would have clipped.
        seconds: how long it took.
        uncertainty: the posterior sd of the clean speech per time and frequency; None without ``uncertainty=True``.
    """

    source: audio.Info
    files: list[Path]
    gains: list[float]
    seconds: float
    uncertainty: Pooled | None

    @property
    def real_time_factor(self) -> float:
        """How long it took, divided by the length of the recording."""
        return self.seconds / self.source.seconds


def draw_files(out: str | os.PathLike, draws: int) -> list[Path]:
    """The files of the posterior draws, beside the clean recording."""
    out = Path(out)
    return [out.with_name(f"{out.stem}-draw{i}{out.suffix}") for i in range(1, draws + 1)]


def denoise_file(
    source: audio.Info | str | os.PathLike,
    out: str | os.PathLike,
    *,
    draws: int = 0,
    uncertainty: bool = False,
    progress: bool | Progress | None = None,
    **options: Any,
) -> Done:
    """Clean a recording, with constant memory.

    Args:
        source: the noisy recording (WAV, FLAC, OGG, or anything else that libsndfile reads), or its
            :class:`~hamcmc.speech.audio.Info`.
        out: the file to write; its suffix (.wav, .flac, .ogg) sets the format. It appears when it is complete.
        draws: how many posterior draws of the clean recording to write, to files beside `out`.
        uncertainty: whether to keep a picture of the posterior sd.
        progress: True for a progress bar, None for one if stderr is a terminal, or a function that is called with a
            :class:`~hamcmc.inference.progress.Status`.
        **options: those of :func:`hamcmc.denoise`.
    """
    source = source if isinstance(source, audio.Info) else audio.info(source)
    files = [Path(out), *draw_files(out, at_least("draws", draws, 0))]
    picture, start = Pooled(source.seconds) if uncertainty else None, time.perf_counter()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(audio.Writer(f, source)) for f in files]
        for cleaned in denoise(
            audio.blocks(source, STRETCH),
            source.rate,
            draws=draws,
            uncertainty=uncertainty,
            length=source.frames,
            progress=progress,
            **options,
        ):
            for writer, x in zip(writers, [cleaned.audio, *(() if cleaned.draws is None else cleaned.draws)]):
                writer.write(x)
            if picture is not None and cleaned.sd is not None:
                power = np.mean(np.square(cleaned.sd, dtype=float), axis=0)
                picture.add(power, cleaned.frequencies, cleaned.frame_seconds)
    return Done(source, files, [w.gain for w in writers], time.perf_counter() - start, picture)
