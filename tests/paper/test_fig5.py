"""Figure 5: one search for all methods, a curve that is the error it says, and claims that may come out false."""

import json

import jax
import numpy as np
import pytest

from hamcmc.factorization import ratings as files
from hamcmc.factorization import sharded as factorization
from hamcmc.factorization.synthetic import movielens_like
from hamcmc.paper import fig5

TINY = {"iterations": 40, "burn_in": 10, "marks": [5, 10, 40], "trials": 4, "every": 5, "timings": 1, "most": 3000}


class Stand:
    """In place of a compiled method: its error is least at step 1, and from step 8 on it is lost."""

    def __init__(self, s, method):
        self.s, self.method, self.unit, self.calls = s, method, 1.0, []

    def curve(self, data, step_size, iterations, burn_in, *, seed, every=1):
        self.calls.append((data is self.s.trial, seed))
        miss = abs(np.log(step_size))
        slow = 1 if self.method.sampler == "hamcmc" else 2
        curve = 1 + miss + slow / np.arange(1, iterations + 1)
        return (curve if step_size < 8 else np.full(iterations, np.inf))[every - 1 :: every]

    def seconds(self, step_size, steps):
        return 0.1 + steps * (4e-3 if self.method.sampler == "hamcmc" else 1e-3)


@pytest.fixture
def stand(monkeypatch):
    quick = fig5.settings(True)
    monkeypatch.setattr(fig5, "settings", lambda _: quick | TINY)
    monkeypatch.setattr("hamcmc.paper.ratings.movielens_like", lambda *_, seed: movielens_like(60, 50, 3000, seed=seed))
    monkeypatch.setattr(fig5, "Runner", Stand)


def test_results(stand, tmp_path):
    said = []
    found = fig5.reproduce(tmp_path, quick=True, seed=3, progress=lambda status: said.append(status.done))
    results = json.loads((tmp_path / "results.json").read_text())
    assert {f.name for f in found.files} == {"fig5.png", "fig5.svg", "results.json"}
    assert list(results["tuned"]) == list(results["rmse"]) == [row[0] for row in found.rows] == list(fig5.METHODS)
    assert {len(t["tried"]) for t in results["tuned"].values()} == {4}
    assert {len(curve) for curve in results["rmse"].values()} == {40}
    assert all(len(row) == len(found.columns) for row in found.rows)
    assert results["seconds_per_iteration"]["DSGLD"] == pytest.approx(1e-3)
    assert results["seconds_per_iteration"]["HAMCMC"] == pytest.approx(4e-3)
    assert said == sorted(said)
    assert said[-1] < 1


def test_the_title_says_what_the_data_are(stand, tmp_path):
    made = fig5.reproduce(tmp_path / "made", quick=True)
    assert "synthetic" in made.title
    assert "(quick)" in made.title
    assert "synthetic" in (tmp_path / "made" / "fig5.svg").read_text()
    lines = ["user,item,rating", *(f"{u},{i},{1 + (u * i) % 5}" for u in range(70) for i in range(50))]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    own = fig5.reproduce(tmp_path / "own", quick=True, ratings=tmp_path / "own.csv", blocks=2)
    assert "synthetic" not in own.title
    assert "users of a file that is not MovieLens 1M (3,000 ratings, 60 × 50)" in own.title
    assert own.results["settings"]["blocks"] == 2
    with pytest.raises(ValueError, match="blocks"):
        fig5.reproduce(tmp_path, blocks=0)


def test_the_search_takes_the_best_step(stand):
    s = fig5.Split(*[None] * 4, None, None, 1.0)._replace(trial="trial", data="data")
    runner = Stand(s, fig5.METHODS["DSGLD"])
    found = fig5.search(runner, TINY | {"trials": 5}, seed=7)
    assert found["step_size"] == 1
    assert not found["at_the_edge"]
    assert [t["step_size"] for t in found["tried"]] == [8, 4, 2, 1, 0.5]
    assert found["tried"][0]["score"] == np.inf
    assert runner.calls == [(True, 7)] * 5  # never on the held-out ratings
    assert fig5.search(runner, TINY | {"trials": 3}, seed=7)["at_the_edge"]


def test_claims_may_come_out_false():
    """HAMCMC needs half as many iterations, each four times as long."""
    t = np.arange(1, 101)
    curves = {"DSGLD": 1 + 2 / t, "pSGLD": 1 + 3 / t, "HAMCMC": 1 + 1 / t}
    claim = fig5.compare(curves, {"DSGLD": 0.1, "pSGLD": 0.2, "HAMCMC": 0.4}, [20, 100])
    assert claim["ahead_at_equal_iterations"] == {20: True, 100: True}
    assert claim["ahead_at_equal_seconds"] == {20: False, 100: False}
    assert claim["same_time"] == pytest.approx({"DSGLD": 1.02, "pSGLD": 1.06, "HAMCMC": 1.04})
    assert "20 yes, 100 yes; at equal seconds: 2 s no; 10 s no" in fig5.said(claim)
    cheap = fig5.compare(curves, {"DSGLD": 0.1, "pSGLD": 0.2, "HAMCMC": 0.15}, [20, 100])
    assert cheap["ahead_at_equal_seconds"] == {20: True, 100: True}


@pytest.fixture(scope="module")
def dsgld():
    ratings = files.hold_out(movielens_like(60, 50, 1500, seed=1).ratings, 0.1, 0)
    s = fig5.split(ratings, rank=3, blocks=2, validation=0.2, seed=0)
    return ratings, s, fig5.Runner(s, fig5.METHODS["DSGLD"])


def test_splits(dsgld):
    ratings, s, _ = dsgld
    count = lambda blocks: int(np.asarray(blocks.indptr)[:, -1, -1].sum())
    assert count(s.data.train) == (~ratings.test).sum() == s.p.parts.sum()
    assert count(s.data.test) == ratings.test.sum()
    assert count(s.trial.train) + count(s.trial.test) == count(s.data.train)
    assert 0.15 < count(s.trial.test) / count(s.data.train) < 0.25
    assert jax.tree.map(np.shape, s.trial) == jax.tree.map(np.shape, s.data)  # so that one program serves both


def test_curve_is_the_error_of_draws_and_then_of_their_mean(dsgld):
    """Against predictions of the same draws, made here."""
    ratings, s, runner = dsgld
    curve = runner.curve(s.data, runner.unit, 6, 3, seed=5)
    row, column, value = (x[ratings.test] for x in (ratings.row, ratings.column, ratings.value))
    carry, keys, predicted = runner.start(s.data), factorization.keys(5), []
    for _ in range(6):
        carry, _ = runner.segment(np.float32(runner.unit), carry, s.data, keys, np.int32(1), np.int32(0))
        W, H = (side.gather(np.asarray(carry.state.position[k])) for k, side in (("W", s.p.rows), ("H", s.p.columns)))
        predicted.append((W[row] * H[column]).sum(1))
    rmse = lambda x: np.sqrt(np.mean((x - value) ** 2))
    expected = [rmse(x) for x in predicted[:3]] + [rmse(np.mean(predicted[3:n], axis=0)) for n in (4, 5, 6)]
    np.testing.assert_allclose(curve, expected, rtol=1e-4)


def test_the_better_of_two_steps_is_found_and_steps_that_are_too_large_end(dsgld):
    _, s, runner = dsgld
    budget = (60, 20)
    good, slow = (runner.curve(s.trial, e * runner.unit, *budget, seed=0, every=5)[-1] for e in (0.5, 0.004))
    assert good < slow - 0.05
    assert runner.curve(s.trial, 1e3 * runner.unit, *budget, seed=0)[-1] == np.inf


@pytest.mark.slow
def test_hamcmc_is_ahead_by_iterations(tmp_path):
    found = fig5.reproduce(tmp_path, quick=True)
    assert found.results["claim"]["ahead_at_equal_iterations"]["100"]
    assert all(curve[-1] < 0.95 for curve in found.results["rmse"].values())
    assert not any(t["at_the_edge"] for t in found.results["tuned"].values())
