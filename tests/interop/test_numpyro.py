"""NumPyro models as posteriors: NumPyro's own density, an exact conjugate posterior, and models that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpy.testing import assert_allclose
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy
from scipy import stats

import hamcmc
from hamcmc.interop import from_numpyro, to_arviz
from tests.mutation import mutant

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
GROUP = RNG.integers(0, 3, N)
Y = RNG.normal(size=N).astype(np.float32)


def hierarchical(x, group, groups, y=None):
    """Real, positive, bounded and simplex sites, groups of data, a factor, and deterministic sites."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    centre = numpyro.sample("centre", dist.Uniform(-1, 2))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("groups", groups):
        a = numpyro.sample("a", dist.Normal(centre, share))
    numpyro.factor("soft", -0.5 * jnp.sum(a) ** 2)
    numpyro.deterministic("length", jnp.sum(w**2))
    with numpyro.plate("data", x.shape[0]):
        mean = numpyro.deterministic("mean", x @ w + a[group])
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def no_plate(x, y):
    """As many write it: without a plate."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def waiting(y):
    """Exponential data with a Gamma prior."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.deterministic("mean", 1 / rate)
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return from_numpyro(hierarchical, X, GROUP, 3, y=Y)


def check_density(posterior, model, *args, **kwargs):
    """Density and gradient on all data are NumPyro's, with its Jacobians; minibatches are unbiased."""
    ours = jax.jit(jax.value_and_grad(lambda u, rows: posterior.log_density(u, rows)))
    theirs = jax.jit(jax.value_and_grad(lambda u: -potential_energy(model, args, kwargs, u)))
    start = jax.jit(lambda key: posterior.unconstrain_unchecked(posterior.init(key)))
    for seed in range(2):
        u = start(jax.random.key(seed))
        for a, b in zip(jax.tree.leaves(ours(u, posterior.data)), jax.tree.leaves(theirs(u))):
            assert_allclose(a, b, rtol=2e-4, atol=1e-3)
    row = lambda i: jax.tree.map(lambda x: x[i : i + 1], posterior.data)
    rows = [float(ours(u, row(i))[0]) for i in range(posterior.size)]
    assert_allclose(np.mean(rows), ours(u, posterior.data)[0], rtol=1e-4)


class TestDensity:
    def test_of_a_hierarchical_model(self, posterior):
        assert posterior.latent == ("w", "sigma", "centre", "share", "a")
        assert posterior.observed == ("y",)
        assert set(posterior.data) == {"x", "group", "y"}
        check_density(posterior, hierarchical, X, GROUP, 3, y=Y)

    def test_without_a_plate_and_in_a_handler(self):
        model = numpyro.handlers.reparam(no_plate, config={"w": LocScaleReparam(0.0)})
        posterior = from_numpyro(model, X, Y)
        assert posterior.latent == ("w_decentered",)
        assert set(posterior.data) == {"x", "y"}
        check_density(posterior, model, X, Y)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "change",
        [
            ("log_abs_det_jacobian(u, bijection(u))", "log_abs_det_jacobian(u, bijection(u)) * 0"),
            ("if n not in self.observed)", 'if n not in self.observed and n != "soft")'),
        ],
    )
    def test_what_is_left_out_is_seen(self, change):
        with mutant("interop/numpyro.py", *change) as package:
            import hamcmc.interop.numpyro  # noqa: F401 (of the mutant)

            package.interop.numpyro.NumpyroPosterior._check_sum = lambda self: None
            posterior = package.interop.from_numpyro(hierarchical, X, GROUP, 3, y=Y)
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                check_density(posterior, hierarchical, X, GROUP, 3, y=Y)


class TestRun:
    def test_draws_are_those_of_the_exact_posterior(self, optimised):
        """Gamma(2, 1) and 4 exponential data: Gamma(6, 1 + Σy), in its support and under its name."""
        y = np.array([0.3, 1.1, 0.2, 0.7], np.float32)
        posterior = from_numpyro(waiting, y)
        result = hamcmc.sample(
            posterior, "sghmc", posterior.init, step_size=0.02, num_samples=1500, thin=8, warmup=300, chains=4,
            progress=False, friction=0.5,
        )  # fmt: skip
        data = to_arviz(result, posterior, log_likelihood=True)
        exact = stats.gamma(2 + len(y), scale=1 / (1 + y.sum()))
        rate = data.posterior["rate"].values
        size = rate.size / 8  # effective: they are more
        error = lambda values, power: abs(np.mean(values**power) / exact.moment(power) - 1)
        spread = lambda power: np.sqrt((exact.moment(2 * power) / exact.moment(power) ** 2 - 1) / size)
        for power in (1, 2):
            assert error(rate, power) < 4 * spread(power) + 0.02
        # Without the Jacobian it would be Gamma(5, …): that the test could tell.
        other = stats.gamma(1 + len(y), scale=1 / (1 + y.sum()))
        assert abs(other.mean() / exact.mean() - 1) > 4 * spread(1) + 0.02
        assert_allclose(data.posterior["mean"], 1 / rate, rtol=1e-5)
        assert_allclose(data.observed_data["y"], y)
        assert_allclose(
            data.log_likelihood["log_likelihood"], np.log(rate)[..., None] - rate[..., None] * y, rtol=1e-4, atol=1e-4
        )

    def test_deterministic_sites(self, posterior):
        draws = {n: jnp.stack([x, 2 * x])[None] for n, x in posterior.init(jax.random.key(0)).items()}
        found = posterior.deterministic(draws)
        assert set(found) == {"length"}  # and not `mean`, which has one entry per datum
        assert_allclose(found["length"], jnp.sum(draws["w"] ** 2, -1), rtol=1e-5)


class TestModelsThatDoNotFit:
    def refuses(self, model, *args, match, **kwargs):
        with pytest.raises(ValueError, match=match):
            from_numpyro(model, *args, **kwargs)

    def test_latent_sites(self):
        def discrete(y):
            k = numpyro.sample("k", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

        def local(y):
            with numpyro.plate("data", len(y)):
                z = numpyro.sample("z", dist.Normal(0, 1))
                numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

        def none(y):
            numpyro.sample("y", dist.Normal(0, 1.0), obs=y)

        def dynamic(y):
            a = numpyro.sample("a", dist.HalfNormal(1.0))
            b = numpyro.sample("b", dist.Uniform(0, a))
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

        def param(y):
            a = numpyro.param("a", 0.0)
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

        self.refuses(discrete, Y, match="site k is discrete")
        self.refuses(local, Y, match="site z is local")
        self.refuses(hierarchical, X, GROUP, 3, match="site y is local.*give the model its observations")
        self.refuses(none, Y, match="no latent sites")
        self.refuses(dynamic, Y, match="site b: its support depends")
        self.refuses(param, Y, match="site a is a numpyro.param")

    def test_sizes(self):
        def own_size(y):
            a = numpyro.sample("a", dist.Normal(0, 1))
            with numpyro.plate("data", N):
                numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

        def weighted(y):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y + jnp.arange(N))

        def subsampled(y):
            a = numpyro.sample("a", dist.Normal(0, 1))
            with numpyro.plate("data", len(y), subsample_size=5) as rows:
                numpyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])

        def two_sizes(y, z):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)
            numpyro.sample("z", dist.Normal(a, 2.0), obs=z)

        self.refuses(two_sizes, Y, Y[:5], match="which arguments have one row per datum.*y: 12, z: 5")
        posterior = from_numpyro(two_sizes, Y, Y[:5], fixed=("z",))  # a part of the prior, then
        assert posterior.observed == ("y",)
        self.refuses(own_size, Y, match="plate data has a size of its own")
        self.refuses(weighted, Y, match="cannot be run on 2 of its 12 rows")
        self.refuses(subsampled, Y, match="plate data draws a subsample")
        self.refuses(no_plate, X, Y[:5], match="which arguments|broadcast")
        self.refuses(no_plate, X, Y, fixed=("z",), match="no argument z")

    def test_data_prepared_inside(self):
        def centred(y):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y - y.mean())

        def scaled_prior(y):
            a = numpyro.sample("a", dist.Normal(0, 1 / len(y)))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

        self.refuses(centred, Y, match="the likelihood is not that of a model with one term per datum")
        self.refuses(scaled_prior, Y, match="the prior is not that of a model with one term per datum")

    def test_an_array_that_is_no_data(self):
        def scales(y, scale):
            a = numpyro.sample("a", dist.Normal(0, scale).to_event(1))
            numpyro.sample("y", dist.Normal(a.sum(), 1.0), obs=y)

        self.refuses(scales, Y[:2], X[0], match="no data|local|one term per datum|cannot be run")
        posterior = from_numpyro(scales, Y[:2], np.abs(X[0]), fixed=("scale",))
        assert set(posterior.data) == {"y"}
        assert posterior.init(jax.random.key(0))["a"].shape == (2,)


def test_gradients_of_a_simplex_are_not_stored():
    """It has a number more than the space in which it is sampled."""

    def model(x):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", dist.Categorical(share), obs=x)

    posterior = from_numpyro(model, np.array([0, 1, 2, 2]))
    with pytest.raises(ValueError, match="store_gradients is not available: share has shape"):
        hamcmc.sample(posterior, "sgld", {"share": jnp.ones(3) / 3}, step_size=0.1, num_samples=2, store_gradients=True)
