"""Data on disk: the same draws as from memory, and never more than the buffer in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.inference import compiled as loop
from hamcmc.inference import stream
from hamcmc.target import linear_gaussian as lg


class Watched(np.memmap):
    """A memory map that counts what is read from it."""

    reads: list

    def __getitem__(self, index):
        found = np.asarray(super().__getitem__(index))
        self.reads.append(found.nbytes)
        return found


@pytest.fixture
def on_disk(data, tmp_path):
    """The model's data as memory maps, and the list of bytes read from them."""
    reads = []

    def mapped(name, array):
        file = np.memmap(tmp_path / name, array.dtype, "w+", shape=array.shape)
        file[:] = array
        file.flush()
        opened = Watched(tmp_path / name, array.dtype, "r", shape=array.shape)
        opened.reads = reads
        return opened

    return lg.Data(mapped("a", data.a), mapped("x", data.x)), reads


@pytest.mark.parametrize(
    ("name", "replace"),
    [
        ("sgld", True),
        ("hamcmc", False),
        pytest.param("sgld", False, marks=pytest.mark.slow),
        pytest.param("hamcmc", True, marks=pytest.mark.slow),
    ],
)
def test_streamed_draws_are_those_from_memory(model, draw, on_disk, monkeypatch, name, replace):
    data, reads = on_disk
    monkeypatch.setattr(stream, "HELD_BYTES", 16 * 50 * 2 * 9)  # nine iterations
    whole = draw(name, replace=replace)
    streamed = lg.linear_gaussian(data, 10.0)
    assert streamed.streamed
    reads.clear()
    cut = draw(name, posterior=streamed, replace=replace)
    assert cut.settings["segment"] == 9
    assert_array_equal(cut.posterior["theta"], whole.posterior["theta"])
    assert 0 < max(reads) <= stream.HELD_BYTES
    assert cut.settings["data_checksum"] == whole.settings["data_checksum"]


@pytest.mark.slow
def test_double_precision_on_disk(draw, tmp_path, data, model):
    """What is stored in double precision is sampled in the precision that JAX has."""
    wide = [np.asarray(x, np.float64) for x in data]
    maps = []
    for i, x in enumerate(wide):
        maps.append(np.memmap(tmp_path / str(i), x.dtype, "w+", shape=x.shape))
        maps[-1][:] = x
    cut = draw(posterior=lg.linear_gaussian(lg.Data(*maps), 10.0))
    assert cut.posterior["theta"].dtype == np.float32
    assert_array_equal(cut.posterior["theta"], draw().posterior["theta"])


def test_a_failed_read_surfaces(model, on_disk, monkeypatch):
    streamed = lg.linear_gaussian(on_disk[0], 10.0)
    batches = stream.Batches(streamed, loop.keys(0, 1), batch_size=5, replace=True, length=4)
    with batches:
        first = batches.of(0, 4)
        assert jax.tree.map(jnp.shape, first) == lg.Data((4, 1, 5, 3), (4, 1, 5))

        def broken(*_):
            raise OSError("the disk went away")

        monkeypatch.setattr(Watched, "__getitem__", broken)
        with pytest.raises(OSError, match="the disk went away"):
            batches.of(8, None)


def test_what_streamed_data_need(draw, on_disk):
    streamed = lg.linear_gaussian(on_disk[0], 10.0)
    with pytest.raises(ValueError, match="batch_size must be given for streamed"):
        draw(posterior=streamed, batch_size=None)
    with pytest.raises(ValueError, match="store_gradients is not available for streamed"):
        draw(posterior=streamed, store_gradients=True)


def test_full_passes_read_in_parts(on_disk, model):
    data, reads = on_disk
    streamed = lg.linear_gaussian(data, 10.0)
    reads.clear()
    found = streamed.full_grad(jnp.ones(3), batch_size=100)
    assert_array_equal(found, model.full_grad(jnp.ones(3), batch_size=100))
    assert max(reads) == 100 * 3 * 4


@pytest.mark.slow
def test_an_automatic_run_draws_as_from_memory(tmp_path):
    """Mode, Hessian and rows by importance come from passes over the file; only rounding errors differ."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3000, 2)).astype(np.float32)
    y = (rng.random(3000) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    draws = []
    for rows in (x, np.load(tmp_path / "x.npy", mmap_mode="r")):
        posterior = hamcmc.Posterior(
            lambda t: -0.5 * jnp.sum(t**2),
            lambda t, row: row["y"] * (row["x"] @ t) - jnp.logaddexp(0.0, row["x"] @ t),
            {"x": rows, "y": y},
            init=jnp.zeros(2),
        )
        found = hamcmc.sample(posterior, batch_size=32, num_samples=20, thin=1, progress=False)
        assert found.settings["plan"]["regime"] == "minibatches"
        draws.append(np.asarray(found.posterior["theta"]))
    sd = draws[0].std((0, 1))
    assert_allclose(draws[1] / sd, draws[0] / sd, atol=1e-3)
