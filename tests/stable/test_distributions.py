"""Samplers against transforms known exactly, densities against quadrature."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.stable import distributions
from tests.mutation import mutant

N = 200_000


def z_of(values, exact):
    return float((np.mean(values) - exact) / (np.std(values) / np.sqrt(len(values))))


def laplace_z(module, a, seed=0):
    """Worst z-score of E exp(−sX) over s."""
    x = np.asarray(module.positive_stable(jax.random.key(seed), a, (N,)), float)
    return max(abs(z_of(np.exp(-s * x), np.exp(-(s**a)))) for s in (0.05, 0.3, 1.0, 3.0, 20.0))


@pytest.mark.parametrize("a", [0.3, 0.6, 0.945])
def test_positive_stable_has_its_laplace_transform(a):
    assert laplace_z(distributions, a) < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("log_sin(rest) / a", "log_sin(rest)"),
        ("(log_sin((1 - a) * angle) - log_e)", "(log_sin((1 - a) * angle) + log_e)"),
        ("(1 - a) / a * (", "(1 - a) * ("),
    ],
)
def test_power(old, new):
    with mutant("stable/distributions.py", old, new):
        assert laplace_z(importlib.import_module("hamcmc.stable.distributions"), 0.6) > 10


def test_log_sin_has_all_digits_of_its_type():
    """Beside 0 and π, too, where impulses are large."""
    x = np.concatenate([np.geomspace(1e-37, np.pi / 2, 4000), np.pi - np.geomspace(1e-5, np.pi / 2, 4000)])
    for kind, error in ((np.float32, 3e-7), (np.float64, 1e-15)):
        with jax.enable_x64(kind is np.float64):
            found = np.asarray(distributions.log_sin(jnp.asarray(x, kind)), float)
            exact = np.log(np.sin(np.asarray(x, kind).astype(np.longdouble))).astype(float)
            # A sine that is right to its last digit has this error in its logarithm, which is rounded, too.
            assert (np.abs(found - exact) <= error * (1 + np.abs(exact))).all()
            assert np.isfinite(distributions.log_sin(jnp.array([0.0, np.pi], kind))).all()


@pytest.mark.parametrize("alpha", [0.8, 1.2, 1.89])
def test_complex_stable_has_its_characteristic_function(alpha):
    scale = 0.7
    x = np.asarray(distributions.complex_stable(jax.random.key(1), alpha, scale, (N,)), complex)
    for w in (0.2, 1.0, 1j, 2.5 * np.exp(0.7j)):
        values = np.cos(np.real(np.conj(w) * x))
        assert abs(z_of(values, np.exp(-((scale * abs(w)) ** alpha)))) < 4


def test_draws_are_finite_in_float32_where_they_can_be():
    logs = distributions.log_positive_stable(jax.random.key(2), 0.1, (N,), jnp.float32)
    assert np.isfinite(logs).all()
    assert np.asarray(logs).max() > 88  # beyond the largest float32


@pytest.mark.slow
def test_no_draw_is_far_beyond_the_tail():
    """P(log X > x) is about e^(−ax): of so many draws none is beyond 30, and log E has no −∞."""
    for seed in range(4):
        logs = distributions.log_positive_stable(jax.random.key(seed), 0.75, (2**23,), jnp.float32)
        assert np.isfinite(logs).all()
        assert np.asarray(logs).max() < 30


@pytest.mark.parametrize("alpha", [0.8, 1.2, 1.89])
def test_the_index_is_estimated(alpha):
    """The variance of log|X| has a standard error of √((kurtosis − 1)/N) of itself, the index half of that."""
    x = distributions.complex_stable(jax.random.key(3), alpha, 5.0, (N,))
    logs = np.log(np.abs(np.asarray(x)))
    kurtosis = np.mean((logs - logs.mean()) ** 4) / logs.var() ** 2
    assert abs(float(distributions.stable_index(x)) / alpha - 1) < 4 * 0.5 * np.sqrt((kurtosis - 1) / N)


@pytest.mark.parametrize(("a", "b", "c"), [(0.6, 1.3, -2 / 1.2), (20.0, 1.0, -2 / 1.89), (2.0, 0.5, 1.0)])
class TestGeneralizedGamma:
    def distribution(self, a, b, c):
        """log x on a fine grid, and the integral of the density up to each of its points."""
        t = np.linspace(-12, 25, 40_001)
        log_density = distributions.generalized_gamma_log_density(jnp.exp(jnp.asarray(t, jnp.float32)), a, b, c)
        density = np.exp(np.asarray(log_density, float) + t)
        return t, np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(t))])

    def test_the_density_integrates_to_one(self, a, b, c):
        assert self.distribution(a, b, c)[1][-1] == pytest.approx(1, abs=2e-3)

    def test_draws_follow_the_density(self, a, b, c):
        x = np.asarray(distributions.generalized_gamma(jax.random.key(4), a, b, c, (N,)), float)
        t, below = self.distribution(a, b, c)
        for q in np.exp(np.interp([0.1, 0.5, 0.9], below, t)):
            assert abs(z_of(x < q, np.interp(np.log(q), t, below))) < 4

    def test_the_gradient(self, a, b, c):
        x = 0.8
        slope = jax.grad(lambda x: distributions.generalized_gamma_log_density(x, a, b, c))(x)
        assert float(slope) == pytest.approx((c * a - 1) / x - c / x * (x / b) ** c, rel=1e-4)
