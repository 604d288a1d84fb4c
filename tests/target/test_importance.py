"""Minibatches by importance: exact frequencies, unbiased runs, less noise where features are rare."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.store.errors import RunError
from hamcmc.target import importance, minibatch, noise
from tests.mutation import mutant
from tests.samplers.targets import Z

CHANCES = np.array([0.4, 0.05, 0.2, 0.01, 0.14, 0.15, 0.05])


def rare(package, size=3000, on_disk=None):
    """A logistic regression on indicators, three of which only six rows have."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.ones((size, 1)), rng.random((size, 3)) < 0.3, np.zeros((size, 3))], 1).astype(np.float32)
    for column in (4, 5, 6):
        x[rng.choice(size, 6, replace=False), column] = 1
    label = rng.random(size) < 1 / (1 + np.exp(1 - x @ np.array([0, 1, -1, 0.5, 2, 1, -1])))

    def log_likelihood(theta, d):
        return -jnp.logaddexp(0.0, jnp.where(d["label"], -1.0, 1.0) * (d["x"] @ theta))

    data = {"x": on_disk(x) if on_disk else x, "label": label}
    posterior = package.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, data)
    return posterior, package.laplace(posterior, jnp.zeros(7))


def few():
    return hamcmc.Posterior(lambda m: 0 * m, lambda m, x: -((x - m) ** 2), np.arange(7.0, dtype=np.float32))


def check_frequencies(package, batch_size):
    """Each row is drawn n p_i times on average, within Z standard errors of independent draws."""
    view = package.target.importance.Importance(few(), CHANCES)
    draws = 20_000 // batch_size
    rows = jax.jit(
        jax.vmap(lambda t: view.minibatch_indices(jax.random.key(0), t, batch_size, True)),
    )(jnp.arange(draws))
    share = np.bincount(np.ravel(rows), minlength=7) / rows.size
    assert (np.abs(share - CHANCES) <= Z * np.sqrt(CHANCES * (1 - CHANCES) / rows.size)).all(), f"drawn: {share}"


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_rows_are_drawn_with_their_probabilities(batch_size):
    check_frequencies(hamcmc, batch_size)


@pytest.mark.slow
def test_broken_draws_are_noticed():
    with (
        mutant(
            "target/importance.py",
            "return self._guide.rows(jnp.asarray(self.last), ticks)",
            "return (ticks % 7).astype(jnp.int32)",
        ) as package,
        pytest.raises(AssertionError, match="drawn"),
    ):
        check_frequencies(package, 3)


def last_ticks(module, probabilities):
    return np.concatenate([ends for _, ends, _ in module._ticks(probabilities)]).astype(np.uint32)


def check_guide(package):
    """The row of a tick is what a search among all rows finds, also at the edges of rows and of buckets."""
    rng = np.random.default_rng(0)
    uneven = [rng.gamma(shape, size=n) + 1e-9 for n, shape in ((1, 1), (2, 1), (3, 1), (1000, 1), (1025, 0.01))]
    found = package.target.importance
    ours = [found.probabilities(x.copy()) for x in uneven]
    for p in [*ours, *(x / x.sum() for x in uneven), np.array([1 - 2e-12, 1e-12, 1e-12])]:
        last = last_ticks(found, p)
        buckets = (np.arange(4096) << 20).astype(np.uint32)
        ticks = np.concatenate([last, last[:-1] + 1, buckets, buckets - 1, rng.integers(0, 2**32, 5000, np.uint32)])
        rows = jax.jit(found.Guide.of(last).rows)(last, ticks)
        assert_array_equal(rows, np.searchsorted(last, ticks), f"{len(p)} rows")


def test_the_guide_finds_the_row_of_every_tick():
    check_guide(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("row + (2**power - 1)", "row + 2**power"),
        ("np.cumsum(ends) - ends", "np.cumsum(ends)"),
        ("max(STEPS, int(ends.max()).bit_length())", "STEPS"),
        ("ahead < ticks", "ahead <= ticks"),
    ],
)
def test_a_broken_guide_is_noticed(line, broken):
    with mutant("target/importance.py", line, broken) as package, pytest.raises(AssertionError, match="rows"):
        check_guide(package)


def test_the_usual_steps_are_enough_for_our_own_probabilities():
    for size in (3, 1000, 1023, 1024):
        scores = np.where(np.arange(size) % 50 == 0, 1.0, 0.0)
        last = last_ticks(importance, importance.probabilities(scores))
        assert importance.Guide.of(last).steps == importance.STEPS


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_rows_on_the_host_are_the_same(batch_size):
    data = jnp.arange(7.0)
    plain = hamcmc.Posterior(lambda x: -(x**2), lambda x, row: -((x - row) ** 2), data)
    for view in (plain, importance.Importance(plain, CHANCES)):
        expected = view.minibatch_indices(jax.random.key(3), jnp.int32(0), batch_size, False)
        np.testing.assert_array_equal(view.some_rows(jax.random.key(3), batch_size), expected)


@pytest.mark.parametrize("block", [1, 3, 2**18])
def test_whole_numbers_of_ticks(block, monkeypatch):
    """Rows in blocks have the ticks that all of them would have at once, and none is left without one."""
    monkeypatch.setattr(importance, "BLOCK", block)

    def ticks(p):
        ends = np.concatenate([e for _, e, _ in importance._ticks(p)])
        found = np.concatenate([t for _, _, t in importance._ticks(p)])
        assert_array_equal(np.cumsum(found) - 1, ends)
        return found

    assert ticks(CHANCES).sum() == 2**32
    assert_allclose(ticks(CHANCES) / 2**32, CHANCES, rtol=1e-7)
    for tiny in (np.array([1 - 2e-12, 1e-12, 1e-12]), np.array([1e-12, 1e-12, 1 - 2e-12])):
        found = ticks(tiny)
        assert found.sum() == 2**32
        assert found.min() >= 1
        assert found[tiny < 0.5].max() <= 2
    for bad in (np.array([0.5, 0.6]), np.array([1.0, 0.0]), np.array([np.nan, 1.0]), np.array([1.5, -0.5])):
        with pytest.raises(ValueError, match="probabilities must be above 0 and of sum 1"):
            ticks(bad)


def test_what_each_row_needs_is_in_a_file_beside_streamed_data(tmp_path):
    """So that memory does not grow with the number of rows; the numbers are those of data in memory."""
    rows = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(7,))
    rows[:] = np.arange(7)
    streamed = hamcmc.Posterior(lambda m: 0 * m, lambda m, x: -((x - m) ** 2), rows)
    there, here = (importance.Importance(p, CHANCES) for p in (streamed, few()))
    assert_array_equal(there.last, here.last)
    assert_array_equal(there.data.weight, here.data.weight)
    for per_row in (there.last, there.data.weight):
        assert isinstance(per_row, np.memmap)
    key = jax.random.key(2)
    assert_array_equal(there.some_rows(key, 5), here.minibatch_indices(key, jnp.int32(0), 5, False))
    assert there.checksum() == here.checksum()
    ends = np.asarray(here.last)
    assert_array_equal(there.found(ends), np.arange(7))  # the last tick of a row is its own
    assert_array_equal(there.found(ends[:-1] + 1), np.arange(1, 7))


def test_a_plain_posterior_draws_as_ever():
    posterior = few()
    for replace in (True, False):
        drawn = posterior.minibatch_indices(jax.random.key(1), jnp.int32(5), 3, replace)
        assert_array_equal(drawn, minibatch.draw(jax.random.key(1), jnp.int32(5), 7, 3, replace))


def test_rows_of_rare_features_are_drawn_more_often():
    posterior, found = rare(hamcmc)
    view = hamcmc.control_variate(posterior, found, order=2, importance=True)
    few_have_it = np.asarray(posterior.data["x"])[:, 4:].any(1)
    assert view.probabilities[few_have_it].mean() > 20 * view.probabilities[~few_have_it].mean()
    assert view.probabilities.min() >= 0.99 * importance.UNIFORM / 3000
    noise = [hamcmc.gradient_noise(v, found).largest for v in (hamcmc.control_variate(posterior, found, order=2), view)]
    assert noise[1] < noise[0] / 10
    assert view.settings["rows"] == "importance"
    assert view.checksum() != hamcmc.control_variate(posterior, found, order=2).checksum()


@pytest.mark.slow
def test_a_run_in_memory_on_disk_and_resumed(tmp_path, short_segments):
    """Streamed rows are those that a run in memory draws, with their weights; other probabilities are refused."""

    def on_disk(x):
        rows = np.memmap(tmp_path / "x", x.dtype, "w+", shape=x.shape)
        rows[:] = x
        return rows

    short_segments(7)

    class Stop(BaseException):
        pass

    def stop(_):
        raise Stop

    settings = {"step_size": 1e-3, "num_samples": 20, "warmup": 5, "batch_size": 16, "chains": 1, "progress": False}
    draws = []
    for where in (None, on_disk):
        posterior, found = rare(hamcmc, on_disk=where)
        view = hamcmc.control_variate(posterior, found, importance=True)
        draws.append(np.asarray(hamcmc.sample(view, "sgld", jnp.zeros(7), **settings).posterior["theta"]))
    assert_allclose(draws[0], draws[1], rtol=1e-5, atol=1e-6)
    with pytest.raises(Stop):
        hamcmc.sample(view, "sgld", jnp.zeros(7), **settings | {"progress": stop}, out=tmp_path / "run")
    with pytest.raises(RunError, match="another control variate"):
        hamcmc.resume(tmp_path / "run", hamcmc.control_variate(posterior, found), jnp.zeros(7), progress=False)
    resumed = hamcmc.resume(tmp_path / "run", view, jnp.zeros(7), progress=False)
    assert_array_equal(resumed.posterior["theta"], draws[1])


def test_all_data_at_once_are_refused():
    """Weights are those of drawn rows; all data need none."""
    posterior, found = rare(hamcmc)
    view = hamcmc.control_variate(posterior, found, importance=True)
    with pytest.raises(ValueError, match="must have fewer rows than the data: give a batch_size"):
        view.grad(jnp.zeros(7), view.data)
    assert_allclose(view.full_grad(jnp.zeros(7)), posterior.full_grad(jnp.zeros(7)))
    assert_allclose(view.full_log_density(jnp.zeros(7)), posterior.full_log_density(jnp.zeros(7)))


def test_what_draws_rows_uniformly_itself():
    posterior, found = rare(hamcmc)
    view = hamcmc.control_variate(posterior, found, importance=True)
    with pytest.raises(ValueError, match="svrg and evidence draw rows uniformly"):
        hamcmc.svrg(view, "sgld", every=10)
    with pytest.raises(ValueError, match="the trials of tune draw rows uniformly"):
        hamcmc.tune(view, "sgld", jnp.zeros(7), batch_size=10)


def test_scores_that_say_nothing():
    assert_allclose(importance.probabilities(np.zeros(4)), 0.25)
    assert_allclose(importance.probabilities(np.array([1, np.nan])), 0.5)


def test_rows_are_compared_at_draws_of_their_own(monkeypatch):
    """At the draws to which the rows are fitted, the noise that is left looks too small, and so would be the batch."""
    asked = []

    def watched(posterior, positions, *args):
        asked.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(positions)]))
        return noise.over_rows(posterior, positions, *args)

    monkeypatch.setattr("hamcmc.target.importance.over_rows", watched)
    posterior, found = rare(hamcmc)
    hamcmc.control_variate(posterior, found, order=2, importance=True)
    (rows,) = asked
    assert not np.isin(rows, np.ravel(found.draw(40, seed=0))).any()
