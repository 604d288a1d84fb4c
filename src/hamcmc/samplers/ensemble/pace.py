"""The pace of Hamiltonian trajectories: time step and path length, and how both are learned in warm-up."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

GAIN, DELAY, FORGET = 0.05, 10.0, 0.75  # of dual averaging, as in NUTS
LONGEST_STEP, SHORTEST_STEP = 1.5, -14.0  # log h
FIRST_PATH, LONGEST_PATH = 2.0, 60.0  # time; for a Gaussian in its own metric a quarter turn takes π/2
PATH_RATE, PATH_MEMORY, MOST_CHANGE = 0.025, 0.95, 0.35  # of the ascent (Adam without momentum)
SMOOTHING = 0.02  # weight of the newest path length in the one that is kept
RELIABLE = 20  # steps after which a renewed metric resembles the old one, so that h may stay


class Pace(NamedTuple):
    """What is known of the time step h and the path length.

    Attributes:
        log_step: log h of the next transition in warm-up.
        mean_log_step: its weighted average, which is kept after warm-up.
        error: the average of (wanted − observed acceptance).
        centre: what log h is drawn to.
        since: transitions since the metric was renewed.
        log_path: the logarithm of the path length in warm-up.
        mean_log_path: its average, which is kept.
        square: the running mean square of the ascent's signal.
        rough: the running share of transitions that had hardly a chance to be accepted.
    """

    log_step: Float[Array, ""]
    mean_log_step: Float[Array, ""]
    error: Float[Array, ""]
    centre: Float[Array, ""]
    since: Float[Array, ""]
    log_path: Float[Array, ""]
    mean_log_path: Float[Array, ""]
    square: Float[Array, ""]
    rough: Float[Array, ""]

    def now(self, learning: Bool[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """h and the path length, while they are being learned or afterwards."""
        h = jnp.where(learning, self.log_step, self.mean_log_step)
        return jnp.exp(h), jnp.exp(jnp.where(learning, self.log_path, self.mean_log_path))


def first_step(dimension: int) -> float:
    """log h to begin with: about what a Gaussian of this dimension takes in its own metric."""
    return math.log(0.8 * dimension**-0.25)


def start(dimension: int, kind: Any) -> Pace:
    """The pace before the first transition."""
    h, path, zero = (jnp.asarray(v, kind) for v in (first_step(dimension), math.log(FIRST_PATH), 0.0))
    return Pace(h, h, zero, h, zero, path, path, zero, zero)


def learned(
    pace: Pace,
    acceptance: Float[Array, ""],
    hopeless: Float[Array, ""],
    slope: Float[Array, ""],
    wanted: float,
    step: Int[Array, ""],
    adapt: Int[Array, ""],
) -> Pace:
    """The pace after a transition of warm-up.

    Args:
        pace: the pace before.
        acceptance: of the transition, over all replicas.
        hopeless: the share of replicas that had hardly a chance.
        slope: the derivative of what the path length is to make large, by its logarithm.
        wanted: the acceptance that h is adapted to.
        step: the number of the transition.
        adapt: the number of transitions of the warm-up.
    """
    since = pace.since + 1
    share = 1 / (since + DELAY)
    error = (1 - share) * pace.error + share * (wanted - acceptance)
    log_step = jnp.clip(pace.centre - jnp.sqrt(since) / GAIN * error, SHORTEST_STEP, LONGEST_STEP)
    weight = since**-FORGET
    mean_log_step = weight * log_step + (1 - weight) * pace.mean_log_step
    square = PATH_MEMORY * pace.square + (1 - PATH_MEMORY) * slope**2
    unbiased = square / (1 - PATH_MEMORY ** (step + 1.0))
    change = PATH_RATE * slope / jnp.sqrt(jnp.where(unbiased > 0, unbiased, 1))
    shortest = jnp.minimum(mean_log_step, math.log(LONGEST_PATH))
    log_path = jnp.clip(pace.log_path + jnp.clip(change, -MOST_CHANGE, MOST_CHANGE), shortest, math.log(LONGEST_PATH))
    smoothed = pace.mean_log_path + SMOOTHING * (log_path - pace.mean_log_path)
    mean_log_path = jnp.where(step < adapt // 2, log_path, smoothed)
    rough = pace.rough + SMOOTHING * (hopeless - pace.rough)
    new = Pace(log_step, mean_log_step, error, pace.centre, since, log_path, mean_log_path, square, rough)
    return Pace(*(jnp.asarray(v, old.dtype) for v, old in zip(new, pace)))


def restarted(pace: Pace, dimension: int, step: Int[Array, ""]) -> Pace:
    """The pace for a metric that was just renewed: the first ones change everything, the later ones little."""
    early = step <= RELIABLE
    first = first_step(dimension)
    h = jnp.where(early, first, pace.mean_log_step).astype(pace.log_step.dtype)
    centre = jnp.where(early, first, h + math.log(2.0)).astype(h.dtype)
    zero = jnp.zeros_like(h)
    return pace._replace(log_step=h, mean_log_step=h, error=zero, centre=centre, since=zero)
