"""How close an estimate of speech is to the clean recording: SDR, SI-SDR and STOI."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.fft import irfft, rfft
from scipy.fft import next_fast_len
from scipy.linalg import solve_toeplitz

from hamcmc._require import needs

LABELS = (("SDR (dB)", 2), ("SI-SDR (dB)", 2), ("STOI", 3))  # name and digits of each score, in the order of Scores


class Scores(NamedTuple):
    """Averages over channels; NaN where a score is not defined."""

    sdr: float
    si_sdr: float
    stoi: float


def scores(reference: np.ndarray, estimate: np.ndarray, rate: int) -> Scores:
    """All three scores of recordings (frames, channels)."""
    _check(reference, estimate)
    pairs = list(zip(*(np.reshape(x, (len(x), -1)).T for x in (reference, estimate))))

    def mean(score: Callable[..., float], *more: int) -> float:
        """Over channels."""
        return float(np.mean([score(s, e, *more) for s, e in pairs]))

    return Scores(mean(sdr), mean(si_sdr), mean(stoi, rate))


def sdr(reference: np.ndarray, estimate: np.ndarray, taps: int = 512) -> float:
    """Signal-to-distortion ratio in dB, as in BSS-eval.

    The target is the projection of the estimate on the reference and its `taps` - 1 delays. Whatever a filter of that
    length does to the speech is forgiven; the rest of the estimate is distortion, at best 100 dB below. With `taps` = 1
    only a change of level is forgiven.

    References:
        Vincent, Gribonval, Févotte: Performance measurement in blind audio source separation. 2006.
    """
    s, e = _check(reference, estimate)
    if not s.any() or not e.any():
        return np.nan
    size = next_fast_len(len(s) + taps, real=True)
    spectrum = rfft(s, size)
    auto = irfft(np.abs(spectrum) ** 2, size)[:taps]
    cross = irfft(np.conj(spectrum) * rfft(e, size), size)[:taps]
    auto[0] *= 1 + 1e-10  # a pure tone has delays that depend on each other
    return _ratio(np.dot(cross, solve_toeplitz(auto, cross)), np.dot(e, e))


def si_sdr(reference: np.ndarray, estimate: np.ndarray) -> float:
    """Scale-invariant signal-to-distortion ratio in dB, of signals without their means.

    References:
        Le Roux, Wisdom, Erdogan, Hershey: SDR – half-baked or well done? 2019.
    """
    s, e = (x - x.mean() for x in _check(reference, estimate))
    if not s.any() or not e.any():
        return np.nan
    return _ratio(np.dot(s, e) ** 2 / np.dot(s, s), np.dot(e, e))


def stoi(reference: np.ndarray, estimate: np.ndarray, rate: int) -> float:
    """Short-time objective intelligibility, from 0 to 1; NaN if the reference has less than about 0.4 s of speech.

    References:
        Taal, Hendriks, Heusdens, Jensen: An algorithm for intelligibility prediction of time–frequency weighted noisy
        speech. 2011.
    """
    with needs("pystoi", "audio"):
        from pystoi import stoi as pystoi

    s, e = _check(reference, estimate)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return float(pystoi(s, e, rate))
        except (RuntimeWarning, ValueError, IndexError):  # too short, or silent
            return np.nan


def _ratio(target: float, whole: float) -> float:
    """Target over the rest, in dB. The rest of a perfect estimate is rounding, about 150 dB below."""
    return float(10 * np.log10(target / max(whole - target, 1e-15 * whole)))


def _check(reference: np.ndarray, estimate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if np.shape(reference) != np.shape(estimate) or not np.size(reference):
        raise ValueError(f"shapes must be equal and not empty, got {np.shape(reference)} and {np.shape(estimate)}")
    return np.asarray(reference, np.float64), np.asarray(estimate, np.float64)
