"""Tables of other libraries as data: the same numbers by column name, and every fault named with its column and row."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
import zarr
from numpy.testing import assert_array_equal

import hamcmc
from hamcmc.cli.model_file import ModelFileError, load, read_data
from hamcmc.target.tables import ColumnError, Columns, UnknownColumn

SIZE = 7
RNG = np.random.default_rng(0)
ARRAYS = {
    "age": RNG.integers(0, 90, SIZE).astype(np.int16),
    "km": RNG.normal(size=SIZE).astype(np.float32),
    "paid": RNG.random(SIZE) < 0.5,
}


def of_pandas(arrays, _):
    return pd.DataFrame(arrays)


def of_polars(arrays, _):
    return pl.DataFrame(arrays)


def of_arrow(arrays, _):
    return pytest.importorskip("pyarrow").table(arrays)


def of_zarr(arrays, folder):
    group = zarr.open_group(str(folder / "table.zarr"), mode="w")
    for name, x in arrays.items():
        group.create_array(name, data=x, chunks=(3,))
    return group


MAKERS = [of_pandas, of_polars, of_arrow, of_zarr]


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, row):
    return -0.5 * (row["km"] - theta[0] * row["age"] - theta[1] * row["paid"]) ** 2


@pytest.mark.parametrize("make", MAKERS)
def test_columns_by_name(make, tmp_path):
    table = make(ARRAYS, tmp_path)
    posterior = hamcmc.Posterior(log_prior, log_likelihood, table, init=jnp.zeros(2))
    plain = hamcmc.Posterior(log_prior, log_likelihood, ARRAYS, init=jnp.zeros(2))
    assert posterior.size == SIZE
    assert {n: x.dtype for n, x in posterior.data.items()} == {n: x.dtype for n, x in plain.data.items()}
    theta = jnp.array([0.1, 0.2])
    assert posterior.log_density(theta, posterior.data) == plain.log_density(theta, plain.data)
    assert posterior.checksum() == plain.checksum()
    found = hamcmc.columns(table, {"x": ["age", "km"], "y": "paid"})
    assert_array_equal(found["x"], np.stack([ARRAYS["age"], ARRAYS["km"]], 1))
    assert found["x"].dtype == np.float32
    assert_array_equal(found["y"], ARRAYS["paid"])


def test_memory_maps_by_name(tmp_path):
    for name, x in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", x)
    maps = {n: np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ARRAYS}
    posterior = hamcmc.Posterior(log_prior, log_likelihood, Columns(maps), init=jnp.zeros(2))
    assert posterior.streamed
    assert_array_equal(posterior.data["km"], ARRAYS["km"])
    with pytest.raises(UnknownColumn, match="did you mean 'km'"):
        posterior.data["kmm"]


def test_a_single_column_is_an_array():
    for column in (pd.Series(ARRAYS["km"]), pl.Series(ARRAYS["km"]).to_numpy()):
        posterior = hamcmc.Posterior(log_prior, lambda theta, y: -(y**2) * theta[0], column, init=jnp.zeros(2))
        assert_array_equal(posterior.data, ARRAYS["km"])


class TestFaults:
    @pytest.mark.parametrize("make", MAKERS)
    def test_a_wrong_name_gets_the_nearest(self, make, tmp_path):
        table = make(ARRAYS, tmp_path)
        with pytest.raises(ColumnError, match=r"no column 'kmm': there are age, km, paid; did you mean 'km'\?"):
            hamcmc.columns(table, {"x": ["age", "kmm"]})
        posterior = hamcmc.Posterior(log_prior, lambda theta, row: row["agee"] * theta[0], table, init=jnp.zeros(2))
        with pytest.raises(UnknownColumn, match="no column 'agee'.*did you mean 'age'"):
            posterior.grad(jnp.zeros(2), posterior.data)

    @pytest.mark.parametrize("make", MAKERS[:3])
    def test_strings_and_missing_values(self, make, tmp_path):
        table = make(ARRAYS | {"town": ["Wien"] * SIZE}, tmp_path)
        with pytest.raises(ColumnError, match=r"column 'town' has no numbers, but .*: row 0 has 'Wien'"):
            hamcmc.Posterior(log_prior, log_likelihood, table, init=jnp.zeros(2))
        assert set(hamcmc.columns(table, {"y": "km"})) == {"y"}  # who does not ask for it may have it
        gaps = make({"km": [1.0, 2.0, None, None], "n": [1, None, 3, 4]}, tmp_path)
        with pytest.raises(ColumnError, match="column 'km' has 2 missing values, the first in row 2"):
            hamcmc.columns(gaps, {"x": "km"})
        with pytest.raises(ColumnError, match="column 'n' has 1 missing values, the first in row 1"):
            hamcmc.columns(gaps, {"x": ["n"]})

    def test_objects_and_categories(self):
        frame = pd.DataFrame({"x": [1, "two", 3.0], "c": pd.Categorical(["a", "b", "a"]), "k": pd.array([1, 2, None])})
        for name, match in {
            "x": "column 'x' has no numbers, but object: row 1 has 'two'",
            "c": "column 'c' has no numbers, but category: row 0 has 'a'",
            "k": "column 'k' has 1 missing values, the first in row 2",
        }.items():
            with pytest.raises(ColumnError, match=match):
                hamcmc.columns(frame, {"y": name})
        whole = pd.DataFrame({"k": pd.array([1, 2, 3], dtype="Int32")})
        assert hamcmc.columns(whole, {"y": "k"})["y"].dtype == np.int32

    def test_tables_that_are_none(self):
        with pytest.raises(ColumnError, match=r"LazyFrame, which has no rows yet: call \.collect"):
            hamcmc.Posterior(log_prior, log_likelihood, pl.DataFrame(ARRAYS).lazy())
        with pytest.raises(ColumnError, match="two columns have the name 'a'"):
            hamcmc.columns(pd.DataFrame([[1, 2]], columns=["a", "a"]), {"x": "a"})
        with pytest.raises(ColumnError, match="the table is no table, but of type int"):
            hamcmc.columns(3, {"x": "a"})
        with pytest.raises(ColumnError, match="cache is for Parquet"):
            hamcmc.columns(pd.DataFrame(ARRAYS), {"x": "km"}, cache="here")
        with pytest.raises(
            ValueError, match=r"data\['km'\] has 2 entries that are NaN or infinite, the first in row 3"
        ):
            bad = np.where(np.arange(SIZE) % 3 == 0, np.nan, 1.0)
            bad[0] = 1.0
            hamcmc.Posterior(log_prior, log_likelihood, ARRAYS | {"km": bad})


def test_a_zarr_group_on_disk(tmp_path, monkeypatch):
    from hamcmc.interop import parquet
    from hamcmc.target import tables

    group = of_zarr(ARRAYS, tmp_path)
    monkeypatch.setattr(parquet, "HELD", 20)  # a few rows at a time
    found = hamcmc.columns(group, {"x": ["age", "km"], "y": "paid"}, cache=tmp_path / "cache")
    assert all(isinstance(a, np.memmap) for a in found.values())
    assert_array_equal(found["x"], np.stack([ARRAYS["age"], ARRAYS["km"]], 1))
    assert_array_equal(found["y"], ARRAYS["paid"])
    group["km"][:] = np.zeros(SIZE)
    assert_array_equal(hamcmc.columns(group, {"x": "km"}, cache=tmp_path / "cache")["x"], 0)
    with pytest.raises(UnknownColumn, match="did you mean 'paid'"):
        hamcmc.columns(group, {"x": "payd"}, cache=tmp_path / "cache")
    monkeypatch.setattr(tables, "LARGEST", 10)
    with pytest.raises(ColumnError, match="too much for memory.*cache=folder"):
        hamcmc.Posterior(log_prior, log_likelihood, group)


class TestShell:
    MODEL = """
import jax.numpy as jnp
import hamcmc

def posterior(data):
    return hamcmc.Posterior(lambda t: -t**2, lambda t, row: -(row["y"] - t)**2, {"y": data["km"]})

init = jnp.zeros(())
"""

    @pytest.mark.parametrize("suffix", ["parquet", "arrow", "zarr", "npz"])
    def test_files_with_columns(self, suffix, tmp_path):
        path = tmp_path / f"table.{suffix}"
        town = ARRAYS | {"town": ["Wien"] * SIZE}  # a column that the model does not use
        if suffix == "parquet":
            pl.DataFrame(town).write_parquet(path)
        elif suffix == "arrow":
            pl.DataFrame(town).write_ipc(path)
        elif suffix == "zarr":
            of_zarr(ARRAYS, tmp_path)
        else:
            np.savez(path, **ARRAYS)
        found = read_data(path)
        assert set(found) == set(ARRAYS)
        for name, x in ARRAYS.items():
            assert_array_equal(found[name], x)
        (tmp_path / "model.py").write_text(self.MODEL)
        assert load(tmp_path / "model.py", path).posterior.size == SIZE
        (tmp_path / "model.py").write_text(self.MODEL.replace('"km"', '"kms"'))
        with pytest.raises(ModelFileError, match=r"model\.py:6: in posterior.*no column 'kms'.*did you mean 'km'"):
            load(tmp_path / "model.py", path)
        if suffix in ("parquet", "arrow"):
            (tmp_path / "model.py").write_text(self.MODEL.replace('"km"', '"town"'))
            with pytest.raises(ModelFileError, match="column 'town' has no numbers, but String: row 0 has 'Wien'"):
                load(tmp_path / "model.py", path)

    def test_files_that_are_something_else(self, tmp_path):
        (tmp_path / "x.arrow").write_bytes(b"no arrow")
        with pytest.raises(ColumnError, match=r"x\.arrow cannot be read as Arrow"):
            read_data(tmp_path / "x.arrow")
        (tmp_path / "x.zarr").mkdir()
        (tmp_path / "x.zarr" / "zarr.json").write_text("no JSON")
        with pytest.raises(ColumnError, match=r"x\.zarr cannot be read as a Zarr group"):
            read_data(tmp_path / "x.zarr")


def test_rows_of_columns_are_a_pytree():
    columns = Columns({"b": np.arange(3), "a": np.zeros(3)})
    one = jax.tree.map(lambda x: x[0], columns)
    assert isinstance(one, Columns)
    assert list(jax.tree.leaves(one)) == [0, 0]
    assert [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(columns)] == ["['a']", "['b']"]


@pytest.mark.parametrize(("suffix", "between"), [(".csv", ","), (".tsv", "\t")])
def test_columns_of_a_text_file(tmp_path, suffix, between):
    path = tmp_path / f"loans{suffix}"
    path.write_text(
        "\n".join(between.join(row) for row in (["age", "town", "paid"], ["31", "Wien", "1"], ["44", "Graz", "0"]))
    )
    found = hamcmc.columns(path, {"x": ["age", "paid"], "y": "paid"})
    np.testing.assert_array_equal(found["x"], [[31, 1], [44, 0]])
    np.testing.assert_array_equal(found["y"], [1, 0])
    with pytest.raises(ColumnError, match=r"loans.* has no column 'agee'; did you mean 'age'\?"):
        hamcmc.columns(path, {"x": "agee"})
    with pytest.raises(ColumnError, match=f"loans{suffix}:2: column 'town' is not a number: 'Wien'"):
        hamcmc.columns(path, {"x": "town"})
    with pytest.raises(ColumnError, match="text files are read into memory"):
        hamcmc.columns(path, {"x": "age"}, cache=tmp_path)
