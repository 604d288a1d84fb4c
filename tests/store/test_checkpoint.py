"""The format of checkpoints: every bit comes back, and no changed byte is accepted."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hamcmc.store.checkpoint import Checkpoint, decode, encode, pack, read_checkpoint, unpack
from hamcmc.store.directory import Directory
from hamcmc.store.errors import DamagedRun

CHECKPOINT = Checkpoint({"status": "running", "iteration": 7}, {"state.0": np.arange(5.0), "state.1": np.int32(3)})


def test_it_comes_back():
    found = decode(encode(CHECKPOINT), "here")
    assert found.meta == CHECKPOINT.meta
    assert_array_equal(found.arrays["state.0"], np.arange(5.0))
    assert found.arrays["state.1"].dtype == np.int32


def test_equal_states_have_equal_bytes():
    assert encode(CHECKPOINT) == encode(CHECKPOINT)


def test_no_byte_can_be_changed():
    whole = encode(CHECKPOINT)
    for place in range(len(whole)):
        edited = bytearray(whole)
        edited[place] ^= 1
        with pytest.raises(DamagedRun, match=r"here is (truncated or was edited|not a checkpoint)"):
            decode(bytes(edited), "here")


def test_no_end_can_be_missing():
    whole = encode(CHECKPOINT)
    for length in range(len(whole)):
        with pytest.raises(DamagedRun, match="truncated"):
            decode(whole[:length], "here")
    with pytest.raises(DamagedRun, match="truncated or was edited"):
        decode(whole + b"\0", "here")


def test_arrays_of_another_model():
    like = {"a": np.zeros(3, np.float32)}
    packed = pack(like, "state")
    assert_array_equal(unpack(packed, "state", like)["a"], like["a"])
    with pytest.raises(DamagedRun, match=r"another sampler or model, .*: it has float32\(3,\) where float32\(4,\)"):
        unpack(packed, "state", {"a": np.zeros(4, np.float32)})
    with pytest.raises(DamagedRun, match=r"another sampler or model, .*: 'state.1' is missing"):
        unpack(packed, "state", [like["a"], like["a"]])


def test_it_belongs_to_its_settings(tmp_path):
    with Directory.create(tmp_path / "run", {"arrays": [], "seed": 1}) as directory:
        directory.save(CHECKPOINT)
    assert read_checkpoint(tmp_path / "run").meta["iteration"] == 7
    (tmp_path / "run" / "run.json").write_text(json.dumps({"arrays": [], "seed": 2}))
    with pytest.raises(DamagedRun, match=r"run.json is not the one that .*checkpoint was made with"):
        read_checkpoint(tmp_path / "run")
