"""From a file of ratings to predictions, through the shell: what comes out is right, and what goes wrong is said."""

import csv
import errno
import importlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import tempfile
from types import MappingProxyType

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import hamcmc
from hamcmc.cli.app import app
from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import run as runs
from hamcmc.factorization.predict import load
from hamcmc.factorization.problem import Request, pose
from hamcmc.factorization.program import FactorizationProgram, start
from hamcmc.factorization.ratings import read
from hamcmc.store.checkpoint import read_checkpoint
from tests.factorization.sparse import low_rank
from tests.mutation import mutant

SAME = ("--rank", 2, "--blocks", 2, "--test", 0.3)  # so that all runs share one compiled program
SMALL = (*SAME, "--num-samples", 6, "--warmup", 3, "--thin", 1, "--steps", 4, "--checkpoint-seconds", 0)
LONELY = ("lonely", "i3", 4.0)  # a user with one rating


def call(*arguments, code=0):
    """Run the program."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done


def write(path, row, column, value, _):
    lines = [(f"u{i}", f"i{j}", x) for i, j, x in zip(row, column, value)]
    with open(path, "w", newline="") as f:
        csv.writer(f).writerows([("user", "item", "rating"), *lines, LONELY])
    return path


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """A file of a model of rank 2 with biases and normal noise."""
    return write(tmp_path_factory.mktemp("ratings") / "ratings.csv", *low_rank(100, 60, 3000))


@pytest.fixture(scope="module")
def small(ratings, tmp_path_factory):
    """A short run on them."""
    path = tmp_path_factory.mktemp("small") / "run"
    call("factorize", ratings, "-o", path, *SMALL)
    return path


def draws(path):
    group = zarr.open_group(path / "draws.zarr", mode="r")["posterior"]
    return {name: np.asarray(group[name]) for name in ("W", "H", "row_bias", "noise_precision")}


def same_draws(one, other):
    found, expected = draws(one), draws(other)
    return all(np.isfinite(expected[n]).all() and np.array_equal(found[n], expected[n]) for n in expected)


def coverage_scores(model):
    """How far the coverage of 50 % and 90 % intervals is from that, in standard deviations of chance."""
    levels = np.array([0.5, 0.9])
    return (model.coverage(levels) - levels) / np.sqrt(levels * (1 - levels) / model.ratings.test.sum())


def test_from_ratings_to_predictions(ratings, tmp_path):
    path, pairs = tmp_path / "run", tmp_path / "pairs.csv"
    done = call("factorize", ratings, "-o", path, *SAME, "--num-samples", 100, "--warmup", 40)
    assert "3,001 ratings by 101 users of 60 items" in done.stderr
    model = load(path)
    assert f"test RMSE {model.rmse():.4f} on 900 held-out ratings" in done.stdout
    assert model.rmse() < 0.62  # the noise alone has 0.5, the ratings 0.93
    assert np.mean(model.hyper["noise_precision"]) ** -0.5 == pytest.approx(0.5, rel=0.05)
    assert np.abs(coverage_scores(model)).max() < 3

    pairs.write_text("user,item\nlonely,i5\nnobody,i5\nu1,i5\n")
    rows = list(csv.DictReader(io.StringIO(call("predict", path, pairs).stdout)))
    assert [r["known"] for r in rows] == ["true", "false", "true"]
    sds = [float(r["sd"]) for r in rows]
    assert sds[2] < min(sds[:2])  # many ratings, one, none
    best = json.loads(call("recommend", path, "--user", "u1", "--top", 99, "--json").stdout)["items"]
    rated = {line.split(",")[1] for line in ratings.read_text().splitlines() if line.startswith("u1,")}
    assert {r["item"] for r in best} == {f"i{j}" for j in range(60)} - rated
    call("report", path)
    assert "Calibration" in (path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("factorization/model.py", "prior.noise_shape + size / 2", "prior.noise_shape + size / 4"),
        ("factorization/part.py", "mean_grad[s], self.size,", "mean_grad[s], self.size / 4,"),
        ("factorization/predict.py", "variance[s] = 1 / at", "variance[s] = at"),
    ],
)
def test_the_coverage_notices(file, old, new, ratings, tmp_path):
    with mutant(file, old, new):
        broken = importlib.import_module("hamcmc.factorization.run")
        table = broken.files.read(ratings)
        options = {"rank": 2, "blocks": 2, "test": 0.5, "num_samples": 150, "warmup": 50, "progress": False}
        model = broken.factorize(table, tmp_path / "run", **options)
        assert np.abs(coverage_scores(model)).max() > 4


@pytest.mark.slow
def test_the_unit_of_the_ratings_does_not_matter(ratings, small, tmp_path):
    table, unit = read(ratings), np.float32(2**-8)
    options = {
        "rank": 2,
        "blocks": 2,
        "test": 0.3,
        "num_samples": 6,
        "warmup": 3,
        "thin": 1,
        "steps": 4,
        "progress": False,
    }
    runs.factorize(table._replace(value=table.value * unit), tmp_path / "run", **options)
    found, expected = draws(tmp_path / "run"), draws(small)
    for name, power in (("W", 0.5), ("H", 0.5), ("row_bias", 1), ("noise_precision", -2)):
        np.testing.assert_allclose(found[name], expected[name] * unit**power, rtol=1e-3, atol=1e-3 * unit**power)


def test_ratings_that_are_all_the_same_have_a_start(tmp_path):
    file = tmp_path / "same.csv"
    file.write_text("user,item,rating\na,x,5\nb,x,5\na,y,5\n")
    problem = pose(read(file), Request(rank=1, test=0))
    _, hyper = start(problem.settings, problem.partition, gaussian_mf.layout("full", 1))
    assert all(np.isfinite(x).all() for x in hyper)


@pytest.mark.parametrize("stop", ["SIGINT", pytest.param("full disk", marks=pytest.mark.slow)])
def test_what_stops_a_run_loses_nothing(stop, ratings, small, tmp_path, monkeypatch):
    path, advance, fsync = tmp_path / "run", FactorizationProgram.advance, os.fsync
    full = []

    def stopped(self):
        if self.iteration == 5 and stop == "full disk":
            full.append(read_checkpoint(path).meta["iteration"])
        elif self.iteration == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    def refuse(file):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    monkeypatch.setattr(FactorizationProgram, "advance", stopped)
    monkeypatch.setattr(os, "fsync", refuse)
    code, said = {
        "SIGINT": (130, "stopped by SIGINT at iteration 6 of 9, all saved"),
        "full disk": (1, f"no room left on the disk of {path}"),
    }[stop]
    assert said in call("factorize", ratings, "-o", path, *SMALL, code=code).stderr
    monkeypatch.undo()
    kept = read_checkpoint(path).meta
    assert (kept["status"], kept["iteration"]) == ("running", full[0] if full else 6)
    assert "test RMSE" in call("resume", path, "-q").stdout
    assert same_draws(path, small)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rank", 61), "rank must be at most 60, for a matrix of 101 × 60; got 61"),
        (("--blocks", 61), "blocks must be at most the number of columns: 61 blocks of 60 columns"),
        (("--blocks", 4, "--processes", 3), "processes must divide blocks: 3 processes, 4 blocks"),
        (("--restarts", -1), "restarts must be a whole number, 0 or more"),
        (("--sampler", "nuts"), "sampler must be 'sghmc' or"),
        (("--set", "mass=2"), "sampler sghmc: .*'mass'"),
        (("--set", "svrg=10"), "sampler sghmc: 'svrg' is not an option of factorizations"),
        (("--set", "friction=-1"), "friction must be a finite number above 0, got -1"),
        (("--step-size", 0), "step_size must be a finite number above 0"),
        (("--num-samples", 0), "num_samples must be a whole number, 1 or more"),
        (("--test", 1), r"test must be a number in \[0, 1\), got 1"),
        (("--test", 0.99999), "no ratings are left to learn from"),
        (("--seed", -1), "seed must be a whole number, 0 or more"),
        (("--model", "huge"), "model must be 'paper' or 'full'"),
        (("--user", "customer"), "ratings.csv:1: no column 'customer'; there are 'user', 'item', 'rating'"),
    ],
)
def test_wrong_arguments(arguments, message, ratings, tmp_path):
    done = call("factorize", ratings, "-o", tmp_path / "run", *arguments, code=2)
    (line,) = (line for line in done.stderr.splitlines() if "ratings by" not in line)
    assert line.startswith("error: ")
    assert re.search(message, line), line
    assert not (tmp_path / "run").exists()


def test_an_existing_directory_is_refused(ratings, small, tmp_path):
    before = (small / "run.json").read_bytes()
    assert f"{small} exists already" in call("factorize", ratings, "-o", small, code=1).stderr
    assert (small / "run.json").read_bytes() == before
    other = tmp_path / "photos"
    other.mkdir()
    (other / "photo").touch()
    assert "is not a run" in call("factorize", ratings, "-o", other, "--overwrite", code=1).stderr


def test_damaged_runs(small, tmp_path):
    path = shutil.copytree(small, tmp_path / "run")
    values = path / "blocks" / "train-values.npy"
    whole = values.read_bytes()
    values.write_bytes(whole[: len(whole) // 2])
    assert f"{path / 'blocks'} is missing or damaged" in call("resume", path, code=1).stderr
    values.unlink()
    assert f"{path / 'blocks'} is missing or damaged" in call("resume", path, code=1).stderr
    shutil.rmtree(path / "ratings")
    said = call("recommend", path, "--user", "u1", code=1).stderr
    assert f"{path / 'ratings'} has no ratings, or they are damaged" in said
    assert same_draws(path, small)


@pytest.mark.slow
def test_a_step_size_that_is_too_large(ratings, tmp_path):
    path = tmp_path / "run"
    done = call("factorize", ratings, "-o", path, *SMALL, "--step-size", 1e4, code=1)
    assert "became non-finite in sweep" in done.stderr
    assert "Try a smaller step_size (it was 1e+04; try 3e+03)" in done.stderr
    assert "cannot be resumed: the factors became non-finite" in call("resume", path, code=1).stderr


def failing(monkeypatch, sweep):
    """Make the training error of a sweep non-finite."""
    run_sweep = FactorizationProgram.sweep

    def fails(self):
        trace = run_sweep(self)
        return trace._replace(train_rmse=np.float32(np.nan)) if self.iteration == sweep else trace

    monkeypatch.setattr(FactorizationProgram, "sweep", fails)


def test_draws_before_a_failure_are_kept(ratings, small, tmp_path, monkeypatch):
    path = tmp_path / "run"
    failing(monkeypatch, 6)
    call("factorize", ratings, "-o", path, *SMALL, "--checkpoint-seconds", 100, code=1)
    model = load(path)
    assert (model.draws, model.meta["status"]) == (2, "failed")
    assert np.array_equal(draws(path)["W"], draws(small)["W"][:, :2])
    assert "became non-finite in sweep 6" in model.meta["message"]
    assert "the 2 draws per chain before that are kept" in model.meta["message"]


class TestInMemory:
    """Without a directory."""

    OPTIONS = MappingProxyType(
        {"rank": 2, "blocks": 2, "test": 0.3, "num_samples": 6, "warmup": 3, "thin": 1, "steps": 4}
    )

    def test_it_is_the_run_on_disk(self, ratings, small, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        told = []
        model = hamcmc.factorize(read(ratings), progress=told.append, **self.OPTIONS)
        kept = load(small)
        assert list(tmp_path.iterdir()) == []
        users, items = ["u1", "nobody", "u2"], ["i1", "i2", "i3"]
        for one, other in zip(model.predict(users, items), kept.predict(users, items)):
            np.testing.assert_array_equal(one, other)
        assert model.rmse() == kept.rmse()
        assert (model.meta["status"], model.meta["draws"], model.meta["gradients"]) == ("complete", 6, 36)
        assert [s.draws for s in told] == [0, 0, 0, 1, 2, 3, 4, 5, 6]
        assert (told[0].phase, told[-1].done) == ("warm-up", 1.0)
        same = pickle.loads(pickle.dumps(model)).predict(users, items)
        np.testing.assert_array_equal(same.mean, kept.predict(users, items).mean)

    @pytest.mark.slow
    def test_what_ends_it_early_has_the_draws_so_far(self, ratings, monkeypatch):
        def stop(status):
            if status.draws == 2:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(hamcmc.Interrupted, match="iteration 5 of 9; give out= to be able to resume") as stopped:
            hamcmc.factorize(read(ratings), progress=stop, **self.OPTIONS)
        assert stopped.value.result.draws == 2
        failing(monkeypatch, 8)
        with pytest.raises(hamcmc.NonFinite, match="non-finite in sweep 8") as failed:
            hamcmc.factorize(read(ratings), progress=False, **self.OPTIONS)
        assert failed.value.result.draws == 4
        assert failed.value.result.meta["status"] == "failed"

    def test_several_processes_need_a_directory(self, ratings):
        with pytest.raises(ValueError, match="out must be given for 2 processes"):
            hamcmc.factorize(read(ratings), processes=2, **self.OPTIONS)

    def test_old_names_of_arguments(self, ratings):
        with pytest.warns(DeprecationWarning, match="num_samples"), pytest.raises(ValueError, match="num_samples must"):
            hamcmc.factorize(read(ratings), samples=0)


def test_models_and_ratings_describe_themselves(small):
    model = load(small)
    assert repr(model) == "<Factorization of 101 users × 60 items: full model, rank 2, 1 chain of 6 draws>"
    text = r"<Ratings: 3,001 ratings from [-\d.]+ to [\d.]+ by 101 users of 60 items, 900 held out>"
    assert re.fullmatch(text, repr(model.ratings))
