"""PyMC models as posteriors: PyMC's own density, its transforms, names and data. PyMC is an extra of its own."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import hamcmc
from hamcmc.interop import from_pymc, to_arviz

os.environ.setdefault("PYTENSOR_FLAGS", "cxx=")  # compile no C++, which takes most of the time
pm = pytest.importorskip("pymc")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pytensor", "ignore::FutureWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = X @ [1.0, -2.0] + 0.5 * RNG.normal(size=30)


@pytest.fixture(autouse=True, scope="module")
def double():
    """PyMC turns double precision on, and leaves it on."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def regression(y=Y):
    """Real, positive, bounded, simplex, ordered and Cholesky variables, a potential, and a deterministic one."""
    with pm.Model(coords={"feature": ["age", "km"], "ride": range(30)}) as model:
        w = pm.Normal("w", 0, 1, dims="feature")
        scale = pm.HalfNormal("scale", 1)
        pm.Uniform("share", -1, 3)
        pm.Dirichlet("part", np.ones(3))
        pm.Normal("cut", 0, 3, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1])
        pm.LKJCholeskyCov("factor", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0), compute_corr=False)
        pm.Potential("soft", -0.1 * (w**4).sum())
        pm.Deterministic("ratio", w / scale, dims="feature")
        pm.Normal("y", X @ w, scale, observed=y, dims="ride")
    return model


@pytest.fixture(scope="module")
def model():
    return regression()


@pytest.fixture(scope="module")
def posterior(model):
    return from_pymc(model)


def test_the_density_is_pymcs(model, posterior):
    assert posterior.latent == ("w", "scale", "share", "part", "cut", "factor")
    theirs = model.compile_logp()
    names = {v.name: n for n, v in zip(posterior.latent, posterior._values)}
    for seed in range(3):
        u = posterior.unconstrain(posterior.init(jax.random.key(seed)))
        point = {v: np.asarray(u[n]) for v, n in names.items()}
        assert_allclose(posterior.log_density(u), theirs(point), rtol=1e-8)
        # Density of the parameters plus Jacobians, as the rest of the package understands a posterior.
        theta = posterior.constrain(u)
        apart = posterior.log_prior(theta) + sum(
            float(jnp.sum(s.log_jacobian(u[n]))) for n, s in posterior.support.items()
        )
        assert_allclose(apart, theirs(point), rtol=1e-8)
    assert jnp.isfinite(jax.flatten_util.ravel_pytree(posterior.grad(u))[0]).all()


def test_parameters_are_in_their_supports(posterior):
    draws = jax.vmap(posterior.init)(jax.random.split(jax.random.key(0), 5))
    assert (draws["scale"] > 0).all()
    assert ((draws["share"] > -1) & (draws["share"] < 3)).all()
    assert_allclose(draws["part"].sum(-1), 1)
    assert (jnp.diff(draws["cut"], axis=-1) > 0).all()
    back = posterior.constrain(posterior.unconstrain_unchecked(draws))  # many at once
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-6, atol=1e-9), back, draws)
    with pytest.raises(ValueError, match="parameter scale starts outside of its support"):
        posterior.unconstrain(jax.tree.map(lambda x: x[0], draws) | {"scale": jnp.float64(-1.0)})


def test_a_run_has_names_and_deterministic_variables(posterior):
    result = hamcmc.sample(posterior, "sgld", step_size=1e-3, num_samples=5, chains=2, progress=False)
    data = to_arviz(result, posterior, log_likelihood=True)
    assert data.posterior["w"].dims == ("chain", "draw", "feature")
    w, scale = data.posterior["w"], data.posterior["scale"]
    assert_allclose(data.posterior["ratio"].sel(feature="km"), w.sel(feature="km") / scale, rtol=1e-6)
    assert_array_equal(data.observed_data["y"], Y)
    assert data.observed_data["y"].dims == ("ride",)
    expected = stats.norm.logpdf(Y, w.values @ X.T, scale.values[..., None])
    assert_allclose(data.log_likelihood["y"], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="predictive=True is for NumPyro models"):
        to_arviz(result, posterior, predictive=True)
    assert "all of its data" in repr(posterior)


def test_the_exact_posterior():
    """Gamma(2, 1) and 4 exponential data: Gamma(6, 1 + Σy). Wholly automatic."""
    y = np.array([0.3, 1.1, 0.2, 0.7])
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Exponential("y", rate, observed=y)
    result = hamcmc.sample(from_pymc(model), progress=False)
    exact = stats.gamma(2 + len(y), scale=1 / (1 + y.sum()))
    assert result.check().word == "good"
    table = result.summary()
    assert abs(table["mean"][0] - exact.mean()) < 4 * table["mcse"][0]
    assert abs(table["sd"][0] / exact.std() - 1) < 4 / np.sqrt(2 * table["ess_bulk"][0]) * 1.5


def test_other_data_are_another_posterior(posterior):
    assert from_pymc(regression()).checksum() == posterior.checksum()
    assert from_pymc(regression(Y + 1)).checksum() != posterior.checksum()


def test_models_that_do_not_fit():
    with pm.Model() as discrete:
        pm.Bernoulli("k", 0.5)
    with pm.Model() as dynamic:
        pm.Uniform("b", 0, pm.HalfNormal("a", 1))
    for wrong, match in {
        discrete: "variable k is discrete.*pymc.Mixture",
        dynamic: "variable b: its transform depends on a",
        pm.Model(): "no free variables",
        3: "must be a pymc.Model, got int",
    }.items():
        with pytest.raises(ValueError, match=match):
            from_pymc(wrong)
