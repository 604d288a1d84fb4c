"""The demonstration: one automatic call beside NUTS, and the recommended sampler as the plan sets it."""

import numpy as np
import pytest

from hamcmc.inference import auto, plan
from hamcmc.paper import contest, contest_figure, demo, gallery, nuts
from hamcmc.paper.contest import Contest, Side, Size
from hamcmc.target.mode import laplace

SMALL = Size(rows=5000, columns=4, seconds=600.0)  # time enough for all of what NUTS is to do


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The contest on few rows, as if they were many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "PATIENCE", 0.0)
        patch.setattr(auto, "QUICK", 0.0)
        patch.setattr(nuts, "WARMUP", 60)
        patch.setattr(nuts, "DRAWS", 100)
        said: list[str] = []
        return contest.contest(tmp_path_factory.mktemp("demo"), SMALL, tell=said.append), said


@pytest.mark.slow
def test_both_find_the_posterior(both):
    """So many rows make it normal: the Laplace approximation has its moments, but for a small share of an sd."""
    found, said = both
    exact = laplace(contest.logistic(contest.simulate(SMALL, 0)))
    sd = np.sqrt(np.diag(np.linalg.inv(exact.precision)))
    for side in found.sides:
        assert side.ess > 100
        assert (np.abs(side.mean - exact.flat) / sd < 4.5 / np.sqrt(side.ess) + 0.03).all()
        assert (np.abs(side.sd / sd - 1) < 4.5 / np.sqrt(2 * side.ess_sd) + 0.02).all()
        assert (np.abs(found.truth - side.mean) / sd < 4.5).all()
    assert found.agreement.holds
    assert "minibatches" in found.plan
    assert found.verdict.startswith(("good", "usable"))
    assert f"verdict: {found.verdict}" in said


def test_every_second_is_counted(both):
    found, _ = both
    for side in found.sides:
        assert side.total == pytest.approx(sum(side.seconds.values()))
        assert min(side.seconds.values()) >= 0
        assert side.seconds["sampling"] > 0
        assert side.rate == side.ess / side.total
    rows = dict(found.table())
    assert rows["seconds"] == [f"{s.total:.1f}" for s in found.sides]
    assert found.nuts.how == "4 chains, whitened at the mode; 60 warm-up iterations, 100 draws"


@pytest.mark.parametrize("moment", ["mean", "sd"])
def test_a_difference_is_noticed(both, moment):
    """By half a standard deviation, or by half of one."""
    found, _ = both
    wrong = {"mean": found.ours.mean + 0.5 * found.ours.sd, "sd": 1.5 * found.ours.sd}
    moved = found._replace(ours=found.ours._replace(**{moment: wrong[moment]}))
    assert not moved.agreement.holds
    assert "do not agree" in moved.notes()[-1]
    assert "The two agree" in found.notes()[-1]


def made(name="hamcmc", ess=5000.0, seconds=None):
    one = np.ones(3)
    parts = {"mode": 1.0, "compiling": 2.0, "warm-up": 0.5, "sampling": 0.5, "verdict": 1.0}
    return Side(name, "as it is", seconds or parts, ess, ess, 0 * one, one, -2 * one, 2 * one)


def result(tmp_path, **changes):
    found = Contest(1000, np.zeros(3), "because", "good: all agree", made(), made("NUTS", 50.0), tmp_path / "run")
    return found._replace(**changes)


def test_too_few_draws_of_nuts_are_not_compared(tmp_path):
    found = result(tmp_path, nuts=made("NUTS", float("nan"), {"mode": 1.0, "sampling": 1.0}))
    assert found.agreement is None
    assert dict(found.table())["effective draws"] == ["5,000", "too few to tell"]
    assert dict(found.table())["  verdict"] == ["1.0", "0.0"]
    assert contest_figure.draw(found).axes[1].patches  # a bar for the one that is known


def test_without_numpyro_nothing_runs_beside_it(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(contest, "find_spec", lambda name: None)
    monkeypatch.setattr(contest, "nuts", lambda *_: pytest.fail("NUTS ran"))
    monkeypatch.setattr(contest, "sample", lambda *_, **__: Finished())
    found = contest.contest(tmp_path, SMALL, tell=said.append)
    assert "hamcmc[numpyro]" in said[-1]
    assert [s.name for s in found.sides] == ["hamcmc"]
    assert len(contest_figure.draw(found).axes) == 3


class Finished:
    """As much of a result as the contest asks for."""

    def __init__(self):
        self.posterior = {"theta": np.random.default_rng(0).normal(size=(4, 50, SMALL.columns))}
        self.settings = {"plan": {"sampler": "ensemble_hamcmc", "regime": "minibatches", "reason": "because"}}
        self.meta = {"costs": {"mode": 0.0, "adaptation": 0.0, "sampling": 0.0, "verdict": 0.0}}

    def check(self):
        return type("Verdict", (), {"word": "good", "headline": "good: all agree"})


@pytest.fixture(autouse=True)
def cost_of_what_is_not_a_run(monkeypatch):
    real = contest.cost
    monkeypatch.setattr(contest, "cost", lambda r: made() if isinstance(r, Finished) else real(r))


@pytest.mark.slow
def test_the_automatic_choice_is_not_held_back(monkeypatch):
    """On the ridge it has the step of the plan, nearly independent draws, and the name of the sampler that ran."""
    everything = gallery.configurations
    chosen = lambda truth: {gallery.AUTOMATIC: everything(truth)[gallery.AUTOMATIC]}
    monkeypatch.setattr(gallery, "configurations", chosen)
    (row,), figure = gallery.gallery(quick=True)
    assert row.sampler == "automatic: leimkuhler_matthews"
    assert row.step_size == pytest.approx(1.0)
    assert row.ess > 0.5 * 16 * 200
    for ratio in (row.length, row.width):
        assert abs(ratio - 1) < 4.5 / np.sqrt(2 * row.ess)
    gradients = row.ess * row.per_effective_sample
    assert gradients > 16 * gallery.ITERATIONS / 10  # as many iterations as the others, 16 replicas in each
    assert figure.axes[0].get_title("right") == f"ESS {row.ess:,.0f}"


def test_both_parts_are_drawn(tmp_path, monkeypatch):
    row = gallery.Row("sgld", 1e-3, 0.5, 0.9, 1.1, 1234.0, 56.0)
    figure = contest_figure.draw(result(tmp_path))
    monkeypatch.setattr(demo, "contest", lambda out, size, **_: result(out, rows=size.rows))
    monkeypatch.setattr(demo, "gallery", lambda **_: ([row], figure))
    shown = []
    found = demo.demo(tmp_path, quick=True, show=shown.append)
    assert shown == [found.contest]
    assert found.contest.rows == contest.QUICK.rows
    assert found.rows == [row]
    assert all(p.stat().st_size > 10_000 for p in (found.picture, found.samplers))
