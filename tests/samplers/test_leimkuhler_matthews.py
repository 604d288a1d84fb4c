"""Leimkuhler and Matthews's method has the stationary law that its docstring claims, at steps as large as 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hamcmc
from tests.mutation import mutant

REPLICAS, STEPS, SETTLED = 20_000, 60, 20
QUARTIC = 0.02  # U = z²/2 + QUARTIC z⁴/4: its variance is 0.944, that of the normal part is 1


def second_moment(package, grad, step_size):
    """E z² after warm-up in many independent replicas, and its standard error."""
    sampler = package.leimkuhler_matthews(grad, replicas=REPLICAS)

    @jax.jit
    def run(start, key):
        def turn(state, t):
            state, _ = sampler.step(jax.random.fold_in(key, t), state, None, step_size)
            return state, state.position[:, 0] ** 2

        return lax.scan(turn, sampler.init(start), jnp.arange(STEPS))[1]

    start = jnp.asarray(np.random.default_rng(0).standard_normal((REPLICAS, 1)), jnp.float32)
    squares = np.asarray(run(start, jax.random.key(1)), float)[SETTLED:].mean(0)
    return squares.mean(), squares.std() / np.sqrt(REPLICAS)


def normal(z, minibatch):
    return -z


def quartic(z, minibatch):
    return -z - QUARTIC * z**3


def exact(coefficient):
    """E z² of exp(−z²/2 − coefficient z⁴/4), by quadrature."""
    z = np.linspace(-9, 9, 20_001)
    density = np.exp(-(z**2) / 2 - coefficient * z**4 / 4)
    return float((z**2 * density).sum() / density.sum())


def check_normal(package, step_size):
    """The law of a Gaussian is exact at any step."""
    found, error = second_moment(package, normal, step_size)
    assert abs(found - 1) < 4.5 * error, f"the variance is off: {found:.4f} ± {error:.4f}"


def check_quartic(package):
    """At ε = 1 the variance follows the fourth-order term to first order: what is left is a quarter of it at most."""
    found, error = second_moment(package, quartic, 1.0)
    truth = exact(QUARTIC)
    assert abs(found - truth) < 4.5 * error + 0.25 * (1 - truth), f"off: {found:.4f}, not {truth:.4f} ± {error:.4f}"


@pytest.mark.parametrize("step_size", [0.3, 1.0, 1.5])
def test_a_gaussian_is_exact_at_any_step(step_size):
    check_normal(hamcmc, step_size)


def test_the_variance_follows_a_bend_to_first_order():
    check_quartic(hamcmc)


def slow(*mutation):
    return pytest.param(*mutation, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("jnp.sqrt(step_size / 2)", "jnp.sqrt(step_size)", check_normal),
        # Independent noise of the variance that is exact for a Gaussian: only the bend tells.
        ("root * (old + new)", "jnp.sqrt(step_size * (2 - step_size)) * new", check_quartic),
        slow("root * (old + new)", "2 * root * new", check_normal),
        slow("x + replica_axis", "x - 0.5 * replica_axis", check_normal),
        slow("LeimkuhlerMatthewsState(position, z, ", "LeimkuhlerMatthewsState(position, -z, ", check_quartic),
    ],
)
def test_a_broken_step_is_noticed(old, new, check):
    with mutant("samplers/leimkuhler_matthews.py", old, new) as package, pytest.raises(AssertionError, match="off"):
        check(package, *([1.0] if check is check_normal else []))


@pytest.mark.slow
def test_independent_noise_is_right_for_the_gaussian_and_wrong_for_the_bend():
    """So the second mutant above is noticed for the right reason."""
    with mutant(
        "samplers/leimkuhler_matthews.py", "root * (old + new)", "jnp.sqrt(step_size * (2 - step_size)) * new"
    ) as package:
        check_normal(package, 1.0)


def test_noise_of_gradients_adds_what_the_plan_takes_it_to_add():
    """σ² ε/(2 − ε): a plan chooses its minibatches by this."""
    step_size, noise = 1.0, 0.5
    # vmap hands one minibatch to all replicas; here each has a noise of its own, by a position in the minibatch.
    sampler = hamcmc.leimkuhler_matthews(lambda z, heat: -z[:1] + heat[z[1].astype(int)], replicas=REPLICAS)

    @jax.jit
    def run(start, key):
        def turn(state, t):
            k_step, k_noise = jax.random.split(jax.random.fold_in(key, t))
            state, _ = sampler.step(k_step, state, noise * jax.random.normal(k_noise, (REPLICAS, 1)), step_size)
            number = jnp.arange(REPLICAS, dtype=jnp.float32)
            position = jnp.stack([state.position[:, 0], number], 1)
            return state._replace(position=position, noise=state.noise.at[:, 1].set(0)), position[:, 0] ** 2

        return lax.scan(turn, sampler.init(start), jnp.arange(STEPS))[1]

    start = jnp.stack([jnp.zeros(REPLICAS), jnp.arange(REPLICAS, dtype=jnp.float32)], 1)
    squares = np.asarray(run(start, jax.random.key(2)), float)[SETTLED:].mean(0)
    expected = 1 + noise**2 * step_size / (2 - step_size)
    assert squares.mean() == pytest.approx(expected, abs=4.5 * squares.std() / np.sqrt(REPLICAS))


def test_far_away_the_drift_is_cut():
    """Where the gradient is steeper than any Gaussian's, a step stays near, and the replica comes back."""
    steep = hamcmc.leimkuhler_matthews(lambda z, _: -z - z**3, replicas=2)
    state, step = steep.init(jnp.full((2, 1), 50.0)), jax.jit(steep.step)
    for t in range(40):
        state, _ = step(jax.random.key(t), state, None, 1.0)
    assert np.abs(state.position).max() < 10


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="replicas"):
        hamcmc.leimkuhler_matthews(normal, replicas=1)
    with pytest.raises(ValueError, match="an ensemble of 16 replicas"):
        hamcmc.leimkuhler_matthews(normal).init(jnp.zeros((3, 2)))
