"""Runs of every kind in ArviZ: groups, names, and ArviZ's own functions on them."""

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.interop import to_arviz
from tests.factorization.runs import make_draws, make_ratings, make_run


@pytest.fixture
def run(draw, tmp_path):
    """A run on disk and its result."""
    return tmp_path / "run", draw(out=tmp_path / "run", num_samples=60)


def test_a_directory_by_one_call(run, model):
    path, result = run
    data = to_arviz(path)
    assert set(data.groups()) == {"posterior", "sample_stats"}
    assert_array_equal(data.posterior["theta"], result.posterior["theta"])
    summary = az.summary(data)
    assert list(summary.index) == ["theta[0]", "theta[1]", "theta[2]"]
    assert_allclose(summary["mean"], result.posterior["theta"].mean((0, 1)), atol=1e-3)
    axes = az.plot_trace(data)
    assert axes.shape == (1, 2)
    assert all(len(ax.lines) for ax in axes.ravel())
    plt.close("all")
    # The store is in ArviZ's own layout.
    with xarray.open_datatree(path / "draws.zarr", engine="zarr", consolidated=False) as store:
        assert_array_equal(az.InferenceData.from_datatree(store).posterior["theta"], data.posterior["theta"])


def test_data_and_log_likelihood(run, model):
    _, result = run
    data = to_arviz(result, model, log_likelihood=True)
    assert set(data.groups()) == {"posterior", "sample_stats", "constant_data", "log_likelihood"}
    values = data.log_likelihood["log_likelihood"].values
    assert values.shape == (2, 60, model.size)
    theta, row = jnp.asarray(result.posterior["theta"][1, 7]), jax.tree.map(lambda x: x[5], model.data)
    assert_allclose(values[1, 7, 5], model.log_likelihood(theta, row), rtol=1e-5)
    assert_array_equal(data.constant_data["x"], model.data.x)
    with pytest.raises(ValueError, match="needs the posterior"):
        to_arviz(result, log_likelihood=True)
    with pytest.raises(ValueError, match="has no data"):
        to_arviz(result, hamcmc.Posterior(lambda theta: -jnp.sum(theta**2)), log_likelihood=True)


def test_parameters_in_nested_dicts():
    from hamcmc.interop.arviz import _parameters

    x = np.zeros((2, 3, 4), np.float32)
    bare = hamcmc.Posterior(lambda theta: -jnp.sum(theta**2))
    assert _parameters(bare, {"theta": x}) is x
    nested = hamcmc.Posterior(lambda p: -jnp.sum(p["a"]["b"] ** 2 + p["a"]["c"] + p["d"]))
    assert _parameters(nested, {"a.b": x, "a.c": x, "d": x}) == {"a": {"b": x, "c": x}, "d": x}


def test_predictions_observations_and_names(run, model):
    _, result = run

    def predictive(key, theta, data):
        return {"x": data.a @ theta + jnp.sqrt(10.0) * jax.random.normal(key, data.x.shape)}

    names = {"coords": {"coefficient": ["one", "two", "three"]}, "dims": {"theta": ["coefficient"], "x": ["row"]}}
    data = to_arviz(result, model, predictive=predictive, **names)
    assert set(data.groups()) == {
        *("posterior", "sample_stats", "constant_data", "observed_data", "posterior_predictive")
    }
    assert data.posterior["theta"].dims == ("chain", "draw", "coefficient")
    assert_array_equal(data.posterior["theta"].sel(coefficient="two"), result.posterior["theta"][..., 1])
    assert_array_equal(data.observed_data["x"], model.data.x)
    assert set(data.constant_data) == {"a"}
    made = data.posterior_predictive["x"]
    assert made.dims == ("chain", "draw", "row")
    error = (made.values - np.einsum("nd,csd->csn", model.data.a, result.posterior["theta"])) / np.sqrt(10)
    assert abs(error.mean()) < 5 / np.sqrt(error.size)
    assert abs(error.std() - 1) < 5 / np.sqrt(2 * error.size)
    assert not np.array_equal(error[0, 0], error[0, 1])
    again = to_arviz(result, model, predictive=lambda *given: predictive(*given)["x"], seed=0)
    assert_array_equal(again.posterior_predictive["prediction"], made)
    with pytest.raises(ValueError, match="predictive needs the posterior"):
        to_arviz(result, predictive=predictive)


def test_a_factorization_has_the_ids_of_users_and_items(tmp_path):
    rng = np.random.default_rng(0)
    draws, ratings = make_draws(rng, 6, 5), make_ratings(rng, 6, 5)
    data = to_arviz(make_run(tmp_path / "run", ratings, draws, room=50))
    assert data.posterior["W"].dims == ("chain", "draw", "user", "factor")
    assert data.posterior["column_bias"].dims == ("chain", "draw", "item")
    one = data.posterior["W"].sel(user=ratings.users[2])
    assert_array_equal(one, draws["W"][:, :, 2])
    assert "noise_precision" in az.summary(data, var_names=["noise_precision"]).index
