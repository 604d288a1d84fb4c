"""Train the network of ``hamcmc.speech.guess`` on clean speech in generated noises.

    python tools/train_guess.py SPEECH_DIR -o src/hamcmc/speech/data/guess.npz [--steps 4000] [--start guess.npz]

SPEECH_DIR holds audio files of clean speech at any rate, one voice or language per file; see LICENCE.md beside the
weights for those that the shipped ones come from. No recorded noise is used: noises are coloured, modulated, made of
many voices, of hits and of hums. On two cores a thousand steps take ten minutes.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.signal import fftconvolve, resample_poly

from hamcmc.speech import audio, guess
from hamcmc.speech.spectrum import transform

RATE, SECONDS, BATCH, WIDTH = 8000, 4, 16, 128
LENGTH = RATE * SECONDS
HERTZ = np.linspace(0, RATE / 2, guess.BINS)
SPEEDS = [(1, 1), (1, 1), (10, 11), (11, 10), (9, 10), (10, 9), (7, 8), (8, 7), (5, 6), (6, 5)]


def unit(x: np.ndarray) -> np.ndarray:
    """At mean power 1."""
    return x / np.sqrt(np.mean(np.abs(x) ** 2) + 1e-12)


def read(path: Path) -> np.ndarray:
    """A file at 8 kHz, at unit power where it is loud."""
    source = audio.info(path)
    x = resample_poly(audio.read(source).mean(1), RATE, source.rate)
    return x / np.sqrt(np.mean(x[np.abs(x) > 0.01 * np.abs(x).max()] ** 2))


def utterance(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """A cut of a voice, faster or slower: that moves pitch and formants, and makes more voices of few."""
    voice = voices[rng.integers(len(voices))]
    up, down = SPEEDS[rng.integers(len(SPEEDS))]
    size = LENGTH * down // up + 32
    start = rng.integers(0, len(voice) - size)
    return resample_poly(voice[start : start + size], up, down)[:LENGTH]


def curve(rng: np.random.Generator, size: int, knots: int, sd: float) -> np.ndarray:
    """A random function, straight between knots."""
    return np.interp(np.linspace(0, 1, size), np.linspace(0, 1, knots), rng.normal(0, sd, knots))


def colour(rng: np.random.Generator, x: np.ndarray, sd: float | None = None) -> np.ndarray:
    """Through a random filter."""
    X = np.fft.rfft(x)
    f = np.linspace(0, RATE / 2, len(X))
    decibels = curve(rng, len(X), rng.integers(4, 14), sd or rng.uniform(1, 6))
    gain = 10 ** ((decibels - rng.uniform(-3, 14) * np.log2(np.maximum(f, 100) / 1000)) / 20)
    if rng.random() < 0.7:
        gain /= 1 + (rng.uniform(40, 350) / np.maximum(f, 1)) ** 4
    if rng.random() < 0.5:
        gain /= 1 + (f / rng.uniform(2800, 4000)) ** 16
    return np.fft.irfft(X * gain, len(x))


def modulation(rng: np.random.Generator) -> np.ndarray:
    """A level that moves, at one of several speeds."""
    return np.exp(curve(rng, LENGTH, 4 * 2 ** rng.integers(5) + 2, rng.uniform(0.1, 1)))


def babble(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """Many voices, often in a hall."""
    x = sum(utterance(rng, voices) * np.exp(rng.normal(0, 0.7)) for _ in range(rng.choice([2, 3, 4, 5, 6, 8, 10, 14])))
    x = colour(rng, x, 2.0)
    if rng.random() < 0.6:
        size = int(RATE * rng.uniform(0.15, 0.7))
        x = fftconvolve(x, rng.standard_normal(size) * np.exp(-6.9 * np.arange(size) / size))[:LENGTH]
    return x


def hits(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """Short sounds that die away."""
    x = np.zeros(LENGTH)
    for _ in range(rng.poisson(rng.uniform(2, 25))):
        size = int(RATE * rng.uniform(0.01, 0.25))
        fall, t = np.exp(-6 * np.arange(size) / size), np.arange(size) / RATE
        sound = rng.standard_normal(size) * np.exp(rng.normal(0, 0.8))
        sound += rng.uniform(0, 3) * np.sin(2 * np.pi * rng.uniform(200, 3500) * t)
        start = rng.integers(0, LENGTH - size)
        x[start : start + size] += fall * sound
    return colour(rng, x, 3.0)


def hum(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """Harmonics of a pitch that drifts."""
    pitch = rng.uniform(40, 400) * np.exp(np.cumsum(rng.normal(0, 1, LENGTH)) * 1e-5 * rng.uniform(0, 20))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    orders = range(1, rng.integers(2, 15))
    return sum(np.sin(k * phase + rng.uniform(0, 6)) * rng.exponential() / k for k in orders) * modulation(rng)


def steady(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """Coloured noise."""
    return colour(rng, rng.standard_normal(LENGTH))


def moving(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """Coloured noise whose level moves."""
    return steady(rng, voices) * modulation(rng)


def bands(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """Several of those."""
    return sum(unit(steady(rng, voices)) * modulation(rng) for _ in range(3))


def noise(rng: np.random.Generator, voices: list[np.ndarray]) -> np.ndarray:
    """A mixture of noises."""
    kinds = list(rng.choice([steady, moving, bands, babble, babble, babble, hits, hum], size=rng.integers(1, 4)))
    if rng.random() < 0.8:
        kinds.append(steady)
    return sum(unit(kind(rng, voices)) * np.exp(rng.normal(0, 0.6)) for kind in kinds)


def spectra(x: np.ndarray) -> np.ndarray:
    """Frames 16 ms apart, (T, F)."""
    return transform(RATE).stft(x)[:, 2:-2:2].T.astype(np.complex64)


def gains(rng: np.random.Generator, sd: float) -> np.ndarray:
    """A random filter for spectra, as of microphones and rooms."""
    decibels = curve(rng, len(HERTZ), rng.integers(4, 10), sd)
    gain = 10 ** ((decibels - rng.uniform(-2, 4) * np.log2(np.maximum(HERTZ, 100) / 1000)) / 20)
    if rng.random() < 0.7:
        gain /= 1 + (rng.uniform(60, 320) / np.maximum(HERTZ, 1)) ** 3
    if rng.random() < 0.5:
        gain /= 1 + (HERTZ / rng.uniform(2800, 5000)) ** 10
    return gain


def example(rng: np.random.Generator, speech: list[np.ndarray], noises: list[np.ndarray]):
    """Spectra of speech, often with a pause before or after, and of noise, at a random ratio and level."""
    S = unit(speech[rng.integers(len(speech))] * (gains(rng, 2.0) if rng.random() < 0.7 else 1))
    if rng.random() < 0.5:
        pause = int(rng.uniform(0.1, 1.2) * 62.5)
        S[slice(0, pause) if rng.random() < 0.5 else slice(-pause, None)] = 0
    any_noise = lambda: np.roll(noises[rng.integers(len(noises))], rng.integers(len(S)), 0)
    N = any_noise() + (rng.uniform(0.2, 1) * any_noise() if rng.random() < 0.3 else 0)
    N = unit(N * gains(rng, 2.0)) * 10 ** (-rng.uniform(-3, 13) / 20)
    both = (gains(rng, 0.5) if rng.random() < 0.6 else 1) * 10 ** (rng.uniform(-30, 0) / 20)
    return (S * both).astype(np.complex64), (N * both).astype(np.complex64)


def initial(key: jax.Array) -> dict[str, jax.Array]:
    """Random weights."""
    layers = range(len(guess.DILATIONS))
    shapes = {"in": (2 * guess.BINS, WIDTH, 1.0), "out": (WIDTH, 2 * guess.BINS, 0.1)}
    shapes |= {f"w{i}": (3 * WIDTH, WIDTH, 1.4) for i in layers} | {f"o{i}": (WIDTH, WIDTH, 0.5) for i in layers}
    keys = jax.random.split(key, len(shapes))
    weights = {
        name: scale / np.sqrt(a) * jax.random.normal(k, (a, b))
        for k, (name, (a, b, scale)) in zip(keys, shapes.items())
    }
    biases = {"bin": WIDTH, "bout": 2 * guess.BINS} | {f"b{i}": WIDTH for i in layers}
    return weights | {name: jnp.zeros(size) for name, size in biases.items()}


def loss(weights: dict[str, jax.Array], S: jax.Array, N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Minus the SDR of the Wiener filter of both guesses, and their own misfit, outliers of which count less."""
    X = S + N
    power = jnp.abs(X) ** 2
    there = jnp.ones(power.shape[1], bool)
    speech, noise = jax.vmap(lambda p: guess.network(weights, p, there))(power)
    error = jnp.abs(S - jax.nn.sigmoid(speech - noise) * X) ** 2
    sdr = -10 * jnp.log10(error.sum((1, 2)) / (jnp.abs(S) ** 2).sum((1, 2)) + 1e-3).mean()
    floor = 1e-6 * power.mean((1, 2), keepdims=True)

    def misfit(log_variance, x):
        size = jnp.abs(x) ** 2 + floor
        divergence = log_variance - jnp.log(size) + size * jnp.exp(-jnp.clip(log_variance, -40, 40)) - 1
        return jnp.minimum(divergence, 10 + 0.1 * divergence).mean()

    return 0.3 * (misfit(speech, S) + misfit(noise, N)) - sdr, sdr


def train(weights, speech, noises, steps: int, rng: np.random.Generator, rate: float = 2e-3):
    """Adam with a falling rate; the average of the last weights."""

    falling = optax.warmup_cosine_decay_schedule(0.0, rate, 50, max(steps, 51), 1e-5)
    solver = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(falling))

    @jax.jit
    def step(state, S, N):
        weights, moments, average = state
        (_, sdr), g = jax.value_and_grad(loss, has_aux=True)(weights, S, N)
        updates, moments = solver.update(g, moments)
        weights = optax.apply_updates(weights, updates)
        return (weights, moments, optax.incremental_update(weights, average, 0.01)), sdr

    state, seen = (weights, solver.init(weights), weights), []
    for t in range(steps):
        S, N = map(np.stack, zip(*(example(rng, speech, noises) for _ in range(BATCH))))
        state, sdr = step(state, S, N)
        seen.append(float(sdr))
        if t % 100 == 99 or t == steps - 1:
            print(f"step {t + 1}: SDR {np.mean(seen[-100:]):.2f} dB", flush=True)
    return state[2]


def main() -> None:
    """Read, generate, train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--cuts", type=int, default=7000, help="of speech; half as many noises")
    parser.add_argument("--start", type=Path, help="weights to go on from")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    voices = [read(p) for p in sorted(asked.speech.rglob("*")) if p.suffix.lower() in (".wav", ".flac", ".ogg")]
    voices = [v for v in voices if len(v) > 2 * LENGTH]
    speech = [spectra(utterance(rng, voices)) for _ in range(asked.cuts)]
    speech = [S for S in speech if np.mean(np.abs(S) ** 2) > 0.04]  # not those that are mostly pause
    noises = [spectra(unit(noise(rng, voices))) for _ in range(asked.cuts // 2)]
    weights = initial(jax.random.key(asked.seed))
    if asked.start:
        with np.load(asked.start, allow_pickle=False) as file:
            weights = {name: jnp.asarray(file[name], jnp.float32) for name in file.files}
    found = train(weights, speech, noises, asked.steps, rng)
    np.savez_compressed(asked.out, **{name: np.asarray(x, np.float16) for name, x in found.items()})


if __name__ == "__main__":
    main()
