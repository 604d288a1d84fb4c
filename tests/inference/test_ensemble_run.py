"""An ensemble in the run loop: replicas are stored as chains, share their ensemble's infos, and learn in warm-up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc


@pytest.fixture(scope="module")
def correlated():
    """A Gaussian in two leaves: sd 1 and 0.1 along two rotated directions, and 3 alone."""
    a = np.array([[101.0, 99.0], [99.0, 101.0]]) / 2

    def log_density(theta):
        return -0.5 * (theta["xy"] @ jnp.asarray(a, jnp.float32) @ theta["xy"] + theta["z"] ** 2 / 9)

    return hamcmc.Posterior(log_density), {"xy": jnp.zeros(2), "z": jnp.zeros(())}


def test_replicas_are_chains(correlated, tmp_path):
    """Of two ensembles of six; moments, summaries and ArviZ see twelve chains, and their law is right."""
    posterior, start = correlated
    result = hamcmc.sample(
        posterior, "ensemble_hamcmc", start, step_size=1.0, pairs=2, adapt=200, num_samples=1000, thin=2, ensembles=2
    )
    assert result.settings["warmup"] == 200
    assert result.posterior["xy"].shape == (12, 1000, 2)
    assert result.sample_stats["pairs_accepted"].shape == (12, 1000)
    assert result.meta["gradients"] == 2200 * 2 * 3
    table = result.summary()
    exact = np.sqrt([0.505, 0.505, 9.0])  # the average of variances 1 and 0.01; 9
    error = table["sd"] / exact - 1
    assert (table["ess_bulk"] > 2000).all()
    assert (np.abs(error) < 4.5 / np.sqrt(2 * table["ess_bulk"])).all(), table
    assert (np.abs(table["mean"]) < 4.5 * table["mcse"]).all(), table
    assert (table["r_hat"] < 1.02).all()
    pooled = np.concatenate([result.posterior["xy"].var((0, 1)), [result.posterior["z"].var()]])
    np.testing.assert_allclose(np.concatenate([result.variance["xy"], [result.variance["z"]]]), pooled, rtol=0.1)
    assert result.to_arviz().posterior.sizes["chain"] == 12


@pytest.mark.parametrize("sampler", ["ensemble_hmc", pytest.param("ensemble_hamcmc", marks=pytest.mark.slow)])
def test_an_ensemble_draws_beside_another_what_it_draws_alone(correlated, sampler):
    """Each has keys of its own and a thread of its own."""
    posterior, start = correlated
    how = {"step_size": 0.5, "adapt": 20, "num_samples": 30, "seed": 3}
    alone, both = (hamcmc.sample(posterior, sampler, start, ensembles=n, **how).posterior for n in (1, 2))
    for name, x in alone.items():
        first, second = np.split(both[name], 2)
        np.testing.assert_array_equal(first, x)
        assert not np.array_equal(first, second)


@pytest.mark.slow
def test_dispersed_start(correlated):
    """A function of a key starts every replica elsewhere."""
    posterior, _ = correlated
    init = lambda key: {"xy": jax.random.normal(key, (2,)), "z": jax.random.normal(key)}
    result = hamcmc.sample(posterior, "ensemble_hamcmc", init, step_size=1e-9, pairs=1, metric=None, num_samples=1)
    assert len(np.unique(result.posterior["z"])) == 4


def test_resume_is_bit_identical(correlated, tmp_path, short_segments):
    short_segments(40)
    posterior, start = correlated
    run = {"step_size": 0.5, "pairs": 1, "adapt": 100, "num_samples": 100, "store_gradients": True}
    whole = hamcmc.sample(posterior, "ensemble_underdamped", start, out=tmp_path / "whole", **run)
    statuses = []

    def stop(status):
        statuses.append(status)
        if len(statuses) == 3:
            signal_self()

    with pytest.raises(hamcmc.Interrupted):
        hamcmc.sample(posterior, "ensemble_underdamped", start, out=tmp_path / "cut", progress=stop, **run)
    resumed = hamcmc.resume(tmp_path / "cut", posterior, start)
    assert statuses[-1].iteration < 200
    for group in ("posterior", "gradients"):
        for name, x in getattr(whole, group).items():
            assert np.array_equal(x, getattr(resumed, group)[name])


def signal_self():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGINT)


def test_what_does_not_go_together(model, correlated):
    posterior, start = correlated
    with pytest.raises(ValueError, match="warmup must be at least 1000"):
        hamcmc.sample(posterior, "ensemble_hamcmc", start, step_size=1.0, warmup=10)
    with pytest.raises(ValueError, match="batch_size"):
        hamcmc.sample(model, "ensemble_adjusted", jnp.zeros(3), step_size=1.0, batch_size=10)
    with pytest.raises(ValueError, match="chains: ensemble_hamcmc is an ensemble of 4 chains; say with ensembles="):
        hamcmc.sample(posterior, "ensemble_hamcmc", start, step_size=1.0, pairs=1, chains=2)
    with pytest.raises(ValueError, match="ensembles: sgld is not an ensemble sampler; say with chains="):
        hamcmc.sample(posterior, "sgld", start, step_size=1.0, ensembles=2)
    mirrored = hamcmc.Posterior(lambda t: -t["a"], support={"a": hamcmc.positive(by="mirror")})
    with pytest.raises(ValueError, match="bijection"):
        hamcmc.sample(mirrored, "ensemble_adjusted", {"a": jnp.ones(())}, step_size=1.0)


def test_what_replicas_share_is_counted_once():
    """Chains with a common part of the given share of their variance, against the variance of their pooled mean."""
    from hamcmc.diagnostics.ess import effective_size, independent_share

    rng = np.random.default_rng(0)
    for common in (0.0, 0.2):
        x = np.sqrt(1 - common) * rng.normal(size=(20, 2000)) + np.sqrt(common) * rng.normal(size=2000)
        exact = 1 / (common + (1 - common) / 20) * 2000  # Var x over the variance of the mean
        found = independent_share(x, 20) * effective_size(x, np.ones(2000), "mean")
        assert found == pytest.approx(exact, rel=0.15)
    assert independent_share(x, 1) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("make", [hamcmc.ensemble_hamcmc, hamcmc.ensemble_underdamped])
def test_steps_grow_while_a_metric_is_learned(make, model):
    """From nothing to ε in the first eighth: replicas start close together, and H is not to be trusted yet."""
    sampler = make(model.grad, pairs=2, metric="diagonal", adapt=80)
    position = 0.1 * jax.random.normal(jax.random.key(0), (6, 3))
    state, step = sampler.init(position), jax.jit(sampler.step)
    moved = {t: step(jax.random.key(1), state._replace(step=jnp.int32(t)), model.data, 0.01)[0] for t in (0, 4, 10, 50)}
    size = {t: float(jnp.linalg.norm(s.position - position)) for t, s in moved.items()}
    assert size[10] == size[50]
    assert size[0] / size[50] == pytest.approx(np.sqrt(1 / 10), rel=0.15)  # noise is most of it
    assert size[4] / size[50] == pytest.approx(np.sqrt(5 / 10), rel=0.15)


@pytest.mark.slow
def test_a_precision_that_only_this_thread_has_is_honoured():
    with jax.enable_x64(True):
        posterior = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(2))
        for how in ({}, {"sampler": "ensemble_hmc", "adapt": 20, "num_samples": 10, "ensembles": 2}):
            assert hamcmc.sample(posterior, progress=False, **how).posterior["theta"].dtype == np.float64
