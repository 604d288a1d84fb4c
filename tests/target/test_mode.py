"""find_mode against modes in closed form."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import hamcmc
from hamcmc.target import linear_gaussian as lg


def test_the_mode_of_a_gaussian_is_its_mean(model, data, x64):
    exact = lg.exact(data, 10.0)
    found = hamcmc.find_mode(model, jnp.full(3, 5.0), tolerance=1e-9)
    assert_allclose(found, exact.mean, rtol=1e-6)


def test_single_precision_gets_close(model, data):
    exact = lg.exact(data, 10.0)
    found = hamcmc.find_mode(model, jnp.full(3, 5.0))
    assert_allclose(found, exact.mean, atol=0.01 * np.sqrt(np.diag(exact.covariance)).min())


def test_a_minibatch_moves_the_mode_by_its_own_error(model, data):
    """On 500 of 1000 rows without replacement the mode is off by about √(1/500 − 1/1000)·√10 = 0.1 per coordinate."""
    exact = lg.exact(data, 10.0)
    found = np.asarray(hamcmc.find_mode(model, jnp.zeros(3), batch_size=500, seed=1))
    assert 0 < np.abs(found - exact.mean).max() < 0.5
    whole = hamcmc.find_mode(model, jnp.zeros(3), batch_size=1000)
    assert_allclose(whole, exact.mean, atol=1e-3)


@pytest.mark.parametrize(("way", "mode"), [("bijection", 1.5), ("mirror", 1.0)])
def test_the_mode_of_a_positive_parameter(way, mode):
    """Gamma(3, 2): mode (3−1)/2 of the parameter, and 3/2 of its logarithm's density."""
    posterior = hamcmc.Posterior(
        lambda p: 2 * jnp.log(p["theta"]) - 2 * p["theta"], support={"theta": hamcmc.positive(way)}
    )
    for start in (0.01, 30.0):
        found = hamcmc.find_mode(posterior, {"theta": jnp.float32(start)}, tolerance=1e-6)
        assert float(found["theta"]) == pytest.approx(mode, rel=2e-3)


def test_a_mirrored_parameter_stays_on_its_side():
    """N(−1, 1) on θ > 0 has its mode at the edge; off the edge, at −1 and its mirror image 1, there is none."""
    posterior = hamcmc.Posterior(lambda theta: -0.5 * (theta + 1) ** 2, support=hamcmc.positive("mirror"))
    assert 0 <= float(hamcmc.find_mode(posterior, jnp.float32(2.0))) < 0.1


def test_bad_input(model, data, tmp_path):
    with pytest.raises(ValueError, match="batch_size 2000 is larger than the data: 1000 rows"):
        hamcmc.find_mode(model, jnp.zeros(3), batch_size=2000)
    with pytest.raises(ValueError, match="iterations must be"):
        hamcmc.find_mode(model, jnp.zeros(3), iterations=0)
    with pytest.raises(ValueError, match="starts outside of its support"):
        hamcmc.find_mode(hamcmc.Posterior(lambda p: -p, support=hamcmc.positive()), jnp.float32(-1.0))
    unbounded = hamcmc.Posterior(lambda p: jnp.exp(p))
    with pytest.raises(ValueError, match="find_mode left the finite numbers in parameter theta"):
        hamcmc.find_mode(unbounded, jnp.float32(0.0))


def test_streamed_data_need_a_batch_size(data, tmp_path):
    rows = np.memmap(tmp_path / "a", np.float32, "w+", shape=(1000, 3))
    rows[:] = data.a
    posterior = hamcmc.Posterior(lambda t: 0.0, lambda t, a: -0.5 * jnp.sum((a - t) ** 2), rows)
    with pytest.raises(ValueError, match="streamed data needs batch_size"):
        hamcmc.find_mode(posterior, jnp.zeros(3))
    found = hamcmc.find_mode(posterior, jnp.zeros(3), batch_size=1000)
    assert_allclose(found, data.a.mean(0), atol=1e-4)


def test_a_soft_direction_beside_a_stiff_one():
    """The first gradient is a million times as large as that along the soft direction, which must be followed, too."""
    posterior = hamcmc.Posterior(lambda p: -0.5e6 * p["stiff"] ** 2 - 0.5 * (p["soft"] - 3) ** 2)
    found = hamcmc.find_mode(posterior, {"stiff": jnp.float32(1.0), "soft": jnp.float32(0.0)})
    assert float(found["soft"]) == pytest.approx(3, abs=0.01)
    assert float(found["stiff"]) == pytest.approx(0, abs=1e-5)
