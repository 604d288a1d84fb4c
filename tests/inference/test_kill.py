"""A run killed, again and again, ends with the bytes of one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from hamcmc.store.checkpoint import read_checkpoint
from tests.store.trees import tree

JOB = """
import os, sys, time
import jax.numpy as jnp, numpy as np
import hamcmc, hamcmc.inference.job
from hamcmc.target import linear_gaussian as lg

hamcmc.inference.job.segment_length = lambda *_: 50
out, pause = sys.argv[1], float(sys.argv[2])
posterior = lg.linear_gaussian(lg.simulate(np.random.default_rng(0), 200, np.eye(3), 10.0), 10.0)
how = dict(checkpoint_seconds=0.02, progress=lambda status: time.sleep(pause))
try:
    if os.path.exists(os.path.join(out, "run.json")):
        hamcmc.resume(out, posterior, jnp.zeros(3), **how)
    else:
        hamcmc.sample(posterior, "hamcmc", jnp.zeros(3), step_size=hamcmc.Polynomial(1e-4), num_samples=1500,
                      warmup=100, thin=2, batch_size=20, chains=2, out=out, **how)
except hamcmc.Interrupted as stop:
    print(stop, file=sys.stderr)
    sys.exit(128 + stop.signal)
"""


class Jobs:
    """Starts the job above in processes of its own, which share compiled programs."""

    def __init__(self, directory):
        self.script = directory / "job.py"
        self.script.write_text(JOB)
        self.environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(directory / "xla"),  # not all tests', for some are killed as they write it
        }
        self.seconds = self.finish(directory / "whole")
        self.bytes = tree(directory / "whole" / "draws.zarr")

    def start(self, out, pause=0.005):
        return subprocess.Popen(
            [sys.executable, self.script, out, str(pause)], env=self.environment, stderr=subprocess.PIPE, text=True
        )

    def finish(self, out):
        """Start or resume, to the end; how long that took."""
        began = time.monotonic()
        process = self.start(out)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return time.monotonic() - began


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("jobs"))


def reached(out):
    """How far a run got: nothing, settings alone, or the iteration of its checkpoint."""
    if not (out / "run.json").exists():
        return "nothing"
    checkpoint = read_checkpoint(out)
    return "settings" if checkpoint is None else checkpoint.meta["iteration"]


def kill_and_resume(jobs, directory, kills, seed):
    """Kill at random moments of a process's whole life, and of the time in which it writes; where each kill fell."""
    rng = random.Random(seed)
    done, found, number = 0, [], 0
    while True:
        out = directory / f"run{number}"
        process = jobs.start(out)
        if done == kills:
            break
        if done % 4 == 0:  # from the very start: imports, tracing, compilation
            time.sleep(rng.uniform(0, jobs.seconds))
        else:  # while it writes
            before = reached(out)
            while process.poll() is None and reached(out) in ("nothing", "settings", 0, before):
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            done += 1
            found.append(reached(out))
        else:  # it was faster: compare, and go on with a new run
            assert process.returncode == 0
            assert tree(out / "draws.zarr") == jobs.bytes
            number += 1
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert tree(out / "draws.zarr") == jobs.bytes
    return found


def assert_killed_inside(found):
    inside = {n for n in found if isinstance(n, int) and 0 < n < 3100}
    assert len(inside) >= len(found) // 4, found


def test_four_kills(jobs, tmp_path):
    assert_killed_inside(kill_and_resume(jobs, tmp_path, 4, seed=1))


@pytest.mark.slow
def test_twenty_kills(jobs, tmp_path):
    assert_killed_inside(kill_and_resume(jobs, tmp_path, 20, seed=2))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_leaves(jobs, tmp_path, number, code):
    out = tmp_path / "run"
    process = jobs.start(out, pause=0.02)
    while process.poll() is None and not (out / "draws.zarr" / "posterior" / "theta" / "c").exists():
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert f"stopped by {number.name} at iteration" in said
    assert f"'hamcmc resume {out}' continues" in said
    last = json.loads((out / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "interrupted"
    assert last["signal"] == number.name
    assert 0 < reached(out) < 3100
    assert reached(out) == last["iteration"]  # nothing that was sampled is lost
    jobs.finish(out)
    assert tree(out / "draws.zarr") == jobs.bytes
