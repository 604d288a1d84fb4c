"""Index draws: uniform, without repetition where asked, and a function of (key, iteration) alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2

from hamcmc.target import minibatch

SIZES = [1, 2, 3, 5, 16, 17, 100, 1000, 1025]
permutations = jax.jit(
    jax.vmap(lambda key, size: minibatch.permute(key, jnp.arange(size), size), (0, None)), static_argnums=1
)


def sent(keys, places, size):
    """Where the permutation of each key sends some places."""
    return np.asarray(jax.jit(jax.vmap(lambda key: minibatch.permute(key, places, size)))(keys))


def assert_uniform(counts):
    """χ² of counts that should be equal; fails by chance once in 10⁶."""
    expected = counts.sum() / counts.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(1 - 1e-6, counts.size - 1)


@settings(max_examples=30)
@given(st.sampled_from(SIZES), st.integers(0, 2**31 - 1))
def test_every_size_is_permuted(size, seed):
    found = permutations(jax.random.split(jax.random.key(seed), 4), size)
    for p in found:
        assert_array_equal(np.sort(p), np.arange(size))


@pytest.mark.parametrize("size", [2, 3, 5, 17, 100])
def test_a_permutation_sends_every_index_anywhere(size):
    places = np.unique([0, 1, size // 2, size - 1])
    for found in sent(jax.random.split(jax.random.key(size), 20_000), places, size).T:
        assert_uniform(np.bincount(found, minlength=size))


@pytest.mark.parametrize("size", [3, 5, 16])
def test_two_places_of_a_permutation_are_independent(size):
    first, second, last = sent(jax.random.split(jax.random.key(0), 40_000), np.array([0, 1, size - 1]), size).T
    for other in (second, last):
        pairs = np.zeros((size, size))
        np.add.at(pairs, (first, other), 1)
        assert np.trace(pairs) == 0
        assert_uniform(pairs[~np.eye(size, dtype=bool)])


def epoch(key, first, batches, size, n, replace=False):
    draw = jax.jit(jax.vmap(lambda t: minibatch.draw(key, t, size, n, replace)))
    return np.asarray(draw(first + jnp.arange(batches)))


@pytest.mark.parametrize(("size", "n"), [(12, 3), (100, 7), (64, 64), (5, 1)])
def test_an_epoch_sees_no_datum_twice(size, n):
    per_epoch = size // n
    key = jax.random.key(1)
    two = epoch(key, 0, 2 * per_epoch, size, n)
    for half in (two[:per_epoch], two[per_epoch:]):
        assert len(np.unique(half)) == per_epoch * n
    assert (two[:per_epoch] != two[per_epoch:]).any()
    assert_array_equal(epoch(key, per_epoch, 1, size, n), two[per_epoch : per_epoch + 1])


def test_with_replacement_is_uniform():
    drawn = epoch(jax.random.key(2), 0, 2000, 50, 20, replace=True)
    assert_uniform(np.bincount(drawn.ravel(), minlength=50))
    assert min(len(np.unique(row)) for row in drawn) < 20  # repetitions do occur


def test_the_mean_over_an_epoch_is_the_full_gradient(model, x64):
    """N/n in the stochastic gradient: its mean over a partition of the data is exact."""
    theta = jnp.array([0.3, -0.2, 0.5])
    rows = epoch(jax.random.key(3), 0, 20, 1000, 50)
    grad = jax.jit(lambda rows: model.grad(theta, minibatch.gather(model.data, rows)))
    density = jax.jit(lambda rows: model.log_density(theta, minibatch.gather(model.data, rows)))
    assert_allclose(np.mean([grad(r) for r in rows], 0), model.full_grad(theta), rtol=1e-10)
    assert_allclose(np.mean([density(r) for r in rows], 0), model.full_log_density(theta), rtol=1e-10)


def test_rows_are_gathered_from_every_leaf():
    data = {"a": np.arange(20).reshape(10, 2), "b": np.arange(10)}
    on_host = minibatch.gather(data, np.array([3, 3, 9]))
    on_device = minibatch.gather(jax.tree.map(jnp.asarray, data), jnp.array([3, 3, 9]))
    for found in (on_host, on_device):
        assert_array_equal(found["a"], [[6, 7], [6, 7], [18, 19]])
        assert_array_equal(found["b"], [3, 3, 9])
