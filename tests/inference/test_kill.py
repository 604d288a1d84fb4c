"""A run killed, again and again, ends with the bytes of one that was not."""

import json
import multiprocessing
import os
import random
import signal
import time
from multiprocessing import forkserver

import pytest

from hamcmc.store.checkpoint import read_checkpoint
from tests.inference.long_run import job
from tests.store.trees import tree

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.inference.long_run"])


class Jobs:
    """Starts the job in processes of its own, which share compiled programs."""

    def __init__(self, directory):
        self.cache = directory / "xla"  # not all tests', for some are killed as they write it
        self.said = directory / "said"
        self.seconds = self.finish(directory / "whole")
        self.bytes = tree(directory / "whole" / "draws.zarr")

    def start(self, out, pause=0.005):
        process = FORKS.Process(target=job, args=(out, pause, self.cache, self.said))
        process.start()
        return process

    def ended(self, process):
        """The exit code of a process that ends by itself, and what it said."""
        process.join(timeout=300)
        return process.exitcode, self.said.read_text()

    def finish(self, out):
        """Start or resume, to the end; how long that took."""
        began = time.monotonic()
        code, said = self.ended(self.start(out))
        assert code == 0, said
        return time.monotonic() - began


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    yield Jobs(tmp_path_factory.mktemp("jobs"))
    forkserver._forkserver._stop()  # and wait for it, or it would outlive the tests


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
        if done % 4 == 0:  # from the very start: tracing, compilation
            time.sleep(rng.uniform(0, jobs.seconds))
        else:  # while it writes
            before = reached(out)
            while process.is_alive() and reached(out) in ("nothing", "settings", 0, before):
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            done += 1
            found.append(reached(out))
        else:  # it was faster: compare, and go on with a new run
            assert process.exitcode == 0
            assert tree(out / "draws.zarr") == jobs.bytes
            number += 1
    code, said = jobs.ended(process)
    assert code == 0, said
    assert tree(out / "draws.zarr") == jobs.bytes
    return found


def assert_killed_inside(found):
    inside = {n for n in found if isinstance(n, int) and 0 < n < 3100}
    assert len(inside) >= max(1, len(found) // 4), found


@pytest.mark.slow  # tests/inference/test_resume.py stops runs before their writes without starting processes
def test_two_kills(jobs, tmp_path):
    """One while it starts, and one while it writes."""
    found = kill_and_resume(jobs, tmp_path, 2, seed=1)
    assert_killed_inside(found)


@pytest.mark.slow
def test_twenty_kills(jobs, tmp_path):
    assert_killed_inside(kill_and_resume(jobs, tmp_path, 20, seed=2))


@pytest.mark.slow  # tests/cli/test_cli.py does so with a command
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_leaves(jobs, tmp_path, number, code):
    out = tmp_path / "run"
    process = jobs.start(out, pause=0.02)
    while process.is_alive() and not (out / "draws.zarr" / "posterior" / "theta" / "c").exists():
        time.sleep(0.01)
    os.kill(process.pid, number)
    ended, said = jobs.ended(process)
    assert ended == code, said
    assert f"stopped by {number.name} at iteration" in said
    assert f"'hamcmc resume {out}' continues" in said
    last = json.loads((out / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "interrupted"
    assert last["signal"] == number.name
    assert 0 < reached(out) < 3100
    assert reached(out) == last["iteration"]  # nothing that was sampled is lost
    jobs.finish(out)
    assert tree(out / "draws.zarr") == jobs.bytes
