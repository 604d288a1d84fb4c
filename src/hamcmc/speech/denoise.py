"""Clean speech from a noisy recording, stretch by stretch."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc import _compile, samplers
from hamcmc._check import at_least
from hamcmc._types import Record
from hamcmc.inference.display import shown
from hamcmc.inference.progress import Progress, Status
from hamcmc.speech import keys, model, spectrum
from hamcmc.speech.dictionary import BINS, Dictionary, load
from hamcmc.speech.guess import guess
from hamcmc.speech.pair import Pair, pair
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


class Run(NamedTuple):
    """The sampler, how many iterations it takes, and how many of the last ones are averaged."""

    sampler: str
    iterations: int
    kept: int


DEFAULT = Run("sgld", 150, 100)
LEAST = 10  # iterations
QUALITIES = {"fast": DEFAULT, "best": Run("ensemble_hamcmc", 200, 150)}  # of 0.1: the scores of both were the same


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
    quality: str | None = None,
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
        quality: deprecated. ``"fast"`` is the default now. ``"best"``, an ensemble of 200 iterations, took five times
            as long and was not measurably better.
        sampler: ``"sgld"``, ``"psgld"``, ``"hamcmc"`` or ``"ensemble_hamcmc"``.
        iterations: iterations of the sampler, 150 by default. The last two thirds are averaged.
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
    chosen = DEFAULT if quality is None else old_quality(quality)
    if sampler is not None:
        if sampler not in RECIPES:
            raise ValueError(f"sampler must be one of {', '.join(RECIPES)}, not {sampler!r}")
        chosen = chosen._replace(sampler=sampler)
    if iterations is not None:
        at_least("iterations", iterations, LEAST)
        kept = 5 * max(1, round(iterations * chosen.kept / chosen.iterations / 5))
        chosen = chosen._replace(iterations=iterations, kept=kept)
    dictionary = dictionary or load()
    prior = prior._replace(alpha=dictionary.alpha)
    clean = partial(clean_stretch, rate=rate, dictionary=dictionary, run=chosen, draws=draws, prior=prior)
    fade, done, tail = round(FADE * rate), 0, None
    ramp = np.sin(np.linspace(0, math.pi / 2, fade + 2)[1:-1])[:, None] ** 2
    with shown(progress, "denoising") as show:
        for number, (noisy, new) in enumerate(stretches(blocks, round(STRETCH * rate), fade)):
            channels = [clean(x, hash_of(seed, number, c)) for c, x in enumerate(noisy.T)]
            sounds = np.stack([c[0] for c in channels], -1)  # (1 + draws, samples, channels)
            if tail is not None:
                n = min(fade, sounds.shape[1])
                sounds[:, :n] = ramp[:n] * sounds[:, :n] + (1 - ramp[:n]) * tail[:, :n]
            tail = sounds[:, new:]
            sounds = sounds[:, :new].astype(np.float32)
            done += new
            frames = math.ceil(new / (rate * spectrum.HOP_SECONDS))
            sd = np.stack([c[1][:, :frames] for c in channels]) if uncertainty else None
            frequencies = spectrum.transform(rate).frequencies
            yield Cleaned(sounds[0], sounds[1:] if draws else None, sd, frequencies, spectrum.HOP_SECONDS)
            if length:
                show(Status(min(1.0, done / length), f"{done / rate:.0f} s"))


def old_quality(name: str) -> Run:
    """What a quality of version 0.1 stood for, with a warning."""
    if name not in QUALITIES:
        raise ValueError(f"quality must be one of {', '.join(QUALITIES)}, not {name!r}")
    run = QUALITIES[name]
    instead = "is the default" if run == DEFAULT else f"is now sampler={run.sampler!r}, iterations={run.iterations}"
    warnings.warn(f"denoise(quality={name!r}) {instead}", DeprecationWarning, stacklevel=3)
    return run


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
    seed: int,
    *,
    rate: int,
    dictionary: Dictionary,
    run: Run,
    draws: int,
    prior: model.Prior,
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and draws (1 + draws, samples) of one channel, and standard deviations (F, T) of its spectrum."""
    noisy = spectrum.above_hum(noisy, rate)
    X = spectrum.analyse(noisy, rate)
    power = np.abs(X) ** 2
    level = power.mean()
    if level == 0:
        return np.zeros((1 + draws, len(noisy))), np.zeros(power.shape)
    power = power / level + 1e-8
    speech, noise = (x - math.log(2) for x in guess(power))  # E|s|² = Φ v with Φ near 2
    bins = min(len(X), len(dictionary.W), BINS)
    stretch = prepare(power[:bins], speech[:bins], noise[:bins], dictionary.rows(bins))
    own, normal = keys.split(keys.key(seed), 2)
    found = steady(own, stretch, prior, run, min(draws, run.kept // model.EACH))
    rest = above_dictionary(power[bins:], speech[bins:], noise[bins:], prior)

    def whole(share_and_power: Any) -> np.ndarray:
        """Without the padding, and with what is above the dictionary: (2, F, T)."""
        return np.concatenate([np.asarray(share_and_power)[:, :bins, : X.shape[1]], rest], 1, dtype=float)

    share, energy = whole(np.stack([found.share, found.power]))
    sounds = [spectrum.synthesise(share * X, rate, len(noisy))]
    for i, k in enumerate(keys.split(normal, draws)):
        one_share, one_energy = whole(found.draws[i % len(found.draws)])  # more draws than looks share their scales
        # Given the scales, a normal draw with the mean and the variance of the clean bin. Four frames overlap, and the
        # synthesis averages their independent bins: twice the deviation gives the sound the right variance.
        variance = level * np.maximum(one_energy - one_share**2 * power, 0)
        z = np.asarray(jax.random.normal(jax.random.wrap_key_data(k), (2, *X.shape)))
        sounds.append(
            spectrum.synthesise(one_share * X + 2 * np.sqrt(variance / 2) * (z[0] + 1j * z[1]), rate, len(noisy))
        )
    return np.stack(sounds), np.sqrt(level * np.maximum(energy - share**2 * power, 0))


def steady(
    own: np.ndarray, stretch: model.Stretch, prior: model.Prior, run: Run, draws: int, halvings: int = 6
) -> model.Filter:
    """Sample, and if a chain becomes non-finite, sample again with half the step."""
    table, recipe = pair(prior.alpha, prior.noise_alpha), RECIPES[run.sampler]
    random = keys.steps(own, run.iterations, run.kept, model.EACH, model.EVERY)
    step_size = 2 * recipe.step_size / (stretch.power.size if recipe.per_bin else 1)
    for _ in range(1 + halvings):
        step_size /= 2
        found = model.sample(
            random,
            stretch,
            table,
            prior,
            maker(run.sampler),
            np.float32(step_size),
            run.iterations,
            run.kept,
            draws=draws,
        )
        if np.all(np.isfinite(found.share) & np.isfinite(found.power)):
            return found
    raise NonFinite(f"{run.sampler} became non-finite at every step size down to {step_size:g}: try the sampler sgld")


def prepare(power: np.ndarray, speech: np.ndarray, noise: np.ndarray, W: np.ndarray) -> model.Stretch:
    """A stretch for the sampler, padded to whole minibatches and to a multiple of :data:`FRAMES`.

    Args:
        power: (F, T), |x|².
        speech: first guess of log v of speech.
        noise: first guess of log v of noise.
        W: (F, K) dictionary.
    """
    more = -len(power) % model.EVERY
    guessed = (np.arange(len(power) + more) < len(power)).astype(np.float32)
    W = np.pad(W, ((0, more), (0, 0)), constant_values=1e-9)
    log_power, there, log_speech, log_noise = (
        _padded(x, more) for x in (np.log(power), np.ones_like(power), speech, noise)
    )
    return model.Stretch(log_power, there, log_speech, log_noise, _compile.put(guessed), _compile.put(W))


def _padded(x: np.ndarray, rows: int = 0) -> jax.Array:
    """Zeros for the bins that are not in the recording."""
    return _compile.put(np.pad(x, ((0, rows), (0, -x.shape[1] % FRAMES))), np.float32)


def above_dictionary(power: np.ndarray, speech: np.ndarray, noise: np.ndarray, prior: model.Prior) -> np.ndarray:
    """Share and power of speech (2, F, T) above the dictionary, given scales that are at their first guesses."""
    if not len(power):
        return np.zeros((2, *power.shape))
    table = pair(prior.alpha, prior.noise_alpha)
    found = _share_and_power(table, _padded(speech), _padded(noise), _padded(np.log(power)))
    return np.asarray(found)[:, :, : power.shape[1]]


@jax.jit
def _share_and_power(table: Pair, speech: jax.Array, noise: jax.Array, power: jax.Array) -> jax.Array:
    return jnp.stack(table.share_and_power(speech, noise, power))
