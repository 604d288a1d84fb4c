"""The race judges known draws as it should, keeps to its budget, has the exact moments, and finds where lines cross."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import race, race_figure, race_problems
from benchmarks.race_clock import Clock, Judged, Loop, judge, shortened
from jax.flatten_util import ravel_pytree


def normal_truth(variances):
    return race_problems.along(np.zeros(len(variances)), np.diag(variances))


def test_independent_draws_are_worth_their_number_and_right():
    draws = np.random.default_rng(0).standard_normal((4, 1000, 3)) * [1.0, 2.0, 0.1]
    found = judge(draws, normal_truth([1.0, 4.0, 0.01]), 1)
    assert 3000 < found.ess < 4500  # the poorest of six directions, of 4000 draws; one in eight is ArviZ's own error
    assert found.error < found.chance == pytest.approx(np.sqrt(4 / found.ess * np.log(12)))
    assert found.mean_error < 4 / np.sqrt(4000)
    assert found.right


def test_the_worst_direction_counts():
    draws = np.random.default_rng(0).standard_normal((4, 1000, 3))
    correlated = draws @ np.linalg.cholesky([[1.0, 0.9, 0], [0.9, 1, 0], [0, 0, 1]]).T
    found = judge(correlated, normal_truth([1.0, 1.0, 1.0]), 1)
    assert found.error < 0.1  # every coordinate has the variance that it should
    exact = race_problems.along(np.zeros(3), np.array([[1.0, -0.9, 0], [-0.9, 1, 0], [0, 0, 1]]))
    off = judge(correlated, exact, 1)
    assert off.error == pytest.approx(18, rel=0.1)  # (1 + 0.9) / (1 − 0.9) − 1
    assert not off.right
    shifted = judge(draws + np.array([0, 0.5, 0]), normal_truth([1.0, 1.0, 1.0]), 1)
    assert shifted.mean_error == pytest.approx(0.5, abs=0.06)
    assert not shifted.right


def test_chains_that_move_together_are_worth_one():
    rng = np.random.default_rng(0)
    draws = np.repeat(rng.standard_normal((1, 1000, 1)), 10, 0) + 0.01 * rng.standard_normal((10, 1000, 1))
    alone, together = (judge(draws, normal_truth([1.0]), n).ess for n in (1, 10))
    assert together < 1200 < alone


def test_draws_that_are_not_finite_or_do_not_move_are_worth_nothing():
    assert judge(np.full((4, 100, 2), np.nan), normal_truth([1.0, 1.0]), 1).ess == 0
    assert judge(np.zeros((4, 100, 2)), normal_truth([1.0, 1.0]), 1).ess == 0


def test_warm_up_keeps_its_share_of_the_budget():
    assert shortened(500, 500, done=100, elapsed=1.0, seconds=120.0) == 500
    assert shortened(500, 500, done=10, elapsed=2.0, seconds=100.0) == 250  # 500 of 1000 iterations are possible
    assert shortened(800, 1000, done=9, elapsed=1.0, seconds=100.0) == 400
    assert shortened(500, 500, done=1, elapsed=60.0, seconds=120.0) == 20


def test_a_loop_keeps_every_so_many_and_stops_with_its_budget():
    clock = Clock(60.0)
    loop = Loop(lambda x, key, add: x + add, lambda x, add: x, clock, jnp.zeros((2, 1)), (jnp.ones(()),), 0)
    draws = loop.run(120, 3, until=60.0)
    np.testing.assert_array_equal(draws[..., 0], np.tile(3.0 * np.arange(1, 121), (2, 1)))
    assert loop.run(120, 3, until=0.0).shape == (2, 1, 1)
    assert clock.parts["compile"] > 0


def test_a_trial_is_not_counted():
    clock = Clock(60.0)
    with clock.part("preparation"):
        clock.began -= 5
    mark = clock.mark()
    clock.began -= 50
    clock.parts["warm-up"] = 50.0
    clock.back(mark)
    assert 5 < clock.total < 10
    assert clock.parts.keys() == {"preparation"}


def test_the_moments_of_the_hierarchical_model_agree_with_importance_sampling():
    problem = race_problems.hierarchical(4, 60)
    mean, covariance = problem.moments()
    posterior = problem.posterior()
    _, unravel = ravel_pytree(posterior.init)
    rng, d = np.random.default_rng(0), len(mean)
    t = rng.standard_normal((100_000, d)) / np.sqrt(rng.chisquare(6, (100_000, 1)) / 6)
    theta = mean + t @ np.linalg.cholesky(covariance).T
    of_one = lambda x: posterior.log_density(unravel(x), posterior.data)
    log = np.asarray(jax.jit(jax.vmap(of_one))(jnp.asarray(theta, jnp.float32)), np.float64)
    log += (6 + d) / 2 * np.log1p((t**2).sum(1) / 6)
    w = np.exp(log - log.max())
    w /= w.sum()
    found = w @ theta
    spread = w @ (theta - found) ** 2
    least = 1 / (w**2).sum()
    assert least > 20_000
    assert np.abs(found - mean).max() / np.sqrt(np.diag(covariance)).min() < 0.1
    np.testing.assert_allclose((found - mean) / np.sqrt(np.diag(covariance)), 0, atol=4 / np.sqrt(least))
    np.testing.assert_allclose(spread / np.diag(covariance), 1, atol=4 * np.sqrt(4 / least))


def lines(ours, *others):
    sizes = [10**3, 10**4, 10**5]
    return {"hamcmc": dict(zip(sizes, ours))} | {f"peer {i}": dict(zip(sizes, o)) for i, o in enumerate(others)}


def test_the_crossing_is_where_the_best_other_falls_behind():
    said = race_figure.crossing(lines([10, 10, 10], [100, 10**0.5, 0.1], [1, 5, 0.2]))
    # From + ln 10 at 10³ to − ln 2 at 10⁴, against the better of the two at each.
    n = race_figure.rounded(10 ** (3 + np.log(10) / np.log(20)))
    assert f"ahead from about N = {n:,} on" in said
    assert "at N = 100,000 it makes 50 times as many as the best other, peer 1" in said
    assert "at every N" in race_figure.crossing(lines([10, 10, 10], [1, 1, 1]))
    alone = lines([10, 10, 10], [1, 1]) | {"peer 1": {10**3: 2.0}}
    assert "at N = 10,000 it makes 10 times" in race_figure.crossing(alone)
    assert "and at N = 100,000 no other had 50 of them in its time" in race_figure.crossing(alone)
    assert "behind at the largest N" in race_figure.crossing(lines([10, 10, 1], [1, 1, 2]))


def measurement(problem, method, total, error=0.01, ess=1000.0):
    judged = Judged(ess, error, 0.01, 0.1)._asdict()
    parts = {"compile": 1.0, "sampling": 2.0}
    key = dict(zip(race.KEY, (problem, method, 0, 120.0, False)))
    return (
        key
        | {"title": problem, "reference": 0.0, "status": "", "settings": "", "total": total, "parts": parts}
        | judged
    )


def test_tables_and_figure_come_from_the_kept_measurements(tmp_path):
    kept = []
    for n, peer in (("logistic-1e3-1e5", 5.0), ("logistic-1e4-1e5", 50.0)):
        kept += [measurement(n, "hamcmc", 10.0), measurement(n, "nuts-white", peer)]
        kept += [measurement(n, "sgld", 1.0, error=3.0)]
    kept.append(dict(zip(race.KEY, ("logistic-1e3-1e5", "ecs", 0, 120.0, False))) | {"status": "failed: why"})
    found = race.tables(kept)
    first = {r["method"]: r for r in found[0].rows}
    assert first["NUTS (NumPyro), whitened"]["hamcmc has"] == "× 0.5"
    assert first["SGLD (BlackJAX)"]["settings"] == "wrong"
    few = race.tables([measurement("one-hot", "sgld", 1.0, ess=49.0)])[0].rows[0]
    assert (few["settings"], race.rate([measurement("one-hot", "sgld", 1.0, ess=49.0)], "sgld")) == (
        "too few effective draws to count",
        0.0,
    )
    assert first["HMCECS (NumPyro)"]["settings"] == "failed: why"
    assert [(a.peer, a.ahead) for a in found[0].against] == [("NUTS (NumPyro), whitened", "peer")]
    assert {r["method"]: r["rest, s"] for r in found[1].rows}["hamcmc"] == "7.00"
    assert [(a.peer, a.ahead) for a in found[2].against] == [("NUTS (NumPyro), whitened", "hamcmc")]
    assert {len(r) for r in found[0].rows} == {len(found[0].rows[0])}
    left = {r["problem"]: r["methods"] for r in found[-1].rows}
    assert (found[-1].title, left["one-hot"], len(left)) == ("Not measured yet", "all", len(race.ENTRIES | race.HUGE))
    assert left["logistic-1e4-1e5"].startswith("NUTS (NumPyro), NUTS (NumPyro), dense, nutpie")
    (tmp_path / "race.json").write_text(json.dumps({"tables": [t._asdict() for t in found]}))
    said = race_figure.draw(1e5, tmp_path, tmp_path / "race.png")
    n = race_figure.rounded(10 ** (3 + np.log(2) / np.log(10)))
    assert f"ahead from about N = {n:,} on; at N = 10,000 it makes 5 times as many" in said
    assert (tmp_path / "race.png").stat().st_size > 5000


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(race, "raced", lambda **m: made.append(m["method"]) or {"status": "x"})
    want = [dict(zip(race.KEY, ("linear", m, 0, 1.0, True))) for m in ("hamcmc", "nuts")]
    log = tmp_path / "race.jsonl"
    log.write_text(json.dumps(want[0] | {"status": "kept"}) + "\n" + '{"problem": "lin')
    kept = race.measured(want, log, fresh=False)
    assert made == ["nuts"]
    assert [m["status"] for m in kept.values()] == ["kept", "x"]
    assert len(race.measured(want, log, fresh=False)) == 2
    assert made == ["nuts"]


def test_what_had_no_draws_on_fewer_rows_is_left_out():
    key = lambda problem, method="nuts": dict(zip(race.KEY, (problem, method, 1, 40.0, False)))
    slow = dict(key("logistic-1e4-1e5"), round=0, status="too slow", slow=True)
    assert "N = 10,000" in race.hopeless(key("logistic-1e5-1e5"), [slow])["status"]
    assert race.hopeless(key("logistic-1e4-1e5"), [slow])["status"] == "too slow"
    stuck = {k: v for k, v in slow.items() if k != "slow"} | {"ess": 0.2}
    assert "N = 10,000" in race.hopeless(key("logistic-1e6-1e5"), [stuck])["status"]
    assert not race.hopeless(key("logistic-1e4-1e5"), [stuck])  # chance may have been against it
    for other in (key("logistic-1e3-1e5"), key("logistic-1e5-1e2"), key("one-hot"), key("logistic-1e5-1e5", "sgld")):
        assert not race.hopeless(other, [slow, stuck])
    assert not race.hopeless(key("logistic-1e5-1e5"), [{**stuck, "ess": 30.0}])


@pytest.mark.parametrize("first", [{"status": "too slow", "slow": True}, {"status": "stopped", "ess": 0.0}])
def test_the_one_to_beat_is_given_longer_where_it_has_no_draws(first, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(race, "exact_path", lambda problem, quick: tmp_path)
    monkeypatch.setattr(race, "command", lambda *a: asked.append(a[3]) or ({"ess": 80.0} if a[3] > 40 else dict(first)))
    run = lambda method, quick=False: race.raced("linear", method, 0, 40.0, quick)
    assert run(race.ONE_TO_BEAT) == {"budget": 200.0, "ess": 80.0}
    assert asked == [40.0, 200.0]
    assert run("nuts") == first
    assert run(race.ONE_TO_BEAT, quick=True) == first
    assert asked[2:] == [40.0, 40.0]
