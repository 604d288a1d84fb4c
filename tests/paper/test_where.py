"""The map of where HAMCMC wins: its posteriors, its score, its search, and who is said to win."""

import json
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.paper import cells, tuning, where, where_figure
from hamcmc.paper.cells import Cell
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.sgrld import sgrld
from hamcmc.target import linear_gaussian as model

CELL = Cell(3, 10.0, 1)
ASKED = where.settings(True) | {"batch_size": 1000, "gradients": 600, "candidates": 6, "seeds": 3}


@pytest.fixture(scope="module")
def posed():
    return cells.problem(CELL, 0)


def test_the_precision_has_the_eigenvalues_of_the_cell(posed):
    spectrum = np.linalg.eigvalsh(posed.precision)
    np.testing.assert_allclose(spectrum, [cells.SOFT, cells.SOFT, 10 * cells.SOFT], rtol=1e-5)
    np.testing.assert_allclose(posed.whiten @ posed.whiten.T, posed.precision, atol=1e-4)
    exact = model.exact(posed.data, cells.NOISE_VARIANCE)
    np.testing.assert_allclose(posed.mean, exact.mean)


def test_independent_draws_score_one_over_their_number():
    """¼ Var v + ½ E m² = 1/(2n) + 1/(2n), up to 1/n²; and each set of draws has a score of about that spread."""
    n, sets, dimension = 400, 300, 5
    u = np.random.default_rng(0).standard_normal((sets, n, dimension))
    scores = np.asarray(cells.divergence(jnp.asarray(u.mean(1)), jnp.asarray((u * u).mean(1))), np.float64)
    assert scores.mean() == pytest.approx(1 / n, abs=4 * scores.std() / np.sqrt(sets) + 2 / n**2)


def test_the_score_is_a_divergence_and_punishes_optimisers():
    def score(mean, variance):
        return float(cells.divergence(jnp.full(4, mean), jnp.full(4, mean**2 + variance)))

    assert score(0.0, 1.0) == pytest.approx(0, abs=1e-6)
    assert score(0.0, 4.0) == pytest.approx(0.5 * (3 - np.log(4)), rel=1e-5)
    assert score(2.0, 1.0) == pytest.approx(2, rel=1e-5)
    assert score(0.0, 1e-4) > 4
    assert score(0.0, 0.0) == np.inf


class Counting(NamedTuple):
    position: jnp.ndarray


def test_averages_are_over_windows_and_weighted(posed):
    """A sampler whose t-th position is t + 1, and is lost from iteration 8 on."""
    posterior = model.linear_gaussian(posed.data, cells.NOISE_VARIANCE)

    def step(_key, state, _batch, _step_size):
        new = state.position + 1
        return Counting(jnp.where(new > 8, jnp.nan, new)), ()

    counting = Sampler(init=Counting, step=step, settings={})
    found = tuning.averages(
        counting,
        posterior,
        posterior.data,
        jnp.zeros(2),
        jnp.asarray([0, 1], jnp.uint32),
        0.7,
        jnp.array([[2, 6], [0, 10]]),
        statistic=lambda x: x,
        exponent=0.5,
        batch_size=2,
    )
    weights = np.arange(3, 7) ** -0.5
    np.testing.assert_allclose(found[0], np.full(2, weights @ np.arange(3, 7) / weights.sum()), rtol=1e-5)
    assert np.isnan(found[1]).all()


@pytest.mark.slow
def test_a_broken_sampler_does_not_win(posed):
    """SGRLD with a quarter of the gradient samples a posterior of four times the variance, whatever its step size."""
    posterior, ends = model.linear_gaussian(posed.data, cells.NOISE_VARIANCE), (600, 300)

    def build(posterior, fisher, *, share):
        return sgrld(lambda theta, batch: share * posterior.grad(theta, batch), fisher)

    right, broken = (tuning.Method(build, {"share": (s, 1.001 * s)}, 1.0) for s in (1.0, 0.25))
    run = cells.program(right, posterior, 1, ASKED)
    found = {name: cells.contest(run, m, posed, ends, ASKED, 0) for name, m in (("right", right), ("broken", broken))}
    bound = 0.5 * (3 - np.log(4))  # the divergence of four times the variance
    for budget in cells.BUDGETS:
        good, bad = found["right"][budget], found["broken"][budget]
        assert bad["score"] > 0.8 * bound
        assert good["score"] + 3 * good["error"] < 0.5 * bound
        # ESS ≤ εT/2 of the second half, and ε ≤ 2 at most: the score of so many independent draws is out of reach.
        assert good["score"] > 1 / ends[cells.BUDGETS.index(budget)]
        middling = {"searched": 0.4, "score": 0.4, "error": 0.01}
        others = {name: {budget: middling} for name in ("SGLD", "pSGLD", "ensemble", "HAMCMC M=2")}
        assert cells.verdict(others | {"SGRLD": found["right"]}, budget)["winner"] == "SGRLD"
        assert cells.verdict(others | {"SGRLD": found["broken"]}, budget)["winner"] != "SGRLD"
    assert found["right"]["gradients"]["score"] < found["right"]["time"]["score"]  # twice the iterations


def scored(**scores):
    """Outcomes with a search that would have chosen M = 3."""
    searched = {"HAMCMC M=3": 0.1}
    return {
        n.replace("HAMCMC_M", "HAMCMC M="): {
            "time": {"searched": searched.get(n.replace("HAMCMC_M", "HAMCMC M="), 1.0), "score": s, "error": 0.05 * s}
        }
        for n, s in scores.items()
    }


def test_the_verdict():
    """The search chooses M; a better score of another M in the runs does not count."""
    v = cells.verdict(
        scored(SGLD=0.8, pSGLD=0.6, SGRLD=0.2, ensemble=0.3, HAMCMC_M2=0.1, HAMCMC_M3=0.4),
        "time",
    )
    assert (v["memory"], v["winner"]) == (3, "SGRLD")
    assert v["ratio"] == pytest.approx(2)
    assert v["ratio_simple"] == pytest.approx(0.4 / 0.6)
    assert v["log_error"] == pytest.approx(0.05 * np.sqrt(2))
    lost = cells.verdict(scored(SGLD=0.8, pSGLD=0.6, SGRLD=0.2, ensemble=0.3, HAMCMC_M3=np.inf), "time")
    assert (lost["winner"], lost["ratio"]) == ("SGRLD", np.inf)
    assert not where_figure.even(lost["ratio"], lost["log_error"])
    assert where_figure.even(1.1, 0.1)
    assert not where_figure.even(2.0, 0.1)


def test_stiff_counts():
    assert where.stiff_counts(10) == [1, 3, 5, 9]
    assert where.stiff_counts(4) == [1, 2, 3]


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    tiny = where.settings(True) | {
        "dimensions": [3],
        "conditions": [10.0],
        "memories": [2],
        "pairs": 1,
        "gradients": 40,
        "candidates": 4,
        "timed_iterations": 5,
        "timings": 1,
    }
    monkeypatch.setattr(where, "settings", lambda quick: tiny)
    said = []
    first = where.reproduce(tmp_path, quick=True, seed=3, progress=said.append)
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(first.rows) == 2 * 2  # two budgets, k = 1 and 2
    read = where_figure.read(dict(zip(first.columns, row)) for row in first.rows)
    for row in first.rows:
        budget, *cell = row[:4]
        seen = read[budget][Cell(*cell)]
        assert (seen["memory"], seen["winner"]) == (row[-3], row[-2])
    assert {f.name for f in first.files} == {"where.png", "where.svg", "results.json"}
    assert all(0 <= s.done < 1 for s in said)
    assert set(results["clocks"]["3"]["seconds"]) == {"SGLD", "pSGLD", "SGRLD", "HAMCMC M=2", "ensemble"}

    def never(*_args, **_named):
        raise AssertionError("it was measured before")

    monkeypatch.setattr(where, "contest", never)
    monkeypatch.setattr(where, "clock", never)
    again = where.reproduce(tmp_path, quick=True, seed=3)
    assert again.rows == first.rows
