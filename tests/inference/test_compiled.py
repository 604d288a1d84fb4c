"""The guard of the compiled loop sees every number of every leaf."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.inference.compiled import finite_leaves


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (2, 3, 4), (16, 100)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_seen_wherever_it_is(shape, value):
    guard = jax.jit(finite_leaves)
    fine = jnp.full(shape, 1e30)
    for place in {0, fine.size // 2, fine.size - 1}:
        broken = fine.ravel().at[place].set(value).reshape(shape)
        assert guard({"a": fine, "b": broken}).tolist() == [True, False]
    assert guard({"a": fine, "b": -fine}).tolist() == [True, True]
