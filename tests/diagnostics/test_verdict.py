"""The verdict: exact draws are never called wrong, and draws that are broken in any way are never called usable."""

import importlib
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.diagnostics import check, gradients, measured, stored_verdict, summary
from hamcmc.diagnostics.tails import weight_apart
from hamcmc.diagnostics.verdict import Verdict
from tests.diagnostics import broken
from tests.mutation import mutant
from tests.report.results import make_result

RNG = np.random.default_rng
STANDARD = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2))
CHAINS, DRAWS, REPLICAS = 16, 160, 8
TARGETS = {
    "gaussian": broken.gaussian,
    "t3": broken.student(3.0),
    "t1": broken.student(1.0),
    "funnel": broken.funnel,
    "mixture": broken.mixture,
    "log_gamma": broken.log_gamma,
}


@pytest.fixture
def judge(monkeypatch):
    """The verdict on draws (chain, draw, D) with a gradient in NumPy, which takes no time to compile."""

    def verdict(x, grad, **more):
        monkeypatch.setattr(gradients, "at", lambda _, x, *__: grad(np.asarray(x, np.float64)))
        monkeypatch.setattr(gradients, "log_densities", lambda _, x: np.zeros(len(x)))
        return check(make_result({"theta": x}, **({"replicas": REPLICAS} | more)), STANDARD)

    return verdict


def exact(name, seed, draws=DRAWS):
    x, grad = TARGETS[name](RNG(seed), CHAINS * draws)
    return x.reshape(CHAINS, draws, -1), grad


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seeds", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_exact_draws_are_never_wrong(judge, name, seeds):
    words = [
        judge(*exact(name, seed, {"t1": 600, "t3": 300, "funnel": 600}.get(name, DRAWS))).word for seed in range(seeds)
    ]
    assert "wrong" not in words
    assert words.count("not converged") <= 0.04 * seeds + 0.6  # 2 of 50
    # A few hundred heavy-tailed gradients of a funnel do not exclude an error of 10 %, those of two modes not always;
    # and 9600 draws know the 5 to 95 % range of a Cauchy distribution to 3 %.
    assert words.count("good") >= {"funnel": 0.0, "mixture": 0.5, "t1": 0.0}.get(name, 0.9) * seeds


def test_too_few_draws_of_heavy_tails(judge):
    """The draws are exact, but the 5 to 95 % range of a Cauchy distribution is known to 8 % only: that is said."""
    v = judge(*exact("t1", 0, 100))
    assert v.word == "not converged"
    assert "the 5 to 95 % range of theta[" in v.reason
    assert 4 < v.short < 20
    assert judge(*exact("gaussian", 0)).short < 1.2


@pytest.mark.parametrize(("far", "word"), [(100.0, "not converged"), (3.0, "good")])
def test_a_few_draws_apart_are_not_enough(judge, far, word):
    """Five draws of thousands a hundred deviations away double the standard deviation; five at 3 are a tail."""
    x, grad = exact("gaussian", 0)
    x[0, 10:15, 2] = far + 0.1 * x[0, 10:15, 2]
    v = judge(x, grad)
    assert v.word == word
    assert ("a few draws of theta[2], far from all others" in str(v.reasons)) == (word != "good")


def test_a_column_that_hardly_moves_has_no_draws_apart():
    """It has no spread to compare with, and does not hide a column that has."""
    x = RNG(0).normal(size=(5000, 3))
    x[:, 0] = 0.0
    x[:5, 0] = 1.0
    x[:5, 1] = 100.0
    x[0, 2] = np.inf
    still, raised, infinite = weight_apart(x)
    assert (still, infinite) == (0, 0)
    assert raised == pytest.approx(np.sqrt(1 + 5 * 100**2 / 5000) - 1, rel=0.05)


def shifted(x):
    x[..., 3] += 0.3


def wide(x):
    x[..., 3] *= np.sqrt(1.3)


def narrow(x):
    x[..., 3] *= np.sqrt(0.7)


@pytest.mark.parametrize("spoil", [shifted, wide, narrow])
@pytest.mark.parametrize("chains", [(32, 100, 16), (4, 800, 1)])
def test_one_of_fifty_parameters_is_off(judge, spoil, chains):
    n, draws, replicas = chains
    x, grad = broken.gaussian(RNG(0), n * draws, 50)
    x = x.reshape(n, draws, 50)
    assert judge(x, grad, replicas=replicas).word == "good"
    spoil(x)
    v = judge(x, grad, replicas=replicas)
    assert v.word in ("not converged", "wrong")  # 14 % is not surely more than 10 %
    assert v.word == "wrong" or spoil is wide
    assert "theta[3]" in v.reason
    assert v.worst[0].name == "theta[3]"
    error = {"shifted": v.worst[0].mean_error, "wide": v.worst[0].sd_error, "narrow": v.worst[0].sd_error}
    true = {"shifted": 0.3, "wide": np.sqrt(1.3) - 1, "narrow": np.sqrt(0.7) - 1}[spoil.__name__]
    se = v.worst[0].mean_se if spoil is shifted else v.worst[0].sd_se
    assert error[spoil.__name__] == pytest.approx(true, abs=4 * se)


def never_moves(x):
    x[5] = x[5, :1]


def hardly_moves(x):
    x[5] = x[5, :1] + 1e-3 * RNG(1).standard_normal(x[5].shape)


def sits_apart(x):
    x[5, :, 0] += 20


@pytest.mark.parametrize("spoil", [never_moves, hardly_moves, sits_apart])
def test_a_replica_that_takes_no_part_is_named(judge, spoil):
    x, grad = exact("gaussian", 0)
    spoil(x)
    v = judge(x, grad)
    assert v.word in ("not converged", "wrong")
    assert any(r.startswith(f"chain 5 {spoil.__name__.replace('_', ' ')}") for r in v.reasons)


def two_modes(x):
    """One ensemble in each mode."""
    x[..., 0] = RNG(1).standard_normal(x.shape[:2]) + np.where(np.arange(CHAINS) < REPLICAS, -4, 4)[:, None]


def half_missed(x):
    """One ensemble has never seen the second mode."""
    x[:REPLICAS, :, 0] = RNG(1).standard_normal((REPLICAS, x.shape[1])) - 4


@pytest.mark.parametrize("spoil", [two_modes, half_missed])
def test_ensembles_that_disagree(judge, spoil):
    x, grad = exact("mixture", 0)
    spoil(x)
    v = judge(x, grad)
    assert v.word == "not converged"
    assert v.reason.startswith("the ensembles disagree about theta[0]")
    # Pooled over both ensembles, no chain looks unlike the others.
    assert "only" in judge(x, grad, replicas=CHAINS).reason or spoil is two_modes


def truncated(x, limit):
    """The draws, of which those beyond the limit are replaced by others."""
    return np.where(np.abs(x) < limit, x, RNG(1).choice(x[np.abs(x) < limit], x.shape))


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("t3", lambda x: truncated(x, 3.0), {"not converged", "wrong"}),
        ("t3", lambda x: np.where(RNG(1).random(x.shape) < 0.05, 1e20 * x, x), {"not converged", "wrong"}),
        ("t3", lambda x: 1e20 * x, {"wrong"}),
        ("t1", lambda x: 1.5 * x, {"not converged", "wrong"}),
        ("gaussian", lambda x: np.sqrt(10) * x, {"wrong"}),  # N/n is missing: the likelihood has a tenth of its weight
        ("gaussian", lambda x: x + 0.15, {"not converged", "wrong"}),
    ],
    ids=["truncated", "outliers", "exploded", "cauchy", "tempered", "shifted"],
)
def test_everything_is_off(judge, name, spoil, words):
    x, grad = exact(name, 0)
    assert judge(spoil(x), grad).word in words


def test_a_funnel_whose_neck_was_missed(judge):
    # The mean of v is then off by φ(1)/Φ(1) = 0.29 standard deviations; the gradient of v alone does not show it.
    x, grad = exact("funnel", 0, 2 * DRAWS)
    kept = np.stack([chain[chain[:, 0] > -3][:DRAWS] for chain in x])
    v = judge(kept, grad)
    assert v.word == "wrong"
    assert "the mean of theta[0] is off by +0.3" in v.reason


@pytest.mark.parametrize("seed", range(5))
def test_few_effective_draws_are_not_an_error(judge, seed):
    # 20 effective draws of each parameter: means are off by a quarter of a standard deviation, and nothing is wrong.
    v = judge(broken.slow(RNG(seed), (4, 1000, 10), 0.99), lambda x: -x, replicas=1)
    assert v.word == "not converged"
    # 840: enough.
    assert judge(broken.slow(RNG(seed), (4, 2000, 5), 0.8), lambda x: -x, replicas=1).word in ("good", "usable")


def test_digits_of_single_precision(judge):
    z = RNG(0).standard_normal((CHAINS, DRAWS, 3))
    x = (1e4 + 1e-3 * z).astype(np.float32)  # one unit in the last digit is 1e-3
    v = judge(x, lambda x: -(x - 1e4) * 1e6)
    assert v.word == "not converged"
    assert any("last digit" in r for r in v.reasons)
    assert judge(1e4 + 1e-3 * z, lambda x: -(x - 1e4) * 1e6).word == "good"  # in double precision


def test_heavy_tails_are_said(judge):
    v = judge(*exact("t1", 0))
    assert any("mean and standard deviation" in r and "may not exist" in r for r in v.reasons)
    assert not any("may not exist" in r for r in judge(*exact("gaussian", 0)).reasons)
    x = exact("t1", 0)[0][..., :2]
    assert any("may not exist" in n for n in summary(make_result({"x": x})).notes)
    assert not any("may not exist" in n for n in summary(make_result({"x": exact("gaussian", 0)[0][..., :2]})).notes)


@pytest.mark.parametrize(
    ("meta", "word", "says"),
    [
        ({"status": "running"}, "usable", "not finished"),
        ({"status": "failed", "message": "it broke"}, "not converged", "it broke"),
    ],
)
def test_a_run_that_did_not_end(judge, meta, word, says):
    v = judge(*exact("gaussian", 0), meta=meta)
    assert v.word == word
    assert says in v.reason


def test_low_acceptance(judge):
    x, grad = exact("gaussian", 0)
    v = judge(x, grad, stats={"acceptance": np.full(x.shape[:2], 0.02)})
    assert v.word == "usable"
    assert "2.0% of the proposals" in v.reason


def test_one_ensemble_is_never_good(judge):
    v = judge(*exact("gaussian", 0), replicas=CHAINS)
    assert v.word == "usable"
    assert "only one ensemble" in v.reason
    assert np.isnan(v.worst[0].r_hat_ensembles)


@pytest.mark.parametrize("draws", [0, 1, 3])
def test_hardly_any_draws(draws):
    v = check(make_result({"x": RNG(0).standard_normal((2, draws, 3))}), STANDARD)
    assert v.word == "not converged"
    assert f"only {draws} draws" in v.reason


# --- with gradients of a Posterior ---


def conjugate(n=500):
    """Normal data with unknown mean: the exact posterior, and draws of it."""
    y = RNG(0).normal(3.0, 1.0, n).astype(np.float32)
    posterior = hamcmc.Posterior(
        lambda p: -0.5 * p["a"]["mu"] ** 2 + 2 * jnp.log(p["s"]) - p["s"],
        lambda p, y: -0.5 * (y - p["a"]["mu"]) ** 2,
        y,
        support={"s": hamcmc.positive()},
    )
    rng = RNG(1)
    mu = y.sum() / (n + 1) + rng.standard_normal((CHAINS, DRAWS)) / np.sqrt(n + 1)
    return posterior, {"a.mu": mu, "s": rng.gamma(3.0, size=(CHAINS, DRAWS))}


def test_data_supports_and_nested_positions():
    posterior, draws = conjugate()
    good = check(make_result(draws, replicas=REPLICAS), posterior)
    assert good.word == "good"
    assert good.gradients == 400
    for name, factor in (("s", 1.3), ("a.mu", 1.01)):  # 1 % of the mean of mu is 0.7 standard deviations
        v = check(make_result(draws | {name: factor * draws[name]}, replicas=REPLICAS), posterior)
        assert v.word == "wrong"
        assert name in v.reason


def test_gradients_on_some_rows_agree_with_all(monkeypatch, tmp_path):
    posterior, draws = conjugate(5000)
    position = {"a": {"mu": jnp.asarray(draws["a.mu"].ravel()[:300])}, "s": jnp.log(draws["s"].ravel()[:300])}
    whole = gradients.at(posterior, position)
    monkeypatch.setattr(gradients, "AFFORDABLE", 1)
    some = gradients.at(posterior, position)  # the likelihood is quadratic, so the control variate removes all noise
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(some)):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=0.02 * np.std(a))
    np.save(tmp_path / "y.npy", np.asarray(posterior.data))
    streamed = hamcmc.Posterior(
        posterior.log_prior,
        posterior.log_likelihood,
        np.load(tmp_path / "y.npy", mmap_mode="r"),
        support=posterior.support,
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(gradients.at(streamed, position))):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=0.02 * np.std(a))
    monkeypatch.undo()
    monkeypatch.setattr(gradients, "PART", 700)  # several passes, the last one shorter
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(gradients.at(posterior, position))):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3 * np.std(a))


def test_gradients_on_some_rows_are_unbiased_on_sorted_rows(monkeypatch):
    """Rows that stand together are alike here; a part of the file that is never drawn would show as a slope."""
    x = np.sort(RNG(0).exponential(size=5000)).astype(np.float32)
    posterior = hamcmc.Posterior(lambda t: -0.5 * t**2, lambda t, x: -0.25 * (x * t) ** 4, x)
    theta = jnp.asarray(1 + 0.1 * RNG(1).standard_normal(400), jnp.float32)
    whole = np.asarray(gradients.at(posterior, theta), np.float64)
    monkeypatch.setattr(gradients, "AFFORDABLE", 1)
    monkeypatch.setattr(gradients, "SUBSAMPLED", 400 * 2500)  # 2500 rows in runs of nine
    off = np.asarray(gradients.at(posterior, theta), np.float64) - whole
    away = np.asarray(theta, np.float64) - float(theta.mean())
    slope = off @ away / (away @ away)
    error = np.std(off - slope * away) / np.sqrt(away @ away)
    assert abs(slope) < 4 * error
    assert 4 * error < 0.2 * abs(whole @ away / (away @ away))  # which it would be with rows of one kind


def test_a_control_variate_is_not_trusted():
    # The estimator of a run may be what is wrong with it: the verdict uses the posterior behind it.
    posterior, _ = conjugate()
    view = hamcmc.control_variate(posterior, {"a": {"mu": 0.0}, "s": 1.0})
    assert gradients.plain(view) is posterior


def test_boundaries():
    x = RNG(0).uniform(0.0, 1.0, (CHAINS, DRAWS, 2))
    cut = hamcmc.Posterior(lambda x: jnp.where(jnp.all((x > 0) & (x < 1)), 0.0, -jnp.inf))  # Stein's identity fails
    v = check(make_result({"theta": x}, replicas=REPLICAS), cut)
    assert v.word != "wrong"
    assert any("hard boundary" in r for r in v.reasons)
    mirrored = hamcmc.Posterior(lambda x: -jnp.sum(x), support=hamcmc.positive("mirror"))
    v = check(make_result({"theta": RNG(0).exponential(size=(CHAINS, DRAWS, 2))}, replicas=REPLICAS), mirrored)
    assert v.word == "usable"
    assert "mirrored" in v.reason


def test_without_a_posterior():
    x, _ = exact("gaussian", 0)
    v = check(make_result({"theta": x}, replicas=REPLICAS))
    assert (v.word, v.gradients) == ("usable", 0)
    assert "gradients were not confronted" in v.reason
    assert np.isnan(v.worst[0].mean_error)


class Pair(NamedTuple):
    a: jax.Array
    b: jax.Array


@pytest.mark.parametrize("log_prior", [lambda p: -(p.a**2) - p.b**2, lambda p: -(p[0] ** 2) - p[1] ** 2])
def test_a_position_whose_structure_is_not_known(log_prior):
    """Attributes of a named tuple and indices of a tuple, where names alone suggest a dict."""
    x = RNG(0).standard_normal((CHAINS, DRAWS))
    v = check(make_result({"a": x, "b": x}, replicas=REPLICAS), hamcmc.Posterior(log_prior))
    assert (v.word, v.gradients) == ("usable", 0)
    assert "the gradients were not confronted: the names of the parameters (a, b) do not show the structure" in v.reason
    known = hamcmc.Posterior(lambda p: -0.5 * (p.a**2 + p.b**2), init=Pair(jnp.zeros(()), jnp.zeros(())))
    y = RNG(1).standard_normal((CHAINS, DRAWS))
    assert check(make_result({"a": x, "b": y}, replicas=REPLICAS), known).gradients == 400


def check_errors_are_raised(package, kind):
    """An error while gradients are confronted is not a reason to call the draws usable."""
    module = importlib.import_module(f"{package.__name__}.diagnostics.measured")

    def fails(*_):
        raise kind("of the code, not of the run")

    result = make_result({"theta": RNG(0).standard_normal((4, 20, 2))})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(kind, match="of the code"):
        patch.setattr(module.gradients, "at", fails)
        module.measure(result, STANDARD, 40, 0)


@pytest.mark.parametrize("kind", [TypeError, KeyError, ValueError])
def test_errors_of_the_check_are_raised(kind):
    check_errors_are_raised(hamcmc, kind)


@pytest.mark.slow
def test_a_check_that_hides_them_is_noticed():
    hidden = "except (gradients.Unconfronted, TypeError) as error:"
    with (
        mutant("diagnostics/measured.py", "except gradients.Unconfronted as error:", hidden) as package,
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        check_errors_are_raised(package, TypeError)


def test_an_error_of_the_posterior_is_raised():
    """A likelihood that does not fit its data."""
    rows = np.zeros((5, 3), np.float32)
    posterior = hamcmc.Posterior(lambda x: -jnp.sum(x**2), lambda x, d: jnp.dot(x, d), rows, init=jnp.zeros(2))
    with pytest.raises(TypeError, match="dot_general|shape"):
        check(make_result({"theta": RNG(0).standard_normal((4, 20, 2))}), posterior)


def test_chains_of_a_large_run_are_left_out(monkeypatch):
    x = RNG(0).standard_normal((CHAINS, DRAWS, 4))
    monkeypatch.setattr(measured, "VALUES", 4 * DRAWS * 8)
    m = measured.measure(make_result({"x": x}, replicas=REPLICAS), None, 400, 0)
    assert m.half_chains == 16
    np.testing.assert_allclose(m.mixing.ess_bulk, CHAINS * DRAWS, rtol=0.3)


# --- the verdict as an object ---


def test_the_result_shows_it(judge):
    x, grad = exact("gaussian", 0)
    x[..., 3] += 0.3
    result = make_result({"theta": x}, replicas=REPLICAS)
    assert result.check().gradients == 0
    judge(x, grad)  # from now on this gradient is the one of any posterior
    result.target = STANDARD
    v = result.check()
    assert v.word == "wrong"
    stored = make_result({"theta": x}, meta={"verdict": v.to_json()})
    assert stored_verdict(stored) == Verdict.from_json(json.loads(json.dumps(v.to_json())))
    assert str(stored.check()) == str(v)
    assert repr(stored).startswith("<Result wrong (the mean of theta[3] is off by +0.")
    assert stored._repr_html_().startswith("<p><strong>wrong</strong>: the mean of theta[3]")
    table = summary(stored, limit=2)
    assert str(table).splitlines()[0].startswith("wrong: the mean of theta[3] is off by")
    assert "theta[3]" in table.names  # a limit does not hide the worst
    assert len(table) == len(v.worst)
    assert "evenly spaced, and the worst" in table.notes[0]
    assert "theta[3]" not in summary(make_result({"theta": x}), limit=2).names
    assert repr(v) == f"<Verdict {v.headline}>"
    assert "The worst of 10 parameters" in str(v)
    assert "<caption>The worst of 10 parameters</caption>" in v._repr_html_()


@pytest.mark.parametrize("damage", [{"word": "fine"}, {"worst": [{}]}, {"reasons": None}])
def test_a_damaged_verdict_is_ignored(damage):
    stored = {"word": "good", "reasons": [], "worst": [], "parameters": 1, "gradients": 1}
    assert Verdict.from_json(stored).headline == "good: chains, effective draws and gradients agree"
    with pytest.raises(ValueError, match="not a verdict"):
        Verdict.from_json(stored | damage)
    assert stored_verdict(make_result({"x": np.zeros((1, 5))}, meta={"verdict": stored | damage})) is None


def correlated(of_draws, of_density, d, n=CHAINS * DRAWS):
    """Draws and the gradient of normal laws with unit variances, and with these correlations."""
    ours, theirs = (np.full((d, d), r) + (1 - r) * np.eye(d) for r in (of_draws, of_density))
    x = RNG(0).standard_normal((n, d)) @ np.linalg.cholesky(ours).T
    precision = np.linalg.inv(theirs)
    return x.reshape(CHAINS, DRAWS, d), lambda x: -x @ precision


@pytest.mark.parametrize(("of_draws", "of_density"), [(0.0, 0.9), (0.6, 0.0), (0.0, 0.3), (0.9, 0.9), (0.3, 0.3)])
@pytest.mark.parametrize("d", [2, 20])
def test_a_wrong_dependence_is_wrong(judge, of_draws, of_density, d):
    """Each parameter is right on its own, with right and with wrong correlations."""
    v = judge(*correlated(of_draws, of_density, d))
    if of_draws == of_density:
        assert v.word == "good"
    else:
        assert v.word == "wrong"
        assert "the standard deviation along a direction, " in v.reason
        assert ("mostly of theta[" in v.reason) == (d == 2)


def test_a_wrong_mean_along_a_thin_direction_is_wrong(judge):
    """Two parameters with a correlation of 0.999: a shift of both apart is small in each and large between them."""
    x, grad = correlated(0.999, 0.999, 2)
    v = judge(x + np.array([0.03, -0.03]), grad)
    assert v.word == "wrong"
    assert "the mean along a direction, mostly of theta[" in v.reason


@pytest.mark.parametrize("chains", [(CHAINS, DRAWS, REPLICAS), (2, 1280, 1), (1024, 8, 16)])
def test_directions_of_exact_draws_are_let_alone(judge, chains):
    n, draws, replicas = chains
    rng = RNG(5)
    root = rng.standard_normal((12, 12)) * np.logspace(0, -2, 12)
    precision = np.linalg.inv(root @ root.T)
    for seed in range(5):
        x = RNG(seed).standard_normal((n, draws, 12)) @ root.T
        assert judge(x, lambda x: -x @ precision, replicas=replicas).word == "good"


def check_directions():
    """Exact draws of 30 dependent parameters in all units, then draws that are too wide along some direction."""
    found = importlib.import_module("hamcmc.diagnostics.combinations")
    fields = importlib.import_module("hamcmc.diagnostics.fields")
    rng = RNG(1)
    root = np.logspace(0, 2, 30)[:, None] * (rng.standard_normal((30, 30)) * np.logspace(0, -1, 30))
    precision, v = np.linalg.inv(root @ root.T), rng.standard_normal(30)

    def errors(z):
        x = z @ root.T
        draws = fields.Draws(x, np.full(x.shape[:2], 1 / x[..., 0].size), 1)
        made = found.combinations(draws, -x @ precision, draws)
        return [(float(np.abs(c.statistic.error[0])), float(np.abs(c.statistic.t[0])), c.what) for c in made]

    z = rng.standard_normal((CHAINS, DRAWS, 30))
    exact = errors(z)
    assert len(exact) == 6
    assert max(t for _, t, _ in exact) < 5
    wide = errors(z + 0.5 * (z @ v)[..., None] * v / (v @ v))
    assert max(error for error, _, what in wide if what == "sd") == pytest.approx(0.5, abs=0.12)


def test_directions():
    check_directions()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for chooser, other in (halves, halves[::-1]):", "for chooser, other in zip(halves, halves):"),
        ("ratio = -np.linalg.solve(", "ratio = np.eye(len(gram)) - 0 * np.linalg.solve("),
        ("g = self.slopes * self.scale @ back.T", "g = self.slopes @ back.T"),
        ("white @ q / self.scale, self.scale * (back.T @ q)", "white @ q / self.scale, back.T @ q"),
    ],
)
def test_broken_directions_are_noticed(old, new):
    """One half that judges itself, directions that say nothing, and gradients in other units."""
    with mutant("diagnostics/combinations.py", old, new), pytest.raises(AssertionError):
        check_directions()


def test_a_parameter_that_never_moves_in_a_few_draws(judge):
    """Eight draws are too few for ESS, and R-hat of one value is not known."""
    x = RNG(0).standard_normal((1024, 8, 2))
    x[..., 1] = 1.02 * RNG(1).standard_normal((1024, 1))
    v = judge(x, lambda x: -x, replicas=16)
    assert (v.word, "never moves" in v.reason) == ("not converged", True)


def test_tails_that_are_surely_wrong_are_usable_at_best(judge):
    """Uniform draws have the mean and the variance of the normal law, and no tails."""
    x = RNG(0).uniform(-np.sqrt(3), np.sqrt(3), (CHAINS, DRAWS, 1))
    v = judge(x, lambda x: -x)
    assert (v.word, v.reason.startswith("the tails of theta[0] are off by -1")) == ("usable", True)
    assert 0.05 < v.bias < 0.1


def test_draws_at_the_end_of_a_support_are_said():
    """Beta(0.1, 0.1): a good part of the mass near 1 is nearer to it than single precision can be, and is lost."""
    x = np.clip(RNG(0).beta(0.1, 0.1, (8, 400)), 1e-30, 1 - 2**-24).astype(np.float32)
    ended = hamcmc.Posterior(
        lambda t: -0.9 * (jnp.log(t) + jnp.log1p(-t)), support=hamcmc.bounded(0, 1), init=jnp.array(0.5)
    )
    v = check(make_result({"theta": x}), ended)
    assert v.word in ("not converged", "wrong")
    assert any("of the draws of theta are as near to the end of its support" in r for r in v.reasons)
