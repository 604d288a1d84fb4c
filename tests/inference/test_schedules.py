"""Step sizes by hand, and refused where they are not step sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

import hamcmc
from hamcmc.inference.schedules import as_schedule, fingerprint


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


class TestCyclical:
    def test_the_published_formula(self):
        t = np.arange(25)
        r = t % 10
        assert_allclose(
            jax.vmap(hamcmc.Cyclical(0.3, 10))(jnp.asarray(t)), 0.15 * (np.cos(np.pi * r / 10) + 1), rtol=1e-5
        )
        floored = hamcmc.Cyclical(0.3, 10, floor=0.2)
        assert float(floored(20)) == pytest.approx(0.3)
        assert 0.06 < float(floored(19)) < 0.07
        assert float(hamcmc.Cyclical(0.3, 1)(5)) == pytest.approx(0.3)

    @pytest.mark.parametrize("period", [10**5, 2**24 + 1])
    def test_single_precision_keeps_it_above_zero(self, period):
        schedule = hamcmc.Cyclical(1.0, period)
        assert fingerprint(schedule, 2**31 - 2)
        assert float(schedule(jnp.int32(period - 1))) == pytest.approx((np.pi / 2 / period) ** 2, rel=1e-4)

    @pytest.mark.parametrize(("bad", "culprit"), [((0, 5), "step_size"), ((1, 0), "period"), ((1, 2.5), "period")])
    def test_bad_parameters(self, bad, culprit):
        with pytest.raises(ValueError, match=f"{culprit} must be"):
            hamcmc.Cyclical(*bad)
        with pytest.raises(ValueError, match="floor must be"):
            hamcmc.Cyclical(1.0, 5, floor=1.0)

    @pytest.mark.slow
    def test_a_run_keeps_it_and_resume_knows_it(self, draw, model, short_segments, tmp_path):
        def stop(_):
            raise KeyboardInterrupt

        short_segments(15)
        schedule = hamcmc.Cyclical(2e-3, 30)
        with pytest.raises(KeyboardInterrupt):
            draw(step_size=schedule, out=tmp_path / "run", progress=stop)
        resumed = hamcmc.resume(tmp_path / "run", model, jnp.zeros(3), progress=False)
        assert resumed.settings["step_size"] == {"schedule": "cyclical", "step_size": 2e-3, "period": 30, "floor": 0.0}
        assert_allclose(resumed.weights, jax.vmap(schedule)(25 + 3 * (1 + jnp.arange(40)) - 1), rtol=1e-6)

    @pytest.mark.parametrize("period", [10, 1000])
    def test_averages_weighted_by_step_size(self, period):
        """SGLD of N(0, 1) has variance 1 + ε/2 + O(ε²) at a constant step; weighted, at this one with 3/4 ε₀."""
        epsilon = np.asarray(jax.vmap(hamcmc.Cyclical(0.02, period))(jnp.arange(20 * period)), float)
        v, variances = 1.0, []
        for e in epsilon:
            v = (1 - e) ** 2 * v + 2 * e
            variances.append(v)
        weighted = np.average(variances[-period:], weights=epsilon[-period:])
        assert weighted == pytest.approx(1 + 0.75 * 0.02 / 2, abs=2 * 0.02**2)
