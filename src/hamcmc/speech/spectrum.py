"""The short-time spectra that all of the speech package works on.

Frames last 32 ms and are 8 ms apart, whatever the sample rate. A bin is then 31.25 Hz wide (within half a percent, as a
hop is a whole number of samples), so that dictionaries and priors fit every recording without resampling.

The numbers are those of ``scipy.signal.ShortTimeFFT``, which takes longer to import than a short recording takes to
clean.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

HOP_SECONDS = 0.008
BIN_HERTZ = 1 / (4 * HOP_SECONDS)
LOWEST_RATE = 8000
LOWEST, WHOLE = 50.0, 80.0  # Hz: voices begin at about 80
OVERLAP = 4  # a frame is so many hops long


class Transform(NamedTuple):
    """A short-time Fourier transform. Frame i is centred at sample (i − 1) · hop.

    Attributes:
        rate: samples per second.
        hop: samples from one frame to the next.
        window: by which frames are multiplied.
        dual: by which they are multiplied before they are added up again.
    """

    rate: int
    hop: int
    window: np.ndarray
    dual: np.ndarray

    @property
    def frequencies(self) -> np.ndarray:
        """Of the bins, in Hz."""
        return np.fft.rfftfreq(len(self.window), 1 / self.rate)

    def times(self, samples: int) -> np.ndarray:
        """The centres of the frames of a signal, in seconds."""
        return np.arange(-1, self.frames(samples) - 1) * (self.hop / self.rate)

    def frames(self, samples: int) -> int:
        """How many frames reach into a signal with more than the first sample of the window, which is 0."""
        return -(-(samples - 1) // self.hop) + OVERLAP - 1

    def forward(self, signal: np.ndarray) -> np.ndarray:
        """Spectra (bins, frames)."""
        frames, size = self.frames(len(signal)), len(self.window)
        before, after = size - self.hop, max(0, frames * self.hop - len(signal))
        padded = np.pad(signal, (before, after))
        cut = np.lib.stride_tricks.sliding_window_view(padded, size)[:: self.hop][:frames]
        return np.fft.rfft(np.roll(cut * self.window, -(size // 2), 1)).T  # phases are those at the centre

    def backward(self, spectra: np.ndarray, samples: int) -> np.ndarray:
        """The signal with the given number of samples whose spectra are nearest."""
        size = len(self.window)
        frames = min(spectra.shape[1], self.frames(samples))
        pieces = np.roll(np.fft.irfft(spectra[:, :frames].T, size), size // 2, 1) * self.dual
        out = np.zeros(max((frames - 1) * self.hop + size, size - self.hop + samples))
        for i, piece in enumerate(pieces):
            out[i * self.hop : i * self.hop + size] += piece
        return out[size - self.hop :][:samples]


def above_hum(signal: np.ndarray, rate: int) -> np.ndarray:
    """A signal without what is below speech: nothing up to 50 Hz, all from 80 Hz on, and 12 dB less at 60 Hz.

    Bins are too wide to tell the hum of the mains from a deep voice.
    """
    if not len(signal):
        return signal
    size = len(signal) + rate // 10  # what the filter smears past the end does not come back at the beginning
    spectrum = np.fft.rfft(signal - signal.mean(), size)  # an offset would be a step at both ends
    place = np.clip((np.fft.rfftfreq(size, 1 / rate) - LOWEST) / (WHOLE - LOWEST), 0, 1)
    return np.fft.irfft(spectrum * np.sin(np.pi / 2 * place) ** 2, size)[: len(signal)]


@lru_cache
def transform(rate: int) -> Transform:
    """The transform for a sample rate; the root of a Hann window, with perfect reconstruction.

    Scaled so that white noise of variance 1 has power 1 in every bin.
    """
    if rate < LOWEST_RATE:
        raise ValueError(f"the recording is sampled at {rate} Hz: speech needs at least {LOWEST_RATE} Hz")
    hop = round(rate * HOP_SECONDS)
    root = np.sqrt(0.5 + 0.5 * np.cos(np.linspace(-np.pi, np.pi, OVERLAP * hop + 1)[:-1]))
    window = root / np.linalg.norm(root)
    # Squares of all windows that reach a sample add up to this.
    total = window**2
    for shift in range(hop, len(window), hop):
        total[shift:] += window[:-shift] ** 2
        total[:-shift] += window[shift:] ** 2
    return Transform(rate, hop, window, window / total)


def analyse(signal: np.ndarray, rate: int) -> np.ndarray:
    """Complex spectra (bins, frames) of a signal (samples)."""
    stft = transform(rate)
    short = max(0, len(stft.window) - len(signal))  # a window must fit
    return stft.forward(np.pad(np.asarray(signal, np.float64), (0, short)))


def synthesise(spectra: np.ndarray, rate: int, samples: int) -> np.ndarray:
    """The signal with the given number of samples: the inverse of :func:`analyse`, for any spectra."""
    stft = transform(rate)
    return stft.backward(spectra, max(samples, len(stft.window)))[:samples]
