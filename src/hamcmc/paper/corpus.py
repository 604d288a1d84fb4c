"""A small corpus of synthetic voices in synthetic noises, in the layout of NOIZEUS."""

from pathlib import Path

import numpy as np
from scipy.io import wavfile
from scipy.signal import butter, lfilter, sosfilt

RATE = 8000
# The first three formants of five English vowels, in Hz (Peterson and Barney, 1952).
FORMANTS = np.array([[730, 1090, 2440], [270, 2290, 3010], [300, 870, 2240], [530, 1840, 2480], [570, 840, 2410]])


def voice(rng: np.random.Generator, seconds: float = 2.5) -> np.ndarray:
    """Syllables by a source and a filter: pulses or noise through three resonances, with pauses between words."""
    pitch, parts = rng.uniform(90, 220), []
    while sum(map(len, parts)) < seconds * RATE:
        n = int(RATE * rng.uniform(0.08, 0.22))
        if rng.random() < 0.2:
            parts.append(np.zeros(n // 2))  # a pause
            continue
        if rng.random() < 0.25:  # a fricative
            high = butter(2, rng.uniform(1500, 2800), "high", fs=RATE, output="sos")
            parts.append(0.15 * np.hanning(n // 2) * sosfilt(high, rng.standard_normal(n // 2)))
            continue
        glide = pitch * (1 + 0.1 * rng.standard_normal() * np.linspace(-1, 1, n))
        phase = np.cumsum(glide) / RATE
        sound = np.diff(np.floor(phase), prepend=0) + 0.01 * rng.standard_normal(n)
        for f in FORMANTS[rng.integers(len(FORMANTS))] * rng.uniform(0.95, 1.1):
            r = np.exp(-np.pi * (60 + 0.04 * f) / RATE)
            sound = np.asarray(lfilter([1 - r], [1, -2 * r * np.cos(2 * np.pi * f / RATE), r * r], sound))
        parts.append(np.hanning(n) * sound / (np.sqrt(np.mean(sound**2)) + 1e-12) * rng.uniform(0.4, 1))
    return np.concatenate(parts)[: int(seconds * RATE)]


def noises_of(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """White noise, rumble, a machine that hums and knocks, and many voices."""

    def smooth(x: np.ndarray, pole: float) -> np.ndarray:
        """A filter with one pole."""
        return np.asarray(lfilter([1], [1, -pole], x))

    white = rng.standard_normal(n)
    rumble = smooth(rng.standard_normal(n), 0.97)
    t = np.arange(n) / RATE
    hum = np.sum([np.sin(2 * np.pi * 120 * k * t + rng.uniform(0, 6)) / k for k in range(1, 9)], 0)
    knocks = smooth((rng.random(n) < 8 / RATE) * 20.0, 0.98) * rng.standard_normal(n)
    babble = np.sum([voice(rng, n / RATE)[:n] for _ in range(8)], 0)
    return {"white": white, "rumble": rumble, "machine": hum + knocks, "babble": babble}


def make_corpus(folder: Path, sentences: int, seed: int) -> None:
    """Write so many sentences, each in every noise at 5 dB."""
    rng = np.random.default_rng([seed, 3])

    def write(name: str, x: np.ndarray) -> None:
        """In 16 bits; a power of 1 is well below full scale."""
        wavfile.write(folder / name, RATE, np.clip(2500 * x, -32000, 32000).astype(np.int16))

    for number in range(1, sentences + 1):
        speech = voice(rng)
        speech = speech / np.sqrt(np.mean(speech**2))
        write(f"sp{number:02d}.wav", speech)
        for name, noise in noises_of(rng, len(speech)).items():
            scaled = noise / np.sqrt(np.mean(noise**2)) * 10 ** (-5 / 20)
            write(f"sp{number:02d}_{name}_sn5.wav", speech + scaled)
