"""The linear Gaussian posterior in every size, and bursts of iterations on it."""

from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.measure import Burst
from hamcmc.inference import compiled as loop
from hamcmc.inference import schedules
from hamcmc.samplers import Sampler
from hamcmc.target import minibatch
from hamcmc.target.linear_gaussian import Data, linear_gaussian
from hamcmc.target.posterior import Posterior

STEP_SIZE = 1e-8  # nothing about the cost depends on it, and no start is too far away


class Problem(NamedTuple):
    """A posterior with its start, the size of minibatches, and how many iterations to time at once."""

    posterior: Posterior
    start: jax.Array
    batch_size: int
    iterations: int


SIZES = {2: (1000, 5000), 100: (10_000, 1000), 1000: (10_000, 100), 10**5: (1000, 20), 10**6: (200, 10)}


def problem(dimension: int, batch_size: int | None = None) -> Problem:
    """Few rows where they are long, so that the data stay below 1 GB; minibatches of N/100 unless asked for others."""
    size, iterations = SIZES[dimension]
    rng = np.random.default_rng(dimension)
    a = rng.standard_normal((size, dimension), np.float32)
    x = a @ rng.standard_normal(dimension, np.float32) + rng.standard_normal(size, np.float32)
    return Problem(linear_gaussian(Data(a, x), 10.0), jnp.zeros(dimension), batch_size or size // 100, iterations)


def ours(p: Problem, sampler: Sampler) -> Burst:
    """The compiled loop that `hamcmc.sample` runs: draws, infos, moments and the guard against NaN."""
    visit = loop.build(
        p.posterior,
        sampler,
        schedules.Constant(STEP_SIZE),
        batch_size=p.batch_size,
        replace=True,
        chains=1,
        thin=1,
        slots=p.iterations,
    )
    keys = loop.keys(0, 1)
    carried = [jax.tree.map(lambda x: jnp.array(x)[None], sampler.init(p.start))]

    def burst():
        result = visit(p.posterior.data, carried[0], keys, 0, p.iterations, 0, True)
        carried[0] = result.state  # the loop takes its state's memory over
        return result.draws

    return burst


def blackjax_sgld(p: Problem) -> Burst:
    """BlackJAX's SGLD in a compiled scan that draws minibatches and collects positions."""
    kernel = blackjax.sgld(p.posterior.grad)

    @jax.jit
    def run(data, position, key):
        def body(position, key):
            batch_key, step_key = jax.random.split(key)
            rows = jax.random.randint(batch_key, (p.batch_size,), 0, p.posterior.size)
            batch = jax.tree.map(lambda x: x[rows], data)
            position = kernel.step(step_key, position, batch, STEP_SIZE)
            return position, position

        return lax.scan(body, position, jax.random.split(key, p.iterations))[1]

    return lambda: run(p.posterior.data, p.start, jax.random.key(0))


def bare(p: Problem, step: Any, state: Any) -> Burst:
    """Nothing but a kernel: one minibatch for all iterations, no draws kept."""
    batch = minibatch.gather(p.posterior.data, jnp.arange(p.batch_size))

    @jax.jit
    def run(batch, state, key):
        keys = jax.random.split(key, p.iterations)
        return lax.scan(lambda state, key: (step(key, state, batch), None), state, keys)[0]

    return lambda: run(batch, state, jax.random.key(0))


def two_gradients(p: Problem) -> Burst:
    """A minibatch and two gradients on it, the second where the first one leads."""
    grad = p.posterior.grad

    @jax.jit
    def run(data, position, key):
        def body(position, key):
            rows = jax.random.randint(key, (p.batch_size,), 0, p.posterior.size)
            batch = minibatch.gather(data, rows)
            moved = position + STEP_SIZE * grad(position, batch)
            return moved + STEP_SIZE * grad(moved, batch), None

        return lax.scan(body, position, jax.random.split(key, p.iterations))[0]

    return lambda: run(p.posterior.data, p.start, jax.random.key(0))
