"""Likelihoods with fewer digits than positions: close to the others, and refused where they are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.diagnostics.gradients import plain
from hamcmc.target import narrow

LOW = jnp.dtype("bfloat16")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(800, 3)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + RNG.normal(size=800)).astype(np.float32)


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, row):
    x, y = row
    seen.append(theta.dtype)
    return -0.5 * (y - x @ theta) ** 2


seen = []


def make(precision, y=Y, **more):
    return hamcmc.Posterior(log_prior, log_likelihood, (X, y), init=jnp.zeros(3), precision=precision, **more)


def test_likelihoods_are_computed_with_fewer_digits_and_added_up_with_all():
    seen.clear()
    low, high, theta = make("bfloat16"), make(None), jnp.array([1.0, -2.0, 0.4])
    grad = low.grad(theta, low.data)
    assert set(seen) == {LOW}
    assert grad.dtype == jnp.float32
    exact = high.grad(theta, high.data)
    assert_allclose(grad, exact, atol=0.01 * len(X))
    assert float(jnp.abs(grad - exact).max()) > 0
    assert_array_equal(low.wide().grad(theta, low.data), exact)
    assert low.log_likelihoods(theta, low.data).dtype == jnp.float32


def test_the_verdict_and_predictions_have_all_digits():
    low = make("bfloat16", temperature=0.5)
    assert plain(low).precision is None
    theta = jnp.array([1.0, -2.0, 0.4])
    assert_array_equal(plain(low).grad(theta, low.data), make(None, temperature=0.5).grad(theta, low.data))
    assert plain(make(None)).precision is None


def test_a_frozen_part_is_narrow_too():
    kinds = []

    def likelihood(theta, row):
        kinds.append((theta["w"].dtype, theta["b"].dtype))
        return -0.5 * (row[1] - row[0] @ theta["w"] - theta["b"]) ** 2

    init = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    some = hamcmc.Posterior(
        lambda t: -jnp.sum(t["w"] ** 2), likelihood, (X, Y), init=init, sampled=["w"], precision="bfloat16"
    )
    some.grad(some.init, some.data)
    assert set(kinds) == {(LOW, LOW)}
    assert jax.tree.leaves(some.wide().grad(some.init, some.data))[0].dtype == jnp.float32


def test_harm_is_refused_before_the_first_step():
    run = {"step_size": 1e-4, "num_samples": 2, "batch_size": 20, "progress": False}
    hamcmc.sample(make("bfloat16"), "sgld", **run)
    # Numbers from 512 to 1024 are multiples of 4 in bfloat16: a start at 1001.5 is taken for 1000.
    y = (1000 + RNG.normal(size=800)).astype(np.float32)
    far = hamcmc.Posterior(
        lambda t: -(t**2), lambda t, y: -0.5 * (y - t) ** 2, y, init=jnp.float32(1001.5), precision="bfloat16"
    )
    with pytest.raises(ValueError, match="precision='bfloat16' changes the gradient.*on minibatches of 20"):
        hamcmc.sample(far, "sgld", **run)


def test_the_trial_measures_change_against_noise(monkeypatch):
    monkeypatch.setattr(narrow, "HARMLESS", 1e-9)
    with pytest.raises(ValueError, match="changes the gradient"):
        narrow.require_harmless(make("bfloat16"), jnp.ones(3), 20)
    narrow.require_harmless(make(None), jnp.ones(3), 20)
    narrow.require_harmless(make("float32"), jnp.ones(3), 20)  # nothing changes


def test_bad_arguments():
    with pytest.raises(ValueError, match="precision must be 'bfloat16' or .*; did you mean 'bfloat16'"):
        make("bfloat")
    with pytest.raises(ValueError, match="precision is that of the likelihood"):
        hamcmc.Posterior(log_prior, precision="float32")
