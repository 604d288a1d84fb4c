"""Tests share the programs of what is equal, and of nothing else."""

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.inference import compiled
from tests.sharing import identity

SCALE = 2.0


def normal(precision=1.0, rows=None, **how):
    rows = np.ones(5, np.float32) if rows is None else rows
    weights = jnp.array([precision, 1.0])
    return hamcmc.Posterior(
        lambda x: -0.5 * jnp.sum(weights * x**2), lambda x, row: -SCALE * jnp.sum((x - row) ** 2), rows, **how
    )


def newest():
    """The newest of the remembered loops. As many as there can be are there in a long session."""
    return [*compiled.Traced.values][-1]


@pytest.mark.parametrize(
    "how",
    [
        {"sampler": "sgld", "step_size": 0.01},
        pytest.param({"adapt": 20, "replicas": 4}, marks=pytest.mark.slow),
    ],
)
def test_runs_that_differ_in_nothing_share_a_program(how):
    """Also of posteriors that are made anew; another seed or init is no difference, another thinning is."""
    run = lambda **more: hamcmc.sample(normal(), init=jnp.zeros(2), num_samples=20, progress=False, **how | more)
    first = run(thin=2)
    program = newest()
    np.testing.assert_array_equal(run(thin=2).posterior["theta"], first.posterior["theta"])
    assert not np.array_equal(run(thin=2, seed=1).posterior["theta"], first.posterior["theta"])
    assert newest() == program
    run(thin=3)
    assert newest() != program


def test_what_is_equal(monkeypatch):
    assert identity(normal()) == identity(normal(init=jnp.zeros(2)))
    assert identity(normal(support={"x": hamcmc.positive()})) == identity(normal(support={"x": hamcmc.positive()}))
    assert identity(normal().grad) == identity(normal().grad)
    different = [normal(), normal(2.0), normal(rows=np.zeros(5, np.float32)), normal(rows=np.ones(6, np.float32))]
    different += [normal(support=hamcmc.positive()), normal(support=hamcmc.bounded(0.0, 1.0))]
    found = [identity(p) for p in different]
    monkeypatch.setattr("tests.test_sharing.SCALE", 3.0)
    found.append(identity(normal()))
    assert len(set(found)) == len(found)


def test_functions_of_one_source_are_equal_if_they_hold_what_is_equal_and_cannot_change():
    of = lambda held: lambda: held
    assert identity(of((1, "a"))) == identity(of((1, "a"))) != identity(of((1.0, "a")))
    assert identity(of(np.ones(3))) == identity(of(np.ones(3))) != identity(of(np.ones(3, np.float32)))
    one, other = [], []  # at once, so that they have two ids
    assert identity(of(one)) == identity(of(one)) != identity(of(other))
