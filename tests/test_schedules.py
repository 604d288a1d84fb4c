"""Step sizes by hand, and refused where they are not step sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

import hamcmc
from hamcmc.schedules import as_schedule, fingerprint


def test_polynomial_counts_from_one():
    schedule = hamcmc.Polynomial(0.5, 0.51)
    assert float(schedule(0)) == pytest.approx(0.5**0.51)
    assert_allclose(jax.vmap(schedule)(jnp.arange(3)), (0.5 / np.array([1, 2, 3])) ** 0.51, rtol=1e-6)


def test_numbers_become_constants():
    assert as_schedule(np.float32(0.25)) == hamcmc.Constant(0.25)
    assert_allclose(jax.vmap(as_schedule(3))(jnp.arange(4)), 3.0)


@pytest.mark.parametrize("bad", [0, -1.0, np.nan, np.inf, "small", None, True, 1j])
def test_what_is_not_a_step_size(bad):
    with pytest.raises(ValueError, match="step_size must be a finite number above 0"):
        as_schedule(bad)


@pytest.mark.parametrize("bad", [0, -1.0, np.nan])
def test_parameters_of_the_polynomial(bad):
    with pytest.raises(ValueError, match="a must be"):
        hamcmc.Polynomial(bad)
    with pytest.raises(ValueError, match="b must be"):
        hamcmc.Polynomial(1.0, bad)


@pytest.mark.parametrize("iterations", [1, 2, 50, 10_000, 2**31 - 2])
def test_first_and_last_iterations_are_looked_at(iterations):
    schedule = lambda t: jnp.where(t == iterations - 1, -1.0, 1.0)
    with pytest.raises(ValueError, match=f"at iteration {iterations - 1} it is -1"):
        fingerprint(schedule, iterations)
    assert fingerprint(lambda t: jnp.where(t == iterations, -1.0, 1.0), iterations)


def test_a_schedule_that_ends_at_zero():
    decay = optax.linear_schedule(1e-3, 0.0, 100)
    assert len(fingerprint(decay, 100)) <= 64
    with pytest.raises(ValueError, match="at iteration 100 it is 0"):
        fingerprint(decay, 101)


def test_a_schedule_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"step_size must return one number, got float32\(2,\)"):
        fingerprint(lambda t: jnp.ones(2), 10)
