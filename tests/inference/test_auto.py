"""The one call: starts, plan and verdict together, on posteriors known exactly."""

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.diagnostics import gradients, grading
from hamcmc.inference import again as longer
from hamcmc.inference import auto, divergence, plan, running, starts
from hamcmc.inference.nearness import Nearness
from hamcmc.inference.starts import descend, spread_starts
from hamcmc.target.newton import Objective
from hamcmc.target.passes import Passes

QUICKLY = {"num_samples": 150, "adapt": 150, "replicas": 8, "thin": 1, "progress": False}
A = np.array([[4.0, 1.8], [1.8, 1.0]])  # of N(centre, A⁻¹), in units that differ by a thousand
UNITS, CENTRE = np.array([1e-2, 10.0]), np.array([3.0, -200.0])


def normal(scale=1.0):
    precision = A / np.outer(UNITS, UNITS)

    def log_density(p):
        away = jnp.stack([p["a"], p["b"]]) - jnp.asarray(CENTRE)
        return -0.5 * away @ jnp.asarray(precision) @ away

    return hamcmc.Posterior(log_density, init={"a": jnp.zeros(()), "b": jnp.zeros(())})


def rows_of_a_regression(n=3000):
    """Linear regression with unit noise: exact mean and covariance."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(n, 2)) @ np.array([[1.0, 0.9], [0.0, 0.3]]) * [1.0, 50.0]).astype(np.float32)
    y = (x @ [0.5, 0.01] + rng.normal(size=n)).astype(np.float32)
    precision = np.eye(2) / 100 + x.T.astype(float) @ x
    posterior = hamcmc.Posterior(
        lambda t: -0.5 * jnp.sum(t**2) / 100,
        lambda t, d: -0.5 * (d["y"] - d["x"] @ t) ** 2,
        {"x": x, "y": y},
        init=jnp.zeros(2),
    )
    return posterior, np.linalg.solve(precision, x.T.astype(float) @ y), np.linalg.inv(precision)


def check_moments(draws, mean, covariance, ess):
    """Within 4.5 standard errors of the exact ones."""
    x = draws.reshape(-1, draws.shape[-1]).astype(float)
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(x.mean(0) - mean) / sd < 4.5 / np.sqrt(ess)).all()
    assert (np.abs(x.var(0) / sd**2 - 1) < 4.5 * np.sqrt(2 / (ess / 2))).all()


def test_one_call_is_right_and_says_so(tmp_path):
    said = []
    result = hamcmc.sample(normal(), out=tmp_path / "run", **QUICKLY | {"progress": said.append})
    covariance = np.linalg.inv(A) * np.outer(UNITS, UNITS)
    draws = np.stack([result.posterior["a"], result.posterior["b"]], -1)
    check_moments(draws, CENTRE, covariance, float(np.min(result.summary()["ess_bulk"])))
    assert result.check().word in ("good", "usable")
    phases = list(dict.fromkeys(s.phase for s in said if not s.phase.endswith("draws")))
    assert phases == ["finding starts", "plan", "compiling", "adaptation"]
    assert [s.phase for s in said[-2:]] == ["checking the draws", "150 draws"]
    reason = next(s.note for s in said if s.phase == "plan")
    assert "2 parameters" in reason
    assert result.settings["plan"]["regime"] == "all data"
    assert result.settings["ensembles"] == 2
    assert result.meta["gradients"] > result.meta["iteration"] * 8 * 2  # more than one leapfrog step in each transition
    again = hamcmc.Result.open(tmp_path / "run")
    assert again.check() == result.check()
    assert again.settings["plan"]["reason"] == reason
    assert set(again.meta["costs"]) == {"mode", "trace", "compile", "adaptation", "sampling", "verdict"}


def beside_a_minor_mode(x):
    """N(0, I), and e⁻²⁵ of the mass in a narrow mode at 5, nearer to the start."""
    return jnp.logaddexp(-0.5 * jnp.sum(x**2), -0.5 * jnp.sum((x - 5) ** 2) / 0.01 - 20.0)


@pytest.mark.parametrize("broken", [False, True])
def test_no_replica_starts_in_a_mode_that_does_not_matter(monkeypatch, broken):
    """All start where typical draws are; and the test notices if depth and mass do not matter."""
    if broken:
        monkeypatch.setattr(starts, "MINOR", np.inf)
        monkeypatch.setattr(starts, "SHALLOW", np.inf)
    found = spread_starts(hamcmc.Posterior(beside_a_minor_mode), jnp.full(2, 4.95), 2, 16, seed=0)
    x = (found.white @ found.root.T + found.centre).reshape(-1, 2)
    lost = np.linalg.norm(x - 5, axis=1) < 1
    assert lost.any() == broken
    assert found.left_out != broken
    assert (np.linalg.norm(x[~lost], axis=1) < 6).all()


@pytest.mark.parametrize(
    ("asked", "bend", "draws", "warmup"),
    [({}, 1.0, 250, 300), ({}, 0.0, 125, 100), ({"num_samples": 40}, 0.0, 40, 300)],
)
def test_a_slow_run_has_fewer_draws(monkeypatch, asked, bend, draws, warmup):
    """Fewer still where the posterior is nearly normal, unless somebody asks for a number of them."""
    monkeypatch.setattr(auto, "decide", lambda facts: plan.on_all_data("slow", facts, slow=True))
    monkeypatch.setattr(starts, "nearness", lambda *_: Nearness(bend, 0.0))
    found = hamcmc.sample(normal(), replicas=8, thin=1, progress=False, **asked)
    assert found.draws == draws
    assert found.settings["warmup"] == warmup


@pytest.mark.parametrize(("num_samples", "word"), [(10, "not converged"), (40, "usable")])
def test_thinning_is_not_tried_where_draws_are_too_few(num_samples, word):
    """With 160 draws in all a run cannot be usable, and with 640 not good, however far they are apart."""
    found = hamcmc.sample(normal(), **QUICKLY | {"num_samples": num_samples, "thin": None})
    assert found.settings["thin"] == 1
    assert found.check().word == word
    reason = next(r for r in found.check().reasons if "effective draws" in r)
    assert f"and only {found.draws * found.settings['chains']:,} in all: a larger num_samples is needed" in reason


@pytest.mark.slow
def test_too_few_effective_draws_make_it_longer(monkeypatch, tmp_path):
    """The longer run is the one that a larger `thin` gives, to the bit, and its costs include the shorter one."""
    monkeypatch.setitem(grading.ESS, grading.GOOD, 2400)
    monkeypatch.setattr(longer, "MOST_RUNS", 2)
    said = []
    found = hamcmc.sample(normal(), out=tmp_path / "run", **QUICKLY | {"thin": None, "progress": said.append})
    thin = found.settings["thin"]
    assert thin in (2, 4, 8, 16)
    assert said[-1].draws == found.draws == QUICKLY["num_samples"]
    notes = [s.note for s in said if s.phase == "plan"]
    assert len(notes) == 2
    assert {s.note for s in said if s.draws} == {"", "longer run"}
    assert f"one iteration in {thin} is stored" in notes[1]
    again = hamcmc.sample(normal(), **QUICKLY | {"thin": thin})
    np.testing.assert_array_equal(found.posterior["a"], again.posterior["a"])
    assert again.settings["plan"]["thin"] == 1  # what was given is not planned
    assert found.meta["costs"]["adaptation"] > found.settings["plan"]["shorter"] > 0
    assert hamcmc.Result.open(tmp_path / "run").settings["thin"] == thin


@pytest.mark.slow
def test_a_first_run_with_too_few_draws_goes_on(monkeypatch, tmp_path):
    """Its draws are those of one longer run, to the bit, and it costs what the longer run costs."""
    monkeypatch.setitem(grading.ESS, grading.GOOD, 6000)
    said = []
    found = hamcmc.sample(normal(), replicas=8, out=tmp_path / "run", progress=said.append)
    plan = found.settings["plan"]
    assert (plan["goes_on"], plan["sampler"], found.settings["thin"]) == (True, "ensemble_hmc", 1)
    assert found.draws == plan["num_samples"] >= 2 * 125
    notes = [s.note for s in said if s.phase == "plan"]
    assert len(notes) >= 2
    assert "it goes on to" in notes[1]
    warmup = found.settings["warmup"]
    again = hamcmc.sample(normal(), num_samples=found.draws, replicas=8, adapt=warmup, thin=1, progress=False)
    np.testing.assert_array_equal(found.posterior["a"], again.posterior["a"])
    for name, x in again.sample_stats.items():
        np.testing.assert_array_equal(found.sample_stats[name], x)
    stored = hamcmc.Result.open(tmp_path / "run")
    np.testing.assert_array_equal(stored.posterior["a"], again.posterior["a"])
    assert stored.check() == found.check()
    assert found.meta["iteration"] == warmup + found.draws
    assert "shorter" not in plan
    assert found.meta["gradients"] == again.meta["gradients"]


@pytest.mark.parametrize("stopped_in", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_is_made_longer_as_if_nothing_had_happened(monkeypatch, tmp_path, stopped_in):
    """Whichever of its runs was stopped."""
    monkeypatch.setitem(grading.ESS, grading.GOOD, 6000)
    whole = hamcmc.sample(normal(), replicas=8, progress=False)
    drive, runs = running.drive, []

    def stopped(program, recorder, **how):
        """One of the runs is stopped at its beginning."""
        runs.append(program)
        if len(runs) == stopped_in:
            recorder.save({"status": "running", **program.counters()}, program.pack(True))
            raise KeyboardInterrupt
        return drive(program, recorder, **how)

    monkeypatch.setattr(running, "drive", stopped)
    with pytest.raises(KeyboardInterrupt):
        hamcmc.sample(normal(), replicas=8, out=tmp_path / "run", progress=False)
    monkeypatch.setattr(running, "drive", drive)
    again = hamcmc.resume(tmp_path / "run", normal(), progress=False)
    assert whole.settings["plan"]["runs"] >= 2
    for key in ("runs", "asked", "num_samples", "goes_on"):
        assert again.settings["plan"][key] == whole.settings["plan"][key]
    np.testing.assert_array_equal(again.posterior["a"], whole.posterior["a"])
    assert hamcmc.Result.open(tmp_path / "run").draws == whole.draws


@pytest.mark.slow
def test_a_first_run_that_is_not_good_is_followed_by_a_thorough_one(monkeypatch, tmp_path):
    monkeypatch.setitem(grading.ESS, grading.GOOD, 6000)
    monkeypatch.setattr(longer, "MOST_RUNS", 2)
    monkeypatch.setattr(plan, "further", lambda *_: None)  # as where chains disagree
    found = hamcmc.sample(normal(), replicas=8, out=tmp_path / "run", progress=False)
    assert (found.settings["warmup"], found.settings["thin"]) == (600, 1)  # there is room for all draws
    assert found.draws >= 1000
    assert hamcmc.Result.open(tmp_path / "run").settings["options"] == {"adapt": 600, "replicas": 8}
    with_others = {"adapt": 600, "replicas": 8, "thin": 1}
    again = hamcmc.sample(normal(), num_samples=found.draws, progress=False, **with_others)
    np.testing.assert_array_equal(found.posterior["a"], again.posterior["a"])


@pytest.mark.parametrize("regression", [pytest.param(False, marks=pytest.mark.slow), True])
def test_nearly_normal_posteriors_take_independent_proposals(regression):
    posterior, mean, covariance = rows_of_a_regression(500)
    if not regression:
        posterior, mean, covariance = normal(), CENTRE, np.linalg.inv(A) * np.outer(UNITS, UNITS)
    result = hamcmc.sample(posterior, progress=False)
    assert (result.settings["plan"]["sampler"], result.settings["warmup"], result.draws) == ("independence", 10, 125)
    assert result.sample_stats["acceptance"].mean() > 0.85  # 1 − heavy at least, if the posterior is normal
    draws = np.concatenate([v.reshape(*v.shape[:2], -1) for v in result.posterior.values()], -1)
    least = float(np.min(result.summary()["ess_bulk"]))
    assert least > 2500  # of 4000
    check_moments(draws, mean, covariance, least)
    assert result.check().word == "good"


def test_proposals_that_do_not_suit_give_way_to_trajectories(monkeypatch):
    """A posterior with heavy tails, which is taken for a normal one."""
    monkeypatch.setattr(plan, "NORMAL", np.inf)
    monkeypatch.setattr(plan, "EVEN", np.inf)
    monkeypatch.setattr(longer, "MOST_RUNS", 2)
    said = []
    posterior = hamcmc.Posterior(lambda x: -2 * jnp.sum(jnp.log1p(x**2 / 3)), init=jnp.zeros(4))
    result = hamcmc.sample(posterior, progress=said.append)
    first, second = (s.note for s in said if s.phase == "plan")
    assert "independent proposals" in first
    assert "ensemble_hmc with 600 iterations of warm-up" in second
    assert result.settings["sampler"]["sampler"] == result.settings["plan"]["sampler"] == "ensemble_hmc"


def test_many_rows_go_by_minibatches_around_the_mode(monkeypatch):
    monkeypatch.setattr(plan, "PATIENCE", 0.0)
    monkeypatch.setattr(auto, "QUICK", 0.0)
    looked, build = [], divergence.build
    monkeypatch.setattr(divergence, "build", lambda job: looked.append(job) or build(job))
    posterior, mean, covariance = rows_of_a_regression()
    said = []
    result = hamcmc.sample(posterior, num_samples=200, progress=said.append)  # PATIENCE is spent: it gets no longer
    assert not looked  # a run of a moment has its verdict
    monkeypatch.setattr(divergence, "SHORT", 0.0)
    again = hamcmc.sample(posterior, num_samples=200, progress=False)
    assert looked
    np.testing.assert_array_equal(again.posterior["theta"], result.posterior["theta"])
    phases = list(dict.fromkeys(s.phase for s in said if not s.phase.endswith("draws")))
    measured = ["timing the gradient", "looking for the mode", "looking for other modes"]
    assert phases == [
        *measured,
        "measuring the noise of minibatches",
        "plan",
        "compiling",
        "warm-up",
    ]
    chosen = result.settings["plan"]
    assert (chosen["regime"], chosen["sampler"]) == ("minibatches", "leimkuhler_matthews")
    assert result.settings["batch_size"] == plan.SMALLEST_BATCH  # a normal posterior has no noise at second order
    assert chosen["predictors"] == 0  # the run is short
    check_moments(result.posterior["theta"], mean, covariance, float(np.min(result.summary()["ess_bulk"])))
    assert result.check().word in ("good", "usable")


def test_gradients_by_predictors_change_no_draw_but_by_rounding(monkeypatch):
    monkeypatch.setattr(plan, "PATIENCE", 0.0)
    monkeypatch.setattr(auto, "QUICK", 0.0)
    posterior = rows_of_a_regression()[0]
    how = {"num_samples": 100, "progress": False}
    other = hamcmc.sample(posterior, **how)
    monkeypatch.setattr(plan, "PREPARING", -1e9)
    one = hamcmc.sample(posterior, **how)
    assert (one.settings["plan"]["predictors"], other.settings["plan"]["predictors"]) == (1, 0)
    assert one.settings["gradient"]["predictors"] == 1
    assert "the linear predictor of each row" in one.settings["plan"]["reason"]
    np.testing.assert_allclose(one.posterior["theta"], other.posterior["theta"], atol=1e-4)


# On all data: test_a_resumed_run_is_made_longer_as_if_nothing_had_happened.
@pytest.mark.parametrize("regime", [pytest.param("all data", marks=pytest.mark.slow), "minibatches", "predictors"])
def test_an_interrupted_run_goes_on_to_the_same_draws(regime, tmp_path, monkeypatch, short_segments):
    short_segments(40)
    posterior, how = normal(), QUICKLY
    if regime == "predictors":
        monkeypatch.setattr(plan, "PREPARING", -1e9)
    if regime != "all data":
        monkeypatch.setattr(plan, "PATIENCE", 0.0)
        monkeypatch.setattr(auto, "QUICK", 0.0)
        posterior, how = rows_of_a_regression()[0], {"num_samples": 150, "progress": False}
    whole = hamcmc.sample(posterior, out=tmp_path / "whole", **how)

    def stop(status):
        if status.draws > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hamcmc.sample(posterior, out=tmp_path / "run", checkpoint_seconds=0, **how | {"progress": stop})
    resumed = hamcmc.resume(tmp_path / "run", posterior, progress=False)
    for name, draws in whole.posterior.items():
        np.testing.assert_array_equal(resumed.posterior[name], draws)
    assert resumed.check().word == whole.check().word


def test_draws_that_cannot_be_checked_are_kept_and_not_called_usable(monkeypatch, tmp_path):
    def broken(*_):
        raise TypeError("of whatever origin")

    monkeypatch.setattr(gradients, "at", broken)
    with pytest.raises(hamcmc.Unchecked, match=r"could not be checked \(TypeError: of whatever") as raised:
        hamcmc.sample(normal(), out=tmp_path / "run", **QUICKLY)
    assert raised.value.result.draws == QUICKLY["num_samples"]
    again = hamcmc.Result.open(tmp_path / "run")
    assert again.draws == QUICKLY["num_samples"]
    assert again.meta["status"] == "complete"
    assert "verdict" not in again.meta


def test_positions_of_any_structure_are_judged():
    """A tuple, whose entries have no names of their own."""
    posterior = hamcmc.Posterior(lambda p: -0.5 * (jnp.sum(p[0] ** 2) + p[1][0] ** 2))
    result = hamcmc.sample(posterior, init=(jnp.zeros(2), (jnp.zeros(()),)), **QUICKLY)
    assert result.check().gradients > 0
    assert set(result.posterior) == {"0", "1.0"}
    assert posterior.init is None


@pytest.mark.slow
def test_arguments_override_the_plan():
    result = hamcmc.sample(normal(), ensembles=3, warmup=200, num_samples=20, adapt=40, replicas=4, progress=False)
    assert (result.settings["ensembles"], result.settings["warmup"], result.settings["replicas"]) == (3, 200, 4)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"init is missing.*Posterior"):
        hamcmc.sample(hamcmc.Posterior(lambda x: -jnp.sum(x**2)))
    with pytest.raises(ValueError, match="bijection"):
        hamcmc.sample(hamcmc.Posterior(lambda x: -jnp.sum(x), support=hamcmc.positive("mirror"), init=jnp.ones(2)))
    with pytest.raises(ValueError, match="another init"):
        hamcmc.sample(hamcmc.Posterior(lambda x: jnp.log(-1 - jnp.sum(x**2)), init=jnp.ones(2)))


# --- starts ---


def objective(log_density, dimension):
    return Objective(Passes(hamcmc.Posterior(log_density), jnp.zeros(dimension)))


def test_a_descent_ends_at_the_edge_of_the_bulk():
    """From 10⁴ standard deviations away; at a typical draw gᵀ|H|⁻¹g is about D."""
    scales = np.array([1e-3, 1.0, 1e3])
    log_density = lambda x: -jnp.sum(jnp.sqrt(1 + (x / scales) ** 2))
    place = descend(objective(log_density, 3), np.array([10.0, 1e4, 1e7]))
    assert (np.abs(place.x / scales) < 20).all()
    np.testing.assert_allclose(np.sqrt((place.root**2).sum(1)) / scales, 1, rtol=15)


def test_a_descent_does_not_follow_a_density_without_a_mode():
    """Centred effects: the density grows without bound as τ → 0, where the mass is not."""
    y = jnp.array([3.0, -2.0, 1.0, 0.5, -1.0])

    def log_density(u):
        log_tau, theta = u[0], u[1:]
        return -5 * log_tau - 0.5 * jnp.sum(theta**2) * jnp.exp(-2 * log_tau) - 0.5 * jnp.sum((y - theta) ** 2)

    place = descend(objective(log_density, 6), np.array([1.0, 0, 0, 0, 0, 0]))
    assert place.x[0] > -4


def test_starts_differ_and_are_finite():
    posterior = hamcmc.Posterior(lambda x: jnp.sum(jnp.log(1 - jnp.tanh(x) ** 2)) - jnp.exp(5 * jnp.sum(x)))
    made = spread_starts(posterior, jnp.zeros(3), 2, 8, seed=0)
    flat = made.white.reshape(-1, 3) @ made.root.T + made.centre
    assert len(np.unique(flat, axis=0)) == 16
    assert all(np.isfinite(float(posterior.log_density(jnp.asarray(x, jnp.float32)))) for x in flat)
    with pytest.raises(ValueError, match="another init"):
        spread_starts(hamcmc.Posterior(lambda x: jnp.sum(x) / 0), jnp.zeros(2), 1, 4, seed=0)


def test_a_second_mode_far_away_is_seen():
    """Two normals, 20 standard deviations apart: all starts around 0 lie in the basin of the lesser one."""
    far = lambda x: jnp.logaddexp(-0.5 * jnp.sum((x + 5) ** 2), 1 - 0.5 * jnp.sum((x - jnp.array([15.0, 5.0])) ** 2))
    posterior = hamcmc.Posterior(far, init=jnp.zeros(2))
    made = spread_starts(posterior, jnp.zeros(2), 2, 8, seed=0)
    flat = made.white.reshape(-1, 2) @ made.root.T + made.centre
    assert (flat[:, 0] > 10).any()
    assert (flat[:, 0] < 0).any()
    result = hamcmc.sample(posterior, **QUICKLY)
    assert result.check().word in ("not converged", "wrong")


@pytest.mark.slow
def test_scouts_cross_a_barrier():
    """Two normals in 5 dimensions, 20 standard deviations apart: descents on one side of the first miss the other."""
    other = jnp.zeros(5).at[0].set(20.0)
    far = lambda x: jnp.logaddexp(-0.5 * jnp.sum(x**2), 1 - 0.5 * jnp.sum((x - other) ** 2))
    objective = Objective(Passes(hamcmc.Posterior(far), jnp.zeros(5)))
    best = starts.arrive(objective, np.zeros(5)).place
    found = [starts.scout(objective, best, np.random.default_rng(seed)) for seed in range(30)]
    assert [len(modes) for modes in found] == [1] * 30


def test_a_single_mode_is_not_seen_twice():
    for log_density in (lambda x: -0.5 * jnp.sum(x**2), lambda x: -2 * jnp.sum(jnp.log1p(x**2 / 3))):
        made = spread_starts(hamcmc.Posterior(log_density), jnp.zeros(3), 2, 8, seed=0)
        assert np.abs(made.white @ made.root.T + made.centre).max() < 12
        assert not made.left_out


def narrow_in_wide(x):
    """The mode of the narrow one is perfectly normal; most of the mass is not there."""
    log = lambda s: -0.5 * jnp.sum((x / s) ** 2) - 4 * jnp.log(s)
    return jnp.logaddexp(log(0.2) - jnp.log(2.0), log(3.0) - jnp.log(2.0))


@pytest.mark.parametrize(
    ("log_density", "most", "least"),
    [
        (lambda x: -0.5 * jnp.sum(x**2 * jnp.array([1.0, 100.0, 1e4, 1.0])), 1e-3, 0.0),
        (lambda x: -0.5 * jnp.sum(x**2) - 0.0003 * jnp.sum(x**4), 0.1, 0.01),
        (narrow_in_wide, np.inf, 0.5),
        (lambda x: -2 * jnp.sum(jnp.log1p(x**2 / 3)), np.inf, 0.5),
        (lambda x: jnp.logaddexp(-0.5 * jnp.sum((x - 4) ** 2), -0.5 * jnp.sum((x + 4) ** 2)), np.inf, np.inf),
    ],
    ids=["normal", "nearly normal", "narrow in wide", "Student-t(3)", "two modes"],
)
def test_the_bend_tells_normal_posteriors_from_others(log_density, most, least):
    found = spread_starts(hamcmc.Posterior(log_density), jnp.zeros(4), 2, 8, seed=0)
    assert least <= found.nearness.bend <= most
