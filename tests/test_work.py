"""The work of a function: loops count as often as they turn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hamcmc
from hamcmc._work import TURN, operations
from hamcmc.inference.job import segment_length

A, X = jnp.ones((50, 50)), jnp.ones(50)


def once(x):
    return A @ x


def looped(x):
    return lax.scan(lambda x, _: (A @ x, None), x, length=100)[0]


def nested(x):
    return lax.scan(lambda x, _: (looped(x), None), x, length=3)[0]


@pytest.mark.parametrize(("f", "turns", "products"), [(once, 0, 1), (looped, 100, 100), (nested, 303, 300)])
def test_turns_of_loops_are_counted(f, turns, products):
    expected = products * 2 * 50**2 + TURN * turns
    assert operations(f, X) == pytest.approx(expected, rel=0.02)
    assert operations(jax.jit(f), X) == pytest.approx(expected, rel=0.02)
    together = products * 2 * 50**2 + TURN * turns / 4
    assert operations(f, X, times=3, together=4) == pytest.approx(3 * together, rel=0.02)


def test_a_time_series_is_looked_at_as_often_as_other_models():
    """A recursion of 2000 steps takes milliseconds; a whole run of it was one segment, which no Ctrl-C could end."""
    series = jnp.asarray(np.random.default_rng(0).normal(size=2000), jnp.float32)

    def log_density(theta):
        def step(level, y):
            level = jnp.tanh(theta[0]) * level + jnp.exp(theta[1]) * y
            return level, -((y - level) ** 2)

        return lax.scan(step, 0.0, series)[1].sum() - jnp.sum(theta**2)

    posterior, settings = hamcmc.Posterior(log_density), {"ensembles": 2, "batch_size": None}
    short = hamcmc.Posterior(lambda theta: -jnp.sum(theta**2))
    lengths = [
        segment_length(p, hamcmc.samplers.build("ensemble_hmc", p), jnp.zeros(2), settings) for p in (posterior, short)
    ]
    assert lengths[0] < 20 < 1000 < lengths[1]
