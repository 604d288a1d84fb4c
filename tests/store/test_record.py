"""A run on disk: the format of checkpoints, the store of draws, the lock, and what is refused."""

import errno
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hamcmc.store import record
from hamcmc.store.record import Array, Checkpoint, Directory, Draws, RunError

CHECKPOINT = Checkpoint({"status": "running", "iteration": 7}, {"state.0": np.arange(5.0), "state.1": np.int32(3)})


class TestCheckpoint:
    def test_it_comes_back(self):
        found = record.decode(record.encode(CHECKPOINT), "here")
        assert found.meta == CHECKPOINT.meta
        assert_array_equal(found.arrays["state.0"], np.arange(5.0))
        assert found.arrays["state.1"].dtype == np.int32

    def test_equal_states_have_equal_bytes(self):
        assert record.encode(CHECKPOINT) == record.encode(CHECKPOINT)

    def test_no_byte_can_be_changed(self):
        whole = record.encode(CHECKPOINT)
        for place in range(len(whole)):
            edited = bytearray(whole)
            edited[place] ^= 1
            with pytest.raises(RunError, match=r"here is (truncated or was edited|not a checkpoint)"):
                record.decode(bytes(edited), "here")

    def test_no_end_can_be_missing(self):
        whole = record.encode(CHECKPOINT)
        for length in range(len(whole)):
            with pytest.raises(RunError, match="truncated"):
                record.decode(whole[:length], "here")
        with pytest.raises(RunError, match="truncated or was edited"):
            record.decode(whole + b"\0", "here")

    def test_arrays_of_another_model(self):
        like = {"a": np.zeros(3, np.float32)}
        packed = record.pack(like, "state")
        assert_array_equal(record.unpack(packed, "state", like)["a"], like["a"])
        with pytest.raises(RunError, match=r"another sampler or model: float32\(3,\) where float32\(4,\) belongs"):
            record.unpack(packed, "state", {"a": np.zeros(4, np.float32)})
        with pytest.raises(RunError, match=r"another sampler or model: 'state.1' is missing"):
            record.unpack(packed, "state", [like["a"], like["a"]])

    def test_it_belongs_to_its_settings(self, tmp_path):
        with Directory.create(tmp_path / "run", {"arrays": [], "seed": 1}) as directory:
            directory.save(CHECKPOINT)
        assert record.read_checkpoint(tmp_path / "run").meta["iteration"] == 7
        (tmp_path / "run" / "run.json").write_text(json.dumps({"arrays": [], "seed": 2}))
        with pytest.raises(RunError, match=r"run.json is not the one that .*checkpoint was made with"):
            record.read_checkpoint(tmp_path / "run")


class TestDirectory:
    def test_what_exists_is_kept(self, tmp_path):
        run = tmp_path / "run"
        with Directory.create(run, {"arrays": []}):
            pass
        with pytest.raises(RunError, match=f"{run} exists already"):
            Directory.create(run, {"arrays": []})
        with Directory.create(run, {"arrays": [], "new": 1}, overwrite=True):
            assert record.read_settings(run)["new"] == 1

    def test_only_runs_are_overwritten(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("years of work")
        for overwrite in (False, True):
            with pytest.raises(RunError, match="exists"):
                Directory.create(tmp_path, {"arrays": []}, overwrite=overwrite)
        with pytest.raises(RunError, match="exists"):
            Directory.create(tmp_path / "thesis.tex", {"arrays": []}, overwrite=True)
        assert (tmp_path / "thesis.tex").read_text() == "years of work"

    def test_overwriting_leaves_other_files_alone(self, tmp_path):
        with Directory.create(tmp_path, {"arrays": []}) as directory:
            directory.log("start")
            directory.save(CHECKPOINT)
        (tmp_path / "notes.txt").write_text("mine")
        with Directory.create(tmp_path, {"arrays": []}, overwrite=True):
            assert {p.name for p in tmp_path.iterdir()} == {"run.json", "notes.txt"}

    def test_a_start_killed_before_its_settings_does_not_block_the_next(self, tmp_path):
        (tmp_path / "run.json.partial").write_text('{"arr')
        with Directory.create(tmp_path, {"arrays": []}):
            assert record.read_settings(tmp_path) == {"arrays": []}

    def test_one_process_at_a_time(self, tmp_path):
        run = tmp_path / "run"
        hold = "import sys\nfrom hamcmc.store.record import Directory\n"
        hold += (
            "with Directory.create(sys.argv[1], {'arrays': []}):\n    print('held', flush=True)\n    sys.stdin.read()"
        )
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

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"arrays"'])
    def test_damaged_settings(self, tmp_path, content):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(RunError, match=r"run.json is damaged"):
            Directory.open(tmp_path)

    def test_no_settings(self, tmp_path):
        for path in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(RunError, match=f"{path} is not a run: it has no run.json"):
                Directory.open(path)

    def test_a_place_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RunError, match=r"cannot write to .*file/run: Not a directory"):
            Directory.create(tmp_path / "file" / "run", {"arrays": []})
        with pytest.raises(RunError, match="cannot write to /proc/run"):
            Directory.create("/proc/run", {"arrays": []})

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_place_that_may_not_be_written(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(RunError, match=r"cannot write to .*: Permission denied"):
            Directory.create(tmp_path / "run", {"arrays": []})


ARRAYS = [Array("posterior", "x", (2,), "float32"), Array("sample_stats", "n", (), "int32")]


def block(first, count):
    """Draws first … first+count−1 of two chains."""
    numbers = np.arange(first, first + count)[:, None] + np.zeros((1, 2))
    return {
        "posterior/x": np.repeat(numbers[..., None], 2, -1).astype(np.float32),
        "sample_stats/n": numbers.astype("i4"),
    }


class TestDraws:
    @pytest.mark.parametrize("on_disk", [True, False])
    def test_any_cut_into_blocks_gives_the_same_store(self, tmp_path, on_disk, monkeypatch):
        monkeypatch.setattr(record, "CHUNK_BYTES", 160)  # ten draws
        for i, cuts in enumerate([(37,), (10, 10, 17), (1,) * 37, (9, 2, 26)]):
            draws = Draws.open(tmp_path / str(i) if on_disk else None, ARRAYS, 2, 37, written=None)
            assert draws.chunk == 10
            at = 0
            for n in cuts:
                draws.append(block(at, n))
                at += n
                assert draws.written + draws.pending == at
            draws.flush()
            assert_array_equal(draws.root["posterior/x"][1, :, 0], np.arange(37))
            assert_array_equal(draws.root["sample_stats/n"][0], np.arange(37))
            if on_disk:
                assert tree(tmp_path / str(i)) == tree(tmp_path / "0")

    def test_cutting_drops_the_room_that_is_left(self, tmp_path):
        draws = Draws.open(tmp_path / "d", ARRAYS, 2, 37, written=None)
        draws.append(block(0, 5))
        draws.flush()
        draws.cut()
        assert draws.root["posterior/x"].shape == (2, 5, 2)
        assert draws.root["sample_stats/n"].shape == (2, 5)
        assert_array_equal(draws.root["posterior/draw"][:], np.arange(5))

    def test_a_store_that_is_missing_or_damaged(self, tmp_path):
        Draws.open(tmp_path / "d", ARRAYS, 2, 37, written=None)
        shutil.rmtree(tmp_path / "d" / "posterior" / "x")
        (tmp_path / "e").mkdir()
        (tmp_path / "e" / "zarr.json").write_text("{")
        Draws.open(tmp_path / "f", ARRAYS, 2, 37, written=None)
        for name, fault in (("nowhere", ""), ("d", "posterior/x"), ("e", ""), ("f", "x has 37 draws of 38")):
            with pytest.raises(RunError, match=f"{name} is missing or damaged: .*{fault}"):
                Draws.open(tmp_path / name, ARRAYS, 2, 37, written=38)


class TestDisk:
    def test_a_full_disk_says_so(self, tmp_path):
        refused = pytest.raises(RunError, match=r"no room left on the disk of /run: .* free some space, then resume")
        with refused, record.guard_disk("/run"):
            raise OSError(errno.ENOSPC, "No space left on device")

    def test_a_write_is_whole_or_not_at_all(self, tmp_path, monkeypatch):
        file = tmp_path / "f"
        record.write_atomically(file, b"old")

        def fails(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="No space"):
            record.write_atomically(file, b"new")
        assert file.read_bytes() == b"old"
        record.remove_partial_writes(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == ["f"]


def tree(path):
    """Every file below a directory with its bytes."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_store_that_is_still_being_written_is_removed(tmp_path, monkeypatch):
    """Zarr writes in a thread of its own, which a failed write does not stop at once."""
    store, tries, rmtree = tmp_path / "draws.zarr", [], record.shutil.rmtree
    store.mkdir()

    def interfered(path):
        tries.append(path)
        if len(tries) == 1:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        rmtree(path)

    monkeypatch.setattr(record.shutil, "rmtree", interfered)
    record._remove_tree(store)
    assert not store.exists()
    assert len(tries) == 2
