"""Generated noises and changed voices, on which ``tools/train_guess.py`` trains."""

from typing import NamedTuple

import numpy as np
from scipy.signal import fftconvolve, resample_poly

SECONDS = 4
SPEEDS = [(1, 1), (1, 1), (10, 11), (11, 10), (9, 10), (10, 9), (7, 8), (8, 7), (5, 6), (6, 5)]


class Source(NamedTuple):
    """Where sounds come from: a generator, voices, and the sample rate of both."""

    rng: np.random.Generator
    voices: list[np.ndarray]
    rate: int

    @property
    def length(self) -> int:
        """Samples of a cut."""
        return self.rate * SECONDS


def unit(x: np.ndarray) -> np.ndarray:
    """At mean power 1."""
    return x / np.sqrt(np.mean(np.abs(x) ** 2) + 1e-12)


def utterance(s: Source) -> np.ndarray:
    """A cut of a voice, faster or slower: that moves pitch and formants, and makes more voices of few.

    At 16 kHz only faster: a slower one has nothing just below 8 kHz.
    """
    voice = s.voices[s.rng.integers(len(s.voices))]
    speeds = SPEEDS if s.rate <= 8000 else [(up, down) for up, down in SPEEDS if up <= down]
    up, down = speeds[s.rng.integers(len(speeds))]
    size = s.length * down // up + 32
    start = s.rng.integers(0, len(voice) - size)
    return resample_poly(voice[start : start + size], up, down)[: s.length]


def curve(rng: np.random.Generator, size: int, knots: int, sd: float) -> np.ndarray:
    """A random function, straight between knots."""
    return np.interp(np.linspace(0, 1, size), np.linspace(0, 1, knots), rng.normal(0, sd, knots))


def colour(s: Source, x: np.ndarray, sd: float | None = None) -> np.ndarray:
    """Through a random filter."""
    X = np.fft.rfft(x)
    f = np.linspace(0, s.rate / 2, len(X))
    decibels = curve(s.rng, len(X), s.rng.integers(4, 14), sd or s.rng.uniform(1, 6))
    gain = 10 ** ((decibels - s.rng.uniform(-3, 14) * np.log2(np.maximum(f, 100) / 1000)) / 20)
    if s.rng.random() < 0.7:
        gain /= 1 + (s.rng.uniform(40, 350) / np.maximum(f, 1)) ** 4
    if s.rng.random() < 0.5:
        gain /= 1 + (f / (s.rng.uniform(0.35, 0.5) * s.rate)) ** 16
    return np.fft.irfft(X * gain, len(x))


def modulation(s: Source) -> np.ndarray:
    """A level that moves, at one of several speeds."""
    return np.exp(curve(s.rng, s.length, 4 * 2 ** s.rng.integers(5) + 2, s.rng.uniform(0.1, 1)))


def babble(s: Source) -> np.ndarray:
    """Many voices, often in a hall."""
    many = s.rng.choice([2, 3, 4, 5, 6, 8, 10, 14])
    x = colour(s, sum(utterance(s) * np.exp(s.rng.normal(0, 0.7)) for _ in range(many)), 2.0)
    if s.rng.random() < 0.6:
        size = int(s.rate * s.rng.uniform(0.15, 0.7))
        x = fftconvolve(x, s.rng.standard_normal(size) * np.exp(-6.9 * np.arange(size) / size))[: s.length]
    return x


def hits(s: Source) -> np.ndarray:
    """Short sounds that die away."""
    x = np.zeros(s.length)
    for _ in range(s.rng.poisson(s.rng.uniform(2, 25))):
        size = int(s.rate * s.rng.uniform(0.01, 0.25))
        fall, t = np.exp(-6 * np.arange(size) / size), np.arange(size) / s.rate
        sound = s.rng.standard_normal(size) * np.exp(s.rng.normal(0, 0.8))
        sound += s.rng.uniform(0, 3) * np.sin(2 * np.pi * s.rng.uniform(200, 0.44 * s.rate) * t)
        start = s.rng.integers(0, s.length - size)
        x[start : start + size] += fall * sound
    return colour(s, x, 3.0)


def hum(s: Source) -> np.ndarray:
    """Harmonics of a pitch that drifts."""
    pitch = s.rng.uniform(40, 400) * np.exp(np.cumsum(s.rng.normal(0, 1, s.length)) * 1e-5 * s.rng.uniform(0, 20))
    phase = 2 * np.pi * np.cumsum(pitch) / s.rate
    orders = range(1, s.rng.integers(2, 15))
    return sum(np.sin(k * phase + s.rng.uniform(0, 6)) * s.rng.exponential() / k for k in orders) * modulation(s)


def steady(s: Source) -> np.ndarray:
    """Coloured noise."""
    return colour(s, s.rng.standard_normal(s.length))


def moving(s: Source) -> np.ndarray:
    """Coloured noise whose level moves."""
    return steady(s) * modulation(s)


def bands(s: Source) -> np.ndarray:
    """Several of those."""
    return sum(unit(steady(s)) * modulation(s) for _ in range(3))


def hiss(s: Source) -> np.ndarray:
    """Noise that is as loud at high frequencies as at low ones, within a few decibels per octave."""
    X = np.fft.rfft(s.rng.standard_normal(s.length))
    f = np.maximum(np.linspace(0, s.rate / 2, len(X)), 100)
    return np.fft.irfft(X * 10 ** (-s.rng.uniform(-3, 4) * np.log2(f / 1000) / 20), s.length)


def noise(s: Source) -> np.ndarray:
    """A mixture of noises."""
    kinds = list(s.rng.choice([steady, moving, bands, babble, babble, babble, hits, hum], size=s.rng.integers(1, 4)))
    if s.rng.random() < 0.8:
        kinds.append(steady)
    if s.rate > 8000 and s.rng.random() < 0.5:
        kinds.append(hiss)
    return sum(unit(kind(s)) * np.exp(s.rng.normal(0, 0.6)) for kind in kinds)
