"""Run directories and what is around them: no name and no link leads out of a run, and two writers never meet.

Reading follows links, for a run may be moved to a larger disk. Nothing is written through a link inside of a run;
the run's directory itself may be one, which its owner has made.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import hamcmc
from hamcmc.factorization import ratings as files
from hamcmc.factorization import run as runs
from hamcmc.factorization.problem import Request
from hamcmc.store.checkpoint import Checkpoint, encode, read_checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.draws import Array, Draws, open_store
from hamcmc.store.errors import RunError
from hamcmc.store.files import write_atomically
from hamcmc.store.settings import digest, read_settings
from tests.factorization.runs import make_ratings
from tests.hardening.conftest import START, sample_standard_normal, standard_normal

BAD_NAMES = ["../x", "/etc/passwd", "..", ".", "", "a/b", "a/../../b"]


def agree(run, settings):
    """Write settings, and let the checkpoint say that they are the ones."""
    checkpoint = read_checkpoint(run)
    (run / "run.json").write_text(json.dumps(settings))
    meta = checkpoint.meta | {"run_json": digest(run)}
    (run / "checkpoint").write_bytes(encode(checkpoint._replace(meta=meta)))


@pytest.mark.parametrize("key", ["group", "name"])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_lead_out_of_a_run(a_run, key, name):
    settings = read_settings(a_run.path)
    settings["arrays"][0][key] = name
    agree(a_run.path, settings)
    with pytest.raises(RunError, match=r"run.json is damaged: arrays has the name"):
        a_run.look()
    with pytest.raises(RunError, match=r"run.json is damaged"):
        hamcmc.resume(a_run.path, standard_normal(), START, progress=False)


@pytest.mark.parametrize("name", ["..", ".", "../x", "a/b", "a\0b", "\ud800", "zarr.json"])
def test_names_of_parameters_that_no_file_can_have(name, tmp_path):
    posterior = hamcmc.Posterior(lambda t: -0.5 * t[name] ** 2)
    with pytest.raises(ValueError, match="must have a unique name"):
        hamcmc.sample(posterior, "sgld", {name: np.float32(0)}, step_size=0.1, num_samples=2, out=tmp_path / "run")
    assert list(tmp_path.rglob("*")) == []


def test_odd_names_that_files_can_have(tmp_path):
    names = ["ü", "a b", "-x", "%2e%2e", "c:", "'\"", "a\\b", "…" * 20]
    run = tmp_path / "a dir [with] * odd? ünïcode\n"
    arrays = [Array("posterior", n, (), "float32") for n in names]
    draws = Draws.open(run / "draws.zarr", arrays, 1, 2, written=None)
    draws.append({f"posterior/{n}": np.full((2, 1), i, np.float32) for i, n in enumerate(names)})
    draws.flush()
    found = open_store(run / "draws.zarr", arrays, 2, "r")
    assert [float(found[f"posterior/{n}"][0, 0]) for n in names] == list(range(len(names)))
    assert {p.name for p in tmp_path.iterdir()} == {run.name}


def outside(tmp_path):
    """A file and a folder that are none of a run's business, and a check that they are left alone."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")

    def untouched():
        assert [p.name for p in folder.iterdir()] == ["thesis.tex"]
        assert (folder / "thesis.tex").read_text() == "years of work"

    return folder, untouched


LINKED = ["run.json", "checkpoint", "events.jsonl", "draws.zarr", "draws.zarr/posterior", "draws.zarr/posterior/a/c"]


@pytest.mark.parametrize("name", LINKED)
def test_nothing_is_written_through_a_link(a_run, tmp_path, name):
    folder, untouched = outside(tmp_path)
    link = a_run.path / name
    moved = link.rename(tmp_path / "moved")
    link.symlink_to(moved)
    a_run.look()  # reading follows it
    with pytest.raises(RunError, match=f"{link} is a symbolic link: a run is continued only within its own directory"):
        Directory.open(a_run.path)
    link.unlink()
    link.symlink_to(folder if moved.is_dir() else folder / "thesis.tex")
    with pytest.raises(RunError):
        Directory.open(a_run.path)
    untouched()


@pytest.mark.parametrize("name", ["checkpoint", "events.jsonl", "draws.zarr", "run.json", "ratings", "blocks"])
def test_overwriting_replaces_links_and_not_what_they_lead_to(a_run, tmp_path, name):
    folder, untouched = outside(tmp_path)
    link = a_run.path / name
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(folder if name in ("draws.zarr", "ratings", "blocks") else folder / "thesis.tex")
    with Directory.create(a_run.path, {"arrays": []}, overwrite=True) as directory:
        directory.log("start")
        directory.save(Checkpoint({}, {}))
        files.save(make_ratings(np.random.default_rng(0), 4, 4), directory.path / "ratings")
    assert not link.is_symlink()
    untouched()


def test_temporary_files_replace_links(tmp_path):
    folder, untouched = outside(tmp_path)
    (tmp_path / "f.partial").symlink_to(folder / "thesis.tex")
    write_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert not os.path.lexists(tmp_path / "f.partial")
    untouched()


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(os, function, fails)
            write_atomically(tmp_path / "f", b"new")
        assert list(tmp_path.iterdir()) == []


class TestOut:
    """Where a run is asked to go."""

    def test_a_link_to_an_empty_folder(self, tmp_path):
        (tmp_path / "disk").mkdir()
        (tmp_path / "run").symlink_to(tmp_path / "disk")
        with Directory.create(tmp_path / "run", {"arrays": []}):
            assert (tmp_path / "disk" / "run.json").is_file()
        with Directory.open(tmp_path / "run"):
            assert (tmp_path / "run").is_symlink()

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_link_to_what_is_no_run(self, tmp_path, overwrite):
        folder, untouched = outside(tmp_path)
        for target in (folder, folder / "thesis.tex"):
            link = tmp_path / f"to-{target.name}"
            link.symlink_to(target)
            with pytest.raises(RunError, match="exists"):
                sample_standard_normal(link, overwrite=overwrite)
        untouched()

    def test_a_link_to_nowhere(self, tmp_path):
        (tmp_path / "run").symlink_to(tmp_path / "gone")
        with pytest.raises(RunError, match=f"{tmp_path / 'run'} is a link to nowhere"):
            sample_standard_normal(tmp_path / "run")
        assert not (tmp_path / "gone").exists()

    def test_a_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "run")
        with pytest.raises(RunError, match="exists already"):
            sample_standard_normal(tmp_path / "run")

    def test_a_name_that_is_too_long(self, tmp_path):
        with pytest.raises(RunError, match=r"cannot write to .*: File name too long"):
            sample_standard_normal(tmp_path / ("x" * 300))

    def test_a_name_with_a_null(self, tmp_path):
        with pytest.raises((RunError, ValueError), match="null"):
            sample_standard_normal(tmp_path / "a\0b")


def test_pipes_in_the_place_of_files(a_run):
    """To read one would never end."""
    for name in ("run.json", "checkpoint"):
        (a_run.path / name).unlink()
        os.mkfifo(a_run.path / name)
        with pytest.raises(RunError, match=str(a_run.path)):
            a_run.look()
        a_run.mend()


@pytest.mark.slow
def test_two_starts_at_once(tmp_path):
    """Of several processes one gets the directory; the others are told so, and write nothing."""
    code = (
        "import sys\nfrom hamcmc.store.directory import Directory\nfrom hamcmc.store.errors import RunError\n"
        "sys.stdin.readline()\n"
        "try:\n    d = Directory.create(sys.argv[1], {'arrays': [], 'by': sys.argv[2]})\n"
        "    print('mine', flush=True)\n    sys.stdin.read()\n"
        "except RunError as e:\n    print(e, flush=True)\n"
    )
    start = lambda i: subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "run", str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    processes = [start(i) for i in range(3)]
    for p in processes:
        p.stdin.write("go\n")
        p.stdin.flush()
    said = [p.stdout.readline().strip() for p in processes]
    for p in processes:
        p.communicate()
    assert said.count("mine") == 1, said
    assert all(s == "mine" or "being written by another process" in s or "exists already" in s for s in said)
    assert read_settings(tmp_path / "run")["by"] == str(said.index("mine"))


def test_two_threads_at_once(tmp_path):
    outcomes = []

    def start():
        try:
            outcomes.append(Directory.create(tmp_path / "run", {"arrays": []}))
        except RunError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    directories = [o for o in outcomes if isinstance(o, Directory)]
    assert len(directories) == 1
    directories[0].__exit__()


def test_a_factorization_is_written_by_one_process(a_factorization, tmp_path):
    """And two that resume it at once do not both write."""
    with (
        Directory.open(a_factorization.path),
        pytest.raises(RunError, match="is being written by another process"),
    ):
        runs.prepare(
            make_ratings(np.random.default_rng(0), 5, 5), a_factorization.path, Request(rank=1), overwrite=True
        )
    a_factorization.look()
