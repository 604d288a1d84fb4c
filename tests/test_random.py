"""Our random bits and whole numbers are JAX's, number by number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc._random import KEPT, below, bits


@pytest.mark.parametrize("size", [1, 7, KEPT - 1, KEPT, KEPT + 1])
def test_bits_are_those_of_jax(size):
    key = jax.random.key(3)
    np.testing.assert_array_equal(bits(key, size), jax.random.bits(key, (size,), jnp.uint32))


@pytest.mark.parametrize("most", [1, 7, 2**8, 1000, 2**16 - 1, 2**16, 2**16 + 1, 1_000_209, 2**31 - 1])
def test_whole_numbers_are_those_of_jax(most):
    key = jax.random.key(4)
    ours, theirs = below(key, 20, most), jax.random.randint(key, (20,), 0, most)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_in_double_precision_too():
    """There JAX draws 64 bits for each."""
    with jax.enable_x64(True):
        key = jax.random.key(4)
        ours, theirs = below(key, 20, 1000), jax.random.randint(key, (20,), 0, 1000)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("size", [5, KEPT])
def test_each_key_has_its_own_under_vmap(size):
    keys = jax.random.split(jax.random.key(0), 2)
    together = jax.vmap(lambda key: below(key, size, 1000))(keys)
    for ours, key in zip(together, keys):
        np.testing.assert_array_equal(ours, jax.random.randint(key, (size,), 0, 1000))


@pytest.mark.parametrize("key", [jax.random.key(0, impl="rbg"), jax.random.PRNGKey(0)], ids=["rbg", "raw"])
def test_other_keys_work(key):
    np.testing.assert_array_equal(below(key, 5, 1000), jax.random.randint(key, (5,), 0, 1000))
