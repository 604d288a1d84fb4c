"""Keys made on the host are those of JAX."""

import jax
import numpy as np
import pytest

from hamcmc.speech import keys


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_keys_are_those_of_jax(seed):
    key = jax.random.key(np.uint32(seed))
    np.testing.assert_array_equal(keys.key(seed), jax.random.key_data(key))
    parts = jax.random.split(key, 5)
    np.testing.assert_array_equal(keys.split(keys.key(seed), 5), jax.random.key_data(parts))
    for most in (10, 7):
        expected = [jax.random.randint(k, (), 0, most) for k in parts]
        np.testing.assert_array_equal(keys.below(keys.split(keys.key(seed), 5), most), expected)


def test_steps_differ_from_each_other():
    found = keys.steps(keys.key(1), 150, 100, 5, 10)
    assert found.rows.shape == (150,)
    assert set(found.rows) == set(range(10))
    assert len({tuple(k) for k in [found.start, *found.noise]}) == 151
