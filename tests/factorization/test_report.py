"""The page about a factorization: what it says is what the run says."""

import json
from pathlib import Path

import numpy as np
import pytest

from hamcmc.factorization import predict
from hamcmc.report import factorization
from tests.factorization.runs import make_draws, make_ratings, make_run
from tests.report.test_report import read

META = {"status": "complete", "draws": 40, "iteration": 60, "seconds": 3.0, "gradients": 1200}


def fake(path: Path, *, full: bool = True, log: bool = True, share: float = 0.2, **settings) -> Path:
    """A run with a log of 60 iterations, of which the last five were done twice."""
    rng = np.random.default_rng(0)
    ratings = make_ratings(rng, 12, 9)
    if not share:
        ratings = ratings._replace(test=np.zeros(ratings.size, bool))
    make_run(path, ratings, make_draws(rng, 12, 9, full=full), warmup=20, seed=7, **settings)
    lines = [{"event": "start", "iteration": 0, "devices": 2, "processes": 3}]
    for i in [*range(1, 61), *range(56, 61)]:
        error = {"rmse": 1 + 1 / i, "rmse_draw": 1.1 + 1 / i}
        lines.append({"event": "progress", "iteration": i, "seconds": i / 20, "ratings_per_second": 123456.0, **error})
    if log:
        (path / "events.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "prog')
    return path


def test_the_page_tells_what_the_run_tells(tmp_path):
    run = fake(tmp_path / "movies & <films>", meta=META, communication_share=0.07)
    out = factorization.write(run)
    assert out == run / "report.html"
    parsed = read(out)
    assert parsed.headings == [
        "movies & <films>",
        "Error",
        "Calibration",
        "Predictions",
        "Precisions",
        "Cost",
        "Settings",
    ]
    model = predict.load(run)
    for shown in (
        f"{model.rmse():.4f}",
        *(f"{100 * c:.1f} %" for c in model.coverage((0.5, 0.9))),
        "123,456",
        "share of communication 7.0 %",
        "devices 2",
        "processes 3",
        "12 users × 9 items",
        "complete",
    ):
        assert shown in " ".join(parsed.text.split()), shown
    assert len(parsed.plots) == 2 + 1 + 2 + 5


def test_what_is_logged_twice_is_drawn_once(tmp_path):
    lines = factorization.progress(factorization.events(fake(tmp_path / "run")))
    assert [e["iteration"] for e in lines] == list(range(1, 61))


def test_a_bare_run_of_the_papers_model(tmp_path):
    parsed = read(
        factorization.write(fake(tmp_path / "run", full=False, log=False, share=0), tmp_path / "a" / "b.html")
    )
    assert parsed.headings == ["run", "Precisions", "Cost", "Settings"]
    assert "No ratings were held out" in parsed.text
    assert "stopped" in parsed.text


@pytest.mark.parametrize(("factor", "kind"), [(50.0, "too narrow"), (0.01, "too wide")])
def test_dishonest_intervals_are_called_so(tmp_path, factor, kind):
    rng = np.random.default_rng(0)
    draws = make_draws(rng, 12, 9)
    for name in ("W", "H", "row_bias", "column_bias"):
        draws[name][:] = 0
    draws["noise_precision"] *= factor
    run = make_run(
        tmp_path / "run", make_ratings(rng, 12, 9), draws, meta=META | {"status": "failed", "message": "<x>"}
    )
    parsed = read(factorization.write(run))
    assert f"The intervals are {kind}" in parsed.text
    assert "<x>" in parsed.text
