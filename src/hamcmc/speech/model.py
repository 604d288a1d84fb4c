r"""The model of a noisy spectrogram, and its sampler.

A bin is x = s + n (:mod:`hamcmc.speech.pair`). The scales of speech are a factorization with a dictionary W learned
from clean speech. Those of the noise are a level that moves slowly around a first guess m:

.. math:: \log v^s_{ft} = \tfrac{2}{α_s} \log [WH]_{ft}, \qquad
    \log v^n_{ft} = m_{ft} + \sum_l δ_{fl} B_{lt},

with hat functions B of time and normal priors on log H, on δ and on its steps. Where there is a first guess of the
speech, :math:`\log v^s` has a normal prior around it. The unknowns are log H and δ. A minibatch is every tenth
frequency with all of its frames, so that each gradient sees every H.

The estimate of the clean spectrogram is the posterior mean, :math:`E[s | x]`: the average over draws of a Wiener-like
filter.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc._types import PyTree
from hamcmc.inference.many import Turn, advance
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.noise import standard_normal
from hamcmc.speech.keys import Steps
from hamcmc.speech.pair import Pair
from hamcmc.target.protocol import Target, unbiased


class Prior(NamedTuple):
    """The prior of the unknowns, in the symbols of the module's formulas.

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
        there: 1 for bins of the recording and 0 for padding.
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
        draws: (draws, 2, F, T), share and power for single draws of the scales, spread evenly over the kept ones.
    """

    share: Array
    power: Array
    draws: Array


EVERY = 10  # a minibatch has one in so many frequencies
EACH = 5  # one in so many of the last iterations is looked at
SPREAD = 0.3  # of an ensemble's replicas at the start, in units of the metric


def log_scales(position: PyTree, stretch: Stretch, prior: Prior) -> tuple[Array, Array]:
    """log v of speech and of noise."""
    speech = 2 / prior.alpha * jnp.log(stretch.W @ jnp.exp(position["H"]) + 1e-30)
    return speech, stretch.noise + position["noise"] @ hats(stretch.power.shape[1], prior.knot)


def hats(frames: int, knot: int) -> Array:
    """Hat functions of time, (knots, frames): they add up to one."""
    centres = jnp.arange(0, frames + knot, knot)
    return jnp.maximum(0, 1 - jnp.abs(jnp.arange(frames) - centres[:, None]) / knot)


def log_prior(position: PyTree, there: Array, prior: Prior) -> Array:
    """Log-density of log H and of the noise's level, up to a constant."""
    H, noise = position["H"], position["noise"]
    size = (H - jnp.log(prior.median)) / prior.spread
    away, drift = noise / prior.noise_sd, jnp.diff(noise, axis=1) / prior.drift_sd
    return -0.5 * (jnp.sum(there.max(0) * size**2) + jnp.sum(away**2) + jnp.sum(drift**2))


def log_likelihood(position: PyTree, stretch: Stretch, pair: Pair, prior: Prior) -> Array:
    """The sum over the bins of their log-density and of the prior that ties speech to its first guess."""
    speech, noise = log_scales(position, stretch, prior)
    tie = stretch.guessed[:, None] * ((speech - stretch.speech) / prior.speech_sd) ** 2
    return jnp.sum(stretch.there * (pair.log_density(speech, noise, stretch.power) - 0.5 * tie))


def rows_from(position: PyTree, stretch: Stretch, first: Array) -> tuple[PyTree, Stretch]:
    """Every tenth frequency of a stretch from `first` on, and the unknowns that it depends on."""

    def rows(x: Array) -> Array:
        return lax.dynamic_index_in_dim(x.reshape(-1, EVERY, *x.shape[1:]), first, 1, keepdims=False)

    return position | {"noise": rows(position["noise"])}, Stretch(*map(rows, stretch))


def start(stretch: Stretch, prior: Prior, updates: int = 30) -> PyTree:
    """A start: log H fits the first guess of speech, by multiplicative updates, and the noise is at its own guess."""
    target = jnp.exp(prior.alpha / 2 * stretch.speech)
    norm = stretch.W.sum(0)[:, None]

    def update(_, H):
        return H * (stretch.W.T @ (target / (stretch.W @ H + 1e-20))) / norm

    H = jnp.full((stretch.W.shape[1], target.shape[1]), 1.0) * target.sum(0) / norm.sum()
    H = lax.fori_loop(0, updates, update, H)
    knots = hats(target.shape[1], prior.knot).shape[0]
    return {"H": jnp.log(H + 0.1 * prior.median), "noise": jnp.zeros((target.shape[0], knots))}


def metric(position: PyTree, stretch: Stretch, prior: Prior) -> PyTree:
    """Rough posterior variances at a start. Samplers move in their units."""
    parts = jnp.exp(position["H"])
    whole = stretch.W @ parts + 1e-30
    # A component's information is large where it makes most of a bin.
    information = (2 / prior.alpha) ** 2 * parts**2 * ((stretch.W**2).T @ (1 / whole**2))
    curvature = 0.25 + 1 / prior.speech_sd**2
    knots = jnp.full(position["noise"].shape, 0.5 * prior.knot + 1 / prior.noise_sd**2 + 2 / prior.drift_sd**2)
    return {"H": 1 / (1 / prior.spread**2 + curvature * information), "noise": 1 / knots}


class SpeechTarget(Target):
    """The density of a stretch, at positions in units of the metric around the start.

    A datum is a bin, and a minibatch is the number of the first of its rows: every tenth frequency with all of its
    frames. N, the :attr:`size`, counts all F × T bins of the stretch. Those that are padding have the log-likelihood 0.
    The prior that ties speech to its first guess counts as a part of the likelihood, because it is a term of each bin.

    Args:
        stretch: the data.
        pair: the table of the two sources.
        prior: of the unknowns.
    """

    mirror = None

    def __init__(self, stretch: Stretch, pair: Pair, prior: Prior):
        self.stretch, self.pair, self.prior = stretch, pair, prior
        self.size = stretch.power.size
        self.origin = start(stretch, prior)
        self.root = jax.tree.map(jnp.sqrt, metric(self.origin, stretch, prior))

    def constrain(self, position: PyTree) -> PyTree:
        """log H and the noise's level δ."""
        return jax.tree.map(lambda o, r, x: o + r * x, self.origin, self.root, position)

    def log_prior(self, unknowns: PyTree) -> Array:
        """Log-density of the unknowns, up to a constant."""
        return log_prior(unknowns, self.stretch.there, self.prior)

    def minibatch_log_likelihood(self, unknowns: PyTree, minibatch: Array) -> Array:
        """The sum over the bins of a minibatch."""
        return log_likelihood(*rows_from(unknowns, self.stretch, minibatch), self.pair, self.prior)

    def log_density(self, position: PyTree, minibatch: Array) -> Array:
        """−Ũ, the unbiased estimate of the log-density."""
        unknowns = self.constrain(position)
        likelihood = self.minibatch_log_likelihood(unknowns, minibatch)
        return unbiased(self.log_prior(unknowns), likelihood, EVERY)

    def grad(self, position: PyTree, minibatch: Array) -> PyTree:
        """−∇Ũ."""
        return jax.grad(self.log_density)(position, minibatch)

    def mean_likelihood_grad(self, position: PyTree, minibatch: Array) -> PyTree:
        """ḡ, the mean over the bins of a minibatch, padding included, of the gradient of their log-likelihood."""
        total = jax.grad(lambda x: self.minibatch_log_likelihood(self.constrain(x), minibatch))(position)
        return jax.tree.map(lambda g: g / (self.size // EVERY), total)

    def combine(self, position: PyTree, mean_grad: PyTree) -> PyTree:
        """The prior's gradient + N ḡ."""
        prior = jax.grad(lambda x: self.log_prior(self.constrain(x)))(position)
        return unbiased(prior, mean_grad, self.size)


@partial(jax.jit, static_argnames=("prior", "make", "iterations", "kept", "every", "draws"))
def sample(
    random: Steps,
    stretch: Stretch,
    pair: Pair,
    prior: Prior,
    make: Callable[[SpeechTarget], Sampler],
    step_size: Array,
    iterations: int,
    kept: int,
    every: int = EACH,
    draws: int = 0,
) -> Filter:
    """Run a sampler, and average the filter over its last draws.

    Args:
        random: all that is random, by :func:`hamcmc.speech.keys.steps` with the same `iterations`, `kept` and `every`.
        stretch: the data.
        pair: the table of the two sources.
        prior: of the unknowns.
        make: makes the sampler from the target.
        step_size: ε.
        iterations: steps in all.
        kept: how many of the last iterations count.
        every: one in so many of those is used.
        draws: how many single filters to return, at most kept // every.
    """
    target = SpeechTarget(stretch, pair, prior)
    sampler = make(target)
    n = kept // every

    def turn(i: Array) -> Turn:
        """An iteration's key, with a minibatch of its own."""
        return Turn(jax.random.wrap_key_data(jnp.asarray(random.noise)[i]), jnp.asarray(random.rows)[i], step_size)

    def look(position: PyTree) -> Array:
        """Share and power at one position."""
        scales = log_scales(target.constrain(position), stretch, prior)
        return jnp.stack(pair.share_and_power(*scales, stretch.power))

    def collect(i: Array, carry: tuple) -> tuple:
        """Go on to look i. Look 0, after burn-in, counts for nothing: so the steps are traced and compiled once."""
        state, mean, single = carry
        begin = jnp.where(i > 0, iterations - kept + (i - 1) * every, 0)
        state = advance(sampler, state, turn, begin, iterations - kept + i * every)[0]
        found = newest = look(state.position) if sampler.replicas == 1 else jax.vmap(look)(state.position)
        if sampler.replicas > 1:
            found, newest = found.mean(0), found[0]
        if draws:
            place = jnp.where(i > 0, (i - 1) * draws // n, draws)
            single = single.at[place].set(newest, mode="drop")
        return state, jnp.where(i > 0, mean + (found - mean) / jnp.maximum(i, 1), mean), single

    zeros = jax.tree.map(jnp.zeros_like, target.origin)
    if sampler.replicas > 1:  # replicas learn the curvature from each other and must differ
        copies = jax.tree.map(lambda x: jnp.broadcast_to(x, (sampler.replicas, *x.shape)), zeros)
        zeros = jax.tree.map(lambda z: SPREAD * z, standard_normal(jax.random.wrap_key_data(random.start), copies))
    shape = (2, *stretch.power.shape)
    carry = sampler.init(zeros), jnp.zeros(shape), jnp.zeros((draws, *shape))
    _, mean, single = lax.fori_loop(0, n + 1, collect, carry)
    return Filter(mean[0], mean[1], single)
