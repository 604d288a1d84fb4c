"""Many runs side by side take the very steps that each would take alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hamcmc
from hamcmc.inference.many import Axes, Turn, advance

KEY = jax.random.key(0)


def grad(theta, datum):
    """Of a Gaussian around a datum."""
    return datum - theta


def test_one_run():
    """Begin and end may be traced, and a run may be cut."""
    sampler = hamcmc.sgld(grad)
    turn = lambda t: Turn(jax.random.fold_in(KEY, t), jnp.ones(2), 0.1 / (t + 1))
    state = sampler.init(jnp.zeros(2))
    by_hand = state
    for t in range(7):
        by_hand, _ = sampler.step(*_arguments(turn(jnp.int32(t)), by_hand))
    go = jax.jit(lambda state, begin, end: advance(sampler, state, turn, begin, end)[0])
    cut = go(go(state, 0, 3), 3, 7)
    np.testing.assert_allclose(cut.position, by_hand.position, rtol=1e-6)
    assert_array_equal(cut.position, go(state, 0, 7).position)
    assert int(cut.step) == 7


@pytest.mark.slow
def test_settings_and_runs_are_axes():
    """Two settings of three runs: each run has its key, each setting its sampler and its step, all share the datum."""
    factors = jnp.array([1.0, 2.0])
    make = lambda factor: hamcmc.sgld(lambda theta, datum: factor * grad(theta, datum))
    steps = jnp.array([0.1, 0.2])

    def turn(t):
        keys = jax.random.split(jax.random.fold_in(KEY, t), (2, 3))
        return Turn(keys, jnp.full(4, t + 1.0), steps)

    start = make(1.0).init(jnp.zeros(4))
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, 3, *x.shape)), start)
    axes = (Axes(setting=0, step_size=0), Axes())
    found, _ = advance(make, states, turn, 0, 5, settings=factors, axes=axes)
    for s in range(2):
        for r in range(3):
            alone = lambda t, s=s, r=r: Turn(turn(t).key[s, r], turn(t).minibatch, steps[s])
            state, _ = advance(make(factors[s]), start, alone, 0, 5)
            np.testing.assert_allclose(found.position[s, r], state.position, rtol=1e-5)


def test_totals_see_the_states_before_and_after_a_step():
    sampler = hamcmc.sgld(grad)
    turn = lambda t: Turn(jax.random.fold_in(KEY, t), jnp.ones(2), 0.1)
    start = sampler.init(jnp.zeros(2))

    def accumulate(total, t, now, before, after):
        moved, iterations, weight = total
        return moved + after.position - before.position, iterations + t, weight + now.step_size

    zeros = (jnp.zeros(2), jnp.int32(0), jnp.zeros(()))
    state, (moved, iterations, weight) = advance(sampler, start, turn, 2, 6, accumulate=accumulate, total=zeros)
    np.testing.assert_allclose(moved, state.position, rtol=1e-5)
    assert int(iterations) == 2 + 3 + 4 + 5
    assert float(weight) == np.float32(0.4)


def _arguments(now, state):
    return now.key, state, now.minibatch, now.step_size
