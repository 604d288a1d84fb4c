"""Diagnostics against hand-computed values, ArviZ, autodiff and exact posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.diagnostics import cost, ess, ksd, ksd_of, stein, summaries, summary
from hamcmc.target import linear_gaussian as lg
from tests.report.results import make_result

RNG = np.random.default_rng


def autoregressive(rng, shape, rho=0.5):
    """AR(1) draws (chain, draw) with variance 1."""
    x = rng.standard_normal(shape)
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x


class TestSummary:
    def test_weighted_values_by_hand(self):
        # Weights 1, 2, 1: mean (1·0 + 2·3 + 1·8)/4 = 3.5, variance (12.25 + 2·0.25 + 20.25)/4 = 8.25. Draws stand at
        # 1/8, 4/8 and 7/8 of the weight: the median is 3, the 5 % quantile the first draw, the 95 % the last.
        table = summary(make_result({"x": np.array([[0.0, 3.0, 8.0]])}, np.array([1.0, 2.0, 1.0])))
        row = {c: v[0] for c, v in table.columns.items()}
        assert row["mean"] == pytest.approx(3.5)
        assert row["sd"] == pytest.approx(np.sqrt(8.25))
        assert (row["q5"], row["q50"], row["q95"]) == pytest.approx((0.0, 3.0, 8.0))

    def test_quantiles_interpolate_between_the_middles_of_weights(self):
        x, w = np.array([10.0, 0.0]), np.array([3.0, 1.0])  # 0 at 1/8, 10 at 5/8
        assert_allclose(summaries.weighted_quantiles(x, w, [0.1, 0.375, 0.7]), [0.0, 5.0, 10.0])

    def test_quantiles_of_equal_weights_are_hazens(self):
        x = RNG(0).standard_normal(101)
        q = [0.05, 0.5, 0.95]
        assert_allclose(
            summaries.weighted_quantiles(x, np.full(101, 0.3), q), np.quantile(x, q, method="hazen"), atol=1e-12
        )

    def test_ess_and_r_hat_are_arvizs_for_equal_weights(self):
        az = ess.arviz()
        x = autoregressive(RNG(1), (4, 300))
        table = summary(make_result({"x": x}, np.full(300, 0.1)))
        assert table["ess_bulk"][0] == pytest.approx(az.ess(x, method="bulk"), rel=1e-12)
        assert table["ess_tail"][0] == pytest.approx(az.ess(x, method="tail"), rel=1e-12)
        assert table["r_hat"][0] == pytest.approx(az.rhat(x), rel=1e-12)
        assert table["mcse"][0] == pytest.approx(x.std() / np.sqrt(az.ess(x, method="mean")), rel=1e-12)
        assert table.notes == ()

    def test_weights_shrink_the_ess_by_kishs_factor(self):
        x, w = autoregressive(RNG(1), (2, 300)), 1.0 / np.arange(1, 301)
        plain, weighted = (summary(make_result({"x": x}, e)) for e in (None, w))
        factor = w.sum() ** 2 / (300 * (w**2).sum())
        assert weighted["ess_bulk"][0] == pytest.approx(plain["ess_bulk"][0] * factor)
        assert "Kish" in weighted.notes[0]

    def test_mcse_covers_the_weighted_mean(self):
        # 150 runs as entries of one parameter: the spread of their weighted means is the mean of their MCSEs.
        table = summary(make_result({"x": RNG(0).standard_normal((1, 100, 150))}, np.arange(1, 101) ** -0.5))
        assert table["mean"].std() == pytest.approx(table["mcse"].mean(), rel=0.2)  # sd of an sd of 150: 6 %

    def test_names_of_entries(self):
        draws = {"W": np.ones((1, 2, 2, 3)), "s": np.ones((1, 2))}
        table = summary(make_result(draws))
        assert table.names == ("W[0, 0]", "W[0, 1]", "W[0, 2]", "W[1, 0]", "W[1, 1]", "W[1, 2]", "s")
        assert summary(make_result(draws), ["s"]).names == ("s",)
        with pytest.raises(ValueError, match=r"names has V; the parameters are W, s"):
            summary(make_result(draws), ["V"])

    def test_rows_belong_to_their_entries(self):
        x = RNG(0).standard_normal((2, 50, 3, 4))
        table = summary(make_result({"a": np.zeros((2, 50)), "x": x}), limit=5)
        assert table.names == ("a", "x[0, 0]", "x[0, 3]", "x[1, 3]", "x[2, 3]")
        assert_allclose(table["mean"][1:], x.mean((0, 1))[[0, 0, 1, 2], [0, 3, 3, 3]], atol=1e-12)

    def test_many_entries_are_cut_and_counted(self):
        table = summary(make_result({"W": RNG(0).standard_normal((1, 8, 1000)), "s": np.ones((1, 8))}))
        assert len(table) == 200
        assert table.total == 1001
        assert table.names[0] == "W[0]"
        assert table.names[-2:] == ("W[999]", "s")
        assert "801 are left out" in table.notes[0]
        assert table.notes[0] in str(table)

    @pytest.mark.parametrize("draws", [0, 1, 2, 3])
    def test_few_draws(self, draws):
        table = summary(make_result({"x": RNG(0).standard_normal((2, draws))}))
        assert np.isnan(table["ess_bulk"][0])
        assert np.isnan(table["r_hat"][0])
        assert f"there are {draws}" in table.notes[0]
        assert np.isnan(table["mean"][0]) == (draws == 0)

    def test_one_chain_has_no_r_hat_and_says_so(self):
        table = summary(make_result({"x": RNG(0).standard_normal((1, 100))}))
        assert np.isnan(table["r_hat"][0])
        assert table["ess_bulk"][0] > 30
        assert "2 chains" in table.notes[0]

    def test_constant_draws(self):
        table = summary(make_result({"x": np.full((2, 50), 3.0)}))
        assert (table["mean"][0], table["sd"][0], table["q95"][0]) == (3.0, 0.0, 3.0)
        assert np.isnan(table["ess_bulk"][0])
        assert "never moved" in table.notes[0]

    def test_interleaved_chains_are_seen_apart(self):
        # Three independent slow chains that take turns, as in HAMCMC with M = 3: the mean of 6000 draws varies
        # as that of 3 chains of 2000, so ESS = 6000 (1 − ρ) / (1 + ρ), whereas successive draws look independent.
        x = autoregressive(RNG(0), (4 * 3, 2000), rho=0.9).reshape(4, 3, 2000)
        x = np.moveaxis(x, 1, 2).reshape(4, 6000)
        table = summary(make_result({"x": x}, interleaved=3))
        true = 4 * 6000 * 0.1 / 1.9
        assert table["ess_bulk"][0] == pytest.approx(true, rel=0.2)
        assert summary(make_result({"x": x}))["ess_bulk"][0] > 3 * true
        assert "3 interleaved" in table.notes[0]

    @pytest.mark.parametrize(("memory", "thin", "apart"), [(3, 1, 3), (3, 6, 1), (4, 6, 2), (2, 5, 2)])
    def test_thinning_passes_by_some_interleaved_chains(self, memory, thin, apart):
        assert ess.interleaved({"interleaved": memory, "thin": thin}) == apart
        assert ess.interleaved({"sampler": {"sampler": "naive", "memory": memory}, "thin": thin}) == 1

    def test_parts_are_every_nth_draw(self):
        found = ess.part(np.arange(14).reshape(2, 7), 3)
        assert_array_equal(found, [[1, 4], [2, 5], [3, 6], [8, 11], [9, 12], [10, 13]])

    def test_text_and_pandas(self):
        table = summary(make_result({"mu": RNG(0).standard_normal((2, 50)), "s": np.ones((2, 50))}))
        lines = str(table).splitlines()
        assert lines[0].split() == ["mean", "sd", "mcse", "q5", "q50", "q95", "ess_bulk", "ess_tail", "r_hat"]
        assert lines[1].startswith("mu ")
        assert lines[2].split()[:3] == ["s", "1", "0"]
        assert table.to_pandas().loc["mu", "mean"] == table["mean"][0]


class TestCost:
    def test_by_hand(self):
        fast, slow = RNG(0).standard_normal((2, 400)), autoregressive(RNG(1), (2, 400), rho=0.95)
        result = make_result({"fast": fast, "slow": slow}, meta={"gradients": 4000, "seconds": 3.0})
        c = cost(result)
        assert (c.gradients, c.seconds, c.draws, c.slowest) == (4000, 3.0, 800, "slow")
        assert c.ess == summary(result)["ess_bulk"][1]
        assert c.gradients_per_draw == 5.0
        assert c.seconds_per_draw == 3.0 / 800
        assert c.gradients_per_effective_sample == 4000 / c.ess
        assert c.seconds_per_effective_sample == 3.0 / c.ess

    def test_without_draws(self):
        c = cost(make_result({"x": np.empty((2, 0))}))
        assert c.slowest is None
        assert np.isnan([c.gradients_per_draw, c.gradients_per_effective_sample]).all()


def gaussian(rng, n, d, mean=0.0, sd=1.0):
    """Draws from N(mean, sd²) and the gradients of N(0, 1) at them."""
    x = mean + sd * rng.standard_normal((n, d))
    return x, -x


def dense(x, g, w, c, beta, statistic):
    """KSD² from the kernel's definition by autodiff, in double precision."""
    k = lambda x, y: (c**2 + jnp.sum((x - y) ** 2)) ** beta
    k_x, k_y = jax.grad(k), jax.grad(k, 1)
    k_xy = jax.jacfwd(k_x, 1)
    k0 = lambda x, y, a, b: a @ b * k(x, y) + a @ k_y(x, y) + b @ k_x(x, y) + jnp.trace(k_xy(x, y))
    terms = jax.vmap(jax.vmap(k0, (None, 0, None, 0)), (0, None, 0, None))(x, x, g, g)
    weights = np.outer(w, w) * (1 - np.eye(len(w)) if statistic == "U" else 1)
    return float((weights * terms).sum() / weights.sum())


class TestKSD:
    @pytest.mark.parametrize(("c", "beta", "statistic"), [(1.0, -0.5, "U"), (2.5, -0.3, "V")])
    def test_kernel_is_that_of_the_definition(self, statistic, c, beta):
        rng = RNG(0)
        x, g, w = 5 + rng.standard_normal((601, 3)), rng.standard_normal((601, 3)), rng.uniform(0.5, 2, 601)
        with jax.enable_x64(True):  # 601 draws: two blocks, the second one shorter
            found = ksd(x, g, w, c=c, beta=beta, statistic=statistic).squared
            assert found == pytest.approx(dense(x, g, w, c, beta, statistic), rel=1e-10, abs=1e-12)
        single = ksd(x, g, w, c=c, beta=beta, statistic=statistic).squared
        assert single == pytest.approx(found, rel=1e-4, abs=1e-5)

    def test_unbiased_for_exact_draws(self):
        values = [ksd(*gaussian(RNG(seed), 100, 2)) for seed in range(200)]
        squared = np.array([v.squared for v in values])
        assert abs(squared.mean()) < 4 * squared.std() / np.sqrt(200)
        assert np.mean([v.null_sd for v in values]) == pytest.approx(squared.std(), rel=0.25)

    @pytest.mark.parametrize("wrong", [{"sd": 1.3}, {"sd": 0.7}, {"mean": 0.3}])
    def test_power(self, wrong):
        exact, biased = ksd(*gaussian(RNG(1), 1000, 2)), ksd(*gaussian(RNG(1), 1000, 2, **wrong))
        assert abs(exact.squared) < 4 * exact.null_sd
        assert biased.squared > 10 * biased.null_sd

    def test_u_takes_stochastic_gradients_and_v_does_not(self):
        noise_sd, differences = 3.0, {"U": [], "V": []}
        for seed in range(100):
            rng = RNG(seed)
            x, g = gaussian(rng, 100, 2)
            noisy = g + noise_sd * rng.standard_normal(g.shape)
            for s, found in differences.items():
                found.append(ksd(x, noisy, statistic=s).squared - ksd(x, g, statistic=s).squared)
        error = np.std(differences["U"]) / 10
        assert abs(np.mean(differences["U"])) < 4 * error
        # V gains k(x, x)·E‖noise‖²/n from the pairs of a draw with itself.
        assert np.mean(differences["V"]) == pytest.approx(2 * noise_sd**2 / 100, abs=4 * error)

    def test_v_is_never_negative_and_off_by_its_diagonal(self):
        x, g = gaussian(RNG(0), 50, 3)
        u, v = (ksd(x, g, statistic=s).squared for s in ("U", "V"))
        diagonal = np.mean(np.sum(g**2, 1)) + 3  # ‖g‖² − 2βD at c = 1, β = −1/2
        assert v == pytest.approx((49 * u + diagonal) / 50, rel=1e-4)
        assert v > 0

    def test_weights_are_repetitions(self):
        x, g = gaussian(RNG(0), 40, 2)
        w = RNG(1).integers(0, 4, 40)
        repeated = ksd(np.repeat(x, w, 0), np.repeat(g, w, 0), statistic="V").squared
        assert ksd(x, g, w, statistic="V").squared == pytest.approx(repeated, rel=1e-4)

    def test_importance_weights_repair_draws(self):
        x, g = gaussian(RNG(0), 4000, 1, sd=1.4)
        log_w = -0.5 * x[:, 0] ** 2 + 0.5 * (x[:, 0] / 1.4) ** 2
        plain, weighted = ksd(x, g), ksd(x, g, np.exp(log_w))
        assert plain.squared > 10 * plain.null_sd
        assert abs(weighted.squared) < 4 * weighted.null_sd

    def test_subsample_is_evenly_spaced(self):
        x, g = gaussian(RNG(0), 1000, 2)
        rows = np.arange(5, 1000, 10)
        found = ksd(x, g, max_draws=100)
        assert found.draws == 100
        assert found.squared == pytest.approx(ksd(x[rows], g[rows]).squared, rel=1e-6)

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((np.ones((4, 2)), np.ones((4, 3))), {}, "draws and gradients"),
            ((np.ones(4), np.ones(4)), {}, "draws and gradients"),
            ((np.ones((4, 2)), np.full((4, 2), np.nan)), {}, "gradients has entries"),
            ((np.ones((4, 2)), np.ones((4, 2)), -np.ones(4)), {}, "weights"),
            ((np.ones((4, 2)), np.ones((4, 2)), np.array([0, 0, 0, 1.0])), {}, "2 draws"),
            ((np.ones((1, 2)), np.ones((1, 2))), {}, "2 draws"),
            ((np.ones((4, 2)), np.ones((4, 2))), {"statistic": "W"}, "statistic"),
            ((np.ones((4, 2)), np.ones((4, 2))), {"beta": 0.5}, "beta"),
            ((np.ones((4, 2)), np.ones((4, 2))), {"c": 0.0}, "c must be"),
            ((np.ones((4, 2)), np.ones((4, 2))), {"max_draws": 1}, "max_draws"),
        ],
    )
    def test_bad_input(self, arguments, options, message):
        with pytest.raises(ValueError, match=message):
            ksd(*arguments, **options)


@pytest.fixture(scope="module")
def study():
    """A linear Gaussian posterior with its exact form and a long SGLD run."""
    data = lg.simulate(RNG(0), 100, np.array([[1.0, 0.0], [0.5, 0.8]]), 10.0)
    posterior, exact = lg.linear_gaussian(data, 10.0), lg.exact(data, 10.0)
    step = 0.05 / np.linalg.eigvalsh(exact.precision)[-1]
    run = lambda step, **more: hamcmc.sample(
        posterior,
        "sgld",
        jnp.asarray(exact.mean, jnp.float32),
        step_size=step,
        num_samples=1000,
        warmup=500,
        thin=40,
        chains=4,
        progress=False,
        **more,
    )
    return posterior, exact, run(step, store_gradients=True), run(30 * step)


class TestEndToEnd:
    def test_summary_finds_the_exact_posterior(self, study):
        _, exact, result, _ = study
        table = summary(result)
        assert table.names == ("theta[0]", "theta[1]")
        assert (np.abs(table["mean"] - exact.mean) < 4 * table["mcse"]).all()
        # sd of an sd: sd / √(2 ESS); its bias at this step is 1.3 %
        sd = np.sqrt(np.diag(exact.covariance))
        assert_allclose(table["sd"], sd, rtol=4 / np.sqrt(2 * table["ess_bulk"].min()) + 0.013)
        assert_allclose(table["q95"] - table["q5"], 3.29 * sd, rtol=0.1)
        assert (table["r_hat"] < 1.01).all()
        assert str(result.summary()) == str(table)

    @pytest.mark.slow
    def test_ess_of_hamcmc_is_that_of_its_mean(self, study):
        posterior, exact, *_ = study
        result = hamcmc.sample(
            posterior,
            "hamcmc",
            jnp.asarray(exact.mean, jnp.float32),
            step_size=0.1,
            num_samples=3000,
            warmup=1000,
            chains=100,
            memory=3,
            gamma=float(1 / np.linalg.eigvalsh(exact.precision)[-1]),
            progress=False,
        )
        x = result.posterior["theta"]
        per_chain = x.mean(1).var(0, ddof=1)  # the variance of the mean of a chain's draws, to 14 %
        ess = summary(result)["ess_bulk"] / 100
        assert_allclose(x.var((0, 1)) / per_chain, ess, rtol=0.5)  # not taken apart it would be ten times as large

    def test_cost_counts_all_gradients(self, study):
        result = study[2]
        c = cost(result)
        assert c.gradients == 4 * (500 + 40 * 1000)
        assert c.seconds > 0
        assert c.gradients_per_effective_sample > c.gradients_per_draw

    def test_stored_and_computed_gradients_agree(self, study):
        posterior, _, result, _ = study
        stored = ksd_of(result, posterior)
        computed = ksd_of(make_result(result.posterior), posterior)
        assert stored.draws == computed.draws == 2000
        assert stored.squared == pytest.approx(computed.squared, abs=0.05 * stored.null_sd)
        assert ksd_of(result).squared == pytest.approx(stored.squared, abs=1e-6)

    def test_ksd_sees_too_large_a_step(self, study):
        posterior, _, good, coarse = study
        a, b = ksd_of(good, posterior), ksd_of(coarse, posterior)
        assert a.squared < 5 * a.null_sd
        assert b.squared > 20 * b.null_sd

    def test_scaling_makes_the_value_free_of_units(self, study):
        result = study[2]
        x, g = result.posterior["theta"], result.gradients["theta"]
        units = np.array([1e3, 1e-2], np.float32)
        other = make_result({"theta": x * units}, gradients={"theta": g / units})
        assert ksd_of(other).squared == pytest.approx(ksd_of(result).squared, abs=1e-3 * ksd_of(result).null_sd)
        assert ksd_of(other, scale=False).squared != pytest.approx(ksd_of(result, scale=False).squared, rel=0.1)

    def test_needs_gradients_or_a_posterior(self):
        with pytest.raises(ValueError, match="store_gradients=True"):
            ksd_of(make_result({"x": np.ones((1, 5))}))

    def test_full_gradients_are_those_of_all_data(self, study):
        posterior, exact, *_ = study
        x = RNG(0).standard_normal((5, 2)).astype(np.float32)
        found = stein._full_gradients(posterior, jnp.asarray(x), rows=40)  # 100 data: a shorter last part
        assert_allclose(found, (exact.mean - x) @ exact.precision, rtol=1e-4, atol=1e-2)

    def test_supports_and_structures(self):
        # τ ~ Gamma(3, 1), sampled as log τ; μ ~ N(0, 1). Exact draws, weighted equally.
        prior = lambda p: 2 * jnp.log(p["tau"]) - p["tau"] - 0.5 * p["mu"] ** 2
        posterior = hamcmc.Posterior(prior, support={"tau": hamcmc.positive()})
        rng = RNG(0)
        draws = {"mu": rng.standard_normal((2, 500)), "tau": rng.gamma(3.0, size=(2, 500))}
        good = ksd_of(make_result(draws), posterior)
        bad = ksd_of(make_result(draws | {"tau": 1.3 * draws["tau"]}), posterior)
        assert abs(good.squared) < 4 * good.null_sd
        assert bad.squared > 10 * bad.null_sd

        nested = hamcmc.Posterior(lambda p: -0.5 * p["a"]["b"] ** 2)
        result = make_result({"a.b": draws["mu"]})
        with pytest.raises(ValueError, match="give init"):
            ksd_of(result, nested)
        assert abs(ksd_of(result, nested, init={"a": {"b": 0.0}}).squared) < 0.1
        keyed = hamcmc.Posterior(lambda p: -0.5 * p["theta"] ** 2)
        assert abs(ksd_of(make_result({"theta": draws["mu"]}), keyed).squared) < 0.1


def test_choice_is_fair_and_complete():
    found = summaries.choose({"big": 1000, "small": 3, "middle": 40}, 50)
    assert {n: len(i) for n, i in found.items()} == {"big": 24, "small": 3, "middle": 23}
    assert_array_equal(found["small"], [0, 1, 2])
    assert all(len(np.unique(i)) == len(i) for i in found.values())
    assert {n: len(i) for n, i in summaries.choose({"a": 300, "b": 1}, None).items()} == {"a": 300, "b": 1}
