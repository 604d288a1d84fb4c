"""The proposals of the independence sampler have the density that its test takes them to have."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid

import hamcmc
from hamcmc.samplers import independence as module
from tests.mutation import mutant

DRAWS = 40_000


def check_density(module, dimension, heavy):
    """Radii of draws against the integral of the density over spheres, by Kolmogorov's distance at 1e-4."""
    r = np.concatenate([np.linspace(0, 40, 20_001)[1:], np.geomspace(40.01, 1e5, 4000)])
    along = jnp.asarray(r[:, None] * np.eye(1, dimension), jnp.float32)
    log = np.asarray(module.log_proposal(along, heavy), float) - dimension / 2 * math.log(2 * math.pi)
    sphere = math.log(2) + dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2)
    cumulative = cumulative_trapezoid(np.exp(log + sphere + (dimension - 1) * np.log(r)), r, initial=0)
    assert cumulative[-1] == pytest.approx(1, abs=2e-3), "the density is off"
    drawn, uniform = module.proposals(jax.random.key(3), jnp.zeros((DRAWS, dimension)), heavy)
    radii = np.sort(np.linalg.norm(np.asarray(drawn, float), axis=1))
    steps = np.arange(DRAWS) / DRAWS
    distance = np.abs(np.interp(radii, r, cumulative) - steps).max()
    assert distance < 2.23 / math.sqrt(DRAWS), "the law of the draws is off"
    assert np.abs(np.asarray(drawn).mean(0)).max() < 0.1  # all directions are alike
    assert np.abs(np.sort(uniform) - steps).max() < 2.23 / math.sqrt(DRAWS)


@pytest.mark.parametrize("heavy", [0.1, 0.7])
@pytest.mark.parametrize("dimension", [2, 9])
def test_proposals_have_their_density(dimension, heavy):
    check_density(module, dimension, heavy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- dimension / 2 * math.log(FREEDOM / 2)", ""),
        ("chi_squared = -2 *", "chi_squared = -1 *"),
        ("rest[:, 1] < heavy", "rest[:, 1] < 0.8 * heavy"),
        ("(FREEDOM + dimension) / 2 * jnp.log1p", "dimension / 2 * jnp.log1p"),
    ],
)
def test_a_wrong_density_is_noticed(old, new):
    with mutant("samplers/independence.py", old, new), pytest.raises(AssertionError, match="off"):
        import hamcmc.samplers.independence as broken

        check_density(broken, 2, 0.7)


def test_weights_are_bounded_where_a_replica_could_get_stuck():
    """Far out in the tail of a normal target π/q is small, and it never exceeds 1/(1 − a)."""
    x = jnp.asarray(np.linspace(0, 30, 301)[:, None] * np.ones((1, 5)) / math.sqrt(5), jnp.float32)
    log_weight = -0.5 * jnp.sum(x**2, 1) - module.log_proposal(x, 0.1)
    assert float(jnp.max(log_weight)) <= -math.log(0.9) + 1e-6


def test_bad_arguments_are_named():
    target = hamcmc.Posterior(lambda x: -jnp.sum(x**2))
    with pytest.raises(ValueError, match="heavy"):
        hamcmc.independence(target, heavy=1.0)
    with pytest.raises(ValueError, match="replicas"):
        hamcmc.independence(target, replicas=1)
    with pytest.raises(ValueError, match="an ensemble of 16 replicas"):
        hamcmc.independence(target).init(jnp.zeros((3, 2)))
