"""Exact draws in places where gradients say less than usual: at a boundary, on some rows, in a single ensemble."""

from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.diagnostics import check, combinations, gradients
from hamcmc.diagnostics.confronted import chains_of
from hamcmc.diagnostics.fields import Draws
from tests.mutation import mutant
from tests.report.results import make_result

RNG = np.random.default_rng
STANDARD = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2))


@pytest.fixture
def judge(monkeypatch):
    """The verdict on draws (chain, draw, D) of a density whose gradient NumPy computes."""

    def verdict(x, grad, **more):
        monkeypatch.setattr(gradients, "at", lambda _, x, *__: grad(np.asarray(x, np.float64)))
        monkeypatch.setattr(gradients, "log_densities", lambda _, x: np.zeros(len(x)))
        return check(make_result({"theta": x}, **more), STANDARD)

    return verdict


def ending(x):
    """Exponential first parameters that end at 0, then two standard normal ones."""
    inside = jnp.all(x[:-2] > 0)
    return jnp.where(inside, -jnp.sum(jnp.where(x[:-2] > 0, x[:-2], 0.0)), -jnp.inf) - 0.5 * jnp.sum(x[-2:] ** 2)


@pytest.mark.parametrize("count", [1, 20])
def test_a_hard_boundary_does_not_spoil_other_parameters(count):
    """Also if there are more boundaries than are looked for at a time."""
    posterior = hamcmc.Posterior(ending)
    for seed in range(4):
        rng = RNG(seed)
        x = np.concatenate([rng.exponential(size=(16, 600, count)), rng.standard_normal((16, 600, 2))], 2)
        v = check(make_result({"theta": x}, replicas=8), posterior)
        assert v.word in ("good", "usable")
        assert v.bias == 0.0
        assert any("hard boundary" in r for r in v.reasons)
    x[..., -1] *= 1.3
    v = check(make_result({"theta": x}, replicas=8), posterior)
    assert v.word == "wrong"
    assert f"the standard deviation of theta[{count + 1}]" in v.reason
    assert v.bias == pytest.approx(0.3, abs=0.1)


def regression(tmp_path, d=40, n=50_000):
    """A linear regression whose rows stay on disk, and exact draws of its posterior."""
    rng = RNG(0)
    a = rng.standard_normal((n, d)).astype(np.float32)
    y = (a @ rng.standard_normal(d) + rng.standard_normal(n)).astype(np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "y.npy", y)
    precision = a.astype(float).T @ a + np.eye(d)
    mean = np.linalg.solve(precision, a.T.astype(float) @ y)
    x = mean + rng.standard_normal((16, 160, d)) @ np.linalg.cholesky(np.linalg.inv(precision)).T
    data = {k: np.load(tmp_path / f"{k}.npy", mmap_mode="r") for k in ("a", "y")}
    return x, hamcmc.Posterior(
        lambda t: -0.5 * jnp.sum(t**2), lambda t, row: -0.5 * (row["y"] - row["a"] @ t) ** 2, data
    )


def check_pools(monkeypatch, tmp_path):
    """Both halves of the draws see few rows of the data, and what these have too much of."""
    x, posterior = regression(tmp_path)
    monkeypatch.setattr(import_module("hamcmc.diagnostics.gradients"), "POOL", 1000 * 41 * 4)
    v = import_module("hamcmc.diagnostics").check(make_result({"theta": x}, replicas=8), posterior)
    assert v.word in ("good", "usable")


def test_rows_in_memory_are_not_the_same_for_both_halves(monkeypatch, tmp_path):
    check_pools(monkeypatch, tmp_path)


@pytest.mark.slow
def test_one_pool_for_both_halves_is_noticed(monkeypatch, tmp_path):
    both = mutant(
        "diagnostics/gradients.py", "in_memory(posterior, seed + int(k), POOL)", "in_memory(posterior, 0, POOL)"
    )
    with both, pytest.raises(AssertionError):
        check_pools(monkeypatch, tmp_path)


@pytest.mark.parametrize("ensembles", [1, 2])
def test_replicas_that_move_together_are_in_one_half(judge, ensembles):
    """A tenth of each variance is common to an ensemble, and moves slowly: directions look wrong by chance alone."""
    words = []
    for seed in range(6):
        rng = RNG(seed)
        common = np.empty((ensembles, 160, 20))
        common[:, 0] = rng.standard_normal((ensembles, 20))
        for t in range(1, 160):
            common[:, t] = 0.8 * common[:, t - 1] + 0.6 * rng.standard_normal((ensembles, 20))
        own = rng.standard_normal((16, 160, 20))
        x = np.sqrt(0.9) * own + np.sqrt(0.1) * np.repeat(common, 16 // ensembles, 0)
        words.append(judge(x, lambda x: -x, replicas=16 // ensembles, coupled=True).word)
    assert "wrong" not in words


def test_halves_and_chains():
    """Ensembles stay whole, in halves and where some chains are left out."""
    draws = Draws(np.zeros((16, 10, 2)), np.full((16, 10), 1 / 160), 16)
    half = combinations.half_of(draws)
    assert half.sum() == 80
    assert (half == half[0]).all()
    half = combinations.half_of(draws._replace(replicas=8))
    assert (half == (np.arange(16) // 8)[:, None]).all()
    rows, replicas = chains_of(64, 16, 33)
    assert (rows.tolist(), replicas) == ([*range(16, 32), *range(48, 64)], 16)
    rows, replicas = chains_of(64, 64, 4)
    assert (len(rows), replicas) == (4, 4)
    assert chains_of(3, 1, 400)[0].tolist() == [0, 1, 2]


def test_no_directions_of_too_many_parameters(monkeypatch):
    """Their covariance would not fit into memory."""
    x = np.zeros((8, 50, 40_000))
    draws = Draws(x, np.full((8, 50), 1 / 400), 1)
    assert combinations.combinations(draws, x, draws) == []


def test_a_shift_along_a_direction_has_its_size(judge):
    """Two modes in each of several parameters, which are then mixed: the information is not that of a normal law."""
    root = np.linalg.qr(RNG(0).standard_normal((6, 6)))[0]

    def slope(z):
        """Of ½ N(−2, 1) + ½ N(2, 1)."""
        return -z + 2 * np.tanh(2 * z)

    z = RNG(1).standard_normal((16, 400, 6)) + 2 * RNG(2).choice([-1, 1], (16, 400, 6))
    sd = np.sqrt(5.0)
    z[..., 2] += 0.3 * sd
    judge(z @ root.T, lambda x: slope(x @ root) @ root.T, replicas=8)
    draws = Draws(z @ root.T, np.full((16, 400), 1 / 6400), 8)
    found = combinations.combinations(draws, slope(z) @ root.T, draws)
    most = max(float(np.abs(c.statistic.error[0])) for c in found if c.what == "mean")
    assert most == pytest.approx(0.3, abs=0.15)


def test_errors_at_a_boundary_ask_for_no_smaller_steps():
    """Also if no parameter is left that gradients could tell of."""
    half_normal = hamcmc.Posterior(lambda x: jnp.where(jnp.all(x > 0), -0.5 * jnp.sum(x**2), -jnp.inf))
    v = check(make_result({"theta": np.abs(RNG(0).standard_normal((16, 160, 2)))}, replicas=8), half_normal)
    assert v.word in ("good", "usable")
    assert v.bias == 0.0
