"""Step sizes: functions from the iteration, counted from 0, to ε. Any optax schedule is one, too."""

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
    """ε at every iteration. A bias of order ε stays."""

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


def as_schedule(step_size: Any) -> Schedule:
    """A number as a :class:`Constant`; a function as it is."""
    return step_size if callable(step_size) else Constant(step_size)


def fingerprint(schedule: Schedule, iterations: int) -> list[float]:
    """ε at up to 64 iterations of the run; raises where one is not a positive number."""
    t = np.unique(np.concatenate([np.arange(8), np.geomspace(1, max(iterations - 1, 1), 56)]).astype(np.int32))
    t = t[t < max(iterations, 1)]
    values = np.asarray(jax.vmap(schedule)(jnp.asarray(t)))
    if values.shape != t.shape or values.dtype.kind not in "fiu":
        raise ValueError(f"step_size must return one number, got {values.dtype}{values.shape[1:]}")
    for when, value in zip(t, values):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"step_size must be a finite number above 0; at iteration {when} it is {value}")
    return [float(v) for v in values]
