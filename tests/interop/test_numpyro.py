"""NumPyro models as posteriors: NumPyro's own density, an exact conjugate posterior, and models that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpy.testing import assert_allclose, assert_array_equal
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
    @pytest.mark.slow
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
            ("if n not in self.observed), jnp", 'if n not in self.observed and n != "soft"), jnp'),
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
        assert_allclose(data.log_likelihood["y"], np.log(rate)[..., None] - rate[..., None] * y, rtol=1e-4, atol=1e-4)

    def test_deterministic_sites(self, posterior):
        draws = {n: jnp.stack([x, 2 * x])[None] for n, x in posterior.init(jax.random.key(0)).items()}
        found = posterior.deterministic(draws)
        assert set(found) == {"length"}  # and not `mean`, which has one entry per datum
        assert_allclose(found["length"], jnp.sum(draws["w"] ** 2, -1), rtol=1e-5)


def subsampled(x, y, size, batch):
    """As the documentation of NumPyro has it, by indices and by ``numpyro.subsample``."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.factor("soft", -jnp.sum(w**4))
    with numpyro.plate("data", size, subsample_size=batch) as rows:
        mean = numpyro.deterministic("mean", x[rows] @ w)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=numpyro.subsample(y, event_dim=0))


class TestSubsamples:
    @pytest.mark.parametrize("batch", [5, N])
    def test_our_minibatches_replace_those_of_a_plate(self, batch):
        posterior = from_numpyro(subsampled, X, Y, N, batch)
        assert posterior.size == N
        assert set(posterior.data) == {"x", "y"}
        assert posterior.all_data is None
        check_density(posterior, subsampled, jnp.asarray(X), jnp.asarray(Y), N, None)

    def test_the_plate_says_which_arrays_are_data(self):
        def model(x, y, z):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("z", dist.Normal(a, 2.0), obs=z)
            with numpyro.plate("data", len(y), subsample_size=3) as rows:
                numpyro.sample("y", dist.Normal(a * x[rows, 0], 1.0), obs=y[rows])

        posterior = from_numpyro(model, X, Y, Y[:5])
        assert set(posterior.data) == {"x", "y"}
        assert posterior.observed == ("y",)

    def test_a_factor_for_each_row_is_a_likelihood(self):
        def model(y, batch=None):
            a = numpyro.sample("a", dist.Normal(0, 1))
            with numpyro.plate("data", N, subsample_size=batch):
                numpyro.factor("own", -jnp.abs(numpyro.subsample(y, event_dim=0) - a))

        posterior = from_numpyro(model, Y, 4)
        assert posterior.observed == ("own",)
        assert posterior.observations() == {}
        check_density(posterior, model, Y)

    def test_a_scale_of_the_user_stays(self):
        def model(y, batch=None):
            a = numpyro.sample("a", dist.Normal(0, 1))
            with numpyro.handlers.scale(scale=0.3), numpyro.plate("data", N, subsample_size=batch):
                numpyro.sample("y", dist.Normal(a, 1.0), obs=numpyro.subsample(y, event_dim=0))

        check_density(from_numpyro(model, Y, 4), model, Y)


SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)
EFFECT = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)


def schools(schools, sigma, y=None):
    """One latent variable for each datum."""
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", schools):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def process(x, y):
    """A Gaussian process: one observed site that is no sum."""
    length, noise = numpyro.sample("length", dist.LogNormal(0, 1)), numpyro.sample("noise", dist.LogNormal(0, 1))
    covariance = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + noise * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def looks_at_data(group, y):
    """The number of groups is found in the data, as tutorials do."""
    groups = len(np.unique(group))
    with numpyro.plate("groups", groups):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)


def half_seen(x, y, seen):
    """Some observations are missing."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(a * x, 1.0), obs=y, obs_mask=seen)


class TestOnAllData:
    def check(self, model, *args, why):
        posterior = from_numpyro(model, *args)
        assert posterior.size == 0
        assert why in posterior.all_data
        assert why in repr(posterior)
        u = posterior.unconstrain_unchecked(posterior.init(jax.random.key(3)))
        assert_allclose(posterior.log_density(u), -potential_energy(model, args, {}, u), rtol=1e-4)
        return posterior

    @pytest.mark.slow
    def test_a_latent_variable_for_each_datum(self, tmp_path):
        posterior = self.check(schools, 8, SIGMA, EFFECT, why="site z has one value per datum")
        assert posterior.dims == {n: ["school"] for n in ("z", "theta", "y")}
        start = {"mu": jnp.zeros(()), "tau": jnp.ones(()), "z": jnp.zeros(8)}  # by hand
        result = hamcmc.sample(
            posterior, "sgld", start, step_size=0.01, num_samples=6, chains=2, progress=False, out=tmp_path / "run"
        )
        names = list("ABCDEFGH")
        data = to_arviz(result, posterior, log_likelihood=True, predictive=True, coords={"school": names})
        theta = data.posterior["theta"]
        assert theta.dims == ("chain", "draw", "school")
        assert theta.sel(school="C").shape == (2, 6)
        mu, tau, z = (data.posterior[n].values for n in ("mu", "tau", "z"))
        assert_allclose(theta, mu[..., None] + tau[..., None] * z, rtol=1e-5)
        assert_array_equal(data.observed_data["y"].sel(school=names), EFFECT)
        assert_allclose(data.log_likelihood["y"], stats.norm.logpdf(EFFECT, theta, SIGMA), rtol=1e-4)
        assert data.posterior_predictive["y"].dims == ("chain", "draw", "school")
        # The draws have deterministic sites, whoever asks for them.
        assert_array_equal(result.to_arviz().posterior["theta"], theta)
        assert "theta" not in to_arviz(tmp_path / "run").posterior
        with pytest.raises(ValueError, match="batch_size was given, but this posterior has no data"):
            hamcmc.sample(posterior, "sgld", step_size=0.01, batch_size=4)

    def test_predictions_have_the_spread_of_the_model(self):
        posterior = from_numpyro(schools, 8, SIGMA, EFFECT)
        theta = {"mu": jnp.float32(3.0), "tau": jnp.float32(1e-6), "z": jnp.zeros(8)}
        made = jax.vmap(lambda k: posterior.predictive(k, theta)["y"])(jax.random.split(jax.random.key(0), 4000))
        assert_allclose(made.mean(0), 3.0, atol=4 * 18 / 4000**0.5)
        assert_allclose(made.std(0) / SIGMA, 1, atol=4 / 8000**0.5)

    def test_a_likelihood_that_is_no_sum(self):
        self.check(process, X[:, 0], Y, why="with one term per datum")

    def test_a_size_that_is_found_in_the_data(self):
        posterior = self.check(looks_at_data, GROUP, Y, why="cannot be run on 1 of its 12 rows")
        assert posterior.dims["a"] == ["groups"]

    def test_observations_that_are_missing(self):
        """NumPyro gives an ``obs_mask`` a flat density, which has no draws. A mask around the site is fine."""
        seen = np.arange(N) % 3 > 0
        with pytest.raises(ValueError, match="site y has an obs_mask.*numpyro.handlers.mask"):
            from_numpyro(half_seen, X[:, 0], Y, seen)

        def masked(x, y, seen):
            a = numpyro.sample("a", dist.Normal(0, 1))
            with numpyro.plate("data", len(y)), numpyro.handlers.mask(mask=seen):
                numpyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

        posterior = from_numpyro(masked, X[:, 0], Y, seen)
        assert posterior.size == N
        check_density(posterior, masked, X[:, 0], Y, seen)

    @pytest.mark.slow
    def test_another_set_of_data_is_not_taken_for_the_same(self, tmp_path):
        """The density of such a model has its data inside: a run must not go on with others."""
        first, second = (from_numpyro(schools, 8, SIGMA, y) for y in (EFFECT, EFFECT + 1))
        assert first.checksum() != second.checksum()
        assert first.checksum() == from_numpyro(schools, 8, SIGMA, EFFECT).checksum()
        hamcmc.sample(first, "sgld", step_size=0.01, num_samples=6, out=tmp_path / "run", progress=False)
        settings = hamcmc.Result.open(tmp_path / "run").settings
        assert settings["data_checksum"] == first.checksum()

    def test_many_rows_without_minibatches_are_said(self):
        def model(y):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y - y.mean())

        with pytest.warns(UserWarning, match="each step takes all 10,001 rows.*one term per datum"):
            from_numpyro(model, np.arange(10_001, dtype=np.float32))


def test_starts_by_a_strategy_of_numpyro():
    posterior = from_numpyro(waiting, Y[:4] ** 2, init_strategy=numpyro.infer.init_to_value(values={"rate": 3.5}))
    assert_allclose(posterior.init(jax.random.key(5))["rate"], 3.5)


class TestModelsThatDoNotFit:
    def refuses(self, model, *args, match, **kwargs):
        with pytest.raises(ValueError, match=match):
            from_numpyro(model, *args, **kwargs)

    def test_latent_sites(self):
        def discrete(y):
            k = numpyro.sample("k", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

        def none(y):
            numpyro.sample("y", dist.Normal(0, 1.0), obs=y)

        def dynamic(y):
            a = numpyro.sample("a", dist.HalfNormal(1.0))
            b = numpyro.sample("b", dist.Uniform(0, a))
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

        def param(y):
            a = numpyro.param("a", 0.0)
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

        self.refuses(discrete, Y, match="site k is discrete.*MixtureSameFamily")
        self.refuses(hierarchical, X, GROUP, 3, match=r"observes nothing: give it its observations \(y is None\)")
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

        def two_sizes(y, z):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)
            numpyro.sample("z", dist.Normal(a, 2.0), obs=z)

        assert "which arguments have one row per datum? Lengths are y: 12, z: 5" in (
            from_numpyro(two_sizes, Y, Y[:5]).all_data
        )
        posterior = from_numpyro(two_sizes, Y, Y[:5], fixed=("z",))  # a part of the prior, then
        assert posterior.observed == ("y",)
        assert from_numpyro(own_size, Y).size == N
        assert "cannot be run on 2 of its 12 rows" in from_numpyro(weighted, Y).all_data
        self.refuses(no_plate, X, Y[:5], match="broadcast|shapes disagree")
        self.refuses(no_plate, X, Y, fixed=("z",), match="no argument z")

    def test_data_prepared_inside(self):
        def centred(y):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y - y.mean())

        def scaled_prior(y):
            a = numpyro.sample("a", dist.Normal(0, 1 / len(y)))
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

        for model, what in ((centred, "likelihood"), (scaled_prior, "prior")):
            assert f"the {what} is not that of a model with one term per datum" in from_numpyro(model, Y).all_data

    def test_an_array_that_is_no_data(self):
        def scales(y, scale):
            a = numpyro.sample("a", dist.Normal(0, scale).to_event(1))
            numpyro.sample("y", dist.Normal(a.sum(), 1.0), obs=y)

        assert from_numpyro(scales, Y[:2], np.abs(X[0])).all_data
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


@pytest.mark.slow
def test_a_simplex_and_a_cholesky_factor_are_judged_where_they_are_sampled():
    """Their numbers are not free: some never move, which must not be taken for chains that are stuck."""

    def model(x):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        factor = numpyro.sample("factor", dist.LKJCholesky(2, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("x", dist.MultivariateNormal(share[:2], scale_tril=factor), obs=x)

    posterior = from_numpyro(model, RNG.normal(size=(50, 2)).astype(np.float32))
    result = hamcmc.sample(
        posterior, "sgld", step_size=0.005, num_samples=50, thin=20, warmup=200, chains=4, progress=False
    )
    verdict = result.check()
    assert verdict.parameters == 3  # 2 of the simplex and 1 of the correlation
    assert verdict.gradients
    assert not [r for r in verdict.reasons if "never moves" in r or "last digit" in r]
    assert {row.name for row in verdict.worst} <= {
        "share (unconstrained)[0]", "share (unconstrained)[1]", "factor (unconstrained)[0]"
    }  # fmt: skip
    assert np.isnan(result.summary()["ess_bulk"]).sum() == 2  # 1 and 0 of the factor
    part = hamcmc.sample(
        posterior, "sgld", step_size=0.005, num_samples=50, thin=20, chains=4, store=["factor"], progress=False
    ).check()
    assert [row.name for row in part.worst] == ["factor (unconstrained)[0]"]
    assert not [r for r in part.reasons if "never moves" in r or "last digit" in r]
