"""Real processes on this machine: one is killed, the rest is stopped, and others go on to the same draws."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from hamcmc.cli.app import app
from hamcmc.factorization import partition, run
from hamcmc.factorization.problem import Request
from hamcmc.factorization.program import FactorizationProgram
from hamcmc.inference import launch
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.settings import read_settings
from tests.factorization.sparse import low_rank, ratings_of

OPTIONS = {"rank": 3, "sampler": "sgld", "num_samples": 8, "warmup": 2, "steps": 4, "blocks": 4}


def prepared(path, **options):
    return run.prepare(ratings_of(*low_rank(60, 40, 900)), path, Request(**(OPTIONS | options)))


def draws(path):
    group = zarr.open_group(path / "draws.zarr", mode="r")["posterior"]
    return {name: np.asarray(group[name]) for name in ("W", "H", "row_bias", "noise_precision")}


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


def start(path, processes, *options):
    command = [sys.executable, "-m", "hamcmc.cli", "resume", str(path), "--processes", str(processes), "-q", *options]
    environment = os.environ | {"HAMCMC_TEST": str(os.getpid()), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def resumed(path, processes):
    """What the command says that goes on to the end; one process is this one, which has the program already."""
    if processes == 1:
        done = CliRunner().invoke(app, ["resume", str(path), "-q"])
        assert done.exit_code == 0, done.output
        return done.output
    many = start(path, processes)
    out, errors = many.communicate(timeout=240)
    assert many.returncode == 0, errors
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_a_killed_process_ends_all_and_others_go_on(tmp_path, before, after):
    alone = prepared(tmp_path / "alone")
    run.run_here(alone, progress=False)

    path = prepared(tmp_path / "run")
    many = start(path, before, "--checkpoint-seconds", "0")
    end = time.monotonic() + 240
    while not (path / "checkpoint").exists() or read_checkpoint(path).meta["iteration"] < 2:
        assert many.poll() is None, many.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    victim, killed = workers()[before // 2], time.monotonic()
    os.kill(victim, signal.SIGKILL)
    _, errors = many.communicate(timeout=60)
    assert time.monotonic() - killed < 60
    assert many.returncode == 1
    told = f"process {before // 2} of {before} was killed by SIGKILL; all others were stopped"
    assert told in re.sub(r"\s+", " ", errors)
    assert not workers()
    reached = read_checkpoint(path).meta["iteration"]
    assert 2 <= reached < 10

    assert "test RMSE" in resumed(path, after)
    found, expected = draws(path), draws(alone)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-3, atol=2e-4)
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    assert [e["processes"] for e in events if e["event"] == "start"] == [before, after]


@pytest.mark.slow
def test_restarts(tmp_path):
    """A launcher that may start again finishes in spite of a kill."""
    path = prepared(tmp_path / "run", num_samples=200)
    code = f"from pathlib import Path; from hamcmc.inference.launch import launch; launch(Path({str(path)!r}), 2, "
    code += f"{run.WORKER!r}, ({str(path)!r}, '--quiet', '--checkpoint-seconds=0'), restarts=1)"
    environment = os.environ | {"HAMCMC_TEST": str(os.getpid())}
    job = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)
    while not (path / "checkpoint").exists() or read_checkpoint(path).meta["iteration"] < 3:
        time.sleep(0.02)
    os.kill(workers()[1], signal.SIGKILL)
    _, errors = job.communicate(timeout=240)
    assert job.returncode == 0, errors
    assert "process 1 of 2 was killed by SIGKILL" in errors
    assert "starting again from the last checkpoint" in errors
    assert read_checkpoint(path).meta["status"] == "complete"


def test_who_started_a_process():
    assert launch.started_by({}) is None
    assert launch.started_by({"HAMCMC_PROCESSES": "2"}) == "hamcmc"
    assert launch.started_by({"OMPI_COMM_WORLD_SIZE": "4"}) == "mpirun"
    assert launch.started_by({"OMPI_COMM_WORLD_SIZE": "1"}) is None
    assert launch.started_by({"SLURM_STEP_NUM_TASKS": "8"}) == "Slurm"
    assert launch.rank({}) == 0
    assert launch.rank({"OMPI_COMM_WORLD_RANK": "3"}) == 3


def test_processes_must_divide_the_blocks(tmp_path):
    with pytest.raises(ValueError, match="processes must divide blocks: 3 processes, 4 blocks"):
        run.proceed(prepared(tmp_path / "run"), processes=3)


def test_ratings_stay_in_their_file(tmp_path):
    """The kernel reads the mapped file itself: what is on disk may be larger than the memory."""
    path = prepared(tmp_path / "run")
    program = FactorizationProgram(read_settings(path), *partition.load(path / "blocks"))
    pointer = program.data.train.values.unsafe_buffer_pointer()
    with open("/proc/self/maps") as f:
        mapped = [line.split(maxsplit=5) for line in f]
    ends = lambda place: [int(x, 16) for x in place[0].split("-")]
    (name,) = [m[5] for m in mapped if len(m) == 6 and ends(m)[0] <= pointer < ends(m)[1]]
    assert "train-values.npy" in name
