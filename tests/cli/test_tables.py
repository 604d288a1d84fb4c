"""The shell for other programs and for other data: JSON, CSV, columns, states, and mistakes in a model."""

import csv
import io
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from hamcmc.cli import app as cli
from hamcmc.cli import model_file
from hamcmc.cli.shell import chosen, write_table
from hamcmc.store.directory import Directory, state
from tests.cli.test_cli import MODEL, folder, shell  # noqa: F401
from tests.factorization.test_report import META, fake
from tests.report.results import Growing


def call(*arguments) -> tuple[int, str]:
    """The exit code and stdout alone."""
    out = CliRunner().invoke(cli.app, list(map(str, arguments)))
    if out.exception and not isinstance(out.exception, SystemExit):
        raise out.exception
    return out.exit_code, out.stdout


def test_a_table_for_programs(capsys):
    rows = [["a", 1.5, float("nan")], ["b, c", float("inf"), 2]]
    write_table("json", ("name", "x", "y"), rows, {"about": "it"}, "items")
    found = json.loads(capsys.readouterr().out)
    assert found == {"about": "it", "items": [{"name": "a", "x": 1.5, "y": None}, {"name": "b, c", "x": None, "y": 2}]}
    write_table("csv", ("name", "x", "y"), rows, {})
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [
        ["name", "x", "y"],
        ["a", "1.5", ""],
        ["b, c", "", "2"],
    ]
    assert (chosen(True, False), chosen(False, True), chosen(False, False)) == ("json", "csv", None)
    with pytest.raises(ValueError, match="exclude each other"):
        chosen(True, True)


def test_every_command_with_a_table_has_both_formats(shell):  # noqa: F811
    for command in ("sample", "resume", "summary", "factorize", "predict", "recommend", "denoise", "reproduce"):
        text = shell(command, "--help")[1]
        assert "--json" in text, command
        assert "--csv" in text, command


def test_sample_prints_json_alone(folder):  # noqa: F811
    arguments = ("sample", "model.py", "--data", "data.npz", "--sampler", "sgld", "--step-size", "1e-3", "--chains", 2)
    code, text = call(*arguments, "--num-samples", 30, "--json")
    found = json.loads(text)
    assert code == {"good": 0, "usable": 0, "not converged": 3, "wrong": 4}[found["verdict"]["word"]]
    assert found["status"] == "complete"
    assert [row["name"] for row in found["parameters"]] == ["theta[0]", "theta[1]"]
    code, text = call("resume", "run", "--csv")
    assert text.splitlines()[0].startswith("name,mean,sd")
    assert len(text.splitlines()) == 3


def test_predictions_and_recommendations_for_programs_stay_in_the_scale(tmp_path):
    run = fake(tmp_path / "run", meta=META)
    (tmp_path / "pairs.csv").write_text("user,item\nu1,i2\nu1,new\n")
    free, cut = (
        json.loads(call("predict", run, tmp_path / "pairs.csv", "--json", *more)[1])["predictions"]
        for more in (["--no-clip"], [])
    )
    assert [p["known"] for p in cut] == [True, False]
    assert all(1 <= p["low"] <= p["mean"] <= p["high"] <= 5 for p in cut)
    assert [p["low"] for p in cut] == pytest.approx([max(1, p["low"]) for p in free])
    assert any(not 1 <= p[end] <= 5 for p in free for end in ("low", "high"))
    assert call("predict", run, tmp_path / "pairs.csv")[1].startswith("user,item,mean,")
    assert call("predict", run, tmp_path / "pairs.csv", "--json", "-o", "x.csv")[0] == 2
    assert len(json.loads(call("recommend", run, "--user", "u1", "--json")[1])["items"]) > 0


def test_a_run_after_ctrl_c_is_stopped(tmp_path):
    run = Growing(tmp_path / "run")
    run.grow(100)
    assert json.loads(call("summary", run.path, "--json")[1])["status"] == "running"
    assert "running: 100 draws" in call("summary", run.path)[1]
    assert call("report", run.path)[0] == 0
    assert "The run goes on" in (run.path / "report.html").read_text()
    run.let_go()  # as a process that was interrupted
    assert json.loads(call("summary", run.path, "--json")[1])["status"] == "stopped"
    assert "stopped: 100 draws" in call("summary", run.path)[1]
    call("report", run.path)
    page = (run.path / "report.html").read_text()
    assert ">stopped</span>" in page
    assert f"hamcmc resume {run.path}" in page
    with Directory.open(run.path):
        assert state("running", run.path) == "running"
    assert (state("complete", run.path), state("running", None)) == ("complete", "running")


# --- data by column ---


@pytest.fixture
def table(tmp_path):
    (tmp_path / "t.csv").write_text("id,age,income,paid\na7,30,1.5,1\nb9,41,2.5,0\n")
    np.savez(tmp_path / "t.npz", age=[30.0, 41.0], income=[1.5, 2.5], paid=[1.0, 0.0])
    return tmp_path


WANTED = {"x": ["age", "income"], "y": ["paid"]}


@pytest.mark.parametrize("name", ["t.csv", "t.npz", "t.parquet"])
def test_arrays_from_columns(table, name):
    if name == "t.parquet":
        polars = pytest.importorskip("polars")
        polars.read_csv(table / "t.csv").write_parquet(table / name)
    found = model_file.read_data(table / name, WANTED)
    np.testing.assert_allclose(found["x"], [[30, 1.5], [41, 2.5]])
    np.testing.assert_allclose(found["y"], [1, 0])
    assert set(found) == {"x", "y"}


def test_columns_are_parsed_and_refused_by_name(table):
    assert model_file.parse_columns(["x=age, income", "y=paid"]) == WANTED
    for wrong in (["x"], ["=a"], ["x="], ["x=a,,b"], ["x=a", "x=b"]):
        with pytest.raises(ValueError, match="--columns"):
            model_file.parse_columns(wrong)
    with pytest.raises(ValueError, match="has no column 'incme'.*did you mean 'income'"):
        model_file.read_data(table / "t.csv", {"x": ["age", "incme"]})
    with pytest.raises(ValueError, match=r"t\.csv:2: column 'id' is not a number: 'a7'"):
        model_file.read_data(table / "t.csv", {"x": ["id"]})
    np.save(table / "t.npy", np.zeros(3))
    with pytest.raises(ValueError, match="no columns"):
        model_file.read_data(table / "t.npy", WANTED)


def test_sample_and_resume_by_column(folder):  # noqa: F811
    text = (folder / "data.csv").read_text().splitlines()
    renamed = ["who,weight,height", *(f"person,{row}" for row in text[1:])]
    (folder / "people.csv").write_text("\n".join(renamed))
    how = ("--sampler", "sgld", "--step-size", "1e-3", "--num-samples", 30, "--warmup", 10, "--json")
    plain = json.loads(call("sample", "model.py", "--data", "data.csv", *how, "-o", "a")[1])
    columns = ("--columns", "x=weight", "--columns", "y=height")
    named = json.loads(call("sample", "model.py", "--data", "people.csv", *columns, *how, "-o", "b")[1])
    assert [r["mean"] for r in plain["parameters"]] == [r["mean"] for r in named["parameters"]]
    (folder / "b" / "checkpoint").unlink()  # start again
    again = json.loads(call("resume", "b", "--json")[1])
    assert [r["mean"] for r in again["parameters"]] == [r["mean"] for r in named["parameters"]]


# --- six mistakes in a model ---

MISTAKES = {
    "a wrong shape": ('d["x"] * theta[0]', "jnp.ones(3) @ theta", "contracting dimensions"),
    "a vector": ("** 2,\n", "** 2 * theta,\n", "log_likelihood must return a scalar of one datum, got shape (2,)"),
    "an if": ('d["x"] * theta[0]', '(d["x"] if theta[0] > 0 else 0.0)', "use jnp.where, not if"),
    "numpy": ("jnp.sum(theta**2)", "__import__('numpy').exp(theta).sum()", "use jax.numpy there, not numpy"),
    "a missing column": ('"y": data["y"]', '"y": data["z"]', "there is no column 'z'"),
    "no return": ("-0.5 * jnp.sum(theta**2)", "None", "log_prior must return a scalar, got NoneType: is its `return`"),
    "a misspelt function": ("jnp.sum", "jnp.summ", "has no attribute 'summ'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_model_are_short_and_say_where(folder, shell, mistake):  # noqa: F811
    old, new, words = MISTAKES[mistake]
    assert old in MODEL
    (folder / "model.py").write_text(MODEL.replace(old, new))
    code, text = shell("sample", "model.py", "--data", "data.npz", "-o", "run", "-q")
    assert code == 2
    assert words in text
    assert len(text) < 450
    assert "scalar" in words or re.search(r"model\.py:\d+: ", text)
    assert not (folder / "run").exists()
