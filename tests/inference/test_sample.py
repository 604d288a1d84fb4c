"""The run loop: what is stored, when, with which weight; and that a run is what it would be by hand."""

import io

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc import samplers
from hamcmc.inference import compiled as loop
from hamcmc.target import minibatch

BY_HAND = {"step_size": hamcmc.Polynomial(1e-4, 0.51), "warmup": 7, "thin": 3, "num_samples": 10, "batch_size": 50}


def run_by_hand(posterior, sampler, init, *, chain, seed, step_size, warmup, thin, num_samples, batch_size):
    """Every position of one chain, with nothing but init, step and the keys that a run documents."""
    keys = jax.tree.map(lambda k: k[chain], loop.keys(seed, chain + 1))
    state = sampler.init(posterior.unconstrain(init))

    @jax.jit
    def iteration(keys, state, t):
        rows = minibatch.draw(keys.batch, t, posterior.size, batch_size, True)
        batch = minibatch.gather(posterior.data, rows)
        return sampler.step(jax.random.fold_in(keys.step, t), state, batch, step_size(t))[0]

    positions = []
    for t in range(warmup + thin * num_samples):
        state = iteration(keys, state, jnp.int32(t))
        positions.append(posterior.constrain(state.position))
    return jax.tree.map(lambda *x: np.stack(x), *positions)


@pytest.mark.parametrize("name", [pytest.param("sgld", marks=pytest.mark.slow), "hamcmc"])
def test_a_run_is_what_it_would_be_by_hand(model, draw, name, x64):
    result = draw(name, seed=4, **BY_HAND)
    sampler = samplers.build(name, model)
    for chain in range(2):
        positions = run_by_hand(model, sampler, jnp.zeros(3), chain=chain, seed=4, **BY_HAND)
        stored = positions[7 + 2 :: 3]  # the last of each three iterations after warm-up
        assert_allclose(result.posterior["theta"][chain], stored, rtol=1e-8, atol=1e-9)
    t = np.arange(7 + 2, 7 + 30, 3)
    assert_allclose(result.weights, (1e-4 / (t + 1)) ** 0.51, rtol=1e-5)
    assert result.meta["iteration"] == 37
    assert result.meta["gradients"] == 37 * 2 * sampler.gradients_per_step


def test_chains_differ_and_each_is_itself_run_alone(draw):
    both, alone = draw(chains=2), draw(chains=1)
    theta = both.posterior["theta"]
    assert theta.shape == (2, 40, 3)
    assert np.abs(theta[0] - theta[1]).min() > 0
    assert_allclose(alone.posterior["theta"][0], theta[0], rtol=2e-4, atol=2e-5)
    assert np.abs(draw(seed=1).posterior["theta"] - theta).min() > 0


@pytest.mark.parametrize("thin", [pytest.param(1, marks=pytest.mark.slow), 3, 20])
def test_draws_do_not_depend_on_the_length_of_a_segment(draw, short_segments, thin):
    """A segment of 7 is shorter than thin = 20, and cuts across warm-up, draws and chunks."""
    settings = {"thin": thin, "num_samples": 10, "warmup": 25}
    whole = draw(**settings)
    short_segments(7)
    statuses = []
    cut = draw(**settings, progress=statuses.append)
    assert len(statuses) > 5
    assert_array_equal(cut.posterior["theta"], whole.posterior["theta"])
    for name, value in whole.sample_stats.items():
        assert_array_equal(cut.sample_stats[name], value)
    assert_allclose(cut.mean["theta"], whole.mean["theta"], rtol=1e-5, atol=1e-6)
    assert_allclose(cut.variance["theta"], whole.variance["theta"], rtol=1e-4)


def test_running_moments_are_those_of_all_iterations(draw, short_segments, x64):
    """Thinned draws, but moments of every iteration after warm-up, weighted by ε."""
    schedule = hamcmc.Polynomial(1e-5, 0.6)
    settings = {"step_size": schedule, "warmup": 30, "batch_size": 50}
    every = draw(**settings, thin=1, num_samples=120)
    theta, w = every.posterior["theta"], every.weights
    assert theta.dtype == np.float64
    mean = np.einsum("t,ctd->cd", w, theta) / w.sum()
    variance = np.einsum("t,ctd->cd", w, (theta - mean[:, None]) ** 2) / w.sum()
    short_segments(11)
    for result in (every, draw(**settings, thin=4, num_samples=30)):
        assert_allclose(result.mean["theta"], mean.mean(0), rtol=1e-10)
        assert_allclose(result.variance["theta"], variance.mean(0) + mean.var(0), rtol=1e-10)
    assert result.posterior["theta"].shape == (2, 30, 3)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (1e-3, lambda t: np.full(len(t), 1e-3)),
        (optax.cosine_decay_schedule(1e-3, 100), lambda t: 5e-4 * (1 + np.cos(np.pi * t / 100))),
    ],
)
def test_step_sizes_stand_beside_their_draws(draw, schedule, expected):
    result = draw(step_size=schedule, warmup=10, thin=3, num_samples=20)
    assert_allclose(result.weights, expected(np.arange(12, 70, 3)), rtol=1e-5)


def test_stored_gradients_are_those_of_a_fresh_minibatch(model, draw, short_segments):
    short_segments(10)
    result = draw(store_gradients=True, num_samples=8, seed=3)

    def fresh(theta, key, number):
        return model.grad(theta, minibatch.gather(model.data, minibatch.draw(key, number, model.size, 50, True)))

    of_chains = jax.vmap(jax.vmap(fresh, (0, None, 0)), (0, 0, None))
    expected = jax.jit(of_chains)(result.posterior["theta"], loop.keys(3, 2).gradient, jnp.arange(8))
    assert_allclose(result.gradients["theta"], expected, rtol=1e-4, atol=1e-3)
    full = draw(store_gradients=True, num_samples=3, batch_size=None)
    expected = model.full_grad(full.posterior["theta"][1, 2])
    assert_allclose(full.gradients["theta"][1, 2], expected, rtol=1e-4, atol=1e-3)


def test_init_may_draw_the_start_of_each_chain(draw):
    init = lambda key: 5 + jax.random.normal(key, (3,))
    result = draw(init=init, seed=9, step_size=1e-12, warmup=0, thin=1, num_samples=1)
    expected = np.stack([init(k) for k in loop.keys(9, 2).start])
    assert_allclose(result.posterior["theta"][:, 0], expected, atol=1e-4)


def nested_posterior():
    """x_n ~ N(b + exp(log s)·c, 1), as a nested dict of a scalar, a vector and a positive number."""

    def log_prior(p):
        return -0.5 * (p["b"] ** 2 + jnp.sum(p["inner"]["c"] ** 2)) - p["inner"]["s"]

    def log_likelihood(p, x):
        return -0.5 * jnp.sum((x - p["b"] - p["inner"]["s"] * p["inner"]["c"]) ** 2)

    rows = np.random.default_rng(1).standard_normal((60, 2)).astype(np.float32)
    return hamcmc.Posterior(log_prior, log_likelihood, rows, support={"inner": {"s": hamcmc.positive()}})


NESTED = {"b": jnp.float32(0.1), "inner": {"c": jnp.zeros(2), "s": jnp.ones(())}}


USUAL = ("ensemble_hamcmc",)


@pytest.mark.parametrize("name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.slow) for n in samplers.NAMES])
def test_nested_parameters_with_every_sampler(draw, name):
    options = {"fisher": 60 * np.eye(4)} if name == "sgrld" else {}
    plain = name in ("independence", "leimkuhler_matthews")  # ensembles that learn nothing
    ensemble = name.startswith("ensemble") or plain
    if plain:
        options = {"replicas": 6}
    elif ensemble:
        options = {"replicas": 6, "adapt": 25} if name == "ensemble_hmc" else {"pairs": 2, "adapt": 25}
    options["batch_size"] = None if name in ("ensemble_adjusted", "ensemble_hmc", "independence") else 20
    result = draw(name, NESTED, posterior=nested_posterior(), step_size=1e-4, **options)
    shapes = {k: v.shape for k, v in result.posterior.items()}
    chains = 12 if ensemble else 2
    assert shapes == {"b": (chains, 40), "inner.c": (chains, 40, 2), "inner.s": (chains, 40)}
    assert (result.posterior["inner.s"] > 0).all()
    assert all(np.isfinite(v).all() for v in (*result.posterior.values(), *result.sample_stats.values()))


def test_double_precision_is_honoured(draw, x64):
    result = draw()
    assert result.posterior["theta"].dtype == np.float64
    mixed = draw(init=jnp.zeros(3, jnp.float32))
    assert mixed.posterior["theta"].dtype == np.float32


@pytest.mark.slow
def test_minibatches_without_replacement_reach_the_exact_mean(draw, short_segments):
    """All data at every step, a whole epoch in each minibatch: the same thing but for the order of the rows."""
    short_segments(10)
    walks = draw(batch_size=1000, replace=False).posterior["theta"]
    assert_allclose(walks, draw(batch_size=None).posterior["theta"], rtol=1e-3, atol=1e-4)


def test_status_tells_where_the_run_is(draw, short_segments):
    short_segments(10)
    seen = []
    draw("hamcmc", progress=seen.append, step_size=hamcmc.Polynomial(1e-5))
    assert [s.phase for s in seen[:2]] == ["compiling", "warm-up"]  # before the first iteration
    seen = seen[2:]
    assert [s.iteration for s in seen[:4]] == [10, 20, 25, 34]  # to the end of warm-up, then whole draws
    assert seen[-1].iteration == seen[-1].total == 145
    assert [s.draws for s in seen] == [max(0, s.iteration - 25) // 3 for s in seen]
    for s in seen:
        assert s.rate > 0
        assert 0 <= s.acceptance <= 1
        assert s.step_size == pytest.approx((1e-5 / s.iteration) ** 0.51, rel=1e-5)
    assert np.all(np.diff([s.seconds for s in seen]) > 0)
    seen.clear()
    draw("sgld", progress=seen.append)
    assert seen[-1].acceptance is None


def test_the_bar_shows_rate_step_size_and_pairs(draw, short_segments, monkeypatch):
    short_segments(10)
    monkeypatch.setenv("COLUMNS", "120")
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    draw("hamcmc", progress=True, step_size=hamcmc.Polynomial(1e-5))
    last = shown.getvalue().strip().splitlines()[-1]
    for fact in ("sampling", "100%", "it/s", "40 draws", f"ε {(1e-5 / 145) ** 0.51:.2g}", "pairs"):
        assert fact in last
    shown.truncate(0)
    draw(progress=None)  # not a terminal: nothing
    assert shown.getvalue().strip("\0") == ""


@pytest.fixture(scope="module")
def nested_run(draw, tmp_path_factory):
    """A run with nested parameters, and its directory."""
    out = tmp_path_factory.mktemp("nested") / "run"
    return draw("hamcmc", NESTED, posterior=nested_posterior(), step_size=1e-4, batch_size=20, out=out), out


def test_a_run_in_arviz(nested_run):
    result, out = nested_run
    in_memory = result.to_arviz()
    store = xr.open_datatree(out / "draws.zarr", engine="zarr", consolidated=False)
    on_disk = az.InferenceData.from_datatree(store)
    for idata in (in_memory, on_disk):
        assert idata.posterior["inner.c"].dims == ("chain", "draw", "inner.c_dim_0")
        assert dict(idata.posterior.sizes) == {"chain": 2, "draw": 40, "inner.c_dim_0": 2}
        assert_array_equal(idata.posterior["b"].values, result.posterior["b"])
        assert_array_equal(idata.sample_stats["step_size"].values[0], result.weights)
    assert az.summary(in_memory)["r_hat"].notna().all()
    with xr.open_zarr(out / "draws.zarr", group="moments", consolidated=False) as moments:
        assert_array_equal(moments["mean.inner.c"].mean("chain"), result.mean["inner.c"])
    again = hamcmc.Result.open(out)
    assert_array_equal(again.posterior["inner.s"], result.posterior["inner.s"])
    assert_array_equal(again.mean["b"], result.mean["b"])
    assert_array_equal(again.variance["b"], result.variance["b"])
    assert again.meta["status"] == "complete"


def test_a_run_can_be_read_while_it_goes_on(draw, short_segments, tmp_path):
    short_segments(30)
    seen = []

    def look(status):
        now = hamcmc.Result.open(tmp_path / "run")
        idata = now.to_arviz() if now.draws else None
        seen.append((now.draws, now.posterior["theta"], now.mean["theta"], idata))

    result = draw(out=tmp_path / "run", progress=look, checkpoint_seconds=0)
    counts = [n for n, *_ in seen]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert 0 < counts[4] < 40  # two came before the first segment
    assert np.isnan(seen[0][2]).all()  # no average yet, rather than a wrong one
    for n, theta, _, _ in seen:
        assert_array_equal(theta, result.posterior["theta"][:, :n])


def test_a_draw_may_take_several_segments(draw, short_segments):
    """Segments shorter than thin store nothing until the draw is complete."""
    short_segments(5)
    result = draw(thin=12, num_samples=4, store_gradients=True)
    assert result.gradients["theta"].shape == (2, 4, 3)
    assert np.isfinite(result.gradients["theta"]).all()


@pytest.fixture(scope="module")
def interleaved(draw):
    """A run whose three interleaved chains are stored one by one."""
    return draw("hamcmc", memory=3, gamma=0.01, thin=1, num_samples=31)


def test_a_sampler_may_be_made_from_the_posterior(draw, interleaved):
    made = draw(lambda target: hamcmc.hamcmc(target.grad, memory=3, gamma=0.01), thin=1, num_samples=31)
    assert_array_equal(made.posterior["theta"], interleaved.posterior["theta"])
    assert made.settings["options"] is None
    assert {k: made.settings[k] for k in ("replicas", "interleaved", "pairs")} == {
        "replicas": 1,
        "interleaved": 3,
        "pairs": 2,
    }


def test_a_result_introduces_itself(nested_run):
    result, _ = nested_run
    assert repr(result) == "<Result of hamcmc, complete: 2 chains × 40 draws; b: (), inner.c: (2,), inner.s: ()>"
    html = result._repr_html_()
    assert html.startswith("<p>hamcmc, complete: 2 chains × 40 draws</p><table>")
    assert "<tr><td>inner.c</td><td>(2,)</td></tr>" in html


def test_arviz_gets_interleaved_chains_apart(interleaved):
    apart = interleaved.to_arviz().posterior["theta"].values
    assert apart.shape == (6, 10, 3)
    assert_array_equal(apart[4], interleaved.posterior["theta"][1, 2::3])
