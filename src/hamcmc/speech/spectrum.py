"""The short-time spectra that all of the speech package works on.

Frames last 32 ms and are 8 ms apart, whatever the sample rate. A bin is then 31.25 Hz wide (within half a percent, as a
hop is a whole number of samples), so that dictionaries and priors fit every recording without resampling.
"""

from functools import lru_cache

import numpy as np
from scipy.signal import ShortTimeFFT
from scipy.signal.windows import hann

HOP_SECONDS = 0.008
BIN_HERTZ = 1 / (4 * HOP_SECONDS)
LOWEST_RATE = 8000


@lru_cache
def transform(rate: int) -> ShortTimeFFT:
    """The transform for a sample rate; the root of a Hann window, with perfect reconstruction.

    Scaled so that white noise of variance 1 has power 1 in every bin.
    """
    if rate < LOWEST_RATE:
        raise ValueError(f"the recording is sampled at {rate} Hz: speech needs at least {LOWEST_RATE} Hz")
    hop = round(rate * HOP_SECONDS)
    window = np.sqrt(hann(4 * hop, sym=False))
    return ShortTimeFFT(window / np.linalg.norm(window), hop, rate)


def analyse(signal: np.ndarray, rate: int) -> np.ndarray:
    """Complex spectra (bins, frames) of a signal (samples)."""
    stft = transform(rate)
    short = max(0, stft.m_num - len(signal))  # a window must fit
    return stft.stft(np.pad(np.asarray(signal, np.float64), (0, short)))


def synthesise(spectra: np.ndarray, rate: int, samples: int) -> np.ndarray:
    """The signal with the given number of samples: the inverse of :func:`analyse`, for any spectra."""
    stft = transform(rate)
    return stft.istft(spectra, k1=max(samples, stft.m_num))[:samples]
