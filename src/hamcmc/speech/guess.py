"""First guesses of speech and noise, on which the model's priors are centred.

Two small convolutional networks, trained on speech in generated noises, predict how loud speech and noise are in each
bin. The lower one sees what is below 4 kHz, 1.3 s around each frame. The upper one, from 4 to 8 kHz, sees 1 s around
each frame: the spectrum there, and what the lower one found. A vowel below says that there is little speech above, and
a pause below that what is above may be an s. Above 8 kHz the noise is tracked by the probability that speech is
present, which needs no training, and speech is what the power, averaged over bins nearby, has above the noise. But
where the upper network found no speech just below 8 kHz, there is none above.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import resources
from io import BytesIO
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

BINS = 129  # the bins that the lower network sees, up to 4 kHz
TOP = 257  # the bins of both networks, up to 8 kHz
DILATIONS = (1, 2, 4, 8, 16, 32, 1, 4)
UPPER_DILATIONS = (1, 2, 4, 8, 16, 1)
LOUDER = 0.5  # added to log E|s|² from 4 to 8 kHz: on held-out voices, less speech is lost at the same SDR
EDGE = 48  # bins just below 8 kHz (1.5 kHz), whose speech bounds the speech above
MORE = 4.0  # how many times as far above the noise speech may be there
POOLED = 8  # bins in a band: the upper network also sees means over bands
FILES = {  # the weights, and their SHA-256: a damaged file would be a worse guess without a sign of it
    "guess.npz": "eb27762ab2c818d72be83ec24ec89a1c763f9b3fd5c3509946095048b0af45fb",
    "guess-upper.npz": "79acc9f70b4220a7fabebda8233ffc0ae3dac948cc555ca78e9542e4df2622f3",
}

Weights = Mapping[str, Any]  # arrays of JAX or NumPy


def guess(power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log E|s|² and log E|n|² of each bin (F, T), from the power |x|² of a stretch."""
    speech, noise = np.empty(power.shape), np.empty(power.shape)
    # The networks were trained on frames that are 16 ms apart, so even and odd frames go through them separately.
    for phase in (0, 1):
        frames = power[:TOP, phase::2].T
        if not len(frames):
            continue
        found = _apply(weights("guess.npz"), _padded(frames[:, :BINS]), len(frames))
        s, n = (np.asarray(x)[: len(frames)] for x in found)
        speech[:BINS, phase::2], noise[:BINS, phase::2] = s.T, n.T
        if (bins := frames.shape[1]) > BINS:
            whole = np.pad(frames, ((0, 0), (0, TOP - bins))).astype(np.float32)
            view = upper_view(whole, s, n, np.ones(len(frames), bool), bins)
            s, n = upper_network(weights("guess-upper.npz"), view)
            speech[BINS:bins, phase::2] = s.T[: bins - BINS] + LOUDER
            noise[BINS:bins, phase::2] = n.T[: bins - BINS]
    if len(power) > TOP:
        edge = slice(TOP - EDGE, TOP)
        ratio = np.exp(speech[edge]).mean(0) / np.exp(noise[edge]).mean(0)
        speech[TOP:], noise[TOP:] = above(power[TOP:], MORE * ratio)
    return speech, noise


def above(power: np.ndarray, most: np.ndarray, band: int = 32, margin: float = 1.3) -> tuple[np.ndarray, np.ndarray]:
    """log E|s|² and log E|n|² above the networks, from the power (F, T).

    Single bins of noise are often far above its level, and would pass for speech. Their average over `band` bins (1
    kHz) and three frames rarely is: it varies by a fifth or so, which `margin` covers. Both were chosen on the voices
    that the networks were trained on, in hiss.

    Args:
        power: |x|² of the bins above the networks.
        most: (T,), the most that speech can be, in units of the noise. In pauses it takes away what the average leaves.
        band: how many bins are averaged.
        margin: speech is what is above so many times the noise.
    """
    tracked = presence_noise(power, memory=0.9)
    smooth, level = _moving_mean(_moving_mean(power, band).T, 3).T, _moving_mean(tracked, band)
    speech = np.maximum(smooth - margin * level, 0.01 * level)
    return np.log(np.minimum(speech, _moving_mean(most[:, None], 3).T * level)), np.log(tracked)


def _moving_mean(x: np.ndarray, size: int) -> np.ndarray:
    """The mean of so many neighbours along the first axis, beyond whose ends all values are like the last."""
    padded = np.pad(x, ((size // 2, size - 1 - size // 2), (0, 0)), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, size, 0).mean(-1)


def _padded(frames: np.ndarray, multiple: int = 64) -> np.ndarray:
    """Pad frames to a multiple, so that few shapes are compiled, with their mirror image: its statistics are the
    same."""
    more = -len(frames) % multiple
    return np.pad(frames, ((0, more), (0, 0)), mode="symmetric").astype(np.float32)


class DamagedWeights(ValueError):
    """The weights of a network are not the ones that belong to this version."""


@lru_cache
def weights(name: str) -> dict[str, np.ndarray]:
    """The weights of a network, one of :data:`FILES`."""
    content = (resources.files("hamcmc.speech") / "data" / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != FILES[name]:
        raise DamagedWeights(f"{name} of hamcmc.speech is damaged or of another version: install hamcmc again")
    with np.load(BytesIO(content), allow_pickle=False) as arrays:
        return {key: arrays[key].astype(np.float32) for key in arrays.files}


@jax.jit
def _apply(weights: Weights, power: Array, frames: int) -> tuple[Array, Array]:
    return network(weights, power, jnp.arange(len(power)) < frames)


class Library(NamedTuple):
    """What a network needs of an array library.

    JAX trains the networks. What is trained is sooner applied to a short recording by NumPy, which compiles nothing.
    """

    np: Any
    relu: Callable[[Any], Any]
    rsqrt: Callable[[Any], Any]
    softmax: Callable[[Any, int], Any]


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    raised = np.exp(x - x.max(axis, keepdims=True))
    return raised / raised.sum(axis, keepdims=True)


JAX = Library(jnp, jax.nn.relu, jax.lax.rsqrt, jax.nn.softmax)
NUMPY = Library(np, lambda x: np.maximum(x, 0), lambda x: 1 / np.sqrt(x), _softmax)


def _library(x: Any) -> Library:
    return JAX if isinstance(x, Array) else NUMPY


def network(weights: Weights, power: Array, there: Array) -> tuple[Array, Array]:
    """log E|s|² and log E|n|² of frames (T, F)."""
    mean = jnp.mean(power, where=there[:, None])
    x = jnp.log(power + 1e-8 * mean)
    floor = _floor(x, there)
    features = jnp.concatenate([0.3 * (x - jnp.log(mean)) + 1, 0.3 * (x - floor) - 0.5], -1)
    out = 3 * _convolutions(weights, features, DILATIONS) + jnp.tile(0.5 * (x + floor), 2)
    return out[:, : power.shape[1]], out[:, power.shape[1] :]


class View(NamedTuple):
    """What the upper network sees.

    Attributes:
        features: (T, 320): levels of the 128 bins and of 16 bands above 4 kHz, and what the lower network found.
        bases: (4, T, 128): log-power and floor of the bins and of their bands, to which the outputs are relative.
    """

    features: Any
    bases: Any


def upper_view(power: Any, speech: Any, noise: Any, there: Any, bins: Any) -> View:
    """What the upper network sees of frames (T, 257).

    Args:
        power: |x|² of the bins up to 8 kHz.
        speech: (T, 129), log E|s|² of the lower bins.
        noise: (T, 129), log E|n|² of the lower bins.
        there: (T,), whether a frame is in the recording.
        bins: how many bins are below half of the sample rate. The others do not count.
    """
    xp = _library(power).np
    mean = xp.mean(power[:, :BINS], where=there[:, None])
    known = xp.arange(BINS, TOP) < bins
    high = power[:, BINS:] * known + 1e-8 * mean
    levels = xp.concatenate([high, _bands(high)], -1)  # single bins show tones, bands show breath
    seen = xp.concatenate([known, _bands(known) == 1])
    x = xp.log(levels)
    floor = _floor(x, there)
    loud, rise = seen * (0.3 * (x - xp.log(mean)) + 1), seen * (0.3 * (x - floor) - 0.5)
    found = _bands(0.3 * (speech - noise)[:, 1:]), _bands((0.3 * (speech - xp.log(mean)) + 1)[:, 1:])
    features, bases = [], []
    for part, repeats in ((slice(0, TOP - BINS), 1), (slice(TOP - BINS, None), POOLED)):
        features += [loud[:, part], rise[:, part]]
        bases += [xp.repeat(y[:, part], repeats, 1) for y in (x, xp.broadcast_to(floor, x.shape))]
    return View(xp.concatenate([*features, *found], -1), xp.stack(bases))


def upper_network(weights: Weights, view: View) -> tuple[Any, Any]:
    """log E|s|² and log E|n|² of frames (T, 128), from 4 to 8 kHz."""
    library = _library(view.features)
    out = 3 * _convolutions(weights, view.features, UPPER_DILATIONS)
    # Learned means of the four log-powers: a louder recording makes both outputs louder.
    speech, noise = library.np.einsum("obf,btf->otf", library.softmax(weights["mix"], 1), view.bases)
    return out[:, : TOP - BINS] + speech, out[:, TOP - BINS :] + noise


def _bands(x: Any) -> Any:
    """Means over bands of bins, which are the last axis."""
    return x.reshape(*x.shape[:-1], -1, POOLED).mean(-1)


def _floor(x: Any, there: Any) -> Any:
    """The quantile at 0.2 of a level (T, F) over time."""
    if isinstance(x, np.ndarray):
        return np.quantile(x[there], 0.2, axis=0).astype(x.dtype)
    return jnp.nanquantile(jnp.where(there[:, None], x, jnp.nan), 0.2, axis=0)


def _convolutions(weights: Weights, features: Any, dilations: tuple[int, ...]) -> Any:
    """Convolutions over time with skip connections."""
    xp, relu, *_ = _library(features)
    hidden = features @ weights["in"] + weights["bin"]
    for i, far in enumerate(dilations):
        y = relu(normalise(hidden))
        around = xp.pad(y, ((far, far), (0, 0)))
        y = xp.concatenate([around[: len(y)], y, around[2 * far :]], -1) @ weights[f"w{i}"] + weights[f"b{i}"]
        hidden = hidden + relu(y) @ weights[f"o{i}"]
    return normalise(hidden) @ weights["out"] + weights["bout"]


def normalise(x: Any) -> Any:
    """Zero mean and unit variance along the last axis."""
    return (x - x.mean(-1, keepdims=True)) * _library(x).rsqrt(x.var(-1, keepdims=True) + 1e-5)


def presence_noise(power: np.ndarray, first: int = 8, memory: float = 0.8, loud: float = 10**1.5) -> np.ndarray:
    """Noise power (F, T), tracked by the probability that speech is present (Gerkmann and Hendriks, 2012).

    Args:
        power: |x|².
        first: how many frames at the start are taken for noise.
        memory: of the recursive average.
        loud: the signal-to-noise ratio of speech where it is present.
    """
    floor = 1e-10 * power.mean() + 1e-30
    noise, presence = power[:, :first].mean(1) + floor, np.full(len(power), 0.5)
    tracked = np.empty_like(power)
    for t in range(power.shape[1]):
        likely = 1 / (1 + (1 + loud) * np.exp(-np.minimum(power[:, t] / noise, 200) * loud / (1 + loud)))
        presence = 0.9 * presence + 0.1 * likely
        likely = np.where(
            presence > 0.99, np.minimum(likely, 0.99), likely
        )  # else a rise of the noise would go unnoticed
        noise = memory * noise + (1 - memory) * (likely * noise + (1 - likely) * power[:, t]) + 1e-30
        tracked[:, t] = noise + floor
    return tracked
