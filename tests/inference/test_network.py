"""Automatic runs on networks: starts, scales and the step size, and what the verdict says of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hamcmc
from hamcmc.diagnostics import agreement, regression
from hamcmc.inference import auto, network, plan, recognise
from hamcmc.inference.plan import Measured, decide
from hamcmc.target.whitened import Whitened

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (240, 1)).astype(np.float32)
Y = (np.sin(2 * X[:, 0]) + 0.1 * RNG.standard_normal(240)).astype(np.float32)


def net(w, x):
    for k in range(2):
        x = jnp.tanh(x @ w[f"W{k}"] + w[f"b{k}"])
    return (x @ w["W2"])[..., 0]


def log_prior(w):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))


def log_likelihood(w, rows):
    x, y = rows
    return -0.5 * ((y - net(w, x)) / 0.1) ** 2 - jnp.log(0.1) - 0.5 * jnp.log(2 * jnp.pi)


def start(width=20, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    weights = {"W0": draw(1, width), "W1": draw(width, width), "W2": draw(width, 1)}
    return weights | {"b0": np.zeros(width, np.float32), "b1": np.zeros(width, np.float32)}


@pytest.fixture(scope="module", autouse=True)
def shorter():
    """Networks as small as these need fewer steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "LEAST_STEPS", 1000)
        patch.setattr(network, "TRIAL", 240)
        patch.setattr(plan, "NETWORK_WARMUP", 200)
        patch.setattr(plan, "NETWORK_DRAWS", 100)
        patch.setattr(plan, "MOST_PACES", 1)
        yield


@pytest.fixture(scope="module")
def posterior():
    return hamcmc.Posterior(log_prior, log_likelihood, (X, Y), init=start(), batched=True)


@pytest.fixture(scope="module")
def run(posterior, tmp_path_factory):
    """An automatic run, what it said, and where it is."""
    said, path = [], tmp_path_factory.mktemp("network") / "run"
    return hamcmc.sample(posterior, out=path, progress=said.append), said, path


def linear(sd=(1.0, 1.0, 1.0)):
    """A linear regression, of which everything is known."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((300, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -1.0, 0.5]) + 0.5 * rng.standard_normal(300)).astype(np.float32)
    scale = jnp.asarray(sd, jnp.float32)
    likelihood = lambda w, rows: -0.5 * ((rows[1] - rows[0] @ w) / 0.5) ** 2
    model = hamcmc.Posterior(
        lambda w: -0.5 * jnp.sum((w / scale) ** 2), likelihood, (x, y), init=np.zeros(3, np.float32), batched=True
    )
    precision = x.astype(np.float64).T @ x / 0.25 + np.diag(np.asarray(scale, np.float64) ** -2)
    return model, np.linalg.solve(precision, x.T @ y / 0.25), precision


def test_a_network_is_known_by_its_curvature(posterior):
    like = posterior.unconstrain(posterior.init)
    assert recognise.weight_matrices(like) == 3
    assert recognise.exchangeable(posterior, like, 0)
    assert recognise.folded(posterior, like, 0)


def test_a_hierarchy_is_no_network():
    """Two matrices of effects under a scale that is sampled: the log-density bends upwards, and nothing is a unit."""
    rng = np.random.default_rng(0)
    data = {"group": rng.integers(0, 100, 2000), "x": rng.standard_normal((2000, 3)).astype(np.float32)}
    data["y"] = rng.standard_normal(2000).astype(np.float32)

    def prior(p):
        scaled = sum(jnp.sum((p[k] / jnp.exp(p["log_sd"])) ** 2) for k in ("slopes", "shifts"))
        return -0.5 * scaled - 600 * p["log_sd"] - 0.5 * p["log_sd"] ** 2

    def likelihood(p, row):
        of_group = p["slopes"][row["group"]] + p["shifts"][row["group"]]
        return -0.5 * (row["y"] - row["x"] @ of_group) ** 2

    init = {"slopes": np.zeros((100, 3), np.float32), "shifts": np.zeros((100, 3), np.float32), "log_sd": np.float32(0)}
    hierarchy = hamcmc.Posterior(prior, likelihood, data, init=init)
    like = hierarchy.unconstrain(jax.tree.map(jnp.asarray, init))
    assert recognise.weight_matrices(like) == 2
    assert not recognise.exchangeable(hierarchy, like, 0)


def test_components_of_a_factorization_can_be_exchanged():
    rng = np.random.default_rng(0)
    data = {"i": rng.integers(0, 30, 500), "j": rng.integers(0, 20, 500), "r": rng.standard_normal(500)}
    data["r"] = data["r"].astype(np.float32)
    likelihood = lambda p, row: -0.5 * (row["r"] - p["U"][row["i"]] @ p["V"][row["j"]]) ** 2
    init = {"U": np.zeros((30, 10), np.float32), "V": np.zeros((20, 10), np.float32)}
    assert recognise.exchangeable(hamcmc.Posterior(log_prior, likelihood, data, init=init), init, 0)


def test_a_regression_with_two_matrices_is_no_network():
    x = np.random.default_rng(0).standard_normal((200, 12)).astype(np.float32)
    likelihood = lambda w, rows: -0.5 * jnp.sum((rows @ w["A"] - 1) ** 2 + (rows @ w["B"] + 1) ** 2, -1)
    init = {"A": np.zeros((12, 20), np.float32), "B": np.zeros((12, 20), np.float32)}
    flat = hamcmc.Posterior(log_prior, likelihood, x, init=init, batched=True)
    assert recognise.weight_matrices(init) == 2
    assert not recognise.folded(flat, init, 0)


def test_rows_are_held_out_and_none_is_lost():
    rows = {"i": np.arange(500), "x": np.arange(500.0)}
    training, held = network.divided(rows, np.random.default_rng(0))
    assert len(held["i"]) == 50
    assert sorted([*np.asarray(training["i"]), *np.asarray(held["i"])]) == list(range(500))
    assert np.array_equal(training["x"], training["i"])
    with pytest.raises(ValueError, match="30 rows are too few to hold 20 of them out"):
        network.divided({"x": np.arange(30.0)}, np.random.default_rng(0))


def test_networks_are_drawn_anew_like_the_given_one():
    like = {"W": np.zeros((40, 30)), "V": 3 + 0.1 * RNG.standard_normal((50, 50)), "b": np.full(7, 2.0)}
    like = {n: x.astype(np.float32) for n, x in like.items()}
    new = network.drawn_anew(like, np.random.default_rng(0))
    assert np.std(new["W"]) == pytest.approx(1 / np.sqrt(40), rel=0.1)
    assert (np.mean(new["V"]), np.std(new["V"])) == (pytest.approx(3, abs=0.01), pytest.approx(0.1, rel=0.1))
    assert np.abs(np.corrcoef(np.ravel(new["V"]), np.ravel(like["V"]))[0, 1]) < 0.1
    assert np.array_equal(new["b"], like["b"])  # as the scales of a normalization


def test_the_prior_s_curvature_is_exact_for_independent_parameters():
    model, _, _ = linear(sd=(0.1, 1.0, 10.0))
    assert np.allclose(network.prior_curvature(model, jnp.zeros(3), 0), [100.0, 1.0, 0.01])


def test_the_largest_curvature_is_found():
    model, _, precision = linear()
    white = Whitened(model, jnp.zeros(3), np.zeros(3), np.ones(3))
    found = network.largest_curvature(white, jnp.zeros(3), model.data, 0)
    assert float(found) == pytest.approx(np.linalg.eigvalsh(precision)[-1], rel=0.1)


def test_training_comes_to_the_mode():
    model, mode, _ = linear()
    flat = Whitened(model, jnp.zeros(3), np.zeros(3), np.ones(3))
    train = network.trainer(flat, 100, 4000)
    ends, squares, values = train(jnp.zeros((2, 3)), model.data, jax.random.key(0))
    assert np.allclose(ends, mode, atol=0.02)
    at_mode = float(model.log_density(jnp.asarray(mode, jnp.float32), model.data)) / 300
    assert np.allclose(values, at_mode, atol=0.1)
    # The mean squares of the gradient of −log p / N say what the curvature is: N n E[ḡ²] is near N E[∇²].
    fisher = 300 * 100 * np.mean(squares, 0)
    assert np.allclose(fisher, 300 / 0.25, rtol=0.4)


def test_training_keeps_what_predicted_best():
    """Rows that are held out contradict the others, so training makes them worse from the first look on."""
    model, mode, _ = linear()
    flat = Whitened(model, jnp.zeros(3), np.zeros(3), np.ones(3))
    x = model.data[0]
    train, begin = network.trainer(flat, 100, 4000), jnp.zeros((1, 3))
    away = train(begin, model.data, jax.random.key(0), (x, -(x @ jnp.asarray(mode, jnp.float32))))[0]
    alike = train(begin, model.data, jax.random.key(0), model.data)[0]
    assert np.abs(alike - mode).max() < 0.05
    assert (np.linalg.norm(away) < 0.9 * np.linalg.norm(mode)).all()


def test_training_never_keeps_what_is_not_finite():
    """The second minibatch and all later ones give NaN; what is kept is where training began."""
    likelihood = lambda w, rows: jnp.where(jnp.abs(w[0]) > 1e-4, jnp.nan, rows @ w)
    model = hamcmc.Posterior(lambda w: jnp.sum(w), likelihood, np.ones((64, 3), np.float32), batched=True)
    flat = Whitened(model, jnp.zeros(3), np.zeros(3), np.ones(3))
    ends, _, _ = network.trainer(flat, 32, 100)(jnp.zeros((1, 3)), model.data, jax.random.key(0), model.data)
    assert np.array_equal(ends, np.zeros((1, 3)))


def test_small_networks_make_more_steps():
    assert plan.pace(3000) == 1  # at most MOST_PACES, which is 1 in these tests
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MOST_PACES", 8)
        assert [plan.pace(n) for n in (np.inf, 276_000, 100_000, 3000, 0)] == [1, 1, 2, 8, 8]
        facts = Measured(300, 500, False, 550, 32, False, matrices=3, folded=True)
        small, large = decide(facts._replace(operations=3000)), decide(facts)
        assert small.thin == 8 * large.thin
        assert small.warmup == 8 * large.warmup


@pytest.mark.slow
def test_the_run_samples_the_posterior():
    model, mean, precision = linear()
    planned = decide(Measured(300, 46_090, False, 550, 32, False, matrices=3, folded=True))
    ready = auto.for_predictions(model, jnp.zeros(3), planned._replace(batch_size=300), 0, None, 0.0)
    found = hamcmc.sample(
        ready.posterior,
        ready.plan.sampler,
        lambda key: model.constrain(jnp.asarray(mean, jnp.float32)),
        step_size=ready.plan.step_size,
        warmup=500,
        num_samples=4000,
        chains=4,
        progress=False,
        **ready.plan.options,
    )
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    x = found.posterior["theta"]
    few = found.summary()["ess_bulk"]
    assert (np.abs(x.mean((0, 1)) - mean) < 5 * sd / np.sqrt(few)).all()
    assert np.allclose(x.std((0, 1)), sd, rtol=5 / np.sqrt(2 * np.min(few)) + 0.02)


def test_the_automatic_run_says_what_it_does_and_predicts(run, posterior):
    result, said, _ = run
    made = result.settings["plan"]
    assert (made["regime"], made["sampler"]) == ("predictions", "sghmc")
    reasons = [s.note for s in said if s.phase == "plan"]
    assert len(reasons) == 1
    assert "made for predictions" in reasons[0]
    assert {"training networks", "trying step sizes"} <= {s.phase for s in said}
    new = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    found = result.predict(net, new)
    assert np.sqrt(np.mean((found.mean - np.sin(2 * new[:, 0])) ** 2)) < 0.05
    assert (found.sd > 0.005).all()


def test_trials_of_both_kinds_are_scored_and_the_better_one_is_taken(run, posterior):
    result, _, _ = run
    made, schedule = result.settings["plan"], result.settings["step_size"]["schedule"]
    scores = made["held_out"]
    assert scores["sampled"] == max(scores["constant"], scores["cyclical"])
    better = scores["cyclical"] > scores["constant"]
    assert schedule == ("cyclical" if better else "constant")
    assert (made["cycle"] > 0) == better
    assert ("steps in cycles, ε" if better else "a constant step, ε") in made["reason"]


@pytest.mark.slow
def test_cycles_may_be_asked_for(posterior):
    result = hamcmc.sample(posterior, step_size="cyclical", progress=False)
    made, schedule = result.settings["plan"], result.settings["step_size"]
    assert schedule == {"schedule": "cyclical", "step_size": made["step_size"], "period": 120, "floor": 0.0}
    assert made["held_out"]["sampled"] == made["held_out"]["cyclical"]
    assert np.ptp(result.weights) > 0.5 * made["step_size"]
    new = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    assert np.sqrt(np.mean((result.predict(net, new).mean - np.sin(2 * new[:, 0])) ** 2)) < 0.05
    assert result.check().word == "usable"


def test_cycles_of_what_is_no_network_are_refused():
    with pytest.raises(ValueError, match="for networks, and this posterior is none"):
        hamcmc.sample(linear()[0], step_size="cyclical", progress=False)
    with pytest.raises(ValueError, match=r"give hamcmc\.Cyclical"):
        hamcmc.sample(linear()[0], "sgld", step_size="cyclical", progress=False)
    with pytest.raises(ValueError, match="must be 'auto' or 'cyclical'"):
        hamcmc.sample(linear()[0], "sgld", step_size="waves", progress=False)


def test_a_trial_scores_the_average_over_its_draws_whatever_their_weights():
    """Chains that hardly move predict what they predicted at the start, also where steps fall in cycles."""
    model, mean, _ = linear()
    trial = network.tried(network.flat_view(model, model.init), 30, 400)
    held = jax.tree.map(lambda x: x[:50], model.data)
    starts = jnp.asarray(np.tile(mean, (4, 1)), jnp.float32)
    known = float(jnp.mean(model.log_predictive(starts[0], held)))
    still, far = ([trial(starts, e, d, model.data, held, jax.random.key(0)) for d in (0.0, 1.0)] for e in (1e-12, 1e-4))
    assert np.allclose([float(score) for _, score in still], known, atol=1e-4)
    assert not np.allclose(far[0][0], far[1][0])


def test_many_draws_predict_unseen_rows_better_than_trained_networks(run, posterior):
    rng = np.random.default_rng(5)
    x = rng.uniform(-2, 2, (500, 1)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(500)
    known, held = network.divided(posterior.data, np.random.default_rng(0))
    flat = network.flat_view(posterior.on(known), posterior.unconstrain(posterior.init))
    starts = jnp.stack([ravel_pytree(start(seed=k))[0] for k in range(4)])
    trained, _, _ = network.trainer(flat, 128, 1000)(starts, known, jax.random.key(0), held)
    single = [regression(np.asarray(net(flat.constrain(w), x))[None], y, 0.1).nll for w in trained]
    assert regression(run[0].predict(net, x).draws, y, 0.1).nll < np.mean(single)


def test_the_verdict_is_about_predictions_and_honest_about_parameters(run):
    result, _, path = run
    verdict = result.check()
    assert verdict.word == "usable"
    assert "predictions agree between 4 chains" in verdict.reason
    assert "the parameters of a network mean nothing one by one" in verdict.reasons[1]
    assert "held out in tuning" in verdict.reasons[2]
    assert "usable" in str(verdict)
    assert hamcmc.Result.open(path).check() == verdict


@pytest.mark.slow
def test_predictions_may_be_all_that_is_stored(run, posterior):
    """Then the verdict compares them between chains, and they are those of a run that stores the networks."""
    new = np.linspace(-2, 2, 20, dtype=np.float32)[:, None]
    found = hamcmc.sample(posterior, store=lambda w: net(w, new), progress=False)
    assert np.allclose(found.posterior["stored"].reshape(-1, 20).mean(0), run[0].predict(net, new).mean, atol=1e-4)
    verdict = found.check()
    assert verdict.parameters == 20
    assert any("the run stored a part" in r for r in verdict.reasons)
    assert {row.name for row in verdict.worst} <= {f"stored[{i}]" for i in range(20)}


def test_chains_that_predict_differently_are_not_converged(run, posterior, monkeypatch):
    result, _, _ = run
    from hamcmc.diagnostics import agreement, verdict

    honest = agreement.row_likelihoods
    apart = lambda *args: honest(*args) + np.arange(4)[:, None, None]
    monkeypatch.setattr(agreement, "row_likelihoods", apart)
    found = verdict.check(result, posterior)
    assert found.word == "not converged"
    assert "predictions differ between 4 chains" in found.reason


@pytest.mark.slow
def test_an_interrupted_run_goes_on(posterior, run, tmp_path):
    result, _, _ = run
    whole = result.posterior["W2"]
    seen = []

    def stop(status):
        seen.append(status)
        if status.draws:
            raise KeyboardInterrupt

    with pytest.raises((hamcmc.Interrupted, KeyboardInterrupt)):
        hamcmc.sample(posterior, out=tmp_path / "run", progress=stop, checkpoint_seconds=0.0)
    again = hamcmc.resume(tmp_path / "run", posterior, progress=False)
    assert again.settings["plan"]["regime"] == "predictions"
    assert np.array_equal(again.posterior["W2"], whole)


def test_a_network_that_was_trained_better_is_where_all_chains_start(posterior, monkeypatch):
    like = posterior.unconstrain(posterior.init)
    flat, _ = ravel_pytree(like)
    ends = jnp.stack([flat, flat + 1])
    kept, given = network._from_given(
        network.flat_view(posterior, like), flat, False, ends, np.array([-1e6, -1e6]), posterior, 128
    )
    assert given
    assert np.array_equal(kept, jnp.stack([flat, flat]))
    kept, given = network._from_given(
        network.flat_view(posterior, like), flat, False, ends, np.array([0.0, 1e6]), posterior, 128
    )
    assert not given
    assert np.array_equal(kept, ends)


@pytest.mark.slow
def test_zeros_are_no_start_for_a_network_and_others_are_drawn():
    zeros = jax.tree.map(np.zeros_like, start())
    blank = hamcmc.Posterior(log_prior, log_likelihood, (X, Y), init=zeros, batched=True)
    found = network.search(blank, blank.unconstrain(zeros), 2, 64, 1, 0, lambda phase: None)
    assert not found.given
    assert found.scores.sampled > -0.5  # the mean of y alone gives about −24


def test_data_on_disk_are_refused(tmp_path):
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (240, 2))
    file[:] = np.column_stack([X, Y])
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    on_disk = lambda w, rows: log_likelihood(w, (rows[:, :1], rows[:, 1]))
    streamed = hamcmc.Posterior(log_prior, on_disk, rows, init=start(), batched=True)
    with pytest.raises(ValueError, match="needs its data in memory"):
        hamcmc.sample(streamed, batch_size=32, progress=False)


def test_the_verdict_says_how_many_chains_would_do():
    found = agreement.Agreement(chains=4, rows=256, error=0.08, worst=0.5, r_hat=2.0, mixed=0.0, scalars=10)
    assert "at most 0.05 is usable, which takes about ensembles=11" in found.of_predictions(False)  # 4 · 1.6²
    assert "usable" not in found._replace(error=0.04).of_predictions(True)


@pytest.mark.parametrize("error", [np.nan, np.inf])
def test_predictions_that_differ_without_limit_are_said(error):
    found = agreement.Agreement(4, 10, error, error, 1.0, 0.5, 10)
    assert "some rows are impossible in all draws of a chain" in found.of_predictions(False)
