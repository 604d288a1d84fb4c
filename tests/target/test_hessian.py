"""Second derivatives over all data against closed forms: in chunks, in blocks, streamed, and without data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import hamcmc
from hamcmc.target import hessian, passes
from tests.mutation import mutant

SIZE, SCALES = 101, np.array([1e5, 1.0, 1e-3])


def logistic(package, rows=None):
    """A logistic regression with an intercept and columns in very different units, and its Hessian at a position."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(SIZE, 3)) * SCALES).astype(np.float32)
    label = rng.random(SIZE) < 0.4
    position = {"a": jnp.float32(0.3), "b": jnp.asarray(np.array([0.5, -1.0, 0.7]) / SCALES, jnp.float32)}

    def log_likelihood(p, d):
        return -jnp.logaddexp(0.0, jnp.where(d["label"], -1.0, 1.0) * (p["a"] + d["x"] @ p["b"]))

    data = {"x": x if rows is None else rows(x), "label": label}
    posterior = package.Posterior(lambda p: -2 * p["a"] ** 2, log_likelihood, data)
    full = np.concatenate([np.ones((SIZE, 1)), x], 1).astype(np.float64)
    at = np.concatenate([[0.3], position["b"]]).astype(np.float32).astype(float)
    share = 1 / (1 + np.exp(-full @ at))
    exact = (full * (share * (1 - share))[:, None]).T @ full
    exact[0, 0] += 4
    return posterior, position, exact


def check(package, monkeypatch):
    monkeypatch.setattr("hamcmc.target.passes.CHUNK", 4 * 17)  # chunks of 17 rows, the last one not full
    monkeypatch.setattr("hamcmc.target.passes.BLOCK", 4 * 17 * 3)  # three basis vectors at once, of four
    posterior, position, exact = logistic(package)
    found = package.target.hessian.hessian(posterior, position)
    assert_allclose(found, exact, rtol=1e-10)
    assert_allclose(package.target.hessian.hessian_diagonal(posterior, position), np.diag(exact), rtol=1e-10)


def test_in_single_precision_with_all_digits(monkeypatch):
    """The session's precision is single; the sums are not."""
    check(hamcmc, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(np.arange(self.chunk) < count)", "(np.arange(self.chunk) <= count)"),
        ("a.likelihood + b.likelihood", "b.likelihood"),
    ],
    ids=["a row that only fills up is counted", "the last chunk alone"],
)
def test_broken_sums_are_noticed(old, new, monkeypatch):
    with mutant("target/passes.py", old, new) as package, pytest.raises(AssertionError, match="Not equal"):
        check(package, monkeypatch)


def test_a_random_part_has_the_weight_of_all():
    """On n of N rows the likelihood counts N/n times, and all N of them in any order are all data."""
    posterior, position, exact = logistic(hamcmc)
    sums = passes.Passes(posterior, position)
    x, order = sums.flat(position), np.random.default_rng(1).permutation(SIZE)
    assert_allclose(-sums.hessian(x, order).total, exact, rtol=1e-10)
    halves = [sums.hessian(x, order[:50]), sums.hessian(x, order[50:])]
    assert_allclose(50 / SIZE * halves[0].likelihood + 51 / SIZE * halves[1].likelihood, sums.hessian(x).likelihood)
    assert sums.spent == pytest.approx(4 * 3)  # a Hessian is four gradients


def test_streamed(tmp_path, monkeypatch):
    def on_disk(x):
        rows = np.memmap(tmp_path / "x", x.dtype, "w+", shape=x.shape)
        rows[:] = x
        return rows

    monkeypatch.setattr("hamcmc.target.passes.CHUNK", 4 * 17)
    posterior, position, exact = logistic(hamcmc, on_disk)
    assert posterior.streamed
    assert_allclose(hessian.hessian(posterior, position), exact, rtol=1e-10)
    rows = passes.Passes(posterior, position)
    assert_allclose(-rows.hessian(rows.flat(position), np.arange(SIZE)[::-1]).total, exact, rtol=1e-10)


def test_without_data():
    root = np.random.default_rng(2).normal(size=(5, 5))
    posterior = hamcmc.Posterior(lambda x: -0.5 * jnp.sum((jnp.asarray(root) @ x) ** 2))
    assert_allclose(
        hessian.hessian(posterior, jnp.ones(5)), root.T @ root, rtol=1e-6
    )  # the root is in single precision


def test_parameters_with_a_support():
    """At log s: U = ½ Σx² exp(−2u) + N u − u, as the Jacobian is part of the density."""
    x = np.array([0.5, -1.0, 2.0], np.float32)
    posterior = hamcmc.Posterior(
        lambda s: 0.0 * s, lambda s, x: -jnp.log(s) - 0.5 * (x / s) ** 2, x, support=hamcmc.positive()
    )
    assert_allclose(hessian.hessian(posterior, jnp.float32(0.5)), [[2 * np.sum(x**2) * np.exp(-1)]], rtol=1e-10)


def test_probes_find_the_diagonal_in_any_units():
    """The error is that of random signs in units of the diagonal: (Σ_j≠i ρ_ij² / K)^½ for correlations ρ."""
    rng = np.random.default_rng(3)
    factor, units = rng.normal(size=(40, 10)), np.logspace(-4, 4, 40)
    matrix = (factor @ factor.T / 10 + np.eye(40)) * np.outer(units, units)
    posterior = hamcmc.Posterior(lambda x: -0.5 * x @ jnp.asarray(matrix) @ x)
    found = hessian.hessian_diagonal(posterior, jnp.ones(40), probes=512, seed=1)
    correlation = matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))
    error = np.sqrt((np.sum(correlation**2, 1) - 1) / 512)
    assert (np.abs(found / np.diag(matrix) - 1) < 5 * error).all()
    assert np.abs(found / np.diag(matrix) - 1).max() > error.min()  # it is an estimate


def test_a_model_that_insists_on_single_precision():
    """Its chunks are still added up in double precision."""

    def log_likelihood(theta, x):
        carry = (jnp.zeros((), jnp.float32), theta)  # the loop below accepts no other type
        return -0.5 * jax.lax.fori_loop(0, 2, lambda _, c: (c[0] + (x - c[1]) ** 2, c[1]), carry)[0]

    posterior = hamcmc.Posterior(lambda theta: -0.5 * theta**2, log_likelihood, np.ones(1000, np.float32))
    sums = passes.Passes(posterior, jnp.float32(0.5))
    assert not sums.double
    assert_allclose(-sums.hessian(np.array([0.5])).total, [[2001.0]], rtol=1e-6)


def test_a_function_with_a_reverse_rule_of_its_own():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    posterior = hamcmc.Posterior(lambda x: -jnp.sum(square(x) * x))
    assert_allclose(hessian.hessian(posterior, jnp.array([1.0, 2.0])), np.diag([6.0, 12.0]), rtol=1e-6)


@pytest.mark.parametrize(("apart", "rough"), [(1.0, True), (1e-4, False)], ids=["apart", "nearly equal"])
def test_products_in_single_precision_only_where_they_suffice(apart, rough, monkeypatch):
    """Two columns that are nearly equal need double precision; the error is that of the worst curvature."""
    monkeypatch.setattr("hamcmc.target.passes.CHUNK", 3 * 64)
    rng = np.random.default_rng(4)
    x = rng.normal(size=(64 * passes.MANY - 10, 3)) * SCALES
    x[:, 1] = x[:, 0] / SCALES[0] + apart * x[:, 1]
    x = x.astype(np.float32)
    posterior = hamcmc.Posterior(lambda t: -5e-9 * t @ t, lambda t, row: -jnp.logaddexp(0.0, row @ t), x)
    sums = passes.Passes(posterior, jnp.zeros(3, jnp.float32))
    at = sums.rounded(np.array([0.5, -1.0, 0.7]) / SCALES)
    share = 1 / (1 + np.exp(-x.astype(float) @ at))
    exact = (x.astype(float) * (share * (1 - share))[:, None]).T @ x.astype(float) + 1e-8 * np.eye(3)
    root = np.linalg.inv(np.linalg.cholesky(exact))

    def error(program):
        found = program._total(program._second, at, None, ())[0]
        return np.linalg.norm(root @ (exact + found.total) @ root.T, 2)

    assert error(sums) < 1e-6
    assert (error(sums._rough) < passes.ROUGH) == rough
    assert sums._roughly(at, None) == rough
    chosen = np.linalg.norm(root @ (exact + sums.hessian(at).total) @ root.T, 2)
    assert chosen == pytest.approx(error(sums._rough if rough else sums), rel=0.1)
    assert not sums._roughly(at, np.arange(64 * 10))  # a few chunks are not worth another program
    assert not sums._roughly(at * (1 + 1e-12), None)  # which single precision has no number for
