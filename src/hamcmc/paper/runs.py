"""Thousands of independent runs of a sampler, and ε-weighted averages along them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc._compile import guard
from hamcmc._types import PyTree
from hamcmc.inference.many import Axes, Turn, advance
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.samplers.base import Sampler


class Sums(NamedTuple):
    """Σ ε h(θ) of each run, and Σ ε."""

    total: Array
    weight: Array


class ManyRuns:
    """Independent runs of a sampler in one compiled loop that stores no draws.

    Args:
        sampler: the sampler; for an ensemble sampler, each run is an ensemble.
        statistic: h, from a position to an array; it is averaged over the replicas of an ensemble.
        schedule: ``schedule(t, *parameters) -> ε``; the parameters are arguments of the compiled code.
        minibatch: ``minibatch(key) -> what the gradient takes``, drawn anew for each run and iteration.
        segment: iterations in one call of the compiled loop; the host adds up the segments in double precision.
    """

    def __init__(
        self,
        sampler: Sampler,
        statistic: Callable[[PyTree], Array],
        schedule: Callable[..., Any],
        *,
        minibatch: Callable[[Array], PyTree] | None = None,
        segment: int = 5000,
    ):
        self.sampler, self.schedule, self.minibatch, self.segment = sampler, schedule, minibatch, segment

        def average(position: PyTree) -> Array:
            """h of one run."""
            return statistic(position) if sampler.replicas == 1 else jnp.mean(jax.vmap(statistic)(position), 0)

        self._average = jax.vmap(average)
        self._segment = jax.jit(self._advance, donate_argnums=0)
        self._guard: AbstractContextManager | None = None

    def start(self, position: PyTree, runs: int) -> Any:
        """The state of `runs` runs that all start at one position."""
        state = self.sampler.init(position)
        many = jax.tree.map(lambda x: jnp.broadcast_to(x, (runs, *x.shape)).copy(), state)
        return many._replace(step=state.step)

    def start_each(self, positions: PyTree) -> Any:
        """The state of runs that start at different positions, as many for each run as it has replicas."""
        if self.sampler.replicas > 1:
            positions = jax.tree.map(lambda x: x.reshape(-1, self.sampler.replicas, *x.shape[1:]), positions)
        many = jax.tree.map(jnp.copy, jax.vmap(self.sampler.init)(positions))
        return many._replace(step=many.step[0])

    def advance(
        self, state: Any, key: Array, begin: int, end: int, *parameters: float, look: Progress = silent
    ) -> tuple[Any, Any, float]:
        """Iterations begin … end−1: the new state, Σ ε h of each run (float64) and Σ ε. `look` may end them."""
        total, weight = 0.0, 0.0
        if self._guard is None:
            self._guard = guard(self._segment, state, key, begin, end, parameters)
        for t in range(begin, end, self.segment):
            look(Status((t - begin) / (end - begin), "sampling"))
            with self._guard:
                state, sums = jax.block_until_ready(
                    self._segment(state, key, t, min(t + self.segment, end), parameters)
                )
            total, weight = total + np.asarray(sums.total, np.float64), weight + float(sums.weight)
        return state, total, weight

    def _advance(self, state: Any, key: Array, begin, end, parameters: tuple) -> tuple[Any, Sums]:
        runs = jax.tree.leaves(state)[0].shape[0]
        shape = jax.eval_shape(self._average, state.position)
        # All runs are at the same step. One shared counter keeps indices into the memory out of the vmap.
        shared_step = state._replace(**dict.fromkeys(state._fields, 0))._replace(step=None)

        def turn(t: Array) -> Turn:
            keys = jax.vmap(jax.random.split)(jax.random.split(jax.random.fold_in(key, t), runs))
            batch = None if self.minibatch is None else jax.vmap(self.minibatch)(keys[:, 0])
            return Turn(keys[:, 1], batch, jnp.asarray(self.schedule(t, *parameters), shape.dtype))

        def accumulate(sums: Sums, _t: Array, now: Turn, _before: Any, after: Any) -> Sums:
            return Sums(sums.total + now.step_size * self._average(after.position), sums.weight + now.step_size)

        return advance(
            self.sampler,
            state,
            turn,
            begin,
            end,
            axes=(Axes(minibatch=0, state=shared_step),),
            accumulate=accumulate,
            total=Sums(jnp.zeros(shape.shape, shape.dtype), jnp.zeros((), shape.dtype)),
        )
