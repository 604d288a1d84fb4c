"""First guesses of speech and noise, on which the model's priors are centred.

Below 4 kHz a small convolutional network, trained on speech in generated noises, looks at 1.3 s around each frame and
predicts how loud speech and noise are in each bin. Above 4 kHz, up to half of any sample rate, the noise is tracked by
the probability that speech is present, which needs no training, and speech is what the power, averaged over bins
nearby, has above the noise.
"""

import hashlib
from functools import lru_cache
from importlib import resources
from io import BytesIO

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.ndimage import uniform_filter

BINS = 129  # the bins that the network sees, up to 4 kHz
DILATIONS = (1, 2, 4, 8, 16, 32, 1, 4)
FILES = {  # the weights, and their SHA-256: a damaged file would be a worse guess without a sign of it
    "guess.npz": "eb27762ab2c818d72be83ec24ec89a1c763f9b3fd5c3509946095048b0af45fb",
}


def guess(power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log E|s|² and log E|n|² of each bin (F, T), from the power |x|² of a stretch."""
    speech, noise = np.empty(power.shape), np.empty(power.shape)
    # The network was trained on frames that are 16 ms apart, so even and odd frames go through it separately.
    for phase in (0, 1):
        low = power[:BINS, phase::2].T
        if len(low):
            found = _apply(weights("guess.npz"), _padded(low), len(low))
            speech[:BINS, phase::2], noise[:BINS, phase::2] = (np.asarray(x)[: len(low)].T for x in found)
    if len(power) > BINS:
        speech[BINS:], noise[BINS:] = above(power[BINS:])
    return speech, noise


def above(power: np.ndarray, band: int = 32, margin: float = 1.3) -> tuple[np.ndarray, np.ndarray]:
    """log E|s|² and log E|n|² above the network, from the power (F, T).

    Single bins of noise are often far above its level, and would pass for speech. Their average over `band` bins (1
    kHz) and three frames rarely is: it varies by a fifth or so, which `margin` covers. Both were chosen on the voices
    that the network was trained on, in hiss.

    Args:
        power: |x|² of the bins above the network.
        band: how many bins are averaged.
        margin: speech is what is above so many times the noise.
    """
    tracked = presence_noise(power, memory=0.9)
    smooth = uniform_filter(power, (band, 3), mode="nearest")  # type: ignore[arg-type]
    level = uniform_filter(tracked, (band, 1), mode="nearest")  # type: ignore[arg-type]
    return np.log(np.maximum(smooth - margin * level, 0.01 * level)), np.log(tracked)


def _padded(frames: np.ndarray, multiple: int = 64) -> np.ndarray:
    """Pad frames to a multiple, so that few shapes are compiled, with their mirror image: its statistics are the
    same."""
    more = -len(frames) % multiple
    return np.pad(frames, ((0, more), (0, 0)), mode="symmetric").astype(np.float32)


class DamagedWeights(ValueError):
    """The weights of a network are not the ones that belong to this version."""


@lru_cache
def weights(name: str) -> dict[str, Array]:
    """The weights of a network, one of :data:`FILES`."""
    content = (resources.files("hamcmc.speech") / "data" / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != FILES[name]:
        raise DamagedWeights(f"{name} of hamcmc.speech is damaged or of another version: install hamcmc again")
    with np.load(BytesIO(content), allow_pickle=False) as arrays:
        return {key: jnp.asarray(arrays[key], jnp.float32) for key in arrays.files}


@jax.jit
def _apply(weights: dict[str, Array], power: Array, frames: int) -> tuple[Array, Array]:
    return network(weights, power, jnp.arange(len(power)) < frames)


def network(weights: dict[str, Array], power: Array, there: Array) -> tuple[Array, Array]:
    """log E|s|² and log E|n|² of frames (T, F)."""
    mean = jnp.mean(power, where=there[:, None])
    x = jnp.log(power + 1e-8 * mean)
    floor = jnp.nanquantile(jnp.where(there[:, None], x, jnp.nan), 0.2, axis=0)
    hidden = jnp.concatenate([0.3 * (x - jnp.log(mean)) + 1, 0.3 * (x - floor) - 0.5], -1)
    hidden = hidden @ weights["in"] + weights["bin"]
    for i, far in enumerate(DILATIONS):
        y = jax.nn.relu(normalise(hidden))
        around = jnp.pad(y, ((far, far), (0, 0)))
        y = jnp.concatenate([around[: len(y)], y, around[2 * far :]], -1) @ weights[f"w{i}"] + weights[f"b{i}"]
        hidden += jax.nn.relu(y) @ weights[f"o{i}"]
    out = 3 * (normalise(hidden) @ weights["out"] + weights["bout"]) + jnp.tile(0.5 * (x + floor), 2)
    return out[:, : power.shape[1]], out[:, power.shape[1] :]


def normalise(x: Array) -> Array:
    """Zero mean and unit variance along the last axis."""
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


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
