"""Parquet files as arrays on disk: the same numbers, written once and in parts, and every fault named."""

import os

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

import hamcmc
from hamcmc.cli.model_file import read_data
from hamcmc.interop import parquet

SIZE = 1000


@pytest.fixture
def table(tmp_path):
    """A file with several row groups, and what is in it."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "age": rng.integers(0, 90, SIZE).astype(np.int16),
            "km": rng.normal(size=SIZE).astype(np.float32),
            "fare": rng.normal(size=SIZE),
            "paid": rng.random(SIZE) < 0.5,
            "town": ["Wien"] * SIZE,
        }
    )
    frame.write_parquet(tmp_path / "rides.parquet", row_group_size=64)
    return tmp_path / "rides.parquet", frame


def test_columns_are_arrays_on_disk(table, monkeypatch):
    path, frame = table
    monkeypatch.setattr(parquet, "HELD", 100 * 15)  # a hundred rows of int16, float32, float64 and bool
    lengths, block = [], parquet._Wanted.block

    def counting(self, part):
        lengths.append(len(part))
        return block(self, part)

    monkeypatch.setattr(parquet._Wanted, "block", counting)
    wanted = {"x": ["km", "age"], "wide": ["fare", "km"], "y": "paid"}
    found = hamcmc.columns(path, wanted)
    assert max(lengths) == 100
    assert all(isinstance(a, np.memmap) for a in found.values())
    assert [a.dtype for a in found.values()] == [np.float32, np.float64, np.bool_]
    for name, columns in wanted.items():
        assert_array_equal(found[name], frame[columns].to_numpy() if name == "y" else frame.select(columns).to_numpy())
    lengths.clear()
    again = hamcmc.columns(path, {"x": ["km", "age"]})
    assert not lengths, "what was written before is read again"
    assert_array_equal(again["x"], found["x"])
    assert not list(path.with_name("rides.parquet.columns").glob("*.partial"))


def test_a_file_that_changed_is_read_again(table, tmp_path):
    path, frame = table
    first = hamcmc.columns(path, {"y": "fare"}, cache=tmp_path / "elsewhere")["y"]
    assert first.filename.parent == tmp_path / "elsewhere"
    frame.with_columns(pl.col("fare") + 1).write_parquet(path)
    os.utime(path, ns=(0, 12345))  # the clock of a file system may be coarse
    assert_array_equal(hamcmc.columns(path, {"y": "fare"}, cache=tmp_path / "elsewhere")["y"], frame["fare"] + 1)


def test_a_posterior_streams_them(table):
    path, frame = table
    posterior = hamcmc.Posterior(
        lambda t: -0.5 * t**2,
        lambda t, row: -0.5 * (row["y"] - t * row["x"]) ** 2,
        hamcmc.columns(path, {"x": "km", "y": "fare"}),
        init=jnp.zeros(()),
    )
    assert posterior.streamed
    km, fare = (frame[c].to_numpy().astype(float) for c in ("km", "fare"))
    exact = km @ fare / (1 + km @ km)
    assert float(hamcmc.laplace(posterior).flat[0]) == pytest.approx(exact, rel=1e-5)


def test_faults_are_named(table, tmp_path):
    path, frame = table
    with pytest.raises(parquet.ParquetError, match=r"rides\.parquet has no column 'tip': it has age, km"):
        hamcmc.columns(path, {"y": "tip"})
    with pytest.raises(parquet.ParquetError, match="the column 'town' has no numbers, but String"):
        hamcmc.columns(path, {"y": "town"})
    with pytest.raises(parquet.ParquetError, match="names no columns"):
        hamcmc.columns(path, {})
    with pytest.raises(parquet.ParquetError, match="an array of no columns"):
        hamcmc.columns(path, {"x": []})
    with pytest.raises(parquet.ParquetError, match=r"nothing\.parquet cannot be read as Parquet"):
        hamcmc.columns(tmp_path / "nothing.parquet", {"y": "km"})
    gaps = frame.with_columns(km=pl.when(pl.col("age") > 80).then(None).otherwise(pl.col("km")))
    gaps.write_parquet(tmp_path / "gaps.parquet")
    with pytest.raises(parquet.ParquetError, match=r"gaps\.parquet: \d+ values of the column 'km' are missing"):
        hamcmc.columns(tmp_path / "gaps.parquet", {"y": "km"})
    assert not list((tmp_path / "gaps.parquet.columns").iterdir()), "no file of it is left"


def test_a_truncated_file_is_named(table):
    path, _ = table
    os.truncate(path, 3000)
    with pytest.raises(parquet.ParquetError, match=r"rides\.parquet cannot be read as Parquet"):
        hamcmc.columns(path, {"y": "km"})


def test_the_command_reads_columns(table, tmp_path):
    path, frame = table
    frame.drop("town").write_parquet(path)
    found = read_data(path)
    assert list(found) == ["age", "km", "fare", "paid"]
    assert_array_equal(found["fare"], frame["fare"])
