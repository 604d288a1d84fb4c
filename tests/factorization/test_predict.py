"""Predictions against exact mixtures, Monte Carlo and a model whose predictive is known."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from hamcmc.factorization import mixture as mixtures
from hamcmc.factorization import predict, synthetic
from hamcmc.factorization import ratings as files
from hamcmc.factorization.ratings import Ratings
from hamcmc.store.errors import RunError
from tests.factorization.runs import GLOBAL_MEAN, make_draws, make_ratings, make_run
from tests.mutation import mutant

USERS, ITEMS = 12, 9


@pytest.fixture(scope="module", params=["full", "paper"])
def run(request, tmp_path_factory) -> tuple[Path, dict[str, np.ndarray], Ratings]:
    """A run with room for more draws than it has, its draws as (draw, …), and its ratings."""
    rng = np.random.default_rng(0)
    draws = make_draws(rng, USERS, ITEMS, full=request.param == "full")
    ratings = make_ratings(rng, USERS, ITEMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hamcmc.store.draws.CHUNK_BYTES", 7200)  # 25 draws
        path = make_run(tmp_path_factory.mktemp("run") / request.param, ratings, draws, room=45)
    return path, {n: x.reshape(-1, *x.shape[2:]).astype(float) for n, x in draws.items()}, ratings


def mixture(draws: dict[str, np.ndarray], i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the rating of a known pair in each draw."""
    mean = (draws["W"][:, i] * draws["H"][:, j]).sum(1)
    if "row_bias" in draws:
        mean += GLOBAL_MEAN + draws["row_bias"][:, i] + draws["column_bias"][:, j]
    return mean, draws["noise_precision"] ** -0.5


def check_known_pairs(found, draws, i, j, level=0.9):
    """Moments and quantiles are those of the mixture."""
    for n in range(len(i)):
        mean, sd = mixture(draws, i[n], j[n])
        assert found.mean[n] == pytest.approx(mean.mean(), abs=1e-5)
        assert found.sd[n] == pytest.approx(np.sqrt(mean.var() + (sd**2).mean()), rel=1e-5)
        for end, p in ((found.low[n], (1 - level) / 2), (found.high[n], (1 + level) / 2)):
            assert ndtr((end - mean) / sd).mean() == pytest.approx(p, abs=1e-5)


def test_known_pairs_are_the_mixture_over_draws(run):
    path, draws, ratings = run
    model = predict.load(path)
    assert (model.chains, model.draws, model.samples) == (2, 40, 80)
    i, j = (x.ravel() for x in np.indices((USERS, ITEMS)))
    for level in (0.9, 0.5):
        found = model.predict(ratings.users[i], ratings.items[j], level=level)
        check_known_pairs(found, draws, i, j, level)
        assert found.known.all()


def test_a_prediction_does_not_depend_on_the_others(run, monkeypatch):
    path, *_ = run
    model, users, items = predict.load(path), ["u3", "new", "u1", "u1", "new"], ["i2", "i2", "i0", "new", "new"]
    whole = model.predict(users, items)
    alone = [model.predict([u], [i]) for u, i in zip(users, items)]
    monkeypatch.setattr(predict, "ENTRIES", 160)  # 2 pairs at a time
    monkeypatch.setattr(mixtures, "CACHED", 100)
    parts = model.predict(users, items)
    for k in range(5):
        np.testing.assert_allclose(whole[k], parts[k], rtol=1e-5)
        np.testing.assert_allclose(whole[k], np.concatenate([a[k] for a in alone]), rtol=1e-5)


@pytest.mark.parametrize(("user", "item"), [("new", "i3"), ("u5", "new"), ("new", "new")])
def test_unseen_ids_fall_back_to_the_prior(run, user, item):
    path, draws, ratings = run
    rng, n = np.random.default_rng(1), 4000  # of each draw
    shape = (n, 80)

    def side(factor, bias, ids, name):
        if name == "new":
            noise = rng.standard_normal((*shape, 3))
            w = draws[f"{factor}_mean"] + noise * draws[f"{factor}_precision"] ** -0.5
            if bias in draws:
                return w, draws[f"{bias}_mean"] + rng.standard_normal(shape) * draws[f"{bias}_precision"] ** -0.5
            return w, 0.0
        at = list(ids).index(name)
        return draws[factor][:, at], draws[bias][:, at] if bias in draws else 0.0

    (w, b), (h, c) = side("W", "row_bias", ratings.users, user), side("H", "column_bias", ratings.items, item)
    start = GLOBAL_MEAN if "row_bias" in draws else 0.0
    y = start + b + c + (w * h).sum(-1) + rng.standard_normal(shape) * draws["noise_precision"] ** -0.5
    found = predict.load(path).predict([user], [item])
    assert not found.known[0]
    # Monte Carlo errors: sd / √(n·80) of the mean, about three times that of the rest.
    error = y.std() / np.sqrt(y.size)
    assert found.mean[0] == pytest.approx(y.mean(), abs=4 * error)
    assert found.sd[0] == pytest.approx(y.std(), abs=8 * error)
    if user != item:  # the product of two unseen rows is not normal, its moments are right
        low, high = np.quantile(y, [0.05, 0.95])
        assert found.low[0] == pytest.approx(low, abs=12 * error)
        assert found.high[0] == pytest.approx(high, abs=12 * error)


def test_recommendations_are_the_best_of_what_is_left(run):
    path, draws, ratings = run
    model = predict.load(path)
    means = np.array([[mixture(draws, i, j)[0].mean() for j in range(ITEMS)] for i in range(USERS)])
    for i in (0, 5):
        rated = set(ratings.column[ratings.row == i])
        order = [j for j in np.argsort(-means[i]) if j not in rated]
        items, found = model.recommend(ratings.users[i], top=4)
        assert items.tolist() == ratings.items[order[:4]].tolist()
        check_known_pairs(found, draws, np.full(len(items), i), order[:4])
        items, _ = model.recommend(ratings.users[i], top=100, include_rated=True)
        assert items.tolist() == ratings.items[np.argsort(-means[i])].tolist()
    items, found = model.recommend("nobody", top=3)
    everything = model.predict(["nobody"] * ITEMS, ratings.items)
    assert items.tolist() == ratings.items[np.argsort(-everything.mean)[:3]].tolist()
    assert not found.known.any()


def test_nothing_is_left_for_a_user_who_rated_all(tmp_path):
    rng = np.random.default_rng(0)
    path = make_run(tmp_path / "run", make_ratings(rng, 3, 4, share=1.0), make_draws(rng, 3, 4))
    items, found = predict.load(path).recommend("u1")
    assert len(items) == len(found.mean) == 0


def test_clipping_keeps_to_the_range_of_the_ratings(run):
    path, _, ratings = run
    model = predict.load(path)
    free, cut = (model.predict(["u1"] * ITEMS, ratings.items, clip=c) for c in (False, True))
    assert free.low.min() < 1
    for a, b in ((free.mean, cut.mean), (free.low, cut.low), (free.high, cut.high)):
        np.testing.assert_allclose(b, np.clip(a, 1, 5))
    i, j, y = (x[ratings.test] for x in (ratings.row, ratings.column, ratings.value))
    mean = model.predict(ratings.users[i], ratings.items[j], clip=True).mean
    assert model.rmse(clip=True) == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)))


def test_error_and_coverage_on_the_test_set(run):
    path, draws, ratings = run
    model = predict.load(path)
    chosen = ratings.test
    i, j, y = ratings.row[chosen], ratings.column[chosen], ratings.value[chosen]
    mean = np.array([mixture(draws, *pair)[0].mean() for pair in zip(i, j)])
    assert model.rmse() == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-5)
    levels = (0.1, 0.5, 0.9)
    for level, share in zip(levels, model.coverage(levels)):
        found = model.predict(ratings.users[i], ratings.items[j], level=level)
        assert share == np.mean((found.low <= y) & (y <= found.high))


def normal_means(path: Path, users: int = 3000, draws: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """A run whose predictive is known: y = w_i + noise, w_i ~ N(0, 1), noise of variance ½, up to four ratings each.

    Returns mean and sd of the predictive of each user's test rating.
    """
    rng = np.random.default_rng(3)
    count = rng.integers(0, 5, users)
    w = rng.standard_normal(users)
    total = count * w + np.sqrt(count / 2) * rng.standard_normal(users)
    precision = 1 + 2 * count
    mean, sd = 2 * total / precision, precision**-0.5
    y = (w + np.sqrt(0.5) * rng.standard_normal(users)).astype(np.float32)
    ids, zero = np.arange(users).astype(str), np.zeros(users, np.int32)
    ratings = Ratings(ids, np.array(["only"]), np.arange(users, dtype=np.int32), zero, y, np.ones(users, bool))
    constant = lambda value, *shape: np.full((1, draws, *shape), value, np.float32)
    posterior = {
        "W": (mean + sd * rng.standard_normal((1, draws, users)))[..., None].astype(np.float32),
        "H": constant(1.0, 1, 1),
        "noise_precision": constant(2.0),
        "W_mean": constant(0.0, 1),
        "W_precision": constant(1.0, 1),
        "H_mean": constant(0.0, 1),
        "H_precision": constant(1.0, 1),
    }
    make_run(path, ratings, posterior)
    return mean, np.sqrt(sd**2 + 0.5)


def check_coverage(module, path: Path) -> None:
    """The share inside is the nominal level, within three binomial standard errors."""
    levels = np.array([0.2, 0.5, 0.8, 0.9, 0.95])
    observed = module.load(path).coverage(levels)
    assert (np.abs(observed - levels) < 3 * np.sqrt(levels * (1 - levels) / 3000)).all(), observed


def test_intervals_are_exact_and_cover_at_their_level(tmp_path):
    mean, sd = normal_means(tmp_path / "run")
    model = predict.load(tmp_path / "run")
    found = model.predict(np.arange(3000), ["only"] * 3000)
    error = sd / np.sqrt(200)  # at most, of a mean of 200 draws
    assert np.abs((found.mean - mean) / error).max() < 5
    assert np.abs(found.sd / sd - 1).max() < 0.2
    assert np.abs((found.low - norm.ppf(0.05, mean, sd)) / error).max() < 6
    assert np.abs((found.high - norm.ppf(0.95, mean, sd)) / error).max() < 6
    check_coverage(predict, tmp_path / "run")
    new = model.predict(["stranger"], ["only"])
    assert new.mean[0] == 0
    assert new.sd[0] == pytest.approx(np.sqrt(1.5), rel=1e-6)
    assert new.high[0] == pytest.approx(norm.ppf(0.95) * np.sqrt(1.5), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('variance[s] = 1 / at["noise_precision"]', 'variance[s] = 0.8 / at["noise_precision"]'),
        ("mean[part] = centre.mean(0)\n", "mean[part] = centre.mean(0)\n            centre[:] = mean[part]\n"),
    ],
)
def test_coverage_notices_a_wrong_predictive(tmp_path, old, new):
    normal_means(tmp_path / "run")
    with mutant("factorization/predict.py", old, new) as hamcmc:
        from hamcmc.factorization import predict as changed

        assert changed is not predict
        assert hamcmc.__file__
        with pytest.raises(AssertionError):
            check_coverage(changed, tmp_path / "run")


def test_quantiles_of_hard_mixtures():
    rng = np.random.default_rng(0)
    mean = np.where(rng.random((50, 30)) < 0.5, -1.0, 1.0) * rng.lognormal(0, 1, 30)  # two lumps far apart
    for sd in (rng.lognormal(-3, 0.5, (50, 30)), np.full((50, 1), 0.01)):
        for p in (0.001, 0.05, 0.5, 0.95):
            found = mixtures.mixture_quantile(p, mean, sd)
            assert np.abs(ndtr((found - mean) / sd).mean(0) - p).max() < 1e-6
    assert mixtures.mixture_quantile(0.95, np.full((4, 1), 2.0), np.ones((4, 1)))[0] == pytest.approx(norm.ppf(0.95, 2))


def test_only_what_was_written_counts(tmp_path):
    rng = np.random.default_rng(0)
    ratings, draws = make_ratings(rng, 4, 3), make_draws(rng, 4, 3)
    draws["noise_precision"][1, 30:] = np.nan  # one chain is behind
    assert predict.load(make_run(tmp_path / "run", ratings, draws)).draws == 30
    assert predict.load(make_run(tmp_path / "counted", ratings, draws, meta={"draws": 20})).draws == 20
    draws["noise_precision"][:] = np.nan
    with pytest.raises(RunError, match="no draws yet"):
        predict.load(make_run(tmp_path / "empty", ratings, draws))


def test_a_run_that_cannot_be_read_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    ratings, draws = make_ratings(rng, 4, 3), make_draws(rng, 4, 3)
    path = make_run(tmp_path / "run", ratings, draws)
    settings = json.loads((path / "run.json").read_text())

    def refused(match, **changes):
        (path / "run.json").write_text(json.dumps(settings | changes))
        with pytest.raises(RunError, match=match):
            predict.load(path)

    refused("is not a factorization", model="model.py")
    refused("damaged: W is", rank=4)
    files.save(synthetic.movielens_like(5, 3, 15).ratings, path / "ratings")
    refused(r"damaged: W is \(4, 3\), and should be \(5, 3\)")
    (path / "ratings" / "row.npy").unlink()
    refused("ratings has no ratings, or they are damaged")
    files.save(ratings, path / "ratings")
    (path / "draws.zarr" / "posterior" / "H" / "zarr.json").unlink()
    refused("missing or damaged")


def test_bad_questions(run):
    model = predict.load(run[0])
    with pytest.raises(ValueError, match="one length"):
        model.predict(["u1", "u2"], ["i1"])
    with pytest.raises(ValueError, match="level"):
        model.predict(["u1"], ["i1"], level=1.0)
    with pytest.raises(ValueError, match="top"):
        model.recommend("u1", top=0)


def test_no_test_set(tmp_path):
    rng = np.random.default_rng(0)
    ratings = files.hold_out(make_ratings(rng, 4, 3), 0.0, 0)
    with pytest.raises(RunError, match="holds out no ratings"):
        predict.load(make_run(tmp_path / "run", ratings, make_draws(rng, 4, 3))).rmse()
