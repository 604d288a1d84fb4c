"""How :func:`hamcmc.tune` runs its candidates: those of one shape side by side, on the same minibatches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_leaves

from hamcmc._types import Facts, PyTree, Record
from hamcmc.inference.candidates import expected_bias, is_newton
from hamcmc.inference.many import Axes, Turn, advance
from hamcmc.inference.scoring import LOOKS, UNSEEN, Measured, judge
from hamcmc.samplers.base import Sampler
from hamcmc.target import minibatch
from hamcmc.target.landscape import Landscape
from hamcmc.target.posterior import Posterior

Settings = Mapping[str, Array]  # by option, each with one number per candidate

LANES = 4
"""Candidates in one call of the compiled program, so that rounds of any size use one program. The last round has four,
and the first a multiple of four, so no lane idles there."""

RUNS, FEWEST_RUNS = 16, 4
"""Independent runs of a candidate, or replicas in all for an ensemble, of which there are at least four. From 16 runs a
standard error is known to 18 %; four are the fewest that tell anything of it."""

SCORE_ROWS = 512
"""The least number of data in a gradient for the discrepancy, set by hand. A look costs one gradient for hundreds of
steps, so it can afford more data than a step, and less noise."""

WARM = 4
"""A candidate's first 1/4 of a round is warm-up: momenta, metrics and curvature pairs start from nothing."""


class Contender:
    """A candidate while it is in the search: its setting, its state and what it has shown."""

    def __init__(self, trial: "Trial", setting: dict[str, float], state: Any = None):
        self.trial, self.setting, self.state = trial, setting, state
        self.found = UNSEEN

    @property
    def expected(self) -> float | None:
        """The bias by theory, if there is one."""
        sampler = self.trial.sampler
        return expected_bias(
            {**sampler.settings, **self.trial.fixed, **self.setting}, is_newton(sampler), self.trial.scape
        )

    def at(self, step_size: float) -> "Contender":
        """The same contender with another step size, from its present state on."""
        return Contender(self.trial, self.setting | {"step_size": step_size}, self.state)

    def is_like(self, other: "Contender") -> bool:
        """Whether the two differ in the step size at most."""
        return self.at(1.0).setting == other.at(1.0).setting and self.trial is other.trial

    def rank(self, tolerance: float) -> tuple[int, float]:
        """A sorting key: first those that are fastest at the step at which their bias would be within tolerance."""
        f = self.found
        if f.out or (np.isfinite(f.error) and f.bias - f.error > 1):
            return (2 if f.out else 1, f.bias)
        bias = f.bias if np.isfinite(f.error) else self.expected or 0.0
        return (0, -f.speed * min(1.0, tolerance / max(bias, 1e-9)))


class Trial:
    """Candidates of one shape, run side by side from one start on the same minibatches.

    Args:
        posterior: the target.
        build: makes the sampler from options.
        fixed: the choices that these candidates share, such as ``{"pairs": 5, "cyclical": False}``.
        scape: the posterior around its mode.
        like: an unconstrained position, for its structure.
        batch_size: data per minibatch, or None for all.
        seed: everything random follows from it.

    Attributes:
        spent: gradients so far.
    """

    def __init__(
        self,
        posterior: Posterior,
        build: Callable[..., Sampler],
        fixed: Record,
        scape: Landscape,
        like: PyTree,
        batch_size: int | None,
        seed: int,
    ):
        shape = {k: v for k, v in fixed.items() if k != "cyclical"}
        self.fixed, self.scape, self.spent, self.time = fixed, scape, 0.0, 0
        self.sampler = build(**shape)
        self.runs = max(FEWEST_RUNS, RUNS // self.sampler.replicas)
        per_pass = posterior.size / batch_size if batch_size else 1
        self.cost = (
            self.sampler.gradients_per_step + posterior.extra_gradients + self.sampler.passes_per_step * per_pass
        )

        def make(setting: Facts) -> Sampler:
            """The sampler of one candidate."""
            return build(**shape, **{k: v for k, v in setting.items() if k != "step_size"})

        self.programs = _Programs(posterior, make, self.sampler.replicas, scape, like, batch_size, self.runs)
        *self.keys, key = jax.random.split(jax.random.key(seed), 4)
        starts = scape.start(key, self.runs * self.sampler.replicas)
        self.starts = starts.reshape(self.runs, self.sampler.replicas, -1)

    def run(self, contenders: list[Contender], length: int) -> tuple[list[Measured], list[Any]]:
        """Run each contender for about `length` iterations, from its state or from the start."""
        unit = self.sampler.interleaved  # after so many iterations the same one of the interleaved chains has moved
        length = max(length // unit, 2 * LOOKS)
        warm = length // WARM
        last = length - warm
        lags = np.unique(np.r_[0, np.geomspace(1, last, LOOKS), np.linspace(1, last, LOOKS)].astype(int))
        period = max(last // 2, 1) * unit if self.fixed.get("cyclical") else 0
        curvatures = np.asarray(self.scape.curvatures, np.float64)
        copies = self.sampler.replicas * self.sampler.interleaved
        measured, after = [], []
        for i in range(0, len(contenders), LANES):
            part = contenders[i : i + LANES]
            states, seen = self._look_at(_padded(part), unit * (warm + lags), period)
            x, g = (np.asarray(v, np.float64) for v in zip(*jax.device_get(seen)))
            for lane in range(len(part)):
                measured.append(judge(unit * lags, x[:, lane], g[:, lane], curvatures, self.cost, copies))
                after.append(jax.tree.map(lambda v, lane=lane: v[lane], states))
            looks = len(lags) * self.runs * self.sampler.replicas
            self.spent += LANES * (length * unit * self.runs * self.cost + looks)
        self.time += length * unit
        return measured, after

    def _look_at(self, lanes: Sequence[Contender], ends: np.ndarray, period: int) -> tuple[Any, list[tuple]]:
        """Advance one contender per lane, and look at positions and gradients after each of `ends` iterations."""
        settings = {k: jnp.asarray([c.setting[k] for c in lanes]) for k in lanes[0].setting}
        if self.time == 0:
            states = self.programs.begin(settings, self.starts)
        else:
            states = jax.tree.map(lambda *x: jnp.stack(x), *(c.state for c in lanes))
        t, seen = self.time, []
        for end in (self.time + int(e) for e in ends):
            states = self.programs.advance(self.scape.data, settings, states, self.keys, t, end, period)
            seen.append(self.programs.look(self.scape.data, states, self.keys[2], end))
            t = end
        return states, seen


def _padded(contenders: list[Contender]) -> list[Contender]:
    """As many as there are lanes; the last one fills up the rest."""
    return contenders + [contenders[-1]] * (LANES - len(contenders))


class _Programs:
    """The compiled programs of a trial, for :data:`LANES` candidates of `runs` runs each.

    ``begin(settings, starts)`` returns states, ``advance(data, settings, states, keys, begin, end, period)`` new ones,
    and ``look(data, states, key, t)`` whitened positions and gradients.
    """

    def __init__(self, posterior, make, replicas: int, scape: Landscape, like: PyTree, batch_size, runs: int):
        self.make, self.replicas, self.scape, self.runs, self.batch_size = make, replicas, scape, runs, batch_size
        self.mirror = posterior.mirror
        self.unravel = ravel_pytree(like)[1]
        self.size = 0 if scape.data is None else len(tree_leaves(scape.data)[0])
        self.score_rows = None if batch_size is None else min(self.size, max(batch_size, SCORE_ROWS))
        self.data_axis = None if batch_size is None else 0
        self.begin = jax.jit(jax.vmap(self._begin, (0, None)))
        self.advance = jax.jit(self._advance)
        self.look = jax.jit(self._look)

    def _begin(self, setting: Settings, starts: Array) -> Any:
        def position(x: Array) -> PyTree:
            """A starting point in the posterior's structure and support."""
            return self.unravel(x) if self.mirror is None else self.mirror(self.unravel(x))

        tree = jax.vmap(jax.vmap(position))(starts)
        return jax.vmap(self.make(setting).init)(tree if self.replicas > 1 else jax.tree.map(lambda x: x[:, 0], tree))

    def _advance(self, data, settings: Settings, states, keys: list[Array], begin, end, period) -> Any:
        def turn(t: Array) -> Turn:
            """A minibatch for each run, shared by the candidates, and keys for all."""
            batch = self._minibatches(data, jax.random.fold_in(keys[0], t), t, self.batch_size)
            step_keys = jax.random.split(jax.random.fold_in(keys[1], t), (LANES, self.runs))
            return Turn(step_keys, batch, settings["step_size"] * _wave(t, period))

        axes = (Axes(setting=0, step_size=0), Axes(minibatch=self.data_axis))
        return advance(self.make, states, turn, begin, end, settings=settings, axes=axes)[0]

    def _look(self, data, states, key: Array, t) -> tuple[Array, Array]:
        batch = self._minibatches(data, key, t, self.score_rows)

        def grad(x: PyTree, batch: PyTree) -> Array:
            """The gradient with the least noise, as a vector."""
            return ravel_pytree(self.scape.scoring.grad(x, batch))[0]

        def one(states: Any) -> tuple[Array, Array]:
            """One candidate: (run, replica, direction)."""
            position = states.position if self.replicas > 1 else jax.tree.map(lambda x: x[:, None], states.position)
            g = jax.vmap(jax.vmap(grad, (0, None)), (0, self.data_axis))(position, batch)
            return self.scape.whiten(jax.vmap(jax.vmap(lambda x: ravel_pytree(x)[0]))(position), g)

        return jax.vmap(one)(states)

    def _minibatches(self, data: PyTree, key: Array, t: Any, rows: int | None) -> PyTree:
        """One minibatch for each run; all data where `rows` is None."""
        if rows is None:
            return data

        def one(key: Array) -> PyTree:
            return minibatch.gather(data, minibatch.draw(key, t, self.size, rows, True))

        return jax.vmap(one)(jax.random.split(key, self.runs))


def _wave(t: Array, period: Array) -> Array:
    """The factor of :class:`~hamcmc.Cyclical` with a traced period; 1 for period 0."""
    every = jnp.maximum(period, 1)
    return jnp.where(period > 0, jnp.sin(jnp.pi / 2 * (every - t % every) / every) ** 2, 1.0)
