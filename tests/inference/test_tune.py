"""Step sizes found by themselves, where the right one is known."""

import json
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc import samplers
from hamcmc.inference import scoring
from hamcmc.inference.trials import Contender, Trial
from hamcmc.inference.tune import tune
from hamcmc.target import linear_gaussian as lg
from hamcmc.target.landscape import _ritz, survey
from tests.mutation import mutant

AIM = 0.075  # three quarters of the default tolerance


@pytest.fixture(scope="module")
def ridge():
    """A full-batch Gaussian: curvatures 1, 10 and 100."""
    a = np.diag(np.sqrt([0.0, 9.0, 99.0])).astype(np.float32)
    return lg.linear_gaussian(lg.Data(a, np.zeros(3, np.float32)), 1.0)


@pytest.fixture(scope="module")
def found(ridge):
    return tune(ridge, "sgld", jnp.ones(3), budget=40_000)


def exact_bias(step, curvature, noise=0.0):
    """Of SGLD's variance along a direction of a Gaussian."""
    return (1 + step * noise / 2) / (1 - step * curvature / 2) - 1


# --- what is measured ---


def scores(module, variance, draws=40_000, seed=0):
    """(bias, error) of independent draws N(0, variance) for the target N(0, 1), with noisy gradients."""
    rng = np.random.default_rng(seed)
    x = np.sqrt(variance) * rng.standard_normal((draws // 400, 20, 5, 4))
    return module.variance_bias(x, -x + rng.standard_normal(x.shape))


@pytest.mark.parametrize("variance", [1.0, 1.2, 0.8])
def test_the_score_is_the_relative_error_of_the_variance(variance):
    bias, error = scores(scoring, variance)
    n = 40_000
    assert_allclose(error, np.sqrt((2 * variance**2 + variance) / n), rtol=0.6)  # estimated from 20 runs
    assert abs(bias - (variance - 1)) < 4.5 * np.sqrt((2 * variance**2 + variance) / n)


@pytest.mark.parametrize(
    ("old", "new"), [("-np.mean(x * g", "np.mean(x * g"), ("axis=(0, 2, 3)) - 1", "axis=(0, 2, 3))")]
)
def test_a_wrong_score_is_noticed(old, new):
    with mutant("inference/scoring.py", old, new):
        bias, error = scores(import_module("hamcmc.inference.scoring"), 1.0)
    assert abs(bias) > 20 * error


def test_the_score_holds_for_a_target_that_is_not_gaussian():
    x = np.random.default_rng(1).gamma(3.0, size=(100, 20, 10, 2))  # its density vanishes at 0
    bias, _ = scoring.variance_bias(x, 2 / x - 1)
    scatter = np.std(x * (2 / x - 1)) / np.sqrt(x.size)
    assert abs(bias) < 4.5 * scatter


@pytest.mark.parametrize("rho", [0.5, 0.9, 0.99])
def test_autocorrelation_times(rho):
    rng, times = (
        np.random.default_rng(0),
        np.unique(np.r_[0, np.geomspace(1, 400, 12), np.linspace(1, 400, 12)].astype(int)),
    )
    x = np.empty((401, 2000))
    x[0] = rng.standard_normal(2000)
    for t in range(1, 401):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(2000)
    time, relaxed = scoring.autocorrelation(times, x[times])
    assert_allclose(time, (1 + rho) / (1 - rho), rtol=0.35)  # lags within a factor 2 are averaged
    assert_allclose(relaxed, np.mean(1 - rho ** (2.0 * times[1:])), atol=0.02)


def test_bands_hold_every_direction_once_and_none_beyond_a_factor_of_two():
    curvatures = np.sort(np.random.default_rng(0).lognormal(sigma=1.0, size=40))
    bands = scoring.spectral_bands(curvatures)
    assert_array_equal(np.concatenate(bands), np.arange(40))
    assert all(curvatures[b].max() <= 2.001 * curvatures[b].min() for b in bands)
    assert len(scoring.spectral_bands(np.ones(3))) == 1


# --- the landscape ---


@pytest.mark.slow
def test_the_landscape_of_a_gaussian(model, data):
    truth = lg.exact(data, 10.0)
    scape = survey(model, jnp.zeros(3), batch_size=50, seed=0)
    assert_allclose(scape.mode, truth.mean, atol=1e-3)
    assert_allclose(scape.curvatures, np.linalg.eigvalsh(truth.precision), rtol=1e-4)
    starts = np.asarray(scape.start(jax.random.key(1), 64), float)
    white, _ = scape.whiten(starts, starts)
    assert_allclose(np.mean(np.square(white), 0), 1, rtol=1e-3)  # quantiles, not random numbers

    each = 1000 * (data.x - data.a @ truth.mean)[:, None] * data.a / 10 @ np.asarray(scape.directions, float).T
    assert_allclose(scape.noise, each.var(0) / 50, rtol=4.5 * np.sqrt(2 / 64))  # from 64 differences


def test_ritz_directions_find_the_steepest():
    curvatures = jnp.r_[jnp.linspace(1, 50, 299), 1000.0]
    values, directions = _ritz(lambda v: curvatures * v, jnp.zeros(300), 0)
    assert_allclose(values[-1], 1000.0, rtol=1e-4)
    assert_allclose(directions @ directions.T, np.eye(64), atol=1e-4)


# --- the search ---


def test_the_step_of_a_gaussian(ridge, found):
    step = found.step_size(0)
    assert AIM / 1.6 < exact_bias(step, 100.0) < AIM * 1.4
    assert found.options == {}
    assert max(c.step_size for c in found.table) <= 1 / 100 * (1 + 1e-6)  # no step beyond 1/L is tried
    assert found.gradients < 2 * 40_000
    text = str(found)
    assert "ESS/1000" in text
    assert text.count("\n") == len(found.table) + 1


def test_the_same_seed_finds_the_same(ridge, found):
    """Whether the sampler is given by name or as a function; and progress is reported in order."""
    said = []
    make = lambda target: hamcmc.sgld(target.grad)
    assert tune(ridge, make, jnp.ones(3), budget=40_000, progress=said.append) == found
    assert said[0].phase == "looking around the mode"
    assert said[1].phase == "round 1 of 3, 8 candidates"
    done = [status.done for status in said]
    assert done == sorted(done)
    assert done[-1] < 1


def test_unstable_steps_are_out(ridge):
    found = tune(ridge, "sgld", jnp.ones(3), budget=4000, search={"step_size": (1e-3, 1.0)})
    out = {c.step_size: c.out for c in found.table if c.out in ("ran away", "not finite")}
    assert all(e in out for e in {c.step_size for c in found.table} if e > 0.03)
    assert min(out) > 0.019  # 2/L, but for a run too short to see it
    assert found.step_size(0) < 0.01


@pytest.mark.parametrize(
    ("name", "steps", "batch", "length"),
    [
        ("sgld", (2e-5, 1e-3, 1.6e-2), None, 1500),
        pytest.param("ensemble_hamcmc", (3e-4, 0.01, 0.3), 50, 600, marks=pytest.mark.slow),
    ],
)
def test_neither_too_small_nor_too_large(ridge, model, name, steps, batch, length):
    """Of steps whose bias is far below, about and far above the tolerance the middle one is ranked first."""
    posterior = ridge if batch is None else model
    scape = survey(posterior, jnp.ones(3), batch_size=batch, seed=0)
    build = lambda **o: samplers.build(name, posterior, **o)
    fixed = {"pairs": 3} if name == "ensemble_hamcmc" else {}
    trial = Trial(posterior, build, fixed, scape, jnp.ones(3), batch, 0)
    runners = [Contender(trial, {"step_size": e}) for e in steps]
    for runner, measured in zip(runners, trial.run(runners, length)[0]):
        runner.found = measured
    low, _, high = (r.found for r in runners)
    assert low.bias - 2 * low.error < 0.1 or np.isinf(low.error)
    assert high.bias - 2 * high.error > 0.1
    assert min(runners, key=lambda r: r.rank(0.1)) is runners[1]


@pytest.mark.slow
def test_options_are_searched_or_held(model):
    search = {"cyclical": [True], "noise": (0.01, 0.1)}
    found = tune(model, "sghmc", jnp.zeros(3), budget=2000, batch_size=50, friction=0.2, search=search, period=7)
    assert found.options.keys() == {"friction", "noise"}
    assert found.options["friction"] == 0.2
    assert 0.01 <= found.options["noise"] <= 0.1
    assert isinstance(found.step_size, hamcmc.Cyclical)
    assert found.step_size.period == 7
    assert {c.options["cyclical"] for c in found.table} == {True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 10}, "budget must be a whole number, 1000 or more"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"seed": -1}, "seed"),
        ({"init": None}, "init must be given"),
        ({"sampler": "sgdl"}, "sampler must be one of"),
        ({"sampler": 3}, "sampler must be a name"),
        ({"memory": 3}, "memory"),
        ({"search": {"step_size": [0.1]}}, "search: step_size must be a range"),
        ({"search": {"step_size": (1.0, 0.1)}}, "search: step_size must be a range"),
        ({"search": {"friction": (0.1, 0.2)}}, "friction"),
        ({"batch_size": 7}, "batch_size 7 is larger"),
    ],
)
def test_bad_input_is_named(ridge, change, message):
    arguments = {"sampler": "sgld", "init": jnp.ones(3)} | change
    with pytest.raises(ValueError, match=message):
        tune(ridge, arguments.pop("sampler"), arguments.pop("init"), **arguments)


# --- in a run ---


@pytest.mark.slow
def test_a_run_tunes_itself_and_resumes(draw, data, tmp_path, monkeypatch):
    """What was found is recorded, and a resumed run does not look for it again."""
    found = []
    monkeypatch.setattr("hamcmc.inference.tune.budget_for", lambda gradients: 2000)
    monkeypatch.setattr("hamcmc.inference.tune.tune", lambda *a, **k: found.append(tune(*a, **k)) or found[0])
    whole = draw("sghmc", step_size="auto", noise=0.1, out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["tuning"]["gradients"] > 2000
    assert record["options"] == {"noise": 0.1, "friction": record["tuning"]["options"]["friction"]}
    assert record["step_size"] == {"schedule": "constant", "step_size": record["tuning"]["step_size"]}

    class Stop(Exception):
        pass

    def stop(status):
        if status.iteration >= 60:
            raise Stop

    monkeypatch.setattr("hamcmc.inference.job.segment_length", lambda *_: 30)
    monkeypatch.setattr("hamcmc.inference.tune.tune", lambda *_, **__: found[0])
    with pytest.raises(Stop):
        draw("sghmc", step_size="auto", noise=0.1, out=tmp_path / "cut", progress=stop)
    monkeypatch.setattr("hamcmc.inference.tune.tune", lambda *_, **__: pytest.fail("tuned again"))
    resumed = hamcmc.resume(tmp_path / "cut", lg.linear_gaussian(data, 10.0), jnp.zeros(3), progress=False)
    assert_array_equal(resumed.posterior["theta"], whole.posterior["theta"])


@pytest.mark.slow
def test_a_sampler_made_by_hand_gets_its_step(draw, model, monkeypatch):
    monkeypatch.setattr("hamcmc.inference.tune.budget_for", lambda gradients: 1000)
    result = draw(hamcmc.sgld(model.grad), step_size="auto")
    assert 0 < result.settings["step_size"]["step_size"] < 0.01
    with pytest.raises(ValueError, match="step_size must be 'auto'"):
        draw(step_size="large")
