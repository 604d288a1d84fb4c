"""A factorization of 0.1.0 opens, predicts, reports and resumes."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr

from hamcmc.factorization.predict import load
from hamcmc.factorization.problem import Request
from hamcmc.factorization.run import prepare, proceed
from hamcmc.factorization.synthetic import movielens_like
from hamcmc.report import factorization as report
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.settings import FORMAT

DATA = Path(__file__).parent / "data" / "0.1.0"
# 0.1.0 was stopped after 3 of 6 draws.
ASKED = Request(
    thin=1, rank=2, blocks=2, sampler="hamcmc", num_samples=6, warmup=4, steps=5, threads=1, test=0.2, seed=1
)


@pytest.fixture
def old(tmp_path):
    """The directory of a run by 0.1.0."""
    with zipfile.ZipFile(DATA / "hamcmc.zip") as files:
        files.extractall(tmp_path / "run")
    return tmp_path / "run"


def draws(path):
    group = zarr.open_group(path / "draws.zarr", mode="r")["posterior"]
    return {name: np.asarray(group[name]) for name in ("W", "H", "row_bias", "noise_precision")}


def test_it_opens_predicts_and_reports(old):
    assert "format" not in json.loads((old / "run.json").read_text())
    model = load(old)
    assert (model.draws, model.meta["status"], model.settings["format"]) == (3, "running", FORMAT)
    assert repr(model).endswith("rank 2, 1 chain of 3 draws, not finished>")
    assert np.isfinite(model.predict(["1", "nobody"], ["2", "2"])).all()
    assert model.rmse() == pytest.approx(model.meta["rmse"], rel=1e-4)
    assert "No process is writing this run." in report.write(old).read_text()


@pytest.mark.slow
def test_it_resumes_to_the_draws_of_a_run_from_the_start(old, tmp_path):
    """Bit by bit, if the draws so far are those of this machine."""
    before = draws(old)
    model = proceed(old, progress=False)
    assert (model.draws, read_checkpoint(old).meta["status"]) == (6, "complete")
    new = prepare(movielens_like(12, 9, 60, rank=2, seed=0).ratings, tmp_path / "new", ASKED)
    proceed(new, progress=False)
    found, expected = draws(old), draws(new)
    same = all((before[n][:, :3] == expected[n][:, :3]).all() for n in expected)
    for name in expected:
        np.testing.assert_array_equal(found[name][:, :3], before[name][:, :3])
        if same:
            np.testing.assert_array_equal(found[name], expected[name])
        else:
            np.testing.assert_allclose(found[name], expected[name], rtol=2e-3, atol=2e-4)
