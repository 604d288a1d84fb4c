"""Noise by row number: the kernel's is XLA's, and it is normal and independent."""

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from hamcmc.factorization import native
from hamcmc.factorization.native import twin
from tests.factorization.native.reference import needs_kernel

BY_XLA = jax.jit(twin.normal, static_argnums=2)
WORDS = jnp.array([123, 4_000_000_000], jnp.uint32)


def by_jax(words, rows, columns: int) -> np.ndarray:
    """From JAX's own generator, by the quantile function in double precision."""
    row, c = (x.ravel().astype(np.uint32) for x in np.meshgrid(rows, np.arange(columns // 2), indexing="ij"))
    bits = np.array(jex.random.threefry_2x32(words, jnp.concatenate([row, c]))).reshape(2, -1).T
    uniform = (bits >> 9) / 2**22 - np.float64(np.nextafter(np.float32(1), np.float32(0)))
    return np.sqrt(2) * scipy.special.erfinv(uniform.reshape(len(rows), columns))


@pytest.mark.parametrize("columns", [2, 8, 10, 16, 56])
def test_rows_are_counters_of_threefry(columns):
    rows = np.array([0, 1, 7, 2**31, 2**32 - 1], np.uint32)
    np.testing.assert_allclose(native.normal(WORDS, rows, columns), by_jax(WORDS, rows, columns), atol=1e-4)


@needs_kernel
@pytest.mark.parametrize(("columns", "size"), [(2, 1001), (6, 1001), (56, 20_000)])
def test_kernel_is_twin(columns, size):
    rows = np.random.default_rng(0).integers(0, 2**32, size, dtype=np.uint32)
    found, wanted = native.normal(WORDS, rows, columns), BY_XLA(WORDS, rows, columns)
    assert size < 20_000 or np.max(np.abs(wanted)) > 4.8  # where the inverse error function has another polynomial
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_a_row_has_its_noise_wherever_it_lives():
    rows = np.arange(12, dtype=np.uint32).reshape(3, 4)
    z = native.normal(WORDS, rows, 8)
    assert z.shape == (3, 4, 8)
    assert z.dtype == jnp.float32
    shuffled = native.normal(WORDS, rows.ravel()[::-1], 8)
    np.testing.assert_array_equal(shuffled, np.array(z).reshape(12, 8)[::-1])


@needs_kernel
def test_threads_and_replicas_change_nothing():
    rows, words = np.arange(3000, dtype=np.uint32), jnp.arange(6, dtype=jnp.uint32).reshape(3, 2)
    draw = lambda w: native.normal(w, rows, 16, threads=2)
    each = [native.normal(w, rows, 16) for w in words]
    np.testing.assert_array_equal(jax.jit(jax.vmap(draw))(words), each)
    assert not np.array_equal(each[0], each[1])


def test_draws_are_normal_and_independent():
    z = np.array(native.normal(WORDS, np.arange(10_000, dtype=np.uint32), 16), np.float64)
    within = lambda value, variance: abs(value) < 4 * np.sqrt(variance / z.size)
    assert within(z.mean(), 1)
    assert within(z.var() - 1, 2)
    assert within((z**3).mean(), 15)
    assert within((z**4).mean() - 3, 96)
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    for shifted in (z[:, 1:] * z[:, :-1], z[1:] * z[:-1], z[:, ::2] * z[:, 1::2]):
        assert within(shifted.mean() * np.sqrt(shifted.size / z.size), 1)
    assert len(np.unique(z)) > 0.98 * z.size  # collisions of 2²³ values, not repeated counters


def test_an_odd_number_of_columns_is_refused():
    with pytest.raises(ValueError, match="even: 7"):
        native.normal(WORDS, np.arange(3, dtype=np.uint32), 7)
