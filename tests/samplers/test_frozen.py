"""What an ensemble learns in warm-up is fixed afterwards: a metric that goes on learning follows the replicas that it
moves, and then the target is not kept."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from tests.mutation import mutant

ADAPT = 20  # the least that ensemble_hmc takes; its next renewal would be at step 24
METRIC, MASS, HAMILTONIAN = (f"samplers/ensemble/{f}.py" for f in ("metric", "mass", "hamiltonian"))
# Name → the sampler, and what of its state is learned.
LEARNED = {
    "diagonal": (lambda p, q: p.ensemble_hamcmc(q.grad, pairs=2, metric="diagonal", adapt=ADAPT), ("spread",)),
    "dense": (lambda p, q: p.ensemble_hamcmc(q.grad, pairs=2, metric="dense", adapt=ADAPT), ("spread",)),
    "adjusted": (lambda p, q: p.ensemble_adjusted(q, pairs=2, metric="diagonal", adapt=ADAPT), ("spread",)),
    "underdamped": (lambda p, q: p.ensemble_underdamped(q.grad, pairs=2, metric="dense", adapt=ADAPT), ("spread",)),
    "hmc": (lambda p, q: p.ensemble_hmc(q, replicas=6, adapt=ADAPT), ("mass", "pace")),
}


def check(package, name):
    """The learned part of the state, step by step: it changes in warm-up, and not at all afterwards."""
    make, fields = LEARNED[name]
    target = package.Posterior(lambda x: -0.5 * jnp.sum(x**2 * jnp.array([1.0, 4.0, 9.0])))
    sampler = make(package, target)

    def step(state, key):
        state = sampler.step(key, state, None, 0.1)[0]
        return state, [getattr(state, f) for f in fields]

    state = sampler.init(jax.random.normal(jax.random.key(0), (6, 3)))
    _, known = jax.lax.scan(step, jax.tree.map(jnp.asarray, state), jax.random.split(jax.random.key(1), ADAPT + 8))
    leaves = [np.asarray(x).reshape(len(x), -1) for x in jax.tree.leaves(known)]
    changes = np.array([[not np.array_equal(a, b) for a, b in itertools.pairwise(x)] for x in leaves]).any(0)
    assert changes[: ADAPT // 2].all(), "nothing is learned in warm-up"
    assert not changes[ADAPT - 1 :].any(), (
        f"it still learns after step {ADAPT + np.flatnonzero(changes[ADAPT - 1 :])[0]}"
    )


SELDOM = ("dense", "adjusted", "underdamped")  # they learn by the same code as the first one


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SELDOM else n for n in LEARNED])
def test_what_was_learned_in_warmup_is_fixed(name):
    check(hamcmc, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        ("diagonal", METRIC, "(spread.steps < self.adapt).astype(jnp.int32)", "jnp.int32(1)"),
        pytest.param(
            *("dense", METRIC, "(spread.steps < self.adapt).astype(jnp.int32)", "jnp.int32(1)"), marks=pytest.mark.slow
        ),
        ("hmc", MASS, "jnp.where(step < adapt, 4 / (MEMORY + step), 0.0)", "jnp.asarray(4 / (MEMORY + step))"),
        pytest.param(*("hmc", MASS, "& (step < last)", ""), marks=pytest.mark.slow),
        pytest.param(*("hmc", HAMILTONIAN, "learning & moving & (care == 1)", "moving"), marks=pytest.mark.slow),
    ],
)
def test_one_that_learns_for_ever_is_noticed(name, file, old, new):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="it still learns"):
        check(package, name)
