"""What an ensemble's metric learns from contrasts of positions and of gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.samplers.ensemble.metric import DENSE, Dense, Metric, Spread, dimension
from tests.mutation import mutant

SCALES = np.array([0.1, 1.0, 30.0], np.float32)


def contrasts(seed: int, many: int, scales: np.ndarray) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(many, len(scales))) * scales, jnp.float32)


def check_diagonal(package):
    """Of independent coordinates: standard deviation of x over that of the gradient, which is 1/σ, so the variance."""
    metric = package.samplers.ensemble.metric.Metric("diagonal", 40)
    spread, near = metric.start({"x": contrasts(0, 4, SCALES)}), jnp.eye(10)
    for i in range(40):
        s, y = contrasts(2 * i, 10, SCALES), contrasts(2 * i + 1, 10, 1 / SCALES)
        spread = metric.learn(near, {"x": s}, {"x": y}, spread)
    root = metric.root({"x": s}, {"x": y}, spread)["x"]
    assert np.abs(np.log(root**2 / SCALES**2)).max() < 0.3, "off"  # two mean squares of 400 numbers: 5 % each


def test_a_diagonal_metric_is_the_variance():
    check_diagonal(hamcmc)


def check_dense(package):
    """Of correlated coordinates: the covariance, between that of x and the inverse of that of the gradient."""
    metric, adapt = package.samplers.ensemble.metric.Metric("dense", 40), 40
    factor = jnp.asarray(
        np.diag(SCALES) @ np.linalg.cholesky([[1, 0.9, 0.3], [0.9, 1, 0.5], [0.3, 0.5, 1]]), jnp.float32
    )
    spread, near = metric.start(contrasts(0, 4, SCALES)), jnp.eye(10)
    for i in range(adapt):
        s = contrasts(2 * i, 10, np.ones(3)) @ factor.T
        y = jnp.linalg.solve(factor.T, contrasts(2 * i + 1, 10, np.ones(3)).T).T
        spread = metric.learn(near, s, y, spread)
    white = np.linalg.solve(factor, metric.root(s, y, spread).root)
    assert np.abs(np.log(np.linalg.eigvalsh(white @ white.T))).max() < 0.4, "off"
    assert metric.whitens(spread), "off"


def test_a_dense_metric_is_the_covariance():
    check_dense(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_diagonal, "jnp.mean(x * x, 0)", "jnp.mean(x, 0)"),
        (check_dense, "_dot(_dot(y_root, x), y_root)", "_dot(y_root, x)"),
        (check_dense, "_power(y, -0.5)\n    g", "_power(y, 0.5)\n    g"),
    ],
)
def test_a_broken_metric_is_noticed(check, old, new):
    with mutant("samplers/ensemble/metric.py", old, new) as package, pytest.raises(AssertionError, match="off"):
        check(package)


def test_the_resting_half_alone_makes_a_metric():
    """With ``metric="resting"`` nothing is learned: the mean squares of this step are the metric."""
    metric = Metric("resting", 1)
    s, y = contrasts(0, 1000, SCALES), contrasts(1, 1000, 1 / SCALES)
    assert metric.start(s) is None
    assert np.abs(np.log(metric.root(s, y, None) ** 2 / SCALES**2)).max() < 0.3


@pytest.mark.parametrize(("size", "kind"), [(DENSE, Dense), (DENSE + 1, type(None))])
def test_auto_is_dense_where_products_are_cheap(size, kind):
    spread = Metric("auto", 10).start({"x": jnp.zeros((4, size - 1)), "y": jnp.zeros((4, 1))})
    assert isinstance(spread, Spread)
    assert isinstance(spread.root, kind)


def test_dimension_counts_one_replica():
    assert dimension({"x": jnp.zeros((4, 2, 3)), "y": jnp.zeros(4)}) == 7
