"""Data on disk: never more than a few chunks in memory, the same sums as from memory, and a file that is cut short."""

import os
import threading
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.target import disk, noise, passes, predicted
from hamcmc.target.importance import scores

SIZE, D = 6000, 3


class Counted(np.memmap):
    """A memory map that counts the rows that are asked for at once."""

    asked: list

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.asked.append(len(found))
        return found


def posterior(x, y):
    return hamcmc.Posterior(
        lambda t: -0.5 * jnp.sum(t**2),
        lambda t, row: row["y"] * (row["x"] @ t) - jnp.logaddexp(0.0, row["x"] @ t),
        {"x": x, "y": y},
        init=jnp.zeros(D),
    )


@pytest.fixture
def rows(tmp_path):
    """Columns and responses of a logistic regression, and the columns as a file."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(SIZE, D)) * [1.0, 0.3, 3.0]).astype(np.float32)
    y = (rng.random(SIZE) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.2]))).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return x, y, tmp_path / "x.npy"


def opened(path):
    found = np.load(path, mmap_mode="r").view(Counted)
    found.asked = []
    return found


@pytest.mark.slow
def test_mode_hessian_and_scores_are_those_from_memory_in_flat_memory(rows, monkeypatch):
    monkeypatch.setattr("hamcmc.target.passes.CHUNK", 3 * 100)
    monkeypatch.setattr("hamcmc.target.noise.CHUNK", 3 * 100)
    x, y, path = rows
    mapped = opened(path)
    streamed = posterior(mapped, y)
    assert streamed.streamed
    mapped.asked.clear()
    here, there = hamcmc.laplace(posterior(x, y)), hamcmc.laplace(streamed)
    assert there.converged
    assert_allclose(there.flat, here.flat, rtol=1e-6)  # positions are in single precision
    assert_allclose(there.precision, here.precision, rtol=1e-9)
    assert_allclose(there.mean_hessian, here.mean_hessian, rtol=1e-9)
    both = [hamcmc.control_variate(p, here, order=2) for p in (posterior(x, y), streamed)]
    found, exact = (scores(view, here, draws=4) for view in (both[1], both[0]))
    assert_allclose(found, exact, rtol=1e-3, atol=1e-3 * exact.mean())  # differences of single-precision gradients
    drawn = hamcmc.control_variate(streamed, there, order=2, importance=True)
    assert hamcmc.gradient_noise(drawn, there, rows=500).rows == 500
    assert max(mapped.asked) == 64


def test_sums_do_not_depend_on_how_many_chunks_are_under_way(rows, monkeypatch):
    monkeypatch.setattr("hamcmc.target.passes.CHUNK", 3 * 100)
    _, y, path = rows
    found = []
    for workers in (1, 3):
        monkeypatch.setattr(disk, "WORKERS", workers)
        sums = passes.Passes(posterior(np.load(path, mmap_mode="r"), y), jnp.zeros(D))
        found.append(sums.hessian(np.full(D, 0.1)).total)
    assert_array_equal(found[0], found[1])


def test_work_is_ahead_by_a_few_chunks_only():
    taken, begun, lock = [], [], threading.Lock()

    def chunks():
        for i in range(50):
            taken.append(i)
            yield i

    def work(i):
        with lock:
            begun.append(i)
        return i**2

    for i, found in enumerate(disk.ahead(work, chunks(), workers=3)):
        assert found == i**2
        assert len(taken) <= i + 1 + 4
    assert i == 49
    assert begun[0] == 0


def test_the_first_chunk_is_finished_before_others_begin():
    """Otherwise two threads would compile the same program."""
    found = list(disk.ahead(lambda _: threading.get_ident(), range(5)))
    assert found[0] == threading.get_ident()
    assert found[0] not in found[1:]


def test_a_failure_surfaces():
    def work(i):
        if i == 3:
            raise ValueError("chunk 3")
        return i

    with pytest.raises(ValueError, match="chunk 3"):
        list(disk.ahead(work, range(1000), workers=2))


@pytest.mark.parametrize("which", [slice(10, 30), np.array([5, 2, 2, 59]), slice(0, 0)], ids=["slice", "rows", "none"])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[100:], lambda x: x[:, 1:], lambda x: x[::2]])
def test_rows_of_any_view(rows, which, view, monkeypatch):
    monkeypatch.setattr(disk, "GATHERED", 3 * 4 * D)  # three single rows at once, of four
    x, _, path = rows
    mapped = view(np.load(path, mmap_mode="r"))
    found = disk.rows(mapped, which)
    assert_array_equal(found, view(x)[which])
    together = isinstance(which, slice) and found.size > 0 and mapped.flags.c_contiguous
    assert np.shares_memory(found, mapped) == together


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:, 1:], lambda x: x[1:]], ids=["whole", "columns", "odd"])
def test_chunks_of_a_file_are_computed_on_in_place(rows, monkeypatch, view):
    """JAX takes them without a copy, and where they are not aligned the sums are the same."""
    monkeypatch.setattr("hamcmc.target.passes.CHUNK", 3 * 1000)
    x, y, path = rows
    mapped = view(np.load(path, mmap_mode="r"))
    offset = len(x) - len(mapped)
    log_likelihood = lambda t, row: row["y"] * (row["x"].sum() * t) - jnp.logaddexp(0.0, row["x"].sum() * t)
    sums = [
        passes.Passes(hamcmc.Posterior(lambda t: -(t**2), log_likelihood, {"x": a, "y": y[offset:]}), jnp.zeros(()))
        for a in (mapped, view(x))
    ]
    assert sums[0].chunk % disk.ALIGNMENT == 0
    assert_array_equal(sums[0].hessian(np.ones(1)).total, sums[1].hessian(np.ones(1)).total)
    if offset == 0 and mapped.flags.c_contiguous:
        for chunk in sums[0]._chunks(None):
            with sums[0]._precision():
                part = sums[0]._read(chunk)[0]["x"]
            whole = chunk.stop - chunk.start == sums[0].chunk
            there = mapped[chunk.start : chunk.stop].ctypes.data
            assert (part.unsafe_buffer_pointer() == there) == whole


def test_a_file_that_is_cut_short_is_named(rows):
    """Without the check the process would end by SIGBUS, and so would this test."""
    _, y, path = rows
    streamed = posterior(np.load(path, mmap_mode="r"), y)
    os.truncate(path, 40_000)
    message = r"x\.npy was cut short while it was in use: it has 40,000 bytes and had at least 72,128"
    for use in (
        hamcmc.laplace,
        lambda p: p.checksum(),
        lambda p: p.full_grad(jnp.zeros(D)),
        lambda p: hamcmc.sample(p, "sgld", step_size=1e-4, batch_size=10, num_samples=10),
    ):
        with pytest.raises(disk.CutShort, match=message):
            use(streamed)


def test_a_file_that_was_removed_is_still_there_for_us(rows):
    x, y, path = rows
    streamed = posterior(np.load(path, mmap_mode="r"), y)
    path.unlink()
    assert_allclose(streamed.full_grad(jnp.zeros(D)), posterior(x, y).full_grad(jnp.zeros(D)), rtol=1e-6)


def test_one_more_hessian_spares_passes_over_all_data(monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40_000, 30)).astype(np.float32)
    y = (rng.random(40_000) < 1 / (1 + np.exp(-x.sum(1)))).astype(np.float32)
    plain = hamcmc.Posterior(
        lambda t: -0.5 * jnp.sum(t**2),
        lambda t, row: row["y"] * (row["x"] @ t) - jnp.logaddexp(0.0, row["x"] @ t),
        {"x": x, "y": y},
        init=jnp.zeros(30),
    )
    counted, total = [], passes.Passes._total

    def counting(self, program, at, rows, given):
        counted.append(rows is None)
        return total(self, program, at, rows, given)

    monkeypatch.setattr(passes.Passes, "_total", counting)
    found = {}
    for renewed in (0.0, 20.0):
        monkeypatch.setattr("hamcmc.target.search.RENEWED", renewed)
        counted.clear()
        modes = hamcmc.laplace(plain)
        assert modes.converged
        found[renewed] = sum(counted), modes.flat
    assert found[20.0][0] < found[0.0][0]
    sd = np.sqrt(np.diag(np.linalg.inv(modes.precision)))
    assert (np.abs(found[20.0][1] - found[0.0][1]) < 0.05 * sd).all()


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/job/step\n", {"sys/fs/cgroup/job/memory.max": "5000", "sys/fs/cgroup/job/step/memory.max": "max"}, 5000),
        ("0::/job/step\n", {"sys/fs/cgroup/job/memory.max": "7000", "sys/fs/cgroup/job/step/memory.max": "6000"}, 6000),
        ("3:memory:/job\n2:cpu:/\n", {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4000"}, 4000),
        ("0::/\n", {"memory.max": "1"}, None),  # above the top of the groups
        ("0::/job\n", {"sys/fs/cgroup/job/memory.max": str(2**63)}, None),
        (None, {}, None),
    ],
)
def test_memory_is_what_the_control_groups_leave(tmp_path, groups, limits, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    if groups is not None:
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert disk.memory(tmp_path) == (expected or machine)
    assert 0 < disk.memory() <= machine


@pytest.mark.parametrize("first", [0, 1000])
@pytest.mark.parametrize(("gap", "advice"), [(2, "SEQUENTIAL"), (15, "SEQUENTIAL"), (17, "RANDOM")])
def test_rows_near_to_each_other_are_read_with_all_between_them(tmp_path, monkeypatch, first, gap, advice):
    """Rows of a page each: up to 16 pages for each row are read in one go; of more each row is read on its own."""
    said, tell = [], disk._advise
    monkeypatch.setattr(disk, "_advise", lambda held, *what: said.append(what) or tell(held, *what))
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (4000, 512))
    x[:] = np.arange(4000.0)[:, None]
    which = 3 + gap * np.arange(100)
    assert_array_equal(disk.rows(x[first:], which)[:, 0], first + which)
    assert [what[0] for what in said] == [f"MADV_{advice}", "MADV_NORMAL"]


def test_a_part_of_the_rows_is_read_in_the_order_of_the_file(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(SIZE, D)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found, read = [], disk.rows

    def rows(x, which):
        if not isinstance(which, slice):  # which a look at the types reads
            found.append(which)
        return read(x, which)

    monkeypatch.setattr(disk, "rows", rows)
    monkeypatch.setattr(passes, "CHUNK", 300)
    posterior = hamcmc.Posterior(lambda t: -jnp.sum(t**2), lambda t, row: -jnp.sum((row - t) ** 2), mapped)
    sums = passes.Passes(posterior, jnp.zeros(D))
    chosen = np.random.default_rng(1).permutation(SIZE)[:1000]
    value, _ = sums.value_and_grad(np.zeros(D), chosen)
    assert value.likelihood == pytest.approx(-SIZE / 1000 * np.sum(np.asarray(mapped)[chosen] ** 2), rel=1e-5)
    assert len(found) > 5
    assert sorted(np.concatenate(found).tolist()) == sorted(chosen.tolist())
    ranges = sorted((which.min(), which.max()) for which in found)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


def normal(theta, row):
    """A normal density whose covariance the parameters tell: at several positions at once it factors many matrices."""
    root = jnp.array([[jnp.exp(theta[0]), 0.0], [theta[1], jnp.exp(theta[2])]])
    return jax.scipy.stats.multivariate_normal.logpdf(row, jnp.zeros(2), root @ root.T + 0.1 * jnp.eye(2))


def correlated(theta, row):
    """Each row has a matrix of its own."""
    return -0.5 * (row[0] - jnp.linalg.cholesky(jnp.eye(3) + 0.1 * row[0] ** 2)[-1] @ theta) ** 2


def straight(theta, row):
    return -0.5 * (row[0] - theta[0] - theta[1] * row[1]) ** 2


@pytest.mark.parametrize(
    ("log_likelihood", "expected"),
    [
        (straight, {"sum": False, "gradient": False, "Hessian": False, "scores": False, "table": False}),
        (normal, {"sum": False, "gradient": False, "Hessian": False, "scores": True}),
        (correlated, {"sum": True, "gradient": True, "Hessian": True, "scores": True, "table": True}),
    ],
)
def test_programs_that_would_wait_for_each_other_run_alone(log_likelihood, expected, monkeypatch):
    """For ever, where as many of them as XLA has threads decompose many matrices each."""
    data = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
    monkeypatch.setattr(noise, "CHUNK", 300)
    monkeypatch.setattr(passes, "CHUNK", 300)
    monkeypatch.setattr(predicted, "CHUNK", 2000)
    found, real = [], disk.ahead

    def watched(work, chunks, *args, alone):
        found.append(alone)
        return real(work, chunks, *args, alone=True)

    monkeypatch.setattr(disk, "ahead", watched)
    posterior = hamcmc.Posterior(lambda t: -0.5 * jnp.sum(t**2), log_likelihood, data, init=np.zeros(3, np.float32))
    at, seen = jnp.zeros(3), {}

    def look(name, work):
        found.clear()
        made = work()
        (seen[name],) = set(found)
        return made

    sums = passes.Passes(posterior, at)
    look("sum", lambda: posterior.full_log_density(at, batch_size=100))
    look("gradient", lambda: sums.value_and_grad(np.zeros(3)))
    look("Hessian", lambda: sums.hessian(np.zeros(3)))
    laplace = hamcmc.laplace(posterior)
    view = hamcmc.control_variate(posterior, laplace, order=2)
    look("scores", lambda: scores(view, laplace, draws=4))
    if "table" in expected:
        one = predicted.predictors_of(posterior, at)
        look("table", lambda: predicted.Predicted(view, at, laplace.root, one))
    assert seen == expected


def test_threads_compute_as_precisely_as_their_caller():
    with jax.enable_x64(True):
        found = list(disk.ahead(lambda _: jnp.ones(()).dtype, range(5)))
    assert set(found) == {np.dtype(np.float64)}
