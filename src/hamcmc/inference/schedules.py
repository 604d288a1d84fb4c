"""Step sizes: functions from the iteration, counted from 0, to ε. Any optax schedule can be used as well."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc import _check

Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class Constant:
    """ε at every iteration. A bias of order ε remains."""

    step_size: float

    def __post_init__(self):
        object.__setattr__(self, "step_size", _check.positive("step_size", self.step_size))

    def __call__(self, t):
        return jnp.full(jnp.shape(t), self.step_size)


@dataclass(frozen=True)
class Polynomial:
    """The paper's ``ε_t = (a / t)^b`` with t counted from 1, so iteration 0 has ``a^b``.

    The estimator's bias vanishes for 1/2 < b ≤ 1 (for samplers without a bias of their own).
    """

    a: float
    b: float = 0.51

    def __post_init__(self):
        object.__setattr__(self, "a", _check.positive("a", self.a))
        object.__setattr__(self, "b", _check.positive("b", self.b))

    def __call__(self, t):
        return (self.a / (t + 1.0)) ** self.b


@dataclass(frozen=True)
class Cyclical:
    r"""Cosine cycles: large steps cross to other modes, then small steps sample the mode that was reached.

    .. math:: ε_t = ε_0 \left[f + (1-f)\, \tfrac12 \left(\cos \frac{π r}{P} + 1\right)\right], \qquad r = t \bmod P

    With f = 0 (as published) the last step of a cycle is about 2.5 ε_0 / P², still above 0.

    Weight averages by ε, ``Σ ε_t h(θ_t) / Σ ε_t``. A step of size ε advances the diffusion by the time ε, so this is
    its average over time. The draws at the end of a cycle hardly move, and count little. A bias remains: that of the
    constant step ``Σ ε² / Σ ε``, which is 3/4 ε_0 for f = 0.

    Args:
        step_size: ε_0, where each cycle starts.
        period: P, iterations per cycle.
        floor: f in [0, 1), the least step as a fraction of ε_0.

    References:
        Zhang, Li, Zhang, Chen and Wilson, Cyclical stochastic gradient MCMC for Bayesian deep learning, ICLR 2020.
    """

    step_size: float
    period: int
    floor: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "step_size", _check.positive("step_size", self.step_size))
        object.__setattr__(self, "period", _check.at_least("period", self.period, 1))
        object.__setattr__(self, "floor", _check.fraction("floor", self.floor))

    def __call__(self, t):
        left = self.period - t % self.period  # 1 at the end of a cycle
        wave = jnp.sin(jnp.pi / 2 * left / self.period) ** 2  # (cos + 1)/2 without its cancellation
        return self.step_size * (self.floor + (1 - self.floor) * wave)


NAMED = {"constant": Constant, "polynomial": Polynomial, "cyclical": Cyclical}


def as_schedule(step_size: float | Schedule) -> Schedule:
    """A number becomes a :class:`Constant`; a function stays as it is."""
    return step_size if callable(step_size) else Constant(step_size)


def values(schedule: Schedule, t: np.ndarray) -> np.ndarray:
    """ε at each of the iterations `t`; of a constant step size without a program that would have to be compiled."""
    if isinstance(schedule, Constant):
        return np.full(t.shape, schedule.step_size, jnp.result_type(float))
    return np.asarray(jax.vmap(schedule)(jnp.asarray(t)))


def fingerprint(schedule: Schedule, iterations: int) -> list[float]:
    """ε at up to 64 iterations of the run; raises if one of them is not a positive number."""
    t = np.unique(np.concatenate([np.arange(8), np.geomspace(1, max(iterations - 1, 1), 56)]).astype(np.int32))
    t = t[t < max(iterations, 1)]
    found = values(schedule, t)
    if found.shape != t.shape or found.dtype.kind not in "fiu":
        raise ValueError(f"step_size must return one number, got {found.dtype}{found.shape[1:]}")
    for when, value in zip(t, found):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"step_size must be a finite number above 0; at iteration {when} it is {value}")
    return [float(v) for v in found]
