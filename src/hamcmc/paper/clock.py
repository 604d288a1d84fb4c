"""The time of an iteration, measured for several methods in turn, and SGRLD as it is where F depends on θ."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc.inference import compiled
from hamcmc.inference.schedules import Polynomial
from hamcmc.samplers.base import Sampler, langevin, standard_normal
from hamcmc.samplers.sgrld import sgrld
from hamcmc.target.posterior import Posterior

SMALL = Polynomial(1e-10, 0.51)  # step sizes below 1e-5


def each_time(posterior: Posterior, fisher: np.ndarray, *, invert: bool) -> Sampler:
    """SGRLD that works on the Fisher matrix at each iteration, although it is constant.

    With `invert`, it inverts the matrix and factors the inverse, as the paper's footnote says. Otherwise it factors the
    matrix and solves two triangular systems, which is all that is needed. The compiler would do either once, ahead of
    the loop, if the barrier did not tie the matrix to the position.
    """
    matrix = jnp.asarray(fisher, jnp.float32)

    def at(theta: Array) -> Array:
        """The matrix at a position."""
        return lax.optimization_barrier((matrix, theta))[0]

    efficient = sgrld(posterior.grad, at, correction=False)
    if not invert:
        return efficient

    def step(key, state, batch, step_size):
        theta = state.position
        h = jnp.linalg.inv(at(theta))
        drift = h @ posterior.grad(theta, batch)
        noise = jnp.linalg.cholesky(h) @ standard_normal(key, theta)
        return state._replace(position=langevin(theta, drift, noise, step_size, None), step=state.step + 1), ()

    return efficient._replace(step=step, settings={"sampler": "sgrld", "fisher": "inverted each time"})


def seconds_per_iteration(
    samplers: dict[str, Sampler],
    posterior: Posterior,
    dimension: int,
    *,
    batch_size: int,
    iterations: int,
    repeats: int,
) -> dict[str, float]:
    """The best of several interleaved timings of one chain, or one ensemble, in the library's compiled loop.

    The time of a step does not depend on its size, so steps are small. The loop ends early if a chain is lost, which
    would look fast.
    """
    keys, programs = compiled.keys(0, 1), {}
    for name, sampler in samplers.items():
        segment = compiled.build(
            posterior, sampler, SMALL, batch_size=batch_size, replace=True, chains=1, thin=iterations, slots=1
        )
        start = jnp.zeros((1, dimension) if sampler.replicas == 1 else (1, sampler.replicas, dimension))
        programs[name] = (segment, jax.vmap(sampler.init), start)
    best = dict.fromkeys(samplers, np.inf)
    for k in range(repeats + 1):  # the first time compiles
        for name, (segment, init, start) in programs.items():
            state = jax.block_until_ready(jax.tree.map(jnp.array, init(start)))  # a segment takes over its buffers
            began = time.perf_counter()
            made = jax.block_until_ready(segment(posterior.data, state, keys, 0, iterations, 0, False))
            took = time.perf_counter() - began
            if np.any(np.asarray(made.bad_since) >= 0):
                raise RuntimeError(f"{name} was lost while it was timed")
            if k:
                best[name] = min(best[name], took / iterations)
    return best
