"""Real processes that sample together: the same draws as one, the same errors in all, a kill, and another number."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import hamcmc
from hamcmc.diagnostics.result import Result
from hamcmc.inference.arguments import starting_at
from hamcmc.inference.launch import launch
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.target import linear_gaussian as lg
from hamcmc.target.sharded import Sharded
from tests.inference import together

MODEL = """
import numpy as np
from tests.inference.together import posterior

init = np.zeros(2)
"""


@pytest.mark.parametrize("processes", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_processes_together_make_the_draws_of_one(tmp_path, x64, processes):
    automatic = ("automatic",) * (processes > 2)
    launch(tmp_path, processes, "tests.inference.together", (str(tmp_path), *automatic))
    alone = tmp_path / "alone"
    alone.mkdir()
    expected = together.runs(alone, bool(automatic))
    for number in range(processes):
        with np.load(tmp_path / f"draws{number}.npz") as found:
            assert set(found) == set(expected)
            for name, x in expected.items():
                if name == "automatic":
                    continue
                np.testing.assert_allclose(found[name], x, rtol=1e-7, atol=1e-9 * np.abs(x).max(), err_msg=name)
    if automatic:  # it is on disk, written by one process, with a verdict
        result = Result.open(tmp_path / "run")
        found, alone = result.posterior["theta"], expected["automatic"]
        # Its coordinates and starts come from a search that may turn on the last digit of a sum, so draws may differ.
        # Of so many independent proposals, which are mostly accepted, at least a quarter are effective draws.
        error = alone.std((0, 1)) * np.sqrt(2 / (alone.shape[0] * alone.shape[1] / 4))
        np.testing.assert_array_less(np.abs(found.mean((0, 1)) - alone.mean((0, 1))), 5 * error)
        assert result.meta["verdict"]["word"] in ("good", "usable")
        for number in range(processes):
            with np.load(tmp_path / f"draws{number}.npz") as others:
                np.testing.assert_array_equal(others["automatic"], found)
        assert f"on {processes} devices: all data at every step" in result.settings["plan"]["reason"]
        assert "independent proposals" in result.settings["plan"]["reason"]
    for number in range(processes):
        rows, kinds, values, local = json.loads((tmp_path / f"refused{number}.json").read_text())
        assert "the data of process 1 have other shapes or types than those of process 0: x float64[1000, 2]" in rows
        assert "x float32[1001, 2], y" in kinds
        assert "the data of process 1 have other values than those of process 0" in values
        assert f"process {processes - 1} of {processes}: log_likelihood is -inf at the start of chain 0" in local


def test_an_automatic_run_on_shares_is_exact_and_goes_on_in_one_piece(data, model, tmp_path, short_segments):
    """Minibatches of rows that are shared out: the exact law, and a resumed run draws the same rows."""
    short_segments(200)
    model = starting_at(model, np.zeros(3, np.float32))
    how = {"batch_size": 50, "thin": 1, "num_samples": 200, "progress": False, "checkpoint_seconds": 0}

    def stop(status):
        if status.draws and status.draws >= 50:
            raise KeyboardInterrupt

    uncut = hamcmc.sample(Sharded(model), **how)
    assert uncut.settings["plan"]["regime"] == "minibatches"
    exact, draws = lg.exact(data, 10.0), uncut.posterior["theta"].reshape(-1, 3)
    sd = np.sqrt(np.diag(np.linalg.inv(exact.precision)))
    few = len(draws) / 4  # at least so many are effective
    assert (np.abs(draws.mean(0) - exact.mean) < 5 * sd / np.sqrt(few)).all()
    np.testing.assert_allclose(draws.std(0), sd, rtol=5 / np.sqrt(2 * few) + 0.01)
    with pytest.raises(KeyboardInterrupt):
        hamcmc.sample(Sharded(model), **(how | {"progress": stop}), out=tmp_path / "run")
    again = hamcmc.resume(tmp_path / "run", model, progress=False)
    np.testing.assert_allclose(again.posterior["theta"], uncut.posterior["theta"], rtol=1e-3, atol=1e-3 * sd.min())


def command(*words):
    environment = os.environ | {"HAMCMC_TEST": str(os.getpid())}
    words = [sys.executable, "-m", "hamcmc.cli", *map(str, words), "-q"]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers():
    """Pid of each worker of this test, by its number."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                environment = dict(e.split(b"=", 1) for e in f.read().split(b"\0") if b"=" in e)
        except OSError:
            continue
        if environment.get(b"HAMCMC_TEST") == str(os.getpid()).encode() and b"HAMCMC_PROCESS" in environment:
            found[int(environment[b"HAMCMC_PROCESS"])] = int(pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "since"), [(2, 1, 0), (4, 2, 1000)])
def test_a_killed_worker_ends_all_and_another_number_goes_on(tmp_path, before, after, since):
    """It dies in the first segment, or later."""
    (tmp_path / "model.py").write_text(MODEL)
    np.savez(tmp_path / "data.npz", **together.arrays())
    how = ["--sampler", "sgld", "--step-size", "1e-4", "--num-samples", 8000, "--warmup", 0, "--x64"]
    run = ["sample", tmp_path / "model.py", "--data", tmp_path / "data.npz", *how]
    alone = command(*run, "-o", tmp_path / "alone")
    _, errors = alone.communicate(timeout=300)
    assert alone.returncode in (0, 3, 4), errors

    path = tmp_path / "run"
    many = command(*run, "-o", path, "--processes", before, "--checkpoint-seconds", 0)
    end = time.monotonic() + 300
    while not (path / "checkpoint").exists() or read_checkpoint(path).meta["iteration"] < since:
        assert many.poll() is None, many.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(workers()[before // 2], signal.SIGKILL)
    _, errors = many.communicate(timeout=60)
    assert many.returncode == 1
    told = f"process {before // 2} of {before} was killed by SIGKILL; all others were stopped"
    assert told in re.sub(r"\s+", " ", errors)
    assert not workers()
    assert since <= read_checkpoint(path).meta["iteration"] < 8000

    again = command("resume", path, "--processes", after)
    out, errors = again.communicate(timeout=300)
    assert again.returncode in (0, 3, 4), errors
    assert "complete: 8,000 draws per chain with sgld" in out
    found, expected = (Result.open(p).posterior["theta"] for p in (path, tmp_path / "alone"))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_mpirun_starts_processes_that_stop_save_and_make_the_draws_of_one(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    np.savez(tmp_path / "data.npz", **together.arrays())
    how = ["--sampler", "sgld", "--step-size", "1e-4", "--num-samples", "8000", "--warmup", "0", "--x64"]
    run = ["sample", str(tmp_path / "model.py"), "--data", str(tmp_path / "data.npz"), *how]
    alone = command(*run, "-o", tmp_path / "alone")
    _, errors = alone.communicate(timeout=300)
    assert alone.returncode in (0, 3, 4), errors

    def by_mpirun(number, *words):
        mpi = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "odls_base_sigkill_timeout", "5"]
        words = [*mpi, "-n", str(number), sys.executable, "-m", "hamcmc.cli", *map(str, words), "-q"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    path = tmp_path / "run"
    many = by_mpirun(2, *run, "-o", path, "--checkpoint-seconds", 0)
    while not (path / "checkpoint").exists() or read_checkpoint(path).meta["iteration"] < 500:
        assert many.poll() is None, many.communicate()
        time.sleep(0.02)
    many.send_signal(signal.SIGTERM)
    _, errors = many.communicate(timeout=120)
    assert many.returncode != 0
    if read_checkpoint(path).meta["iteration"] < 8000:  # mpirun itself waits before it tells the processes
        assert "stopped by SIGTERM" in errors
        assert "all saved" in errors
    assert "stack trace" not in errors
    again = by_mpirun(3, "resume", path)
    out, errors = again.communicate(timeout=300)
    assert again.returncode in (0, 3, 4), errors
    assert out.count("complete: 8,000 draws per chain with sgld") == 1  # one process prints
    found, expected = (Result.open(p).posterior["theta"] for p in (path, tmp_path / "alone"))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
