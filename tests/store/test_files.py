"""Files: whole or not at all, and what a disk refuses in words."""

import errno
import os
import shutil

import numpy as np
import pytest

from hamcmc.store.errors import DamagedRun, RunError
from hamcmc.store.files import guard_disk, reading, remove_partial_writes, remove_tree, replacing, write_atomically


def test_a_full_disk_says_so(tmp_path):
    refused = pytest.raises(RunError, match=r"no room left on the disk of /run: .* free some space, then resume")
    with refused, guard_disk("/run"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_write_is_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "f"
    write_atomically(file, b"old")

    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    remove_partial_writes(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_file_may_be_written_in_pieces_by_a_library(tmp_path):
    file = tmp_path / "x.npz"
    file.write_bytes(b"old")
    with replacing(file) as temporary, open(temporary, "wb") as f:
        np.savez(f, x=np.arange(3))
        assert file.read_bytes() == b"old"
    assert np.load(file)["x"].tolist() == [0, 1, 2]
    with pytest.raises(KeyError), replacing(file, tmp_path / ".hidden") as temporary:
        temporary.write_bytes(b"half")
        raise KeyError
    assert np.load(file)["x"].tolist() == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_what_a_reader_says_of_a_damaged_file():
    with pytest.raises(DamagedRun, match=r"^this is damaged: first$"), reading("this"):
        raise IndexError("first\nsecond")
    with pytest.raises(KeyError, match=r"this is odd: ZeroDivisionError"), reading("this", "is odd", KeyError):
        raise ZeroDivisionError
    for passes in (RunError("as it is"), DamagedRun("as it is")):
        with pytest.raises(type(passes), match=r"^as it is$"), reading("this"):
            raise passes


def test_a_store_that_is_still_being_written_is_removed(tmp_path, monkeypatch):
    """Zarr writes in a thread of its own, which a failed write does not stop at once."""
    store, tries, rmtree = tmp_path / "draws.zarr", [], shutil.rmtree
    store.mkdir()

    def interfered(path):
        tries.append(path)
        if len(tries) == 1:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", interfered)
    remove_tree(store)
    assert not store.exists()
    assert len(tries) == 2
