"""The section of predictions: its numbers are those of the scores, its plots show what they should."""

import base64

import numpy as np
import pytest

from hamcmc.diagnostics import classification, coverage, entropy, out_of_distribution, probability_below, reliability
from hamcmc.report import Classes, Numbers, predictions, write_report
from tests.report.results import make_result
from tests.report.test_report import Page

RNG = np.random.default_rng(0)


def classes(rows=4000):
    p = RNG.dirichlet(np.ones(3), rows)
    return p, (RNG.random((rows, 1)) > p.cumsum(1)).sum(1)


def unpacked(packed):
    words = np.frombuffer(base64.b64decode(packed["words"]), "<u2")
    return packed["low"] + words / 65534 * (packed["high"] - packed["low"])


def test_classes():
    p, y = classes()
    html = predictions.section(Classes(p, y, outside=np.full((50, 3), 1 / 3)))
    page, found = Page(html), classification(p, y)
    for text in (f"{found.nll:.3f}", f"{found.accuracy:.1%}", f"{found.calibration_error:.3f}", f"{np.log(3):.3f}"):
        assert text in page.text
    diagonal, line = page.plots[0]["series"]
    assert_near = np.abs(unpacked(line["y"]) - np.array(line["x"]))
    bins = reliability(p, y)
    rows = bins.rows[bins.rows > 0]
    assert (assert_near < 4.5 * np.sqrt(0.25 / rows) + 1e-3).all(), "calibrated predictions lie on the diagonal"
    assert unpacked(diagonal["y"]).tolist() == [0, 1]
    assert not page.unlabelled


def test_numbers():
    mean = RNG.standard_normal(3000)
    draws = mean + 0.6 * RNG.standard_normal((200, 3000))
    y = mean + RNG.standard_normal(3000)
    page = Page(predictions.section(Numbers(draws, y, 0.8)))
    covered = unpacked(page.plots[0]["series"][1]["y"])
    assert np.abs(covered - predictions.LEVELS).max() < 4.5 * 0.5 / np.sqrt(3000) + 0.01
    narrow = Page(predictions.section(Numbers(draws * 0 + mean, y, 0.3)))
    assert (unpacked(narrow.plots[0]["series"][1]["y"])[5:] < predictions.LEVELS[5:] - 0.1).all()
    band = page.plots[1]["series"][0]
    inside = (unpacked(band["y"]) <= unpacked(page.plots[1]["series"][2]["y"])).mean()
    assert inside == pytest.approx(0.95, abs=4.5 * np.sqrt(0.95 * 0.05 / 200))


def test_a_report_has_the_section_if_there_are_predictions(tmp_path):
    result = make_result({"theta": RNG.standard_normal((2, 50))})
    plain = Page(write_report(result, tmp_path / "a.html").read_text())
    assert "Predictions" not in plain.headings
    page = Page(write_report(result, tmp_path / "b.html", predictions=Classes(*classes(50))).read_text())
    assert page.headings.index("Predictions") < page.headings.index("Settings")
    with pytest.raises(ValueError, match=r"hamcmc\.report\.Classes or Numbers, got tuple"):
        write_report(result, tmp_path / "c.html", predictions=classes(5))


class TestScores:
    def test_entropy_of_rows_of_another_kind(self):
        sure, unsure = np.tile([0.98, 0.01, 0.01], (30, 1)), np.full((20, 3), 1 / 3)
        assert entropy(unsure) == pytest.approx(np.log(3))
        found = out_of_distribution(sure, unsure)
        assert found.auroc == 1
        assert found.entropy_outside > found.entropy
        assert out_of_distribution(sure, sure).auroc == 0.5
        assert out_of_distribution(unsure, sure).auroc == 0
        with pytest.raises(ValueError, match="rows of both kinds"):
            out_of_distribution(sure, unsure[:0])

    def test_reliability_is_what_the_calibration_error_adds_up(self):
        p, y = classes(500)
        bins = reliability(p, y, bins=15)
        assert bins.rows.sum() == 500
        assert bins.error == classification(p, y).calibration_error
        assert np.isnan(bins.accuracy[bins.rows == 0]).all()
        with pytest.raises(ValueError, match="bins must be"):
            reliability(p, y, bins=0)

    def test_coverage(self):
        below = np.array([0.5, 0.04, 0.96, 0.3])
        assert coverage(below, [0.5, 0.9]) == {0.5: 0.5, 0.9: 0.5}
        y = RNG.standard_normal(5)
        assert probability_below(np.zeros((3, 5)), y, 1.0) == pytest.approx(0.5 * (1 + np.vectorize(_erf)(y)))


def _erf(x):
    import math

    return math.erf(x / math.sqrt(2))


def test_a_report_on_a_network_begins_with_predictions_and_does_not_judge_parameters(tmp_path):
    apart = RNG.standard_normal((2, 50)) + np.array([[0.0], [9.0]])
    result = make_result({"theta": apart})
    judged = Page(write_report(result, tmp_path / "a.html").read_text())
    assert "Run longer" in judged.text
    result.settings["plan"] = {"regime": "predictions"}
    page = Page(write_report(result, tmp_path / "b.html", predictions=Classes(*classes(50))).read_text())
    assert page.headings.index("Predictions") < page.headings.index("Diagnostics")
    assert "Run longer" not in page.text
    assert "R-hat and ESS say nothing about predictions" in page.text
