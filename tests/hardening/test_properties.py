"""Laws that the public functions obey for any input, on inputs that hypothesis makes up."""

import csv
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import exprel

import hamcmc
from hamcmc.diagnostics import ess, summaries
from hamcmc.factorization import ratings
from hamcmc.inference import job
from hamcmc.store.checkpoint import Checkpoint, decode, encode
from hamcmc.store.draws import Array, Draws

# A temporary directory that examples share is all right: each overwrites what the last one left.
SHARED = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
moderate = st.floats(-100, 100, width=32)
seeds = st.integers(0, 2**32 - 1)


def random(seed):
    return np.random.default_rng(seed)


# --- posteriors ---

ROWS = 4
SUBSETS = {n: np.array(list(itertools.combinations(range(ROWS), n))) for n in (1, 3)}
LISTS = {n: np.array(list(itertools.product(range(ROWS), repeat=n))) for n in (1, 3)}


def regression(x, y):
    """A posterior with a nonlinear likelihood and a parameter on the half-line."""
    log_prior = lambda t: -jnp.sum(t["w"] ** 2) - t["s"]
    log_likelihood = lambda t, d: -0.5 * ((d["y"] - jnp.tanh(d["x"] @ t["w"])) / t["s"]) ** 2 - jnp.log(t["s"])
    return hamcmc.Posterior(log_prior, log_likelihood, {"x": x, "y": y}, support={"s": hamcmc.positive()})


@jax.jit
def over_minibatches(x, y, position, rows):
    """Mean of log-density and gradient over minibatches, and both on all data."""
    posterior = regression(np.zeros((ROWS, 2), np.float32), np.zeros(ROWS, np.float32))
    both = lambda batch: (posterior.log_density(position, batch), posterior.grad(position, batch))
    each = jax.vmap(both)({"x": x[rows], "y": y[rows]})
    return jax.tree.map(lambda v: v.mean(0), each), both({"x": x, "y": y})


@settings(max_examples=25)
@given(seeds, st.sampled_from([1, 3]), st.sampled_from([SUBSETS, LISTS]))
def test_a_minibatch_is_unbiased(seed, n, ways):
    """Over all minibatches, with or without replacement, density and gradient have the mean of those on all data."""
    rng = random(seed)
    x, y = rng.normal(size=(ROWS, 2)).astype(np.float32), rng.normal(size=ROWS).astype(np.float32)
    position = {"w": jnp.asarray(rng.normal(size=2), jnp.float32), "s": jnp.float32(rng.normal() / 2)}
    found, exact = over_minibatches(x, y, position, ways[n])
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact)):
        assert_allclose(a, b, rtol=2e-4, atol=2e-4 * (1 + np.abs(b).max()))


@settings(max_examples=25)
@given(hnp.arrays(np.float32, (5, 2), elements=moderate), st.permutations(range(5)))
def test_the_checksum_is_of_the_data_in_order(x, order):
    make = lambda x: hamcmc.Posterior(lambda t: 0.0, lambda t, d: 0.0, x).checksum()
    assert make(x) == make(x.copy())
    assert (make(x[order]) == make(x)) == (x[order].tobytes() == x.tobytes())


# --- supports ---

U = np.linspace(-4, 4, 41, dtype=np.float32)


def bijections():
    interval = st.tuples(st.floats(-10, 10, width=16), st.floats(0.5, 20, width=16))
    bounded = interval.map(lambda p: hamcmc.bounded(p[0], p[0] + p[1]))
    return st.one_of(st.just(hamcmc.positive()), st.just(hamcmc.real), bounded)


@given(bijections())
def test_bijections(support):
    """Inside, increasing, with an inverse, and with the slope that finite differences have."""
    theta = support.forward(U)
    assert np.all(support.contains(theta))
    assert (np.diff(theta) > 0).all()
    assert_allclose(support.inverse(theta), U, atol=2e-3)
    h = np.float32(0.05)
    slope = (np.asarray(support.forward(U + h), float) - np.asarray(support.forward(U - h), float)) / (2 * h)
    assert_allclose(support.log_jacobian(U), np.log(slope), atol=6e-3)


@given(st.floats(-10, 10, width=16), st.floats(0.5, 20, width=16), seeds)
def test_mirrors(low, width, seed):
    """A fold is inside, leaves the inside alone, and is the same for all that mirrors at either end lead to."""
    support = hamcmc.bounded(low, low + width, "mirror")
    x = random(seed).uniform(low, low + width, 41).astype(np.float32)
    close = {"atol": 1e-4 * (1 + abs(low) + width)}
    for image in (x, 2 * low - x, 2 * (low + width) - x, x + 2 * width, x - 6 * width):
        assert_allclose(support.mirror(image.astype(np.float32)), x, **close)


# --- schedules ---

T = np.arange(2**12)


@given(st.floats(1e-6, 10), st.floats(0.501, 1.0))
def test_decreasing_steps(a, b):
    """Positive, decreasing; over each doubling of time Σε is about the integral, which for b ≤ 1 does not fall, so that
    the sum is endless, and Σε² falls."""
    schedule = hamcmc.Polynomial(a, b)
    epsilon = np.asarray(schedule(T), float)
    assert (epsilon > 0).all()
    assert (np.diff(epsilon) < 0).all()
    assert epsilon[0] == pytest.approx(a**b, rel=1e-5)
    ends = 2 ** np.arange(4, 13)
    sums = lambda x: np.array([np.sum(x[i:j]) for i, j in itertools.pairwise(ends - 1)])
    integral = a**b * ends[:-1] ** (1 - b) * np.log(2) * exprel((1 - b) * np.log(2))
    assert (sums(epsilon) >= integral * (1 - 1e-4)).all()
    assert (sums(epsilon) <= (integral + epsilon[ends[:-1] - 1]) * (1 + 1e-4)).all()
    assert (np.diff(sums(epsilon**2)) < 0).all()


@given(st.floats(1e-6, 10), st.integers(1, 500), st.floats(0, 0.99))
def test_cycles(step_size, period, floor):
    """They repeat, stay between floor and start, fall within a cycle, and have the sum of the formula."""
    epsilon = np.asarray(hamcmc.Cyclical(step_size, period, floor)(T), float)
    first = epsilon[:period]
    assert_array_equal(first, epsilon[period : 2 * period])
    assert (first > 0).all()
    assert (first <= step_size * (1 + 1e-5)).all()
    assert (first >= step_size * floor * (1 - 1e-5)).all()
    assert (np.diff(first) <= 0).all()
    assert first.sum() == pytest.approx(step_size * (period * floor + (1 - floor) * (period + 1) / 2), rel=1e-4)


@given(
    st.one_of(
        st.builds(hamcmc.Constant, st.floats(1e-9, 1e3)),
        st.builds(hamcmc.Polynomial, st.floats(1e-6, 10), st.floats(0.1, 2)),
        st.builds(hamcmc.Cyclical, st.floats(1e-6, 10), st.integers(1, 10**6), st.floats(0, 0.99)),
    )
)
def test_run_json_keeps_schedules(schedule):
    kept = json.loads(json.dumps(job.describe(schedule)))
    assert job.recorded_schedule(kept, None, "here") == schedule


# --- summaries ---

chains = hnp.arrays(np.float64, (3, 12), elements=moderate)
weights = hnp.arrays(np.float64, 12, elements=st.floats(0.01, 10))


@given(chains, weights, st.permutations(range(3)), st.floats(0.01, 100))
def test_summaries(x, w, order, factor):
    """In the range of the draws, and no matter in which order the chains come, or in which unit the weights are."""
    q = [0.05, 0.25, 0.5, 0.75, 0.95]

    def summary(x, w):
        mean, sd = summaries.weighted_moments(x, np.broadcast_to(w, x.shape))
        return np.array([mean, sd, *summaries.weighted_quantiles(x, np.broadcast_to(w, x.shape), q)])

    found = summary(x, w)
    mean, sd, *quantiles = found
    width = np.ptp(x)
    assert x.min() - 1e-9 <= mean <= x.max() + 1e-9
    assert 0 <= sd <= width / 2 + 1e-9
    assert (np.diff(quantiles) >= 0).all()
    assert x.min() <= quantiles[0]
    assert quantiles[-1] <= x.max()
    for other in (summary(x[order], w), summary(x, factor * w)):
        assert_allclose(other, found, rtol=1e-9, atol=1e-9 * (1 + np.abs(x).max()))
    assert 1 / 12 <= ess.kish(w) <= 1 + 1e-12
    grid = np.round(x * 1024) / 1024  # so that no two draws become equal by rounding
    assert_allclose(
        summary(2 * grid + 3, w),
        2 * summary(grid, w) + np.r_[3, 0, [3] * 5],
        rtol=1e-9,
        atol=1e-9 * (1 + np.abs(x).max()),
    )


@settings(max_examples=15)
@given(seeds, st.permutations(range(3)))
def test_ess_and_r_hat(seed, order):
    """No matter in which order the chains come; more than one draw's worth; the unit does not count."""
    x = np.cumsum(random(seed).standard_normal((3, 30)), axis=1)
    ones = np.ones(30)
    for f in (lambda x: ess.effective_size(x, ones, "bulk"), ess.r_hat):
        assert f(x[order]) == pytest.approx(f(x), rel=1e-9)
        assert f(5 * x - 7) == pytest.approx(f(x), rel=1e-6)
        assert f(x) > 0


@given(chains, hnp.arrays(np.int64, 12, elements=st.integers(1, 4)))
def test_weights_are_repetitions(x, n):
    weighted = summaries.weighted_moments(x, np.broadcast_to(n, x.shape))
    repeated = np.repeat(x, n, axis=1)
    plain = summaries.weighted_moments(repeated, np.ones_like(repeated))
    assert_allclose(weighted, plain, rtol=1e-9, atol=1e-7)


# --- what is kept on disk ---

plain_arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int32, np.bool_, np.uint32]), hnp.array_shapes(min_dims=0, max_dims=3)
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 10**9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(
    st.dictionaries(st.text("abc.012", min_size=1, max_size=6), plain_arrays, max_size=4),
    st.dictionaries(st.text("xyz", min_size=1, max_size=4), json_values, max_size=4),
)
def test_checkpoints_come_back(arrays, meta):
    found = decode(encode(Checkpoint(meta, arrays)), "here")
    assert found.meta == meta
    assert list(found.arrays) == list(arrays)
    for name, x in arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (x.dtype, x.shape)
        assert found.arrays[name].tobytes() == x.tobytes()


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    hnp.array_shapes(min_dims=0, max_dims=2, max_side=3),
    st.sampled_from(["float32", "float64", "int32", "bool"]),
    st.integers(1, 3),
    seeds,
)
def test_draws_come_back(pieces, shape, dtype, chains, seed):
    total = sum(pieces)
    whole = (10 * random(seed).standard_normal((total, chains, *shape))).astype(dtype)
    draws = Draws.open(None, [Array("posterior", "x", shape, dtype)], chains, total + 2, written=None)
    at = 0
    for n in pieces:
        draws.append({"posterior/x": whole[at : at + n]})
        at += n
    draws.flush()
    assert_array_equal(draws.root["posterior/x"][:, :total], np.moveaxis(whole, 0, 1))


ids = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=8)
numbers = st.integers(-50, 50).map(lambda n: n / 4)


@SHARED
@given(st.lists(st.tuples(ids, ids, numbers), min_size=1, max_size=12), st.sampled_from([",", "\t", ";"]))
def test_any_table_of_ratings_is_read(tmp_path, rows, separator):
    """Ids are any text; the last line of a pair counts."""
    file = tmp_path / "r.csv"
    with open(file, "w", newline="", encoding="utf-8") as f:
        csv.writer(f, delimiter=separator).writerows([("user", "item", "rating"), *rows])
    found = ratings.read(file)
    users, items = found.users[found.row].tolist(), found.items[found.column].tolist()
    assert dict(zip(zip(users, items), found.value.tolist())) == {(u, i): r for u, i, r in rows}
    assert found.duplicates_dropped == len(rows) - found.size


# --- runs ---

names = st.text("abcxyzαβ_ 0", min_size=1, max_size=4).filter(lambda n: n.strip())
leaves = hnp.array_shapes(min_dims=0, max_dims=2, max_side=3).map(lambda s: np.zeros(s, np.float32))
trees = st.one_of(
    leaves,
    st.dictionaries(names, leaves, min_size=1, max_size=3),
    st.tuples(leaves, st.dictionaries(names, leaves, min_size=1, max_size=2)),
)
asked = st.fixed_dictionaries(
    {
        "num_samples": st.integers(1, 6),
        "thin": st.integers(1, 4),
        "warmup": st.integers(0, 3),
        "chains": st.integers(1, 3),
        "batch_size": st.sampled_from([None, 1, 3, 5]),
        "replace": st.booleans(),
        "seed": seeds,
        "store_gradients": st.booleans(),
    }
)


def check_run(position, asked):
    """Shapes, types and names of draws, and that thinned ones are every so many of those that a longer run has."""
    data = random(0).normal(size=(5, 2)).astype(np.float32)
    square = lambda t: sum(jnp.sum(x**2) for x in jax.tree.leaves(t))
    posterior = hamcmc.Posterior(lambda t: -square(t), lambda t, d: -0.1 * (square(t) - d[0]) ** 2, data)
    run = lambda **more: hamcmc.sample(posterior, "sgld", position, step_size=1e-3, progress=False, **(asked | more))
    n, thin = asked["num_samples"], asked["thin"]
    found, longer = run(), run(num_samples=n * thin + 2, thin=1)
    named = {job.name_of(path): x for path, x in jax.tree_util.tree_leaves_with_path(position)}
    groups = [found.posterior, found.gradients] if asked["store_gradients"] else [found.posterior]
    for group in groups:
        assert {k: (x.shape, x.dtype) for k, x in group.items()} == {
            k: ((asked["chains"], n, *x.shape), x.dtype) for k, x in named.items()
        }
    assert found.weights.shape == (n,)
    assert found.draws == n
    for name, x in found.posterior.items():
        assert np.isfinite(x).all()
        assert_array_equal(x, longer.posterior[name][:, thin - 1 : n * thin : thin])
        assert len(np.unique(x)) == x.size  # chains and draws differ
        assert found.mean[name].shape == named[name].shape
    assert math.isfinite(float(found.summary()["mean"][0]))


@settings(max_examples=1)
@given(trees, asked)
def test_runs(position, asked):
    check_run(position, asked)


@pytest.mark.slow
@settings(max_examples=30)
@given(trees, asked)
def test_many_runs(position, asked):
    check_run(position, asked)
