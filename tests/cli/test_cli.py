"""The shell, as a person uses it: commands, messages, exit codes."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from hamcmc.cli import app as cli
from hamcmc.cli import model_file
from hamcmc.diagnostics.result import Result
from hamcmc.samplers import NAMES
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.directory import Directory

MODEL = """
import jax.numpy as jnp
import hamcmc

init = jnp.zeros(2)
fisher = jnp.eye(2) * 100.0

def posterior(data):
    return hamcmc.Posterior(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, d: -0.5 * (d["y"] - d["x"] * theta[0] - theta[1]) ** 2,
        {"x": data["x"], "y": data["y"]},
    )
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a model and its data, as the current directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=200).astype(np.float32)
    y = (2 * x + 1 + rng.normal(size=200)).astype(np.float32)
    (tmp_path / "model.py").write_text(MODEL)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    np.savetxt(tmp_path / "data.csv", np.stack([x, y], 1), delimiter=",", header="x,y", comments="")
    return tmp_path


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        out = CliRunner().invoke(cli.app, [str(a) for a in arguments])
        if out.exception and not isinstance(out.exception, SystemExit):
            raise out.exception
        return out.exit_code, re.sub(r"\s+", " ", out.output)

    return run


SAMPLE = ("sample", "model.py", "--data", "data.npz", "--sampler", "hamcmc", "--step-size", "1e-3")
SAMPLE += ("--batch-size", 20, "--num-samples", 100, "-q")
ENDED = (0, 3, 4)  # exit codes of a run that came to its end, whatever the verdict on its few draws


def test_sample_is_automatic(folder, shell):
    code, text = shell(
        "sample", "model.py", "--data", "data.npz", "--num-samples", 60, "--set", "adapt=60", "-o", "auto"
    )
    assert code in (0, 3), text
    assert "plan: 200 rows" in text
    run = Result.open("auto")
    assert run.settings["plan"]["regime"] == "all data"
    assert run.check().headline in text
    assert shell("resume", "auto", "-q")[0] == code  # it is complete


def test_sample_summary_report(folder, shell):
    code, text = shell(*SAMPLE, "--set", "memory=2", "--set", "gamma=0.01", "--chains", 2, "--start", "mode")
    assert code in ENDED, text
    assert "theta[0]" in text
    assert "hamcmc report run" in text
    result = Result.open("run")
    assert result.settings["sampler"] == {**result.settings["sampler"], "sampler": "hamcmc", "memory": 2, "gamma": 0.01}
    assert result.posterior["theta"].shape == (2, 100, 2)
    code, text = shell("summary", "run")
    assert code in ENDED
    assert "complete" in text
    assert "minibatch gradients" in text
    assert ", all included: " in text
    code, text = shell("report", "run")
    assert code == 0
    assert (folder / "run" / "report.html").stat().st_size > 10_000


def test_a_part_of_the_parameters_is_stored(folder, shell):
    model = """
import hamcmc
def posterior(data):
    log_likelihood = lambda p, row: -0.5 * (row["y"] - p["a"] * row["x"] - p["b"]) ** 2
    return hamcmc.Posterior(lambda p: -0.5 * (p["a"] ** 2 + p["b"] ** 2), log_likelihood, data)
init = {"a": 0.0, "b": 0.0}
"""
    (folder / "model.py").write_text(model)
    code, text = shell(*SAMPLE, "--sampler", "sgld", "--store", "b")
    assert code in ENDED, text
    run = Result.open("run")
    assert list(run.posterior) == ["b"]
    assert list(run.mean) == ["a", "b"]
    assert shell("report", "run")[0] == 0
    code, text = shell(*SAMPLE, "--sampler", "sgld", "--store", "c", "-o", "other")
    assert code == 2
    assert "there is no sampled parameter 'c'; there are a, b" in text


@pytest.mark.slow
def test_csv_and_npz_give_the_same_draws(folder, shell):
    assert shell(*SAMPLE, "--sampler", "sgld", "-o", "a")[0] in ENDED
    arguments = ["data.csv" if a == "data.npz" else a for a in SAMPLE]
    assert shell(*arguments, "--sampler", "sgld", "-o", "b")[0] in ENDED
    a, b = (Result.open(r).posterior["theta"] for r in "ab")
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_cycles_control_variate_and_svrg(folder, shell):
    arguments = (*SAMPLE, "--sampler", "sgld", "--cycles", 4, "--control-variate", "--set", "svrg=10")
    assert shell(*arguments, "--warmup", 11)[0] in ENDED
    settings = json.loads((folder / "run" / "run.json").read_text())
    assert settings["step_size"] == {"schedule": "cyclical", "step_size": 1e-3, "period": 28, "floor": 0.0}
    assert settings["gradient"]["estimator"] == "control_variate"
    assert settings["sampler"] == {"sampler": "sgld", "svrg": 10}
    (folder / "run" / "checkpoint").unlink()  # start again
    assert shell("resume", "run", "-q")[0] in ENDED
    code, text = shell(*arguments, "--decay", 0.5)
    assert code == 2
    assert "--cycles must be 1 or more, and cannot be combined with --decay" in text


def test_the_verdict_comes_first_and_decides_the_exit_code(folder, shell):
    code, text = shell(*SAMPLE, "--sampler", "sgld", "--chains", 4)  # a hundred draws of a slow sampler
    assert code == 3
    assert text.startswith("not converged: ")
    assert "The worst of 2 parameters:" in text
    saved = read_checkpoint(folder / "run")
    for word, expected in (("good", 0), ("usable", 0), ("not converged", 3), ("wrong", 4)):
        verdict = {"word": word, "reasons": ["because"], "worst": [], "parameters": 2, "gradients": 400}
        with Directory.open(folder / "run") as directory:
            directory.save(saved._replace(meta=saved.meta | {"verdict": verdict}))
        code, text = shell("summary", "run")
        assert (code, text.startswith(f"{word}: because complete: 100 draws")) == (expected, True)
    for command in ("sample", "resume", "summary"):
        assert "3 for not converged, 4 for wrong" in shell(command, "--help")[1]


@pytest.mark.slow
def test_the_step_size_is_found(folder, shell, monkeypatch):
    monkeypatch.setattr("hamcmc.inference.tune.budget_for", lambda work: 1000)
    arguments = [a for a in SAMPLE if a not in ("--step-size", "1e-3")] + ["--sampler", "sghmc", "--cycles", 2]
    code, text = shell(*arguments)
    assert code in ENDED, text
    assert "tuned: step size=" in text
    settings = json.loads((folder / "run" / "run.json").read_text())
    found = settings["notes"]["tuning"]
    assert settings["notes"]["options"] == found["options"] == {"friction": settings["sampler"]["friction"]}
    assert settings["step_size"]["step_size"] == found["step_size"]
    (folder / "run" / "checkpoint").unlink()  # start again
    monkeypatch.setattr("hamcmc.inference.tune.tune", None)  # nothing is looked for again
    assert shell("resume", "run", "-q")[0] in ENDED
    code, text = shell(*arguments[:-2], "--decay", 0.5)
    assert code == 2
    assert "--decay needs a number for --step-size" in text


@pytest.mark.slow
def test_every_sampler_by_name(folder, shell):
    for name in NAMES:
        learning = ("--set", "adapt=20") if name.startswith("ensemble") else ()
        all_data = name in (
            "ensemble_adjusted",
            "ensemble_hmc",
            "independence",
        )  # a Metropolis test takes no minibatches
        arguments = [a for a in SAMPLE if not (all_data and a in ("--batch-size", 20))]
        code, text = shell(*arguments, "--sampler", name, "-o", name, "--decay", 0.51, *learning)
        assert code in ENDED, text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--step-size": "0"}, "step_size must be a finite number above 0"),
        ({"--step-size": "nan"}, "step_size"),
        ({"--step-size": "large"}, "--step-size must be a number or auto, got 'large'"),
        ({"--sampler": "hmc"}, "sampler must be one of ccadl"),
        ({"--set": "memory=1"}, "memory must be a whole number, 2 or more, got 1"),
        ({"--set": "damping=-1"}, "damping"),
        ({"--set": "nonsense=1"}, "nonsense"),
        ({"--set": "memory"}, "NAME=VALUE"),
        ({"--batch-size": "0"}, "batch_size"),
        ({"--batch-size": "201"}, "batch_size 201 is larger than the data: 200 rows"),
        ({"--num-samples": "0"}, "num_samples"),
        ({"--start": "middle"}, "--start"),
        ({"--data": "nowhere.npz"}, "nowhere.npz"),
    ],
)
def test_bad_arguments_exit_2_and_are_named(change, words, folder, shell):
    arguments = list(SAMPLE)
    for name, value in change.items():
        if name in arguments:
            arguments[arguments.index(name) + 1] = value
        else:
            arguments += [name, value]
    code, text = shell(*arguments)
    assert code == 2
    assert words in text
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("init = 1.0", "does not define `posterior`"),
        ("def posterior(data): ...", "does not define `init`"),
        ("init = 0.0\nposterior = 3", "must be a function"),
        ("init = 0.0\ndef posterior(data): return 3", "must return a hamcmc.Posterior, got int"),
        ("init = 0.0\ndef posterior(): return 3", "takes no data"),
        (MODEL.replace("jnp.zeros(2)", "jnp.zeros(2, int)"), "parameter theta must be floating point"),
        (MODEL.replace('"y": data["y"]', '"y": data["y"][:7]'), "data['x']: 200, data['y']: 7"),
        (MODEL.replace("-0.5 * jnp.sum(theta**2)", "-0.5 * theta**2"), "log_prior must return a scalar"),
    ],
)
def test_bad_model_files_exit_2_and_are_named(source, words, folder, shell):
    (folder / "model.py").write_text(source)
    code, text = shell(*SAMPLE)
    assert code == 2
    assert words in text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.csv", "", "d.csv: the file is empty"),
        ("d.csv", "x,y\n1,2\n3,four\n", "d.csv:3: column 'y' is not a number: 'four'"),
        ("d.csv", "x,y\n1,2\n3\n", "d.csv:3: 1 fields where the header has 2"),
        ("d.csv", "x,y\n1,nan\n", "data['y'] has 1 entries that are NaN or infinite"),
        ("d.csv", "x,y\n", "data is empty"),
        ("d.txt", "x", "d.txt: data must be"),
        ("d.npz", "x", "d.npz cannot be read"),
        ("d.npy", "x", "d.npy cannot be read"),
    ],
)
def test_bad_data_files_exit_2_and_name_the_place(name, content, words, folder, shell):
    (folder / name).write_text(content)
    code, text = shell(*[name if a == "data.npz" else a for a in SAMPLE])
    assert code == 2
    assert words in text


@pytest.mark.parametrize("text", ["x", "1_0"])  # no number at all, and one that only Python reads
def test_a_table_is_read_the_same_whatever_its_other_columns_have(text, tmp_path):
    fields = 'a,"b",c\n1,"2",3\n\n-4e-3, 5 ,6\n'
    for name, content in {"numbers.csv": fields, "text.csv": fields.replace("3\n", f"{text}\n")}.items():
        (tmp_path / name).write_text(content)
        found = model_file.read_data(tmp_path / name, {"x": ["b", "a"]})
        np.testing.assert_array_equal(found["x"], [[2.0, 1.0], [5.0, -4e-3]])


def test_pickled_data_are_refused(folder, shell):
    np.save(folder / "d.npy", np.array([object()]), allow_pickle=True)
    code, text = shell(*["d.npy" if a == "data.npz" else a for a in SAMPLE])
    assert code == 2
    assert "d.npy cannot be read" in text


def test_failed_runs_exit_1(folder, shell):
    arguments = [a if a != "1e-3" else "10.0" for a in SAMPLE]
    code, text = shell(*arguments, "--sampler", "sgld")
    assert code == 1
    assert "turned non-finite at iteration" in text
    assert "Try" in text
    assert shell("summary", "run")[0] in ENDED  # what was good is there to look at
    code, text = shell("resume", "run", "-q")
    assert code == 1
    assert "cannot be resumed" in text
    code, text = shell(*SAMPLE)
    assert code == 1
    assert "run exists already" in text
    for command in ("summary", "report", "resume"):
        code, text = shell(command, folder)
        assert code == 1
        assert "is not a run" in text


def test_diverged_runs_exit_1(folder, shell):
    """Steps that leave the posterior: where, in which parameter, and a smaller step; what was drawn is kept."""
    (folder / "tails.py").write_text(
        "import hamcmc, jax.numpy as jnp\n"
        'init = {"x": jnp.zeros(20)}\n'
        "def posterior():\n"
        '    return hamcmc.Posterior(lambda p: -2 * jnp.sum(jnp.log1p(p["x"] ** 2 / 3)))\n'
    )
    options = {"--sampler": "sgld", "--step-size": 20, "--num-samples": 1500, "--chains": 4, "--out": "tails"}
    code, text = shell("sample", "tails.py", *itertools.chain(*options.items()), "-q")
    assert code == 1, text
    assert re.search(r"left the posterior by iteration [\d,]+, the most in parameter x: .* Try a smaller", text)
    assert Result.open(folder / "tails").meta["status"] == "failed"
    code, text = shell("resume", "tails", "-q")
    assert code == 1
    assert "cannot be resumed" in text


def test_resume_refuses_a_changed_model_and_other_data(folder, shell):
    assert shell(*SAMPLE)[0] in ENDED
    checkpoint = folder / "run" / "checkpoint"
    checkpoint.unlink()  # as if killed before the first one
    (folder / "model.py").write_text(MODEL + "\n# changed\n")
    code, text = shell("resume", "run", "-q")
    assert code == 1
    assert "has changed since the run began" in text
    (folder / "model.py").write_text(MODEL)
    np.savez(folder / "data.npz", x=np.zeros(200, np.float32), y=np.ones(200, np.float32))
    code, text = shell("resume", "run", "-q")
    assert code == 1
    assert "other data" in text


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_signals_save_and_resume_completes(number, code, folder):
    """A real process: the exit code, the message, and the draws that an undisturbed run has."""
    arguments = [a if a != 100 else 2_000_000 for a in SAMPLE]
    command = [sys.executable, "-m", "hamcmc.cli", *map(str, arguments), "--thin", "1", "--checkpoint-seconds", "0.1"]
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200"}
    process = subprocess.Popen([*command, "--sampler", "sgld"], env=env, stderr=subprocess.PIPE, text=True)
    checkpoint = folder / "run" / "checkpoint"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (checkpoint.exists() and Result.open("run").draws > 0):
        time.sleep(0.1)
    process.send_signal(number)
    message = process.communicate(timeout=120)[1]
    assert process.returncode == code, message
    assert "hamcmc resume run" in message
    assert json.loads((folder / "run" / "events.jsonl").read_text().splitlines()[-1])["event"] == "interrupted"
    assert 0 < Result.open("run").draws < 2_000_000


def test_ctrl_c_before_a_run_begins_is_said(folder, shell, monkeypatch):
    """While the mode is searched, nothing is on disk that could be resumed."""
    monkeypatch.setattr("hamcmc.inference.sample.automatic", interrupted)
    code, text = shell("sample", "model.py", "--data", "data.npz", "-o", "run", "-q")
    assert code == 130
    assert "stopped by SIGINT before there was anything to resume" in " ".join(text.split())
    assert not (folder / "run").exists()


def interrupted(*_arguments, **_options):
    """Ctrl-C."""
    raise KeyboardInterrupt


def test_option_names_of_010_still_work_and_are_not_shown(folder, shell):
    arguments = ["--samples=30" if a == "--num-samples" else a for a in SAMPLE if a != 100]
    assert shell(*arguments, "--sampler", "sgld", "--burn-in", "7")[0] in ENDED
    settings = json.loads((folder / "run" / "run.json").read_text())
    assert (settings["num_samples"], settings["warmup"]) == (30, 7)
    text = shell("sample", "--help")[1]
    assert "--num-samples" in text
    assert "--samples" not in text


@pytest.mark.parametrize("command", ["sample", "factorize"])
def test_one_vocabulary(command, shell):
    text = shell(command, "--help")[1]
    for option in ("num-samples", "warmup", "thin", "seed", "out", "overwrite", "checkpoint-seconds", "quiet", "set"):
        assert f"--{option}" in text


def test_help_has_examples(shell):
    for command in ([], ["sample"], ["resume"], ["summary"], ["report"], ["demo"], ["reproduce"], ["watch"]):
        code, text = shell(*command, "--help")
        assert code == 0
        assert "hamcmc" in text
    assert shell("--version")[1].startswith("hamcmc 0")
    assert shell("nonsense")[0] == 2
    assert shell("sample")[0] == 2
    assert shell("reproduce", "fig9")[0] == 2


# --- for people and for programs ---


@pytest.fixture
def short_run(folder, shell):
    assert shell("sample", "model.py", "--data", "data.npz", "-o", "run", "-q")[0] == 0
    return folder / "run"


def test_summaries_for_other_programs(short_run):
    out = CliRunner().invoke(cli.app, ["summary", "run", "--json"])
    found = json.loads(out.stdout)
    assert (found["status"], found["verdict"]["word"], out.exit_code) == ("complete", "good", 0)
    assert [row["name"] for row in found["parameters"]] == ["theta[0]", "theta[1]"]
    assert found["parameters"][0]["mean"] == pytest.approx(2, abs=0.3)
    table = CliRunner().invoke(cli.app, ["summary", "run", "--csv"]).stdout.splitlines()
    assert table[0].startswith("name,mean,sd,")
    assert float(table[1].split(",")[1]) == pytest.approx(found["parameters"][0]["mean"])
    assert CliRunner().invoke(cli.app, ["summary", "run", "--csv", "--json"]).exit_code == 2


def test_modules_beside_the_model_can_be_imported(folder, shell):
    (folder / "priors_of_mine.py").write_text("SCALE = 1.0\n")
    (folder / "model.py").write_text("from priors_of_mine import SCALE\n" + MODEL)
    assert shell("sample", "model.py", "--data", "data.npz", "-o", "run", "-q")[0] == 0


@pytest.mark.parametrize(
    ("broken", "line", "words"),
    [
        ('d["x"] * theta[0]', 11, "KeyError: 'z'"),
        ("return hamcmc.Posterior(", 8, "NameError"),
        ("init = jnp.zeros(2)", 4, "was never closed"),
    ],
    ids=["in a likelihood", "in posterior", "syntax"],
)
def test_an_error_in_the_model_names_its_line(folder, shell, broken, line, words):
    replaced = {
        'd["x"] * theta[0]': 'd["z"] * theta[0]',
        "return hamcmc.Posterior(": "wrong; return hamcmc.Posterior(",
        "init = jnp.zeros(2)": "init = jnp.zeros((2)",
    }
    (folder / "model.py").write_text(MODEL.replace(broken, replaced[broken]))
    code, text = shell("sample", "model.py", "--data", "data.npz", "-o", "run", "-q")
    assert code == 2
    assert words in text
    number = int(re.search(r"model\.py:(\d+):", text)[1])
    assert abs(number - line) <= 1
    assert text.count(" ") < 40  # no traceback of JAX


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("--sampler", "ensemble_hcm"), "did you mean 'ensemble_hmc'?"),
        (("--sampler", "hamcmc", "--step-size", "1e-3", "--set", "memry=3"), "did you mean 'memory'?"),
    ],
)
def test_the_nearest_name_is_offered(folder, shell, arguments, meant):
    code, text = shell("sample", "model.py", "--data", "data.npz", *arguments, "-o", "run", "-q")
    assert code == 2
    assert meant in text
    assert "did you mean 'fig2'?" in shell("reproduce", "fig22")[1]


def test_completion_is_offered(shell):
    assert "--install-completion" in shell("--help")[1]
