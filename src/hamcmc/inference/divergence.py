"""Runs whose draws leave the posterior although every number stays finite: how the host notices, between segments.

There are two signs, both in nats per dimension:

* **Temperature.** For draws x of a proper posterior with gradients g, Stein's identity says tr Cov(x, −g) = D. The
  ratio is 1 at the right spread, T where the variances of a Gaussian are T times too large, and ν + 1 for draws that
  wander in the tails of a Student-t(ν). Probability mass at the end of a support makes it less than 1.
* **Energy.** Draws that froze far away do not spread, but the start was better. A draw of a posterior is about one nat
  per dimension below its mode, and a start is no better than the mode. That holds on all data alone: a minibatch has
  an optimum of its own, √(N/n) nats away.

A Metropolis test keeps the posterior at every step, so samplers that need all data are not watched. For the others a
few draws from each of about twenty windows of a run are looked at, on one minibatch. What is common to its gradients
cancels in the temperature, since positions are taken around their mean. Three windows with a sign that does not fade
stop a run; chains on their way in from a distant start come nearer from window to window.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from hamcmc._compile import jit
from hamcmc._types import PyTree
from hamcmc.inference.job import Job
from hamcmc.target.minibatch import gather
from hamcmc.target.passes import plain
from hamcmc.target.sharded import shards_of

WINDOWS, SHORTEST = 20, 100  # how many windows a run has, and the iterations of the shortest
LOOKS = 5  # draws of each chain in a window, so that looking costs no more than a twentieth of sampling
IN_A_ROW, FADING = 3, 0.9  # windows with a sign; it fades if the last is below this share of the first
HOTTEST = 1.9  # variances nearly doubled; draws lost in the tails of a Cauchy law have 2
FEW, ERRORS = 3.3, 3.0  # the margin of a temperature that comes from few numbers: χ² of so many, and standard errors
ROWS = 256  # the fewest of a minibatch to look at
SHORT = 3.0  # seconds of an automatic run, before which it is not looked at: its verdict comes as soon
WORST = 12.0  # nats per dimension below the start; a start in the neck of a funnel may be a few above the bulk


class Window(NamedTuple):
    """What was seen at some draws of a run, with axes (draw, chain, D).

    Attributes:
        first: the number of the window's first draw.
        g: gradients.
        left: how far the positions are from the best start.
        energy: by how much the log-density is below that of the best start, per dimension; (draw, chain). 0 where
            a minibatch stands for the data.
    """

    first: int
    g: np.ndarray
    left: np.ndarray
    energy: np.ndarray


class Alarm(NamedTuple):
    """Why a run is stopped.

    Attributes:
        draw: the number of the draw by which they had left the posterior.
        entry: the worst coordinate of a position.
        sign: what was seen, as a clause.
        shrink: the factor by which a smaller step size should do.
    """

    draw: int
    entry: int
    sign: str
    shrink: float


class Watch:
    """Looks at the draws of every segment after warm-up. It keeps nothing that a run depends on."""

    def __init__(self, job: Job):
        s, self._job = job.settings, job
        self._length = max(s["num_samples"] // WINDOWS, LOOKS, -(-SHORTEST // s["thin"]))
        self._places = (1 + np.arange(LOOKS)) * self._length // LOOKS - 1
        self._picked: list[PyTree] = []
        self._waiting: list[tuple[int, PyTree]] = []
        self._row: list[Window] = []
        self._measure: Callable | None = None  # compiled when there is enough to look at
        self._patience = SHORT if "plan" in s else 0.0

    def look(self, draws: PyTree, first: int, done: int, seconds: float) -> Alarm | None:
        """Take notice of draws number `first` … `first + done − 1`, with leading axes (draw, chain).

        `seconds` is how long the run has lasted.
        """
        if self._job.sampler.needs_all_data:
            return None
        numbers = np.arange(first, first + done)
        for number in numbers[np.isin(numbers % self._length, self._places)].tolist():
            window, place = divmod(number, self._length)
            self._picked.append(jax.tree.map(lambda x: np.asarray(x)[number - first], draws))  # noqa: B023
            if place == self._length - 1:
                if len(self._picked) == LOOKS:  # a run that was resumed begins amid a window
                    self._waiting.append((window, jax.tree.map(lambda *x: np.stack(x), *self._picked)))
                self._picked = []
        if self._measure is None:
            if len(self._waiting) < IN_A_ROW or seconds < self._patience:
                return None
            self._measure = build(self._job)
        while self._waiting:
            window, picked = self._waiting.pop(0)
            seen = self._measure(picked)
            self._row = [*self._row[1 - IN_A_ROW :], Window(window * self._length, *seen)]
            if len(self._row) == IN_A_ROW and (alarm := judge(self._row)) is not None:
                return alarm
        return None


def build(job: Job) -> Callable:
    """Build ``measure(draws) -> (g, left, energy)`` of a :class:`Window`, on a minibatch of its own."""
    posterior, rows, data = plain(job.posterior), job.settings["batch_size"], None
    if rows is not None and (rows := max(rows, ROWS)) < posterior.size:
        some, shards = posterior.some_rows(job.keys.gradient[0], rows), shards_of(posterior)
        if shards is None:
            data = gather(posterior.data, some)
        else:
            data = shards.read(some) if shards.streamed else jit(shards.gathered)(posterior.data, some)

    def one(theta, data):
        """Position, gradient and log-density at some parameters."""
        position = posterior.unconstrain_unchecked(theta)
        value, g = jax.value_and_grad(posterior.log_density)(position, data)
        return ravel_pytree(position)[0], ravel_pytree(g)[0], value

    @jit
    def at(data, draws, start):
        if job.sampler.replicas > 1:
            start = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), start)
        start = jax.vmap(job.posterior.constrain)(start)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), draws, start)
        return lax.map(lambda row: jax.vmap(one, (0, None))(row, data), both)

    def measure(draws: PyTree) -> tuple[np.ndarray, ...]:
        found = at(posterior.data if data is None else data, draws, jax.tree.map(np.asarray, job.state.position))
        x, g, value = (np.asarray(a, float) for a in found)
        best = int(np.argmax(np.nan_to_num(value[-1], nan=-np.inf)))
        energy = np.nan_to_num((value[-1, best] - value[:-1]) / x.shape[-1], nan=np.inf)
        energy = energy if data is None else np.zeros_like(energy)
        return g[:-1], x[:-1] - x[-1, best], energy

    return measure


def judge(row: list[Window]) -> Alarm | None:
    """An alarm if some windows in a row show a sign that does not fade."""
    first, g, left, energy = (np.concatenate([np.atleast_1d(a) for a in field]) for field in zip(*row))
    worse = np.median(energy.reshape(len(row), -1), 1)
    x = left - left.mean(0)  # of each chain alone: others may be in other modes
    heat, reach = -x * g * len(x) / (len(x) - 1), np.median(np.abs(x).reshape(len(row), -1, x.shape[-1]), 1)
    windows, mean = heat.reshape(len(row), -1).mean(1), float(heat.mean())
    if worse.min() > WORST and worse[-1] >= FADING * worse[0]:
        entry, sign = (
            np.argmax((-left * g).mean((0, 1))),
            f"they are {worse[-1]:.3g} nats per dimension below the start",
        )
        return Alarm(int(first[0]), int(entry), sign, shrink(mean, worse[-1]))
    # Far out in a heavy tail all is equally hot: chains on their way in are known by their distance.
    steady = windows[-1] >= FADING * windows[0] and np.median(reach[-1] - FADING * reach[0]) >= 0
    if steady and windows.min() > HOTTEST and sure(heat.mean(-1), x.shape[-1]):
        entry, sign = np.argmax(heat.mean((0, 1))), f"their spread is that of a temperature of {mean:.3g} instead of 1"
        return Alarm(int(first[0]), int(entry), sign, shrink(mean, worse[-1]))
    return None


def shrink(heat: float, worse: float) -> float:
    """The factor of a smaller step size, at least a hundredth, that should leave 5 % too much of the variance.

    Noise of the gradient heats in proportion to ε. On a Gaussian a start at the mode is (T − 1)/2 nats per dimension
    better than draws of the temperature T; in a heavy tail, where the temperature says little, it is much better.
    """
    return float(np.clip(0.05 / np.fmax(heat - 1, 2 * worse), 0.01, 0.1))


def sure(heat: np.ndarray, dimension: int) -> bool:
    """Whether a temperature, measured at draws (draw, chain), cannot be that of a good run by chance."""
    chains = heat.shape[1]
    each = heat.mean(0) if chains > len(heat) else heat.ravel()  # draws of a chain may be alike
    error = each.std(ddof=1) / np.sqrt(len(each))
    limit = max(HOTTEST, (1 + FEW / np.sqrt(chains * dimension)) ** 2)
    return bool(heat.mean() > limit and heat.mean() - ERRORS * error > 1)
