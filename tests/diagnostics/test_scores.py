"""Scores of predictions against formulas and exact values, and LOO against refitting."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import hamcmc
from hamcmc.diagnostics import classification, loo, regression
from hamcmc.target import linear_gaussian as lg


def test_scores_of_probabilities():
    p = np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9], [0.5, 0.5]])
    found = classification(p, np.array([0, 1, 1, 0]))
    assert found.accuracy == 0.75  # of equal probabilities the first counts
    assert found.nll == pytest.approx(-np.log([0.8, 0.4, 0.9, 0.5]).mean())
    assert found.brier == pytest.approx(np.mean([2 * 0.2**2, 2 * 0.6**2, 2 * 0.1**2, 2 * 0.5**2]))
    # Each row has a bin of its own: |0.8 − 1| + |0.6 − 0| + |0.9 − 1| + |0.5 − 1|
    assert found.calibration_error == pytest.approx((0.2 + 0.6 + 0.1 + 0.5) / 4)
    assert found.entropy == pytest.approx(np.mean([stats.entropy(row) for row in p]))


def test_calibrated_probabilities_have_no_calibration_error_and_sure_ones_have():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 40_000)
    y = (rng.random((len(p), 1)) > p.cumsum(1)).sum(1)
    assert classification(p, y).calibration_error < 0.015
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    assert classification(sharp, y).calibration_error > 0.1
    assert classification(sharp, y).nll > classification(p, y).nll


def test_a_certain_error_is_infinitely_bad():
    assert classification(np.array([[1.0, 0.0]]), np.array([1])).nll == np.inf


def test_scores_of_a_normal_prediction():
    rng = np.random.default_rng(1)
    mean = rng.standard_normal(20_000)
    draws = mean + 0.6 * rng.standard_normal((400, 20_000))
    y = mean + rng.standard_normal(20_000)  # 0.6² + 0.8² = 1
    found = regression(draws, y, 0.8)
    assert found.rmse == pytest.approx(1.0, rel=0.02)
    assert found.nll == pytest.approx(0.5 * np.log(2 * np.pi) + 0.5, abs=0.02)
    for level, share in found.coverage.items():
        assert share == pytest.approx(level, abs=4.5 * np.sqrt(level * (1 - level) / 20_000) + 0.004)
    narrow = regression(mean + 0 * draws, y, 0.8)
    assert narrow.coverage[0.9] < 0.85
    assert narrow.nll > found.nll
    assert regression(draws, y, np.full(400, 0.8)) == found
    by_row = np.where(np.arange(len(y)) % 2, 0.8, 8.0)  # as a network that also predicts its noise has it
    assert regression(draws, y, np.broadcast_to(by_row, draws.shape)).nll > found.nll
    assert regression(draws, y, np.full(draws.shape, 0.8)) == found


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: classification(np.ones((2, 2)) / 2, np.array([0, 2])), "whole numbers from 0 to 1"),
        (lambda: classification(np.ones((2, 2)), np.array([0, 1])), "sum to 1"),
        (lambda: classification(np.ones((3, 2)) / 2, np.array([0, 1])), r"\(3, 2\) and \(2,\)"),
        (lambda: regression(np.ones((5, 3)), np.ones(4), 1.0), r"\(5, 3\) and \(4,\)"),
        (lambda: regression(np.ones((5, 3)), np.ones(3), 0.0), "noise must be"),
        (lambda: regression(np.ones((5, 3)), np.ones(3), np.ones(3)), "noise must be"),
    ],
)
def test_what_cannot_be_scored_is_named(score, message):
    with pytest.raises(ValueError, match=message):
        score()


@pytest.fixture(scope="module")
def fitted():
    data = lg.simulate(np.random.default_rng(0), 120, np.eye(3), 10.0)
    posterior = lg.linear_gaussian(data, 10.0)
    posterior.init = jnp.zeros(3)
    return data, posterior, hamcmc.sample(posterior, progress=False)


def exact_loo(data):
    """The log-density of each row under the posterior of all others, by algebra; the noise has variance 10."""
    a, x = np.asarray(data.a, np.float64), np.asarray(data.x, np.float64)
    found = []
    for i in range(len(a)):
        rest = np.arange(len(a)) != i
        covariance = np.linalg.inv(np.eye(3) + a[rest].T @ a[rest] / 10)
        mean = covariance @ a[rest].T @ x[rest] / 10
        found.append(stats.norm.logpdf(x[i], a[i] @ mean, np.sqrt(10 + a[i] @ covariance @ a[i])))
    return np.array(found)


@pytest.mark.slow
def test_loo_agrees_with_refitting(fitted):
    data, posterior, result = fitted
    each = exact_loo(data)
    found = loo(result, posterior, draws=4000)
    assert found.rows == 120
    assert found.subsampling_se == 0
    assert found.unreliable == 0
    assert found.elpd == pytest.approx(each.sum(), abs=0.3)  # without leaving out it would be 3 more
    assert found.se == pytest.approx(np.sqrt(120) * each.std(ddof=1), rel=0.05)


def test_loo_on_a_part_of_the_rows_says_how_sure_it_is(fitted):
    _, posterior, result = fitted
    whole = loo(result, posterior)
    part = loo(result, posterior, rows=40, seed=1)
    assert part.rows == 40
    assert 0 < part.subsampling_se < part.se
    assert abs(part.elpd - whole.elpd) < 4 * part.subsampling_se


def test_loo_needs_data():
    posterior = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(2))
    run = hamcmc.sample(posterior, "sgld", step_size=0.1, num_samples=200, progress=False)
    with pytest.raises(ValueError, match="needs data"):
        loo(run, posterior)
