"""The table of two stable sources against closed forms, derivatives and simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.speech.pair import impulse_nodes, pair
from hamcmc.stable import distributions
from tests.mutation import mutant

SPEECH, NOISE, POWER = (
    np.array(x, np.float32) for x in ([0.0, 2.0, -3.0, 1.3], [0.5, -1.0, 0.0, 1.3], [1.0, 4.0, -2.0, 0.0])
)


@pytest.mark.parametrize("alpha", [0.8, 1.2, 1.89])
def test_impulses_have_the_laplace_transform(alpha):
    phi, mass = impulse_nodes(alpha)
    s = np.array([0.01, 0.1, 1.0, 5.0])
    transform = (np.exp(-s[:, None] * phi / 2) * mass).sum(1)
    np.testing.assert_allclose(transform, np.exp(-(s ** (alpha / 2))), atol=2e-3)


@pytest.mark.parametrize("alpha", [0.0, 2.1, -1.0])
def test_impulses_need_an_index(alpha):
    with pytest.raises(ValueError, match="alpha must be in"):
        impulse_nodes(alpha)


def normal_pair_errors(table):
    """Distance from the closed forms where both indices are 2."""
    v_s, v_n, x2 = (np.exp(np.asarray(a, float)) for a in (SPEECH, NOISE, POWER))
    variance, share = 2 * (v_s + v_n), v_s / (v_s + v_n)
    density = -np.log(2 * np.pi * variance) - x2 / (2 * variance)
    energy = share**2 * x2 + 4 * v_s * (1 - share)
    found_share, found_energy = table.share_and_power(SPEECH, NOISE, POWER)
    return {
        "density": np.abs(table.log_density(SPEECH, NOISE, POWER) - density).max(),
        "share": np.abs(found_share - share).max(),
        "energy": np.abs(np.log(np.asarray(found_energy) / energy)).max(),
    }


def test_two_normal_sources():
    errors = normal_pair_errors(pair(2.0, 2.0))
    assert errors["density"] < 0.02  # linear interpolation
    assert errors["share"] < 0.01
    assert errors["energy"] < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "noticed"),
    [
        ("mean(share**2) * jnp.exp(power) + 2 *", "mean(share**2) * jnp.exp(power) +", "energy"),
        ("half = jnp.exp(power) / (2 * variance)", "half = jnp.exp(power) / variance", "density"),
        ("share = speech / variance", "share = 1 - speech / variance", "share"),
    ],
)
def test_broken_tables_are_noticed(old, new, noticed):
    with mutant("speech/pair.py", old, new):
        from hamcmc.speech.pair import pair as broken

        assert normal_pair_errors(broken(2.0, 2.0))[noticed] > 0.05


def test_one_cauchy_source():
    """α = 1 without noise is the bivariate Cauchy law."""
    x2 = np.array([0.01, 1.0, 10.0, 50.0])
    found = pair(1.0, 2.0).log_density(jnp.full(4, 10.0), jnp.full(4, -6.0), 10 + jnp.log(x2))
    np.testing.assert_allclose(found + 10, np.log(1 / (2 * np.pi * (1 + x2) ** 1.5)), atol=0.02)


def test_slopes_are_those_of_the_density():
    table = pair(1.0, 2.0)
    total = lambda *a: table.log_density(*a).sum()
    h = 0.5  # wider than a cell, as between two knots the interpolation is straight
    for k, slope in enumerate(jax.grad(total, (0, 1))(SPEECH, NOISE, POWER)):
        moved = lambda by, k=k: [a + by * (i == k) for i, a in enumerate((SPEECH, NOISE, POWER))]
        difference = (table.log_density(*moved(h)) - table.log_density(*moved(-h))) / (2 * h)
        np.testing.assert_allclose(slope, difference, atol=0.03)


def test_share_against_simulation():
    """Weights of many simulated impulses give the same posterior mean."""
    n = 200_000
    phi = distributions.impulse(jax.random.key(1), 1.0, (n,))
    v_s, v_n, x2 = (np.exp(np.asarray(a, float)) for a in (SPEECH, NOISE, POWER))
    speech = np.asarray(phi, float)[:, None] * v_s
    variance = speech + 2 * v_n
    weight = np.exp(-x2 / (2 * variance)) / variance
    weight /= weight.sum(0)
    share = speech / variance
    expected = (weight * share).sum(0)
    error = np.sqrt((weight**2 * (share - expected) ** 2).sum(0))
    found = np.asarray(pair(1.0, 2.0).share(SPEECH, NOISE, POWER))
    assert np.all(np.abs(found - expected) < 4 * error + 0.01)
