"""Our noise is JAX's, number by number; many numbers come in pairs, and are normal and independent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from hamcmc.samplers.noise import AT_ONCE, PAIRED, in_pairs, normal, quantile, standard_normal


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 50), (PAIRED - 1,)])
def test_normal_is_jax_random_normal(shape):
    key = jax.random.key(3)
    np.testing.assert_array_equal(normal(key, shape, jnp.float32), jax.random.normal(key, shape))


def test_normal_in_double_precision():
    with jax.enable_x64(True):
        key = jax.random.key(3)
        ours, theirs = normal(key, (1000,), jnp.float64), jax.random.normal(key, (1000,), jnp.float64)
        assert ours.dtype == jnp.float64
        np.testing.assert_array_equal(ours, theirs)


def test_many_numbers_are_normal_and_independent():
    size = 2**16 + 1  # odd, so that half of the last pair is left over
    z = np.asarray(normal(jax.random.key(3), (size,), jnp.float32), np.float64)
    assert z.shape == (size,)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert len(np.unique(z)) > 0.99 * size  # of 2²³ values few meet; a word that is used twice would halve them

    def correlation(a, b):
        return np.corrcoef(a, b)[0, 1] * np.sqrt(len(a))

    half = size // 2 + 1
    pairs = z[: size - half], z[half:]  # the two numbers of a pair
    neighbours = z[:-1], z[1:]
    for a, b in (pairs, neighbours, [x**2 for x in pairs], [x**2 for x in neighbours]):
        assert abs(correlation(a, b)) < 4
    other = np.asarray(normal(jax.random.key(4), (size,), jnp.float32))
    assert abs(correlation(z, other)) < 4


def test_pairs_are_the_same_in_a_loop_and_at_once():
    words = jax.random.key_data(jax.random.key(3))
    for half in (PAIRED // 2, 777):
        at_once, looped = (in_pairs(words, half, at_once=x) for x in (True, False))
        np.testing.assert_allclose(at_once, looped, rtol=1e-5, atol=1e-6)


def test_quantiles_are_those_of_the_normal_law():
    tail = 1 - np.logspace(-7, -2, 500)
    x = np.concatenate([np.linspace(-0.99, 0.99, 999), tail, -tail, np.logspace(-12, -3, 99)]).astype(np.float32)
    expected = np.sqrt(2) * special.erfinv(x.astype(float))
    np.testing.assert_allclose(quantile(jnp.asarray(x)), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("size", [PAIRED, PAIRED + 1, AT_ONCE + 1])
def test_many_numbers_are_the_same_under_vmap(size):
    keys = jax.random.split(jax.random.key(0), 2)
    together = jax.vmap(lambda key: normal(key, (size,), jnp.float32))(keys)
    np.testing.assert_array_equal(together[1], normal(keys[1], (size,), jnp.float32))


def test_keys_of_another_generator_and_old_style_keys_work():
    other = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(normal(other, (5,), jnp.float32), jax.random.normal(other, (5,)))
    raw = jax.random.PRNGKey(0)
    np.testing.assert_array_equal(normal(raw, (5,), jnp.float32), jax.random.normal(raw, (5,)))


def test_leaves_are_independent_and_keep_their_types():
    like = {"a": jnp.zeros(1000), "b": jnp.zeros((10, 100)), "c": jnp.zeros(3, jnp.bfloat16)}
    z = jax.jit(standard_normal)(jax.random.key(1), like)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), z) == jax.tree.map(lambda x: (x.shape, x.dtype), like)
    correlation = np.corrcoef(z["a"], z["b"].ravel())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(1000)
