"""Run directories: what is refused, what is kept, and the lock."""

import os
import subprocess
import sys

import numpy as np
import pytest

from hamcmc.store.checkpoint import Checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.errors import DamagedRun, RunError
from hamcmc.store.settings import FORMAT, read_settings

CHECKPOINT = Checkpoint({"status": "running", "iteration": 7}, {"state.0": np.arange(5.0)})


def test_what_exists_is_kept(tmp_path):
    run = tmp_path / "run"
    with Directory.create(run, {"arrays": []}):
        pass
    with pytest.raises(RunError, match=f"{run} exists already"):
        Directory.create(run, {"arrays": []})
    with Directory.create(run, {"arrays": [], "new": 1}, overwrite=True):
        assert read_settings(run)["new"] == 1


def test_only_runs_are_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="exists"):
            Directory.create(tmp_path, {"arrays": []}, overwrite=overwrite)
    with pytest.raises(RunError, match="exists"):
        Directory.create(tmp_path / "thesis.tex", {"arrays": []}, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_overwriting_leaves_other_files_alone(tmp_path):
    with Directory.create(tmp_path, {"arrays": []}) as directory:
        directory.log("start")
        directory.save(CHECKPOINT)
    (tmp_path / "notes.txt").write_text("mine")
    with Directory.create(tmp_path, {"arrays": []}, overwrite=True):
        assert {p.name for p in tmp_path.iterdir()} == {"run.json", "notes.txt"}


def test_a_start_killed_before_its_settings_does_not_block_the_next(tmp_path):
    (tmp_path / "run.json.partial").write_text('{"arr')
    with Directory.create(tmp_path, {"arrays": []}):
        assert read_settings(tmp_path) == {"format": FORMAT, "arrays": []}


def test_one_process_at_a_time(tmp_path):
    run = tmp_path / "run"
    hold = "import sys\nfrom hamcmc.store.directory import Directory\n"
    hold += "with Directory.create(sys.argv[1], {'arrays': []}):\n    print('held', flush=True)\n    sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", hold, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"held\n"
        for attempt in (Directory.open, lambda p: Directory.create(p, {"arrays": []}, overwrite=True)):
            with pytest.raises(RunError, match="is being written by another process"):
                attempt(run)
    finally:
        other.communicate()
    with Directory.open(run):
        pass


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '"arrays"', '{"arrays": [], "replicas": 0}', '{"arrays": [], "format": "2"}']
)
def test_damaged_settings(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DamagedRun, match=r"run.json is damaged"):
        Directory.open(tmp_path)


def test_no_settings(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match=f"{path} is not a run: it has no run.json"):
            Directory.open(path)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to .*file/run: Not a directory"):
        Directory.create(tmp_path / "file" / "run", {"arrays": []})
    with pytest.raises(RunError, match="cannot write to /proc/run"):
        Directory.create("/proc/run", {"arrays": []})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match=r"cannot write to .*: Permission denied"):
        Directory.create(tmp_path / "run", {"arrays": []})
