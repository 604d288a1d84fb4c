"""Products, diagonals and inverses of small matrices, also of those that need their rows swapped."""

import jax
import numpy as np
import pytest

from hamcmc.samplers import small
from tests.mutation import mutant

EPS = np.finfo(np.float32).eps


def check(module):
    """The error is that of elimination with pivots: a few units of rounding times the condition number."""
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((20, 10, 10))
    matrices[0] = np.eye(10)[rng.permutation(10)]  # every pivot has to be looked for
    matrices[1] = np.kron(np.eye(5), [[1e-5, 1], [-1, 1e-5]])  # almost only its antisymmetric part
    found = jax.jit(jax.vmap(module.inverse))(matrices.astype(np.float32))
    for a, inverse in zip(matrices, np.asarray(found, float)):
        error = np.linalg.norm(inverse @ a - np.eye(10))
        assert error < 20 * 10 * EPS * np.linalg.cond(a)


def test_products_and_diagonals_are_numpys():
    rng = np.random.default_rng(1)
    both = jax.jit(lambda pairs, a: ([small.times(x, y) for x, y in pairs], small.diagonal(a)))
    for n in (2, 5, 9):  # the last is beyond what is written as a sum
        a, b, v, w = (rng.standard_normal(shape) for shape in ((n, n), (n, n), n, n))
        pairs = ((a, b), (a, v), (v, b), (v, w))
        products, diagonal = both(pairs, a)
        for product, (x, y) in zip(products, pairs, strict=True):
            np.testing.assert_allclose(product, x @ y, atol=n * n * EPS)
        np.testing.assert_allclose(diagonal, np.diag(a), rtol=EPS)


def test_the_inverse_of_any_matrix():
    check(small)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("jnp.argmax(jnp.where(place >= k, jnp.abs(column), -1))", "k"),  # no pivots
        ("place >= k", "place >= 0"),  # a row serves twice
        ("jnp.where(chosen, corner, column)", "column"),  # half of the swap
    ],
)
def test_broken_elimination_is_noticed(old, new):
    with mutant("samplers/small.py", old, new) as package, pytest.raises(AssertionError):
        check(package.samplers.small)
