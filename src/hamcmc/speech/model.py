r"""The model of a noisy spectrogram, and its sampler.

A bin is x = s + n (:mod:`hamcmc.speech.pair`). The scales of speech are a factorization with a dictionary W learned
from clean speech, those of the noise a level that moves slowly around a first guess m:

.. math:: \log v^s_{ft} = \tfrac{2}{α_s} \log [WH]_{ft}, \qquad
    \log v^n_{ft} = m_{ft} + \sum_l δ_{fl} B_{lt},

with hat functions B of time, normal priors on log H, on δ and on its steps, and, where a first guess of
the speech is at hand, a normal one on :math:`\log v^s` around it. The unknowns are log H and δ. A minibatch is every
tenth frequency with all of its frames, so that each gradient sees every H.

The estimate of the clean spectrogram is the posterior mean, :math:`E[s | x]`: the average over draws of a Wiener-like
filter.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc.samplers.noise import standard_normal
from hamcmc.speech.pair import Pair

PyTree = Any


class Prior(NamedTuple):
    """What is believed before: see the module's formulas.

    Attributes:
        alpha: index of speech.
        noise_alpha: index of noise.
        median: of H, for a recording of unit power.
        spread: standard deviation of log H.
        speech_sd: how far log v of speech may be from a first guess.
        noise_sd: how far log v of noise may be from its first guess.
        drift_sd: how far that distance may move from one knot to the next.
        knot: frames between two knots.
    """

    alpha: float = 1.2
    noise_alpha: float = 1.89
    median: float = 0.01
    spread: float = 2.5
    speech_sd: float = 0.5
    noise_sd: float = 0.2
    drift_sd: float = 0.5
    knot: int = 25


class Stretch(NamedTuple):
    """A stretch of one channel, of (F, T) bins.

    Attributes:
        power: log |x|².
        there: 1 for bins that are there and 0 for padding.
        speech: first guess of log v of speech.
        noise: first guess of log v of noise.
        guessed: (F,), 1 where the guess of speech counts.
        W: (F, K) dictionary.
    """

    power: Array
    there: Array
    speech: Array
    noise: Array
    guessed: Array
    W: Array


class Filter(NamedTuple):
    """What the posterior says of the clean bins.

    Attributes:
        share: E[s | x] / x.
        power: E[|s|² | x].
        draws: (draws, 2, F, T), share and power for single draws of the scales, spread evenly over those kept.
    """

    share: Array
    power: Array
    draws: Array


EVERY = 10  # a minibatch has one in so many frequencies
EACH = 5  # one in so many of the last iterations is looked at


def log_scales(position: PyTree, stretch: Stretch, prior: Prior) -> tuple[Array, Array]:
    """log v of speech and of noise."""
    speech = 2 / prior.alpha * jnp.log(stretch.W @ jnp.exp(position["H"]) + 1e-30)
    return speech, stretch.noise + position["noise"] @ hats(stretch.power.shape[1], prior.knot)


def hats(frames: int, knot: int) -> Array:
    """Hat functions of time, (knots, frames): they add up to one."""
    centres = jnp.arange(0, frames + knot, knot)
    return jnp.maximum(0, 1 - jnp.abs(jnp.arange(frames) - centres[:, None]) / knot)


def log_prior(position: PyTree, there: Array, prior: Prior) -> Array:
    """Log-density of log H and of the noise's moves, but for a constant."""
    H, noise = position["H"], position["noise"]
    size = (H - jnp.log(prior.median)) / prior.spread
    away, drift = noise / prior.noise_sd, jnp.diff(noise, axis=1) / prior.drift_sd
    return -0.5 * (jnp.sum(there.max(0) * size**2) + jnp.sum(away**2) + jnp.sum(drift**2))


def log_likelihood(position: PyTree, stretch: Stretch, pair: Pair, prior: Prior) -> Array:
    """Log-density of the bins of a stretch, with the prior that ties speech to its first guess."""
    speech, noise = log_scales(position, stretch, prior)
    tie = stretch.guessed[:, None] * ((speech - stretch.speech) / prior.speech_sd) ** 2
    return jnp.sum(stretch.there * (pair.log_density(speech, noise, stretch.power) - 0.5 * tie))


def minibatch(position: PyTree, stretch: Stretch, first: Array) -> tuple[PyTree, Stretch]:
    """Every tenth frequency from `first` on."""
    rows = lambda x: lax.dynamic_index_in_dim(x.reshape(-1, EVERY, *x.shape[1:]), first, 1, keepdims=False)
    return position | {"noise": rows(position["noise"])}, Stretch(*map(rows, stretch))


def start(stretch: Stretch, prior: Prior, updates: int = 30) -> PyTree:
    """log H of the dictionary's fit to the first guess of speech (multiplicative updates); the noise unmoved."""
    target = jnp.exp(prior.alpha / 2 * stretch.speech)
    norm = stretch.W.sum(0)[:, None]

    def update(_, H):
        return H * (stretch.W.T @ (target / (stretch.W @ H + 1e-20))) / norm

    H = jnp.full((stretch.W.shape[1], target.shape[1]), 1.0) * target.sum(0) / norm.sum()
    H = lax.fori_loop(0, updates, update, H)
    knots = hats(target.shape[1], prior.knot).shape[0]
    return {"H": jnp.log(H + 0.1 * prior.median), "noise": jnp.zeros((target.shape[0], knots))}


def metric(position: PyTree, stretch: Stretch, prior: Prior) -> PyTree:
    """Rough posterior variances at a start, in whose units the samplers move."""
    parts = jnp.exp(position["H"])
    whole = stretch.W @ parts + 1e-30
    # A component's information is large where it makes most of a bin.
    information = (2 / prior.alpha) ** 2 * parts**2 * ((stretch.W**2).T @ (1 / whole**2))
    curvature = 0.25 + 1 / prior.speech_sd**2
    knots = jnp.full(position["noise"].shape, 0.5 * prior.knot + 1 / prior.noise_sd**2 + 2 / prior.drift_sd**2)
    return {"H": 1 / (1 / prior.spread**2 + curvature * information), "noise": 1 / knots}


@partial(jax.jit, static_argnames=("prior", "make", "iterations", "kept", "every", "draws"))
def sample(
    key: Array,
    stretch: Stretch,
    pair: Pair,
    prior: Prior,
    make: Any,
    step_size: Array,
    iterations: int,
    kept: int,
    every: int = EACH,
    draws: int = 0,
) -> Filter:
    """Run a sampler, and average the filter over its last draws.

    Args:
        make: ``estimator -> Sampler``.
        kept: how many of the last iterations count.
        every: one in so many of those is used.
        draws: how many single filters to return, at most kept // every.
    """
    origin = start(stretch, prior)
    root = jax.tree.map(jnp.sqrt, metric(origin, stretch, prior))
    back = lambda position: jax.tree.map(lambda o, r, x: o + r * x, origin, root, position)

    def log_density(position, first):
        position = back(position)
        few = log_likelihood(*minibatch(position, stretch, first), pair, prior)
        return log_prior(position, stretch.there, prior) + EVERY * few

    sampler = make(Estimator(log_density, lambda position: log_prior(back(position), stretch.there, prior)))
    n = kept // every

    def step(state, key):
        rows, noise = jax.random.split(key)
        return sampler.step(noise, state, jax.random.randint(rows, (), 0, EVERY), step_size)[0], None

    def collect(carry, at):
        state, mean, single = carry
        key, i = at
        state, _ = lax.scan(step, state, jax.random.split(key, every))
        found = newest = look(state.position) if sampler.replicas == 1 else jax.vmap(look)(state.position)
        if sampler.replicas > 1:
            found, newest = found.mean(0), found[0]
        if draws:
            single = single.at[i * draws // n].set(newest)
        return (state, mean + (found - mean) / (i + 1), single), None

    def look(position):
        scales = log_scales(back(position), stretch, prior)
        return jnp.stack(pair.share_and_power(*scales, stretch.power))

    burn, rest, first = jax.random.split(key, 3)
    zeros = jax.tree.map(jnp.zeros_like, origin)
    if sampler.replicas > 1:  # replicas learn the curvature from each other: they must differ
        copies = jax.tree.map(lambda x: jnp.broadcast_to(x, (sampler.replicas, *x.shape)), zeros)
        zeros = jax.tree.map(lambda z: 0.3 * z, standard_normal(first, copies))
    state = sampler.init(zeros)
    state, _ = lax.scan(step, state, jax.random.split(burn, iterations - kept))
    shape = (2, *stretch.power.shape)
    carry = state, jnp.zeros(shape), jnp.zeros((draws, *shape))
    (_, mean, single), _ = lax.scan(collect, carry, (jax.random.split(rest, n), jnp.arange(n)))
    return Filter(mean[0], mean[1], single)


class Estimator:
    """What samplers ask of a posterior."""

    size, mirror = 1, None

    def __init__(self, log_density: Any, log_prior: Any):
        self.log_likelihood = log_density
        self.grad = jax.grad(log_density)
        self.prior_grad = jax.grad(log_prior)

    def mean_likelihood_grad(self, position: PyTree, first: Array) -> PyTree:
        """Gradient of the log-likelihood."""
        return jax.tree.map(jnp.subtract, self.grad(position, first), self.prior_grad(position))

    def combine(self, position: PyTree, likelihood: PyTree) -> PyTree:
        """That of the log-density from it."""
        return jax.tree.map(jnp.add, likelihood, self.prior_grad(position))
