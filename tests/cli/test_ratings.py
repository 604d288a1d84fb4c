"""The shell's commands on ratings print what the library says, and fail in one line."""

import csv
import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hamcmc.cli.app import app
from hamcmc.factorization import predict
from tests.factorization.runs import make_draws, make_ratings, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rng = np.random.default_rng(0)
    return make_run(tmp_path_factory.mktemp("run") / "run", make_ratings(rng, 12, 9), make_draws(rng, 12, 9))


def call(*arguments, code=0):
    """Run the program."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done


def numbers(rows, *names):
    return np.array([[float(r[n]) for n in names] for r in rows])


def test_predict_prints_or_writes_csv(run, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("what\tuser\ni3\tu1\ni0\tnew, [red]one\ni3\tu1\n")
    printed = call("predict", run, pairs, "--item", "what", "--level", "0.5").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert list(rows[0]) == ["user", "item", "mean", "sd", "low", "high", "known"]
    assert [r["user"] for r in rows] == ["u1", "new, [red]one", "u1"]
    assert [r["known"] for r in rows] == ["true", "false", "true"]
    found = predict.load(run).predict(["u1", "new", "u1"], ["i3", "i0", "i3"], level=0.5, clip=True)
    np.testing.assert_allclose(numbers(rows, "mean", "sd", "low", "high"), np.array(found[:4]).T, rtol=1e-5)
    out = tmp_path / "out.csv"
    said = call("predict", run, pairs, "--item", "what", "--level", "0.5", "-o", out).stdout
    assert out.read_text() == printed
    assert "3 predictions, 1 of unseen users or items" in said
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out.csv", "pairs.tsv"]


def test_recommend_as_table_json_and_csv(run):
    items, found = predict.load(run).recommend("u2", top=3, clip=True)
    rows = list(csv.DictReader(io.StringIO(call("recommend", run, "--user", "u2", "--top", 3, "--csv").stdout)))
    told = json.loads(call("recommend", run, "--user", "u2", "--top", 3, "--json").stdout)
    for listed in (rows, told["items"]):
        assert [r["item"] for r in listed] == items.tolist()
        np.testing.assert_allclose(numbers(listed, "mean", "low", "high"), np.array(found)[[0, 2, 3]].T, rtol=1e-5)
    assert (told["user"], told["known"]) == ("u2", True)
    table = call("recommend", run, "--user", "u2", "--top", 3).stdout
    assert all(f"{m:.2f}" in table for m in found.mean)
    assert "95 %" in table
    assert (
        len(
            json.loads(call("recommend", run, "--user", "u2", "--top", 99, "--include-rated", "--json").stdout)["items"]
        )
        == 9
    )


def test_an_unknown_user_is_told(run):
    done = call("recommend", run, "--user", "[b]who", "--json")
    assert json.loads(done.stdout)["known"] is False
    assert "user [b]who is not in the ratings" in done.stderr


def test_faults_end_in_one_line(run, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("user,item\nu1,i1\nu1\n")
    done = call("predict", run, bad, code=2)
    assert done.stderr == f"error: {bad}:3: 1 field where 2 belong\n"
    assert call("predict", run, tmp_path, code=2).stderr.count("\n") == 1
    assert "is not a run" in call("recommend", tmp_path, "--user", "u1", code=1).stderr
    assert "--json and --csv" in call("recommend", run, "--user", "u1", "--json", "--csv", code=2).stderr
    bad.write_text("user,item\nu1,i1\n")
    assert "cannot write" in call("predict", run, bad, "-o", tmp_path / "none" / "x.csv", code=1).stderr


def test_report_is_about_the_factorization(run, tmp_path):
    assert "Wrote" in call("report", run, "-o", tmp_path / "page.html").stdout
    assert "Calibration" in (tmp_path / "page.html").read_text()
