"""Runs that leave the posterior and stay finite are stopped, with a remedy that works; good runs are let alone."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import hamcmc
from hamcmc.inference.divergence import LOOKS, Alarm, Window, judge
from hamcmc.store.errors import RunError
from hamcmc.target import linear_gaussian as lg
from tests.mutation import mutant

TAILS = hamcmc.Posterior(lambda x: -2 * jnp.sum(jnp.log1p(x**2 / 3)))  # independent Student-t(3)
GAUSSIAN = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2))
MESSAGE = re.compile(
    r"the draws left the posterior by iteration ([\d,]+), the most in parameter (\w+): .* "
    r"Try a smaller step size \(it was [^;]*; try ([^,]*), and a larger thin\), sampler=\"auto\""
)


def remedy(error):
    """Iteration, parameter and step size of the message."""
    iteration, parameter, step = MESSAGE.match(str(error)).groups()
    return int(iteration.replace(",", "")), parameter, float(step)


# --- the rule alone ---


def windows(x, g, energy=None):
    """Three windows from positions and gradients (draw, chain, D)."""
    energy = np.zeros(x.shape[:2]) if energy is None else energy
    parts = (np.split(a, 3) for a in (g, x, energy))
    return [Window(100 * i, *part) for i, part in enumerate(zip(*parts))]


def draws(seed, chains, dimension, *, keep=0.0, scale=1.0):
    """An autoregressive process in each coordinate, `keep` of it from look to look."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(chains, dimension))]
    for _ in range(3 * LOOKS - 1):
        x.append(keep * x[-1] + np.sqrt(1 - keep**2) * rng.normal(size=(chains, dimension)))
    return scale * np.stack(x)


def count(make, seeds=200):
    """In how many of some runs there is an alarm."""
    return sum(judge(windows(*make(seed))) is not None for seed in range(seeds))


SIZES = [(1, 1), (1, 20), (4, 3), (22, 1), (22, 20)]


KEPT = (0.98, 0.7, 0.0, 0.7, 0.98)  # of each size in the usual run; all of them in the slow one
EVERY = [
    pytest.param(*size, keep, marks=() if keep == usual else pytest.mark.slow)
    for size, usual in zip(SIZES, KEPT)
    for keep in (0.0, 0.7, 0.98)
]


@pytest.mark.parametrize(("chains", "dimension", "keep"), EVERY)
def test_good_draws_are_let_alone(chains, dimension, keep):
    def gaussian(seed):
        x = draws(seed, chains, dimension, keep=keep)
        return x, -x

    def modes(seed):
        x = draws(seed, chains, dimension, keep=keep)
        return x + 40.0 * (np.arange(chains) % 2)[:, None], -x

    def tails(seed):
        x = np.random.default_rng(seed).standard_t(3, (3 * LOOKS, chains, dimension))
        return x, -4 * x / (3 + x**2)

    assert count(gaussian) == 0
    assert count(tails) == 0
    assert count(modes) == 0


@pytest.mark.parametrize(("chains", "dimension"), SIZES[1:])
def test_hot_draws_are_noticed(chains, dimension):
    def gaussian(seed):
        x = draws(seed, chains, dimension, scale=3.0)
        return x, -x

    def lost(seed):
        x = draws(seed, chains, dimension, scale=1e9)
        return x, -4 * x / (3 + x**2)

    assert count(gaussian) > 100
    assert count(lost) > 15  # of three windows each, and a run has twenty


def test_chains_on_their_way_in_are_let_alone():
    def coming(seed):
        x = draws(seed, 4, 20)
        far = 1000 * np.random.default_rng(seed).normal(size=(4, 20)) * np.linspace(1, 0.6, 3 * LOOKS)[:, None, None]
        return far + x, -4 * far / (3 + far**2)

    assert count(coming) == 0


def test_energy():
    """Frozen far away: no spread, but the start was better. It counts if it lasts."""
    x = 1e6 + draws(0, 1, 5)
    g = -4 * x / (3 + x**2)
    worse = np.full(x.shape[:2], 50.0)
    alarm = judge(windows(x, g, worse))
    assert alarm is not None
    assert alarm.sign == "they are 50 nats per dimension below the start"
    assert judge(windows(x, g, np.full(x.shape[:2], np.inf))) is not None
    assert judge(windows(x, g, worse * np.linspace(1, 0.5, len(x))[:, None])) is None
    assert judge(windows(x, g, worse / 5)) is None


def test_the_worst_coordinate_is_named():
    x = draws(0, 22, 6)
    x[..., 4] *= 10
    alarm = judge(windows(x, -x))
    assert isinstance(alarm, Alarm)
    assert alarm.entry == 4
    assert alarm.draw == 0


# --- whole runs ---


@pytest.mark.slow
def test_noisy_gradients(tmp_path):
    """Heated 18 times: stopped, kept, not resumed; the smaller step of the message makes the variance right."""
    data = lg.simulate(np.random.default_rng(0), 1000, np.eye(3), 10.0)
    truth, posterior = lg.exact(data, 10.0), lg.linear_gaussian(data, 10.0)
    settings = {"init": jnp.asarray(truth.mean, jnp.float32), "batch_size": 20, "chains": 16, "progress": False}
    with pytest.raises(hamcmc.Diverged) as failure:
        hamcmc.sample(posterior, "sgld", step_size=5e-3, num_samples=500, warmup=100, out=tmp_path, **settings)
    iteration, parameter, step = remedy(failure.value)
    assert (iteration, parameter) == (100, "theta")
    opened = hamcmc.Result.open(tmp_path)
    for result in (failure.value.result, opened):
        assert result.meta["status"] == "failed"
        assert result.posterior["theta"].shape[1] > 0
    with pytest.raises(RunError, match="cannot be resumed: the draws left the posterior"):
        hamcmc.resume(tmp_path, posterior, settings["init"])
    thin = round(5e-3 / step)
    result = hamcmc.sample(posterior, "sgld", step_size=step, num_samples=300, thin=thin, warmup=20 * thin, **settings)
    x = result.posterior["theta"].reshape(-1, 3).astype(float) - truth.mean
    excess = np.einsum("ni,ij,nj->n", x, truth.precision, x).mean() / 3
    assert excess == pytest.approx(1.17, abs=0.12)  # a hundredth of 17 times the variance too much


@pytest.mark.slow
def test_a_minibatch_has_an_optimum_of_its_own():
    """A good run on 10⁶ rows, of which 256 are looked at: by their log-density the best start is far better."""
    data = lg.simulate(np.random.default_rng(0), 1_000_000, np.eye(2), 10.0)
    posterior, mode = lg.linear_gaussian(data, 10.0), jnp.asarray(lg.exact(data, 10.0).mean, jnp.float32)
    reduced = hamcmc.control_variate(posterior, mode)
    scale = np.sqrt(10.0 / 1_000_000)
    init = lambda key: mode + scale * jax.random.normal(key, (2,))
    settings = {"batch_size": 20, "chains": 40, "progress": False}
    hamcmc.sample(reduced, "sgld", init, step_size=0.3 * scale**2, num_samples=400, **settings)


def test_heavy_tails():
    """SGLD with large steps wanders about in the tails. The step of the message brings it back."""
    settings = {"init": {"x": jnp.zeros(20)}, "num_samples": 1500, "chains": 4, "progress": False}
    posterior = hamcmc.Posterior(lambda p: -2 * jnp.sum(jnp.log1p(p["x"] ** 2 / 3)))
    with pytest.raises(hamcmc.Diverged) as failure:
        hamcmc.sample(posterior, "sgld", step_size=20.0, **settings)
    _, parameter, step = remedy(failure.value)
    assert parameter == "x"
    result = hamcmc.sample(posterior, "sgld", step_size=step, thin=4, **settings)
    assert np.median(np.abs(result.posterior["x"])) == pytest.approx(stats.t(3).ppf(0.75), rel=0.15)  # ε biases SGLD


def test_frozen_far_away():
    """A few huge steps in warm-up, then small ones: nothing moves, and nothing is hot."""
    schedule = lambda t: jnp.where(t < 10, 1e12, 0.1)
    with pytest.raises(hamcmc.Diverged, match="nats per dimension below the start"):
        hamcmc.sample(
            TAILS, "sgld", jnp.zeros(20), step_size=schedule, warmup=50, num_samples=1500, chains=4, progress=False
        )


@pytest.mark.slow
def test_an_ensemble_that_is_not_tamed():
    with mutant("samplers/ensemble/resting.py", "jnp.where(known, WIDEST, jnp.inf)", "jnp.inf") as package:
        posterior = package.Posterior(lambda x: -2 * jnp.sum(jnp.log1p(x**2 / 3)))
        settings = {"init": jnp.zeros(20), "num_samples": 400, "adapt": 4000, "progress": False}
        with pytest.raises(package.Diverged) as failure:
            package.sample(posterior, "ensemble_hamcmc", step_size=0.5, **settings)
        step = remedy(failure.value)[2]
        result = package.sample(posterior, "ensemble_hamcmc", step_size=step, thin=20, **settings)
        assert np.mean(np.abs(result.posterior["theta"]) > 3.18) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    ("posterior", "start", "step_size"),
    [
        pytest.param(GAUSSIAN, 0.0, 0.1, marks=pytest.mark.slow),
        (GAUSSIAN, 100.0, 0.05),
        pytest.param(TAILS, 0.0, 0.1, marks=pytest.mark.slow),
        (TAILS, 10.0, 0.5),
    ],
    ids=["gaussian", "gaussian from afar", "tails", "tails from afar"],
)
def test_good_runs_complete(posterior, start, step_size):
    init = lambda key: start * jax.random.normal(key, (20,))
    hamcmc.sample(posterior, "sgld", init, step_size=step_size, num_samples=600, chains=4, progress=False)


def test_a_sampler_with_a_test_is_not_watched(monkeypatch):
    monkeypatch.setattr("hamcmc.inference.divergence.judge", lambda row: Alarm(0, 0, "it is hot", 0.1))
    settings = {"num_samples": 600, "progress": False, "step_size": 0.1}
    hamcmc.sample(GAUSSIAN, "ensemble_adjusted", jnp.zeros(2), adapt=10, pairs=2, **settings)
    with pytest.raises(hamcmc.Diverged, match="it is hot"):
        hamcmc.sample(GAUSSIAN, "sgld", jnp.zeros(2), **settings)
