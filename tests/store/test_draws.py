"""The store of draws: filled in any blocks, shortened, and refused where it is damaged."""

import shutil

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hamcmc.store.draws import Array, Draws, require_room
from hamcmc.store.errors import DamagedRun, RunError
from tests.store.trees import tree

ARRAYS = [Array("posterior", "x", (2,), "float32"), Array("sample_stats", "n", (), "int32")]


def block(first, count):
    """Draws first … first+count−1 of two chains."""
    numbers = np.arange(first, first + count)[:, None] + np.zeros((1, 2))
    return {
        "posterior/x": np.repeat(numbers[..., None], 2, -1).astype(np.float32),
        "sample_stats/n": numbers.astype("i4"),
    }


@pytest.mark.parametrize("on_disk", [True, False])
def test_any_cut_into_blocks_gives_the_same_store(tmp_path, on_disk, monkeypatch):
    monkeypatch.setattr("hamcmc.store.draws.CHUNK_BYTES", 160)  # ten draws
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


def test_cutting_drops_the_room_that_is_left(tmp_path):
    draws = Draws.open(tmp_path / "d", ARRAYS, 2, 37, written=None)
    draws.append(block(0, 5))
    draws.flush()
    draws.cut()
    assert draws.root["posterior/x"].shape == (2, 5, 2)
    assert draws.root["sample_stats/n"].shape == (2, 5)
    assert_array_equal(draws.root["posterior/draw"][:], np.arange(5))


def test_a_store_that_is_missing_or_damaged(tmp_path):
    Draws.open(tmp_path / "d", ARRAYS, 2, 37, written=None)
    shutil.rmtree(tmp_path / "d" / "posterior" / "x")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "zarr.json").write_text("{")
    Draws.open(tmp_path / "f", ARRAYS, 2, 37, written=None)
    for name, fault in (("nowhere", ""), ("d", "posterior/x"), ("e", ""), ("f", "x has 37 draws of 38")):
        with pytest.raises(DamagedRun, match=f"{name} is missing or damaged: .*{fault}"):
            Draws.open(tmp_path / name, ARRAYS, 2, 37, written=38)


def test_draws_that_would_fill_the_disk_are_refused(tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)
    large = [*ARRAYS, Array("posterior", "layers.0.weight", (1000, 1000), "float32")]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free._replace(free=3 * 2**30))
    with pytest.raises(
        RunError, match=r"would take 7\.5 GiB \(1,000 of each of 2 chains, most of it layers\.0\.weight"
    ) as e:
        require_room(tmp_path / "not" / "there", large, 2, 1000)
    assert "has 3.0 GiB free: store fewer" in str(e.value)
    require_room(tmp_path / "small", large, 2, 100)
