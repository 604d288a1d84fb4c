"""The measured noise of gradient estimators against closed forms, and against what it does to a chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_allclose

import hamcmc
from hamcmc.target import linear_gaussian as lg
from tests.mutation import mutant
from tests.samplers.targets import Z
from tests.target.test_importance import rare


def linear(package, size=400):
    data = lg.simulate(np.random.default_rng(3), size, np.array([[1.0, 0], [0.9, 0.3]]), 1.0)
    posterior = package.Posterior(
        lambda theta: -0.5 * jnp.sum(theta**2), lambda theta, d: -0.5 * (d.x - d.a @ theta) ** 2, data
    )
    return posterior, package.laplace(posterior, jnp.zeros(2))


def check_covariance(package):
    """Of the plain gradient and of the first order, at the very draws; the second order has none for a normal law."""
    posterior, found = linear(package)
    a, x = (np.asarray(v, float) for v in posterior.data)
    draws = np.asarray(found.draw(5, seed=2), float)
    for view, at in ((posterior, draws), (package.control_variate(posterior, found), draws - found.flat)):
        noise = package.gradient_noise(view, found, draws=5, seed=2)
        each = [(x * (view is posterior) - a @ theta)[:, None] * a @ found.root * 400 for theta in at]
        exact = np.mean([np.cov(g.T, bias=True) for g in each], 0)
        assert_allclose(noise.covariance, exact, rtol=1e-3, atol=1e-4 * exact.max())
        assert noise.trace == pytest.approx(np.trace(exact), rel=1e-3)
        assert noise.largest == pytest.approx(np.linalg.eigvalsh(exact)[-1], rel=1e-3)
        assert noise.bend == pytest.approx(0, abs=1e-3)
    second = package.gradient_noise(package.control_variate(posterior, found, order=2), found)
    assert second.largest < 1e-6


def test_closed_form():
    check_covariance(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("flat = (size or posterior.size) * jax", "flat = jax"),
        ("second -= (mean.T @ mean if", "second += (mean.T @ mean if"),
        ("weighted = scatter * chance[:, None]", "weighted = scatter * chance[:, None] * 1.1"),
    ],
)
def test_broken_sums_are_noticed(old, new):
    with mutant("target/noise.py", old, new) as package, pytest.raises(AssertionError):
        check_covariance(package)


@pytest.mark.slow
def test_rows_by_importance_are_weighed():
    """All rows with their probabilities, and a large sample of drawn rows, tell of the same noise."""
    posterior, found = rare(hamcmc)
    view = hamcmc.control_variate(posterior, found, order=2, importance=True)
    exact = hamcmc.gradient_noise(view, found, draws=8)
    assert exact.rows == 3000
    sampled = hamcmc.gradient_noise(view, found, draws=8, rows=2500)
    assert sampled.rows == 2500
    assert sampled.trace == pytest.approx(exact.trace, rel=0.15)


def test_chunks_and_streams(tmp_path, monkeypatch):
    def on_disk(x):
        rows = np.memmap(tmp_path / "x", x.dtype, "w+", shape=x.shape)
        rows[:] = x
        return rows

    whole = hamcmc.gradient_noise(*rare(hamcmc), draws=2)
    monkeypatch.setattr("hamcmc.target.noise.CHUNK", 7 * 701)  # five chunks, the last one not full
    for where in (None, on_disk):
        cut = hamcmc.gradient_noise(*rare(hamcmc, on_disk=where), draws=2)
        assert_allclose(cut.covariance, whole.covariance, rtol=1e-3, atol=1e-4 * whole.largest)


@pytest.mark.parametrize(("step_size", "n"), [(0.5, 5), (1.0, 16)])
def test_the_inflation_of_a_chain(step_size, n):
    """Langevin steps that are exact but for their minibatches, against v = 1 + ε/(2−ε) C/n."""
    posterior, found = linear(hamcmc)
    view, chains = hamcmc.control_variate(posterior, found), 8000
    noise = hamcmc.gradient_noise(view, found, draws=400, seed=1)
    root, centre = (jnp.asarray(v, jnp.float32) for v in (found.root, found.flat))

    def step(t, carry):
        z, key = carry
        key, k_rows, k_noise = jax.random.split(key, 3)
        rows = view.minibatch_indices(k_rows, t, n * chains, True).reshape(chains, n)
        grad = jax.vmap(view.grad)(centre + z @ root.T, jax.tree.map(lambda x: x[rows], view.data))
        fresh = jax.random.normal(k_noise, z.shape)
        return z + step_size * grad @ root + jnp.sqrt(step_size * (2 - step_size)) * fresh, key

    start = jax.random.normal(jax.random.key(0), (chains, 2))
    z, _ = jax.jit(lambda *carry: lax.fori_loop(0, 12, step, carry))(start, jax.random.key(1))
    second = np.mean(np.asarray(z, float) ** 2, 0)
    predicted = step_size / (2 - step_size) * np.diag(noise.covariance) / n
    assert (predicted > 0.15).all()  # enough to be seen
    exact = 1 / (1 - predicted)  # here noise is proportional to the variance that it inflates: v = 1 + s v
    error = Z * np.sqrt(3 / chains) * exact.max() + Z * np.sqrt(2 / 400) * predicted.max() / 2
    assert_allclose(second, exact, atol=error)
    assert (second - 1 > error / 2).all()
    assert noise.inflation(step_size, n) >= predicted.max()
    assert noise.inflation(step_size, noise.batch_size(step_size, 0.02)) <= 0.02
    assert noise.inflation(step_size, noise.batch_size(step_size, 0.02) - 1) > 0.02


def test_how_far_from_normal():
    """A funnel's mode says nothing of its mass; without data there is no noise."""
    funnel = hamcmc.Posterior(
        lambda p: -(p["v"] ** 2) / 18 - 4.5 * p["v"] - 0.5 * jnp.sum(p["x"] ** 2) * jnp.exp(-p["v"])
    )
    found = hamcmc.laplace(funnel, {"v": 0.0, "x": np.ones(9)})
    noise = hamcmc.gradient_noise(funnel, found)
    assert noise.bend > 1
    assert (noise.largest, noise.rows) == (0, 0)
    normal = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2 * jnp.array([1.0, 100.0])))
    assert hamcmc.gradient_noise(normal, hamcmc.laplace(normal, jnp.ones(2))).bend < 1e-3
    assert hamcmc.gradient_noise(normal, hamcmc.laplace(normal, jnp.ones(2), dense=0)).bend < 1e-3


def test_a_diagonal_metric():
    posterior, _ = linear(hamcmc)
    found = hamcmc.laplace(posterior, jnp.zeros(2), dense=0)
    noise = hamcmc.gradient_noise(posterior, found, draws=3)
    assert noise.covariance.shape == (2,)
    full = found._replace(
        precision=np.diag(found.precision), root=np.diag(found.root), inverse_root=np.diag(1 / found.root)
    )
    assert_allclose(noise.covariance, np.diag(hamcmc.gradient_noise(posterior, full, draws=3).covariance), rtol=1e-4)


def test_one_bent_coordinate_among_many_is_seen():
    """U = Σ u_j²/2 but for one coordinate with a cubic part: the mean over all hides it, the largest does not."""
    many = hamcmc.Posterior(
        lambda t: -0.5 * jnp.sum(t["many"] ** 2) - 0.5 * t["one"] ** 2 - 0.1 * jnp.tanh(t["one"]) ** 3,
        init={"many": jnp.zeros(99), "one": jnp.zeros(())},
    )
    noise = hamcmc.gradient_noise(many, hamcmc.laplace(many), draws=64)
    rows = np.asarray(hamcmc.laplace(many).draw(64, 0)["one"], float)
    exact = np.sqrt(np.mean((0.3 * np.tanh(rows) ** 2 / np.cosh(rows) ** 2) ** 2))
    assert noise.most_bent == pytest.approx(exact, rel=1e-2)
    assert noise.bend == pytest.approx(exact / 10, rel=1e-2)
