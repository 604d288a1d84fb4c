"""Predictions at draws of a run: exact moments, weights, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.diagnostics.predictions import at_times


@pytest.fixture(scope="module")
def result():
    posterior = hamcmc.Posterior(
        lambda p: -0.5 * ((p["a"] - 1) ** 2 + jnp.sum(p["b"] ** 2) / 4), init={"a": jnp.zeros(()), "b": jnp.zeros(2)}
    )
    return hamcmc.sample(posterior, progress=False)


def line(p, x):
    return p["a"] + x @ p["b"]


def test_predictions_have_the_exact_moments(result):
    x = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, -1.0]], np.float32)
    found = result.predict(line, x, draws=4000)
    sd = np.sqrt([1.0, 5.0, 9.0])
    assert found.draws.shape == (4000, 3)
    assert (np.abs(found.mean - 1) < 4.5 * sd / np.sqrt(2000)).all()
    assert (np.abs(found.sd / sd - 1) < 4.5 / np.sqrt(2000)).all()
    half = 1.6449 * sd
    assert (np.abs(found.high - found.low - 2 * half) < 8 * sd / np.sqrt(2000)).all()
    narrow = result.predict(line, x, draws=500, interval=0.5)
    assert len(narrow.draws) >= 500
    assert (narrow.high - narrow.low < found.high - found.low).all()


def test_draws_are_taken_by_their_weights():
    when = at_times(np.array([1.0, 0.0, 3.0, 4.0]), 8)
    assert np.bincount(when, minlength=4).tolist() == [1, 0, 3, 4]
    assert at_times(np.ones(5), 9).tolist() == [0, 1, 2, 3, 4]
    assert at_times(np.ones(6), 3).tolist() == [0, 2, 4] or at_times(np.ones(6), 3).tolist() == [1, 3, 5]


def test_a_run_from_the_disk_needs_its_posterior(tmp_path):
    posterior = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(2))
    hamcmc.sample(posterior, "sgld", step_size=0.1, num_samples=20, out=tmp_path / "run", progress=False)
    again = hamcmc.Result.open(tmp_path / "run")
    with pytest.raises(ValueError, match="posterior is missing"):
        again.predict(jnp.sum)
    assert again.predict(jnp.sum, posterior=posterior).draws.shape == (20,)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p: {"a": p["a"]}, "must return one array"),
        (lambda p: jnp.log(p["a"] - 100), "not finite at"),
    ],
)
def test_what_cannot_be_predicted_is_named(result, function, message):
    with pytest.raises(ValueError, match=message):
        result.predict(function)
