"""The posterior: density and gradient against formulas, the identity of data, and data that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import hamcmc
from hamcmc.target import arrays
from hamcmc.target import linear_gaussian as lg
from hamcmc.target.posterior import Posterior


def likelihood(theta, x):
    return -jnp.sum((x - theta) ** 2)


def of(data):
    return Posterior(lambda theta: 0.0, likelihood, data)


def test_density_and_gradient_of_a_gaussian(model, data, x64):
    exact = lg.exact(data, 10.0)
    theta = jnp.array([0.5, -1.0, 2.0])
    away = np.asarray(theta) - exact.mean
    assert_allclose(model.grad(theta, model.data), -exact.precision @ away, rtol=1e-5)
    assert_allclose(model.full_grad(theta, batch_size=300), -exact.precision @ away, rtol=1e-5)
    difference = model.full_log_density(theta, batch_size=77) - model.full_log_density(jnp.asarray(exact.mean))
    assert float(difference) == pytest.approx(-0.5 * away @ exact.precision @ away, rel=1e-5)
    assert float(model.log_density(theta, model.data)) == pytest.approx(float(model.full_log_density(theta)), rel=1e-10)


def test_a_minibatch_counts_for_all_data(model):
    """N/n: one datum, taken as the whole minibatch, stands for all 1000."""
    theta = jnp.array([0.5, -1.0, 2.0])
    one = jax.tree.map(lambda x: x[:1], model.data)
    own = jax.grad(model.log_likelihood)(theta, jax.tree.map(lambda x: x[0], model.data))
    assert_allclose(model.grad(theta, one), -theta + 1000 * own, rtol=1e-5)
    each = model.per_datum_grads(theta, one)
    assert_allclose(each[0], own, rtol=1e-6)


def test_the_gradient_includes_the_jacobian(x64):
    posterior = Posterior(lambda p: -p, lambda p, x: -x * p, np.ones(5), support=hamcmc.positive())
    u = jnp.float64(0.3)
    # log-density −e^u − 5e^u + u
    assert float(posterior.grad(u, posterior.data)) == pytest.approx(1 - 6 * np.exp(0.3))
    assert float(posterior.full_grad(u)) == pytest.approx(1 - 6 * np.exp(0.3))


def test_a_density_without_data():
    posterior = Posterior(lambda p: -0.5 * jnp.sum(p**2))
    assert_allclose(posterior.grad(jnp.ones(2)), -np.ones(2))
    assert posterior.size == 0


def test_full_passes_compile_once(model):
    calls = []

    def counted(theta, x):
        calls.append(1)
        return likelihood(theta, x)

    posterior = of(np.zeros((40, 2)))
    posterior.log_likelihood = counted
    for _ in range(3):
        posterior.full_grad(jnp.zeros(2), batch_size=10)
    assert len(calls) <= 2  # traced, not called for each part


def test_the_checksum_sees_values_names_types_and_shapes():
    base = {"a": np.arange(6, dtype=np.float32), "b": np.zeros((6, 2), np.float32)}
    same = of({k: v.copy() for k, v in base.items()}).checksum()
    assert of(base).checksum() == same
    moved = base["a"].copy()
    moved[5] = np.nextafter(moved[5], 10, dtype=np.float32)
    for other in (
        {**base, "a": moved},
        {"A": base["a"], "b": base["b"]},
        {**base, "b": np.zeros((6, 3), np.float32)},
        {**base, "a": base["a"].astype(np.int32)},
    ):
        assert of(other).checksum() != same


def test_a_large_array_is_sampled(monkeypatch):
    """Blocks of the beginning and the end and evenly between are read, and no more."""
    monkeypatch.setattr(arrays, "SAMPLED", 2**20)
    rows = np.zeros((2**21, 1), np.float32)  # 8 MiB, 512 blocks of 1 MiB: all of it is seen
    first = of(rows).checksum()
    rows[-1] = 1
    assert of(rows).checksum() != first
    rows[-1] = np.nan
    with pytest.raises(ValueError, match=r"data has [0-9]+ entries that are NaN or infinite"):
        of(rows)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, r"one common length, got data\['x'\]: 3, data\['y'\]: 4"),
        (np.zeros((0, 3)), "data is empty: it has 0 rows"),
        ({"x": np.array([1.0, np.nan, np.inf])}, r"data\['x'\] has 2 entries that are NaN or infinite"),
        ({"x": np.zeros(3), "y": 1.0}, r"data\['y'\] must be an array with one row per datum, got a scalar"),
        (np.array(["a", "b"]), "data must be numeric, got dtype <U1"),
        ({}, "data has no arrays"),
        (
            np.array([5, 3_000_000_000]),
            r"data has 1 entries beyond 2.15e\+09, .* int32, the first in row 1: ",
        ),
        (np.array([-3_000_000_000, 1]), r"the first in row 0"),
        (np.array([2**32], np.uint64), r"uint32"),
        (np.array([1.0, -1e39]), r"data has 1 entries beyond 3.4e\+38, .* float32, the first in row 1"),
        (np.array([1.0, 1e39j]), r"complex64"),
    ],
)
def test_data_that_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        of(data)


def test_large_numbers_in_double_precision(x64):
    assert of(np.array([5, 3_000_000_000])).data[1] == 3_000_000_000


def test_lost_digits_are_said():
    """Seconds since 1970 have a resolution of 128 in single precision: that of an hour is 0.04 of its spread."""
    rng = np.random.default_rng(0)
    hour = 1.7e9 + 3600 * rng.random(1000)
    with pytest.warns(UserWarning, match=r"data\['t'\] loses digits in float32: rounding moves its numbers by [34]%"):
        of({"t": np.column_stack([rng.random(1000), hour])})
    for fine in (hour - 1.7e9, np.full(9, 1.7e9), 2000 + 20 * rng.random(1000)):
        of({"t": fine})


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_a_column_that_is_far_from_zero_is_named(kind):
    """Seconds of a day: rounding takes little from them, but nobody can tell them from an intercept."""
    rng = np.random.default_rng(0)
    day = 1.7e9 + 86_400 * rng.random(5000)
    x = np.column_stack([1000 * rng.random(5000), day])
    with pytest.warns(
        UserWarning, match=r"column 1 of data\['x'\] is 6\d,\d{3} standard deviations .* Subtract its mean"
    ):
        of({"x": x.astype(kind)})
    with pytest.warns(UserWarning, match=r"^data\['t'\] is 6\d,\d{3} standard deviations away from 0: in float32"):
        of({"t": day.astype(kind)})
    of({"x": (x - x.mean(0)).astype(kind)})
    of({"x": np.column_stack([x[:, 0], np.full(5000, 1.7e9)]).astype(kind)})  # an intercept in odd units


def test_digits_in_double_precision(x64):
    seconds = np.random.default_rng(0).random(1000)
    of(1.7e9 + 3600 * seconds)
    with pytest.warns(UserWarning, match="in float64 it can hardly be told from an intercept, .* Subtract its mean$"):
        of(1.7e9 + seconds)


def test_likelihood_and_data_belong_together():
    with pytest.raises(ValueError, match="give both or neither"):
        Posterior(lambda p: 0.0, likelihood)
    with pytest.raises(ValueError, match="give both or neither"):
        Posterior(lambda p: 0.0, data=np.zeros(3))


def test_a_colder_posterior_is_narrower_and_predicts_the_same(data):
    from hamcmc.target import linear_gaussian as lg

    warm = lg.linear_gaussian(data, 10.0)
    cold = hamcmc.Posterior(warm.log_prior, warm.log_likelihood, warm.data, init=jnp.zeros(3), temperature=0.25)
    theta = jnp.ones(3)
    assert np.allclose(cold.log_density(theta, cold.data), 4 * warm.log_density(theta, warm.data), rtol=1e-5)
    assert np.allclose(cold.grad(theta, cold.data), 4 * warm.grad(theta, warm.data), rtol=1e-4)
    assert np.allclose(cold.log_predictive(theta, cold.data), warm.log_likelihoods(theta, warm.data), rtol=1e-5)
    ratio = hamcmc.laplace(cold, jnp.zeros(3)).precision / hamcmc.laplace(warm, jnp.zeros(3)).precision
    assert np.allclose(np.diag(ratio), 4, rtol=1e-3)
    with pytest.raises(ValueError, match="temperature must be"):
        hamcmc.Posterior(warm.log_prior, temperature=0.0)


def test_the_same_model_on_other_data(model):
    few = jax.tree.map(lambda x: x[:10], model.data)
    model.full_log_density(jnp.zeros(3))
    part = model.on(few)
    assert (part.size, model.size) == (10, 1000)
    assert float(part.full_log_density(jnp.zeros(3))) == pytest.approx(
        float(model._log_prior(jnp.zeros(3)) + jnp.sum(model.log_likelihoods(jnp.zeros(3), few))), rel=1e-4
    )
