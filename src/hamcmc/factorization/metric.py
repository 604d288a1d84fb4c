"""The base metric of a factorization: a diagonal that takes long steps where a row has few ratings."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from hamcmc.factorization.model import Hyper, Layout


class Metric(NamedTuple):
    """The diagonal d = 1 / (precision + weight · n) for each number of a row with n ratings."""

    W_precision: Array
    W_weight: Array
    H_precision: Array
    H_weight: Array


def row_count_metric(columns: Layout, hyper: Hyper) -> Metric:
    """d = 1 / (λ + τ n E h²) for each number w of a row with n ratings, and likewise for h: its expected curvature."""

    def second_moment(side: str, mean: Array, precision: Array) -> Array:
        """E h² of each column."""
        spread = jnp.where(columns.free(side) > 0, 1 / jnp.maximum(precision, 1e-30), 0)
        return mean**2 + spread + columns.constant(side)

    of_W = second_moment("W", hyper.W_mean, hyper.W_precision)
    of_H = second_moment("H", hyper.H_mean, hyper.H_precision)
    return Metric(hyper.W_precision, hyper.noise * of_H, hyper.H_precision, hyper.noise * of_W)


def plain_metric(columns: Layout) -> Metric:
    """d = 1."""
    one, zero = jnp.ones(columns.width), jnp.zeros(columns.width)
    return Metric(one, zero, one, zero)


def roots(metric: Metric, free: dict[str, Array], row_counts: Array, column_counts: Array) -> dict[str, Array]:
    """√d for rows and columns with so many ratings; 1 for numbers that are not free to move."""

    def side(s: str, precision: Array, weight: Array, n: Array) -> Array:
        """√d of one side."""
        return jnp.where(free[s] > 0, lax.rsqrt(jnp.where(free[s] > 0, precision + weight * n[..., None], 1)), 1)

    return {
        "W": side("W", metric.W_precision, metric.W_weight, row_counts),
        "H": side("H", metric.H_precision, metric.H_weight, column_counts),
    }
