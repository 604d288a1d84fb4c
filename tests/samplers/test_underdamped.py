"""The underdamped ensemble where its momentum could be heated: shared minibatches, and few pairs on a long ridge."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from tests.mutation import mutant

ENSEMBLES = 24
CURVATURE = np.array([1.0, 400.0], np.float32)
UNDERDAMPED, RESTING = "samplers/ensemble/underdamped.py", "samplers/ensemble/resting.py"


@functools.cache  # runs that differ in numbers alone share a program
def runner(package, pairs):
    """The compiled run of many ensembles."""
    scale = jnp.asarray(np.sqrt(CURVATURE))
    sampler = package.ensemble_underdamped(lambda x, e: e - jnp.asarray(CURVATURE) * x, pairs=pairs, metric=None)

    def one(key, noise, step_size, steps, warmup, start):
        def step(t, carry):
            state, total = carry
            shared, own = jax.random.split(jax.random.fold_in(key, t))
            e = jnp.sqrt(noise) * scale * jax.random.normal(shared, (2,))
            state, _ = sampler.step(own, state, e, step_size)
            return state, total + jnp.where(t >= warmup, jnp.mean((scale * state.position) ** 2, 0), 0)

        z = jax.random.normal(jax.random.fold_in(key, 2**30), (sampler.replicas, 2)) + start
        first = (jax.tree.map(jnp.asarray, sampler.init(z / scale)), jnp.zeros(2))
        state, total = jax.lax.fori_loop(0, warmup + steps, step, first)
        return total / steps, state

    return jax.jit(jax.vmap(one, (0, *[None] * 5)))


def run(package, *, noise, pairs, step_size, steps, warmup, start=0.0):
    """Variances over exact ones (ensemble, D) on a Gaussian ridge, and the states at the end.

    A minibatch adds a normal deviate to all gradients of a step. Its covariance is `noise` times the curvature, as it
    is for data from the model: N/n times the Fisher information.
    """
    keys = jax.random.split(jax.random.key(0), ENSEMBLES)
    found, states = runner(package, pairs)(keys, noise, step_size, steps, warmup, start)
    return np.asarray(found, float), states


def check(found, bias):
    """Both variances are right within a bias and the Monte Carlo error."""
    assert np.isfinite(found).all(), "off: not finite"
    error = np.abs(found.mean(0) - 1)
    allowed = bias + 3.5 * found.std(0, ddof=1) / np.sqrt(len(found))
    assert (error <= allowed).all(), f"off by {error}, {allowed} are allowed"


def check_noise(package):
    """Without a remedy the variance of a step of 0.1 would be more than twice the right one."""
    found, _ = run(package, noise=10.0, pairs=3, step_size=0.1, steps=4000, warmup=2000)
    check(found, 0.03)


def check_few_pairs(package):
    """On all data a single pair is enough for the exact variances, at steps far beyond what the metric alone bears."""
    found, _ = run(package, noise=0.0, pairs=1, step_size=0.2, steps=2000, warmup=500)
    check(found, 0.01)


@pytest.mark.slow
def test_shared_minibatches_do_not_heat():
    check_noise(hamcmc)


@pytest.mark.slow
def test_few_pairs():
    check_few_pairs(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "checked"),
    [
        (UNDERDAMPED, "jnp.maximum(heat, EXCESS)", "EXCESS", check_noise),
        (UNDERDAMPED, "slowed(tamed(pull, step_size), state.last.slow)", "pull", check_noise),
        (
            UNDERDAMPED,
            "slowed(jax.tree.map(lambda z: h / 2 * z, z), s.slow)",
            "jax.tree.map(lambda z: h / 2 * z, z)",
            check_noise,
        ),
        (RESTING, "jnp.maximum(largest, steepest)", "largest", check_few_pairs),
    ],
)
def test_without_it(file, old, new, checked):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="off"):
        checked(package)


@pytest.mark.slow
def test_noise_is_measured():
    """It is proportional to the minibatches', and nothing where there is none; then nothing is slowed down."""
    settings = {"pairs": 3, "step_size": 0.01, "steps": 2000, "warmup": 0}
    none, less, more = (run(hamcmc, noise=v, **settings)[1] for v in (0.0, 5.0, 20.0))
    np.testing.assert_array_equal(none.last.slow, 1)
    assert np.mean(more.noise) / np.mean(less.noise) == pytest.approx(4, rel=0.15)
    assert np.max(less.last.slow) < 1


def test_a_distant_start_is_not_taken_for_noise():
    """Both halves are pulled alike: they come in as if there were no noise to be careful about."""
    settings = {"pairs": 3, "step_size": 0.1, "steps": 1, "warmup": 300, "start": 100.0}
    found, states = run(hamcmc, noise=0.0, **settings)
    assert found.mean() < 10
    np.testing.assert_array_equal(states.last.slow, 1)


def check_lost_replica(package):
    """On a quartic density one replica begins far away, where its gradient could throw all of them out; it comes in."""
    sampler = package.ensemble_underdamped(lambda x, _: -(x**3), pairs=3, metric=None)
    start = jax.random.normal(jax.random.key(0), (sampler.replicas, 2)).at[1].set(30.0)

    def step(t, state):
        return sampler.step(jax.random.fold_in(jax.random.key(1), t), state, None, 0.1)[0]

    state = jax.jit(lambda: jax.lax.fori_loop(0, 500, step, jax.tree.map(jnp.asarray, sampler.init(start))))()
    assert (np.abs(state.position) < 25).all(), "off: a replica is lost"


def test_a_lost_replica_comes_back():
    check_lost_replica(hamcmc)


@pytest.mark.slow
def test_it_would_be_lost():
    with (
        mutant(UNDERDAMPED, "(replica_axis(kept, x) * x)", "x") as package,
        pytest.raises(AssertionError, match="off"),
    ):
        check_lost_replica(package)
