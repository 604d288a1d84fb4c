"""Clean speech from a noisy recording, stretch by stretch."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc import samplers
from hamcmc._types import Record
from hamcmc.inference.display import shown
from hamcmc.inference.progress import Progress, Status
from hamcmc.speech import model, spectrum
from hamcmc.speech.dictionary import BINS, Dictionary, load
from hamcmc.speech.guess import BINS as GUESSED
from hamcmc.speech.guess import guess
from hamcmc.speech.pair import pair
from hamcmc.store.errors import NonFinite

STRETCH = 8.0  # seconds that are cleaned at a time
FADE = 0.5  # seconds over which one stretch fades into the next
FRAMES = 256  # stretches are padded to a multiple of so many, so that few shapes are compiled


class Recipe(NamedTuple):
    """How a sampler is run.

    Attributes:
        options: its options.
        step_size: ε.
        per_bin: options that are divided by N, the number of bins of a stretch, as ε then is.

    Only pSGLD needs `per_bin`. Its metric is H = 1 / (λ + √v), where v averages the squares of ḡ, the **mean** of the
    gradient over the bins. The sum over the bins is Nḡ. A metric from sums, with λ and ε, moves as one from means does
    with λ/N and ε/N: √v and λ are N times smaller, H is N times larger, and both εH and the variance 2εH of the noise
    stay the same. λ = 1 and ε = 0.03 were chosen for sums, so that they fit stretches of every length.
    """

    options: Record
    step_size: float
    per_bin: tuple[str, ...] = ()


RECIPES = {
    "sgld": Recipe({}, 0.01),
    "psgld": Recipe({"regularizer": 1.0}, 0.03, per_bin=("regularizer",)),
    "hamcmc": Recipe({"memory": 5, "gamma": 0.1, "damping": 10.0}, 0.1),
    "ensemble_hamcmc": Recipe({"pairs": 2, "gamma": 1.0, "metric": None}, 0.02),
}


class Quality(NamedTuple):
    """The sampler, how many iterations it takes, and how many of the last ones are averaged."""

    sampler: str
    iterations: int
    kept: int


QUALITIES = {"fast": Quality("sgld", 150, 100), "best": Quality("ensemble_hamcmc", 200, 150)}


class Cleaned(NamedTuple):
    """A stretch of clean speech.

    Attributes:
        audio: (samples, channels).
        draws: (draws, samples, channels), draws from the posterior; None without ``draws=``.
        sd: (channels, frequencies, frames), posterior standard deviation of the clean spectrum; None without
            ``uncertainty=True``.
        frequencies: of the rows of `sd`, in Hz.
        frame_seconds: from one of its columns to the next.
    """

    audio: np.ndarray
    draws: np.ndarray | None
    sd: np.ndarray | None
    frequencies: np.ndarray
    frame_seconds: float


def denoise(
    blocks: Iterable[np.ndarray],
    rate: int,
    *,
    dictionary: Dictionary | None = None,
    quality: str = "best",
    sampler: str | None = None,
    iterations: int | None = None,
    seed: int = 0,
    draws: int = 0,
    uncertainty: bool = False,
    length: int | None = None,
    prior: model.Prior = model.Prior(),
    progress: bool | Progress | None = None,
) -> Iterator[Cleaned]:
    """Clean speech stretch by stretch, so that memory does not grow with the recording.

    Each channel is cleaned by itself.

    Args:
        blocks: the noisy recording, arrays (samples, channels) of any lengths, in order.
        rate: samples per second.
        dictionary: spectra of speech; the default is the one that comes with the package.
        quality: ``"fast"`` or ``"best"``.
        sampler: ``"sgld"``, ``"psgld"``, ``"hamcmc"`` or ``"ensemble_hamcmc"``, instead of the quality's.
        iterations: iterations of the sampler, instead of the quality's.
        seed: everything random follows from it.
        draws: how many posterior draws of the clean recording to return.
        uncertainty: whether to return posterior standard deviations.
        length: samples of the whole recording, which `progress` needs to tell the fraction done.
        prior: the prior of the model.
        progress: True for a progress bar, None for one if stderr is a terminal, or a function that is called with a
            :class:`~hamcmc.inference.progress.Status`.

    Raises:
        NonFinite: the sampler became NaN or infinite even with small steps.

    Example:
        >>> import numpy as np
        >>> from hamcmc.speech.denoise import denoise
        >>> noisy = np.random.default_rng(0).normal(size=(8000, 1))
        >>> clean = np.concatenate([c.audio for c in denoise([noisy], 8000, iterations=20)])
        >>> clean.shape
        (8000, 1)
    """
    spectrum.transform(rate)  # raises at once if the rate is too low
    if quality not in QUALITIES:
        raise ValueError(f"quality must be one of {', '.join(QUALITIES)}, not {quality!r}")
    chosen = QUALITIES[quality]
    if sampler is not None:
        if sampler not in RECIPES:
            raise ValueError(f"sampler must be one of {', '.join(RECIPES)}, not {sampler!r}")
        chosen = chosen._replace(sampler=sampler)
    if iterations is not None:
        if iterations < 10:
            raise ValueError(f"iterations must be at least 10, not {iterations}")
        kept = 5 * max(1, round(iterations * chosen.kept / chosen.iterations / 5))
        chosen = chosen._replace(iterations=iterations, kept=kept)
    dictionary = dictionary or load()
    prior = prior._replace(alpha=dictionary.alpha)
    clean = partial(clean_stretch, rate=rate, dictionary=dictionary, quality=chosen, draws=draws, prior=prior)
    fade, done, tail = round(FADE * rate), 0, None
    ramp = np.sin(np.linspace(0, math.pi / 2, fade + 2)[1:-1])[:, None] ** 2
    with shown(progress, "denoising") as show:
        for number, (noisy, new) in enumerate(stretches(blocks, round(STRETCH * rate), fade)):
            channels = [clean(x, jax.random.key(hash_of(seed, number, c))) for c, x in enumerate(noisy.T)]
            sounds = np.stack([c[0] for c in channels], -1)  # (1 + draws, samples, channels)
            if tail is not None:
                n = min(fade, sounds.shape[1])
                sounds[:, :n] = ramp[:n] * sounds[:, :n] + (1 - ramp[:n]) * tail[:, :n]
            tail = sounds[:, new:]
            sounds = sounds[:, :new].astype(np.float32)
            done += new
            frames = math.ceil(new / (rate * spectrum.HOP_SECONDS))
            sd = np.stack([c[1][:, :frames] for c in channels]) if uncertainty else None
            frequencies = spectrum.transform(rate).f
            yield Cleaned(sounds[0], sounds[1:] if draws else None, sd, frequencies, spectrum.HOP_SECONDS)
            if length:
                show(Status(min(1.0, done / length), f"{done / rate:.0f} s"))


def hash_of(seed: int, stretch: int, channel: int) -> int:
    """A seed for one channel of one stretch."""
    return int(np.random.SeedSequence((seed, stretch, channel)).generate_state(1)[0])


def stretches(blocks: Iterable[np.ndarray], size: int, fade: int) -> Iterator[tuple[np.ndarray, int]]:
    """Stretches that overlap by `fade` samples, and how many samples of each to return. The last is the longest."""
    held: list[np.ndarray] = []
    count = 0
    for block in blocks:
        held.append(np.asarray(block))
        count += len(block)
        if count < 1.5 * size + fade:
            continue
        whole = np.concatenate(held)
        while len(whole) >= 1.5 * size + fade:
            yield whole[: size + fade], size
            whole = whole[size:]
        held, count = [whole], len(whole)
    if count:
        yield np.concatenate(held), count


@lru_cache
def maker(name: str) -> Callable[[model.SpeechTarget], samplers.Sampler]:
    """A function that makes a recipe's sampler. It is the same object each time, so that a program is compiled once."""

    def make(target: model.SpeechTarget) -> samplers.Sampler:
        recipe = RECIPES[name]
        scaled = {k: recipe.options[k] / target.size for k in recipe.per_bin}
        return samplers.build(name, target, **recipe.options | scaled)

    return make


def clean_stretch(
    noisy: np.ndarray,
    key: jax.Array,
    *,
    rate: int,
    dictionary: Dictionary,
    quality: Quality,
    draws: int,
    prior: model.Prior,
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and draws (1 + draws, samples) of one channel, and standard deviations (F, T) of its spectrum."""
    X = spectrum.analyse(noisy, rate)
    power = np.abs(X) ** 2
    level = power.mean()
    if level == 0:
        return np.zeros((1 + draws, len(noisy))), np.zeros(power.shape)
    bins = min(len(X), len(dictionary.W), BINS)
    stretch = prepare(power[:bins] / level, dictionary.rows(bins))
    key, noise = jax.random.split(key)
    found = steady(key, stretch, prior, quality, min(draws, quality.kept // model.EACH))

    def cut(x: Any) -> np.ndarray:
        """Without the padding, and up to the highest frequency."""
        return extend(np.asarray(x)[..., :bins, : X.shape[1]].astype(float), len(X))

    seen = stretch.power  # powers are extended relative to the noisy ones
    share, energy = cut(found.share), cut(found.power / jnp.exp(seen)) * power
    singles = [(cut(a), cut(b / jnp.exp(seen)) * power) for a, b in found.draws]
    sounds = [spectrum.synthesise(share * X, rate, len(noisy))]
    for i, k in enumerate(jax.random.split(noise, draws) if draws else ()):
        one_share, one_energy = singles[i % len(singles)]  # more draws than looks share their scales
        # Given the scales, a normal draw with the mean and the variance of the clean bin. Four frames overlap, and the
        # synthesis averages their independent bins: twice the deviation gives the sound the right variance.
        variance = np.maximum(one_energy - (one_share * np.abs(X)) ** 2, 0)
        z = np.asarray(jax.random.normal(k, (2, *X.shape)))
        sounds.append(
            spectrum.synthesise(one_share * X + 2 * np.sqrt(variance / 2) * (z[0] + 1j * z[1]), rate, len(noisy))
        )
    return np.stack(sounds), np.sqrt(np.maximum(energy - (share * np.abs(X)) ** 2, 0))


def steady(
    key: jax.Array, stretch: model.Stretch, prior: model.Prior, quality: Quality, draws: int, halvings: int = 6
) -> model.Filter:
    """Sample, and if a chain becomes non-finite, sample again with half the step."""
    table, recipe = pair(prior.alpha, prior.noise_alpha), RECIPES[quality.sampler]
    step_size = 2 * recipe.step_size / (stretch.power.size if recipe.per_bin else 1)
    for _ in range(1 + halvings):
        step_size /= 2
        found = model.sample(
            key,
            stretch,
            table,
            prior,
            maker(quality.sampler),
            jnp.float32(step_size),
            quality.iterations,
            quality.kept,
            draws=draws,
        )
        if bool(jnp.all(jnp.isfinite(found.share) & jnp.isfinite(found.power))):
            return found
    raise NonFinite(
        f"{quality.sampler} became non-finite at every step size down to {step_size:g}: try the sampler sgld"
    )


def prepare(power: np.ndarray, W: np.ndarray) -> model.Stretch:
    """A stretch for the sampler, padded to whole minibatches and to a multiple of :data:`FRAMES`."""
    power = power + 1e-8
    speech, noise = guess(power)
    bins, frames = power.shape
    shape = (-bins % model.EVERY, -frames % FRAMES)

    def pad(x: np.ndarray) -> jax.Array:
        """Zeros for the bins that are not in the recording."""
        return jnp.asarray(np.pad(x, ((0, shape[0]), (0, shape[1]))), jnp.float32)

    half = math.log(2)  # E|s|² = Φ v with Φ near 2
    guessed = (np.arange(bins + shape[0]) < min(GUESSED, bins)).astype(np.float32)
    W = np.pad(W, ((0, shape[0]), (0, 0)), constant_values=1e-9)
    there = pad(np.ones_like(power))
    return model.Stretch(pad(np.log(power)), there, pad(speech - half), pad(noise - half), guessed, jnp.asarray(W))


def extend(x: np.ndarray, bins: int, top: int = 64) -> np.ndarray:
    """Repeat the mean of the uppermost 2 kHz that the dictionary covers up to the highest frequency."""
    more = bins - x.shape[-2]
    if more <= 0:
        return x
    mean = x[..., -top:, :].mean(-2, keepdims=True)
    return np.concatenate([x, np.repeat(mean, more, -2)], -2)
