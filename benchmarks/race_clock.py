"""What the samplers of the race share: a clock with a budget, loops that can be stopped, and a judge."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

import hamcmc
from benchmarks.race_problems import Problem, Truth
from hamcmc.diagnostics.ess import effective_size, independent_share

BLOCK = 50  # draws at most between two looks at the clock
GLANCE = 2.0  # seconds between two looks at the clock, about
LEAST_WARMUP = 20


class NotForThis(Exception):
    """The method cannot be used on the problem; the message says why."""


class TooSlow(NotForThis):
    """The method has no draws when the budget is spent."""


class Raced(NamedTuple):
    """Draws (chain, draw, D), how many chains in succession share minibatches, and the settings in words."""

    draws: np.ndarray
    together: int
    settings: str
    stopped: bool = False  # at the budget


class Judged(NamedTuple):
    """How good draws are along the worst of all directions.

    Attributes:
        ess: effective draws.
        error: the largest relative error of a variance.
        mean_error: the largest error of a mean, in standard deviations.
        chance: the error of a variance to expect from that many independent draws.
    """

    ess: float
    error: float
    mean_error: float
    chance: float

    @property
    def right(self) -> bool:
        """Whether variances are within 15 %, and means within 0.15 sd, or as far off as chance makes them."""
        return max(self.error, self.mean_error) < 0.15 + self.chance


class Clock:
    """Seconds since the call, all in all and in parts."""

    def __init__(self, seconds: float):
        self.seconds, self.began, self.parts = seconds, time.perf_counter(), dict[str, float]()

    def mark(self) -> tuple[float, dict[str, float]]:
        """Where the clock is, for :meth:`back`."""
        return self.total, dict(self.parts)

    def back(self, mark: tuple[float, dict[str, float]]) -> None:
        """Turn the clock back: what happened since the mark was a trial."""
        self.began, self.parts = time.perf_counter() - mark[0], mark[1]

    @property
    def total(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.seconds - self.total

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the seconds inside to a part, and tell the parent process what is going on."""
        print(name, flush=True)
        began = time.perf_counter()
        yield
        self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - began


def judge(draws: np.ndarray, exact: Truth, together: int) -> Judged:
    """Compare draws with the truth along every direction."""
    ess, error, mean_error = np.inf, 0.0, 0.0
    if not np.isfinite(draws).all():
        return Judged(0.0, np.inf, np.inf, np.inf)
    for v, mean, variance in zip(exact.directions.T, exact.mean, exact.variance):
        x = draws @ v
        size = independent_share(x, together) * effective_size(x, np.ones(x.shape[1]), "mean")
        ess = min(ess, 0.0 if np.isnan(size) else size)
        error = max(error, abs(float(x.var()) / variance - 1))
        mean_error = max(mean_error, abs(float(x.mean() - mean)) / np.sqrt(variance))
    chance = np.sqrt(2 / max(ess, 1e-9) * 2 * np.log(2 * len(exact.mean)))
    return Judged(float(ess), error, mean_error, float(chance))


def shortened(warmup: int, draws: int, done: int, elapsed: float, seconds: float) -> int:
    """The warm-up that leaves as large a share of the budget to sampling as the recommended one does.

    Args:
        warmup: recommended iterations.
        draws: recommended draws.
        done: iterations in a trial.
        elapsed: seconds of the trial.
        seconds: the budget that is there for both.
    """
    possible = done / elapsed * seconds
    if possible >= warmup + draws:
        return warmup
    return min(warmup, max(LEAST_WARMUP, int(possible * warmup / (warmup + draws))))


# --- compiled loops that can be stopped ---


class Loop:
    """Iterations of `step(state, key, *args)`, of which every so many are kept, in blocks of any length up to BLOCK."""

    def __init__(self, step: Callable, position: Callable, clock: Clock, state: Any, args: tuple, seed: int):
        def block(state, key, count, thin, args):
            def draw(i, carry):
                state, kept = carry
                one = lambda t, s: step(s, jax.random.fold_in(jax.random.fold_in(key, i), t), *args)
                state = lax.fori_loop(0, thin, one, state)
                return state, kept.at[i].set(position(state, *args))

            like = jax.eval_shape(lambda s: position(s, *args), state)
            return lax.fori_loop(0, count, draw, (state, jnp.zeros((BLOCK, *like.shape))))

        self.clock, self.args, self.key, self.blocks = clock, args, jax.random.key(seed), 0
        with clock.part("compile"):
            self.block = jax.jit(block).lower(state, self.key, 0, 0, args).compile()
        self.state = state

    def run(self, draws: int, thin: int, until: float) -> np.ndarray:
        """Make draws (chain, draw, D) until `clock.total` has reached `until`, but at least one."""
        kept, count, made = [], 1, 0
        while made < draws and (not kept or self.clock.total < until):
            began = time.perf_counter()
            self.blocks += 1
            count = min(count, BLOCK, draws - made)
            key = jax.random.fold_in(self.key, self.blocks)
            self.state, x = jax.block_until_ready(self.block(self.state, key, count, thin, self.args))
            kept.append(np.asarray(x[:count], np.float64))
            made += count
            each = (time.perf_counter() - began) / count
            count = int(np.clip(GLANCE / each, 1, 4 * count))
        return np.moveaxis(np.concatenate(kept), 1, 0) if kept else np.zeros((1, 0, 1))


class Flat(NamedTuple):
    """A posterior as a function of a vector and of its data, which compiled programs then take as an argument."""

    posterior: hamcmc.Posterior
    init: jax.Array
    log_density: Callable[[jax.Array, Any], jax.Array]
    data: Any


def flattened(problem: Problem) -> Flat:
    """The posterior of a problem."""
    posterior = problem.posterior()
    init, unravel = ravel_pytree(posterior.init)
    data = jax.tree.map(jnp.asarray, posterior.data)
    return Flat(posterior, init, lambda x, data: posterior.log_density(unravel(x), data), data)


def at_mode(flat: Flat, clock: Clock) -> hamcmc.Laplace:
    """The mode and the Hessian there."""
    with clock.part("preparation"):
        around = hamcmc.laplace(flat.posterior)
    if not around.converged or around.root.ndim == 1:
        raise NotForThis(f"no mode to start from: {around.reason}")
    return around


def frame(flat: Flat, clock: Clock, whiten: bool) -> tuple[jax.Array, jax.Array]:
    """Coordinates z of θ = centre + root z: those of the Hessian at the mode, or plain ones around the start."""
    if not whiten:
        return flat.init, jnp.eye(len(flat.init))
    around = at_mode(flat, clock)
    return jnp.asarray(around.flat, jnp.float32), jnp.asarray(around.root, jnp.float32)
