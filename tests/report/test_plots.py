"""Ranks, autocorrelation, growth of the ESS, intervals, predictive checks, and colours by ensemble."""

import re

import numpy as np
import pytest

from hamcmc.factorization.baselines import baselines
from hamcmc.report import forest, frame, mixing, plots, predictive, write_report
from tests.factorization.runs import make_ratings
from tests.report.results import make_result
from tests.report.test_report import read, unpack

SETTINGS = {"chains": 4, "replicas": 1, "thin": 1}


def ar(rho: float, chains: int = 4, draws: int = 2000) -> np.ndarray:
    """Draws of stationary autoregressions with unit variance."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((chains, draws))
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x


def lines(plot) -> dict[str, np.ndarray]:
    return {s["name"]: unpack(s["y"]) for s in plot["series"]}


def test_ranks_lie_in_their_band_unless_a_chain_is_elsewhere():
    x, weights = ar(0.8), np.ones(2000)
    for shift, inside in ((0.0, True), (1.0, False)):
        x[3] += shift
        plot = mixing.ranks(x, weights, plots.single(4), SETTINGS)
        low, high = (unpack(plot["series"][0][end]) for end in ("y", "y2"))
        shares = [y for name, y in lines(plot).items() if name.startswith("chain ")]
        assert np.mean(shares, axis=0) == pytest.approx(1, abs=1e-3)  # the bins hold equal shares of all draws
        out = np.mean([(y < low) | (y > high) for y in shares])
        assert (out < 0.15) == inside  # 5 % by chance; 80 shares
        assert (high - 1).mean() > 1.1 * 1.96 * np.sqrt(19 / 2000)  # autocorrelated draws vary more than others


def test_ranks_are_weighted():
    x = np.concatenate([np.full((2, 500), 0.0), np.full((2, 500), 1.0)], axis=1)
    x += np.random.default_rng(0).uniform(0, 0.5, x.shape)
    x[0] = x[0, ::-1]  # chain 0 has the large values early
    weights = np.r_[np.full(500, 3.0), np.ones(500)]
    found = lines(mixing.ranks(x, weights, plots.single(2), SETTINGS))
    late = found["chain 0"][len(found["chain 0"]) // 2 + 1 :]
    assert late.mean() == pytest.approx(1.5, abs=0.05)


def test_autocorrelation_is_that_of_the_draws():
    plot = mixing.autocorrelation(ar(0.9), plots.single(4))
    for y in lines(plot).values():
        np.testing.assert_allclose(y[:6], 0.9 ** np.arange(6), atol=0.15)  # 4 sd of 2000 draws worth 100
        assert len(y) == mixing.LAGS + 1
    # Interleaved chains: each is autocorrelated, their sequence is not.
    two = np.stack([ar(0.9, 2)[0], ar(0.9, 2)[1]], axis=1).reshape(1, -1)
    (y,) = lines(mixing.autocorrelation(two, plots.single(1), 2)).values()
    np.testing.assert_allclose(y[:4], 0.9 ** np.arange(4), atol=0.2)


def test_growth_ends_at_the_ess_of_the_summary():
    x = ar(0.5)
    result = make_result({"x": x})
    plot = mixing.growth(x, np.ones(2000), result.settings, 400)
    table, found = result.summary(), lines(plot)
    assert found["ESS bulk"][-1] == pytest.approx(table["ess_bulk"][0], rel=1e-3)
    assert found["ESS tail"][-1] == pytest.approx(table["ess_tail"][0], rel=1e-3)
    assert found["ESS bulk"][5] == pytest.approx(found["ESS bulk"][-1] / 2, rel=0.3)
    assert plot["guides"][0][1] == 400


def test_chains_of_an_ensemble_have_one_colour_and_one_switch():
    of = plots.groups({"chains": 22, "replicas": 11})
    assert of.names == ["ensemble 0", "ensemble 1"]
    x = np.random.default_rng(0).standard_normal((22, 50))
    trace = plots.trace(x, of)
    assert [s["colour"] for s in trace["series"]] == [0] * 11 + [1] * 11
    assert {s["key"] for s in trace["series"]} == set(of.names)
    assert [s["name"] for s in plots.density(x, np.ones(50), "x", of)["series"]] == ["all chains", *of.names]
    assert set(plots.pairs([x, x], ["a", "b"], np.ones(50), of)["groups"]) == {0, 1}


def test_22_independent_chains_can_be_told_apart():
    trace = plots.trace(np.random.default_rng(0).standard_normal((22, 50)))
    assert len({(s["colour"], s.get("dash", 0)) for s in trace["series"]}) == 22
    buttons = re.findall(r"<path.*?/>", frame.key({f"chain {c}": c for c in range(22)}, "chains"))
    assert len(set(buttons)) == 22


def test_a_forest_has_an_axis_for_each_parameter_or_units_of_sds(tmp_path):
    rng = np.random.default_rng(0)
    draws = {"w": rng.standard_normal((2, 300, 3)) + 2, "a": rng.standard_normal((2, 300)),
             "b": 1000 * rng.standard_normal((2, 300)) + 3000}  # fmt: skip
    parsed = read(write_report(make_result(draws), tmp_path / "page.html"))
    first, second = (p for p in parsed.plots if "rows" in p)
    assert [r["name"] for r in first["rows"]] == ["w[0]", "w[1]", "w[2]"]
    low, median, high = (np.quantile(draws["w"][:, :, 0], q) for q in (0.05, 0.5, 0.95))
    np.testing.assert_allclose([first["rows"][0]["at"][i] for i in (0, 2, 4)], [low, median, high], atol=0.01)
    assert "in units of its posterior sd" in parsed.text
    assert second["rows"][1]["at"][2] == pytest.approx(3, abs=0.2)
    assert "ESS" in second["rows"][0]["more"]
    assert len(forest._picked(make_result({"x": rng.standard_normal((1, 20, 300))}).summary())) == forest.ROWS


def test_only_what_the_verdict_names_is_red(tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 1500, 3))
    x[1, :, 1] += 2
    parsed = read(write_report(make_result({"x": x}), tmp_path / "page.html"))
    assert [r.get("bad", False) for r in parsed.plots[0]["rows"]] == [False, True, False]


def test_a_predictive_check_tells_right_from_wrong(tmp_path):
    rng = np.random.default_rng(0)
    y, right, wrong = rng.standard_normal(400), rng.standard_normal((300, 400)), 2 * rng.standard_normal((300, 400))
    counts = rng.poisson(3, 400), rng.poisson(3, (300, 400))
    out = tmp_path / "page.html"
    checks = {"right": (y, right), "wrong": (y, wrong), "counts": counts}
    parsed = read(write_report(make_result({"x": rng.standard_normal((2, 50))}), out, predictive=checks))
    text = " ".join(parsed.text.split())
    shares = {
        name: float(re.search(rf"{name}: 300 generated.*? sd [\d.]+ [\d.]+ to [\d.]+ ([\d.]+)", text)[1])
        for name in ("right", "wrong")
    }
    assert 0.01 < shares["right"] < 0.99
    assert shares["wrong"] == 1
    discrete = predictive.plot(np.asarray(counts[0], float), np.asarray(counts[1], float), "n")
    assert unpack(discrete["series"][-1]["y"]).sum() == pytest.approx(1, abs=1e-3)
    assert unpack(discrete["series"][-1]["y"])[0] == pytest.approx(np.mean(counts[0] == 0), abs=1e-3)


@pytest.mark.parametrize("generated", [np.zeros((5, 3)), np.zeros(4), np.full((5, 4), np.nan), np.zeros((0, 4))])
def test_a_predictive_check_names_what_is_wrong_with_it(generated):
    with pytest.raises(ValueError, match="predictive\\['y'\\]"):
        predictive.section({"y": (np.zeros(4), generated)})


def test_baselines_are_what_they_say():
    rng = np.random.default_rng(0)
    ratings = make_ratings(rng, 60, 40)
    users, items = rng.standard_normal(60), rng.standard_normal(40)
    value = (3 + users[ratings.row] + items[ratings.column]).astype(np.float32)
    ratings = ratings._replace(value=value)
    found, test = baselines(ratings), ratings.test
    assert found.mean == pytest.approx(np.sqrt(np.mean((value[test] - value[~test].mean()) ** 2)), rel=1e-4)
    assert found.biases < 0.4 * found.mean  # the data have nothing but biases
    with pytest.raises(ValueError, match="held out"):
        baselines(ratings._replace(test=np.zeros(ratings.size, bool)))


def test_a_pace_cannot_be_read_backwards():
    assert frame.pace(10, 2) == "5 times faster than it plays"
    assert frame.pace(2, 10) == "5 times as long as it plays"
    assert frame.pace(0, 1) == "–"
