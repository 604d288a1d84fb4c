"""Distributed pSGLD in its own program, on a factorization whose posterior is normal because H does not move.

Each row has one rating in each of two columns, m + C and m − C, and H is 1. Its factor then has the posterior
N(2m/3, 1/3), and the gradients of the two parts point in opposite directions. C is large, so the running average of
squared gradients hardly depends on the position, and H is constant for each row: 1/(λ + √(C² + 1/3)/n).
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import partition as partitions
from tests.mutation import mutant

ROWS, STEP_SIZE, REGULARIZER, PRECISION = 512, 1e-4, 1e-3, 3.0
rng = np.random.default_rng(0)
MEAN, SPREAD = rng.standard_normal(ROWS), np.where(np.arange(ROWS) % 2, 4.0, 8.0)


def draws(sweeps=250, warmup=50, steps=20):
    """W after each sweep, (sweeps, rows), by a program that is imported here because it may be a mutant's."""
    program = importlib.import_module("hamcmc.factorization.sharded")
    make_sampler = importlib.import_module("hamcmc.factorization.recipes").make_sampler
    metric = importlib.import_module("hamcmc.factorization.metric")
    row, column = (x.ravel() for x in np.indices((ROWS, 2)))
    value = (MEAN[row] + np.where(column, -1, 1) * SPREAD[row]).astype(np.float32)
    p = partitions.partition(row, column, (ROWS, 2), 2)
    columns = gaussian_mf.layout("paper", 1)
    blocks = program.Blocks(*map(jnp.asarray, partitions.arrange(p, row, column, value)))
    data = program.Data(blocks, blocks, jnp.asarray(p.rows.counts), jnp.asarray(p.columns.counts))
    make = make_sampler("psgld", {"decay": 0.999, "regularizer": REGULARIZER})
    built = program.build(p, columns, make, STEP_SIZE, devices=jax.devices()[:1], sample_hyper=False, order="epochs")
    still = metric.plain_metric(columns)._replace(H_precision=jnp.full(columns.width, 1e18))  # a step of H is 1e-9
    first = np.zeros(columns.width, np.float32)
    first[0] = 1
    start = {s: jnp.asarray(np.broadcast_to(first, (*side.counts.shape, columns.width))) for s, side in zip("WH", p)}
    carry = built.begin(start, still, gaussian_mf.start(columns, 1.0), jnp.zeros(blocks.columns.shape), data)
    keys, found = program.keys(0), []
    for _ in range(warmup + sweeps):
        carry, _ = built.segment(carry, data, keys, np.int32(steps), np.int32(0))
        found.append(p.rows.gather(np.asarray(carry.state.position["W"]))[:, 0])
    return np.array(found[warmup:])


def z_scores(found):
    """Of mean and variance in posterior standard deviations, each from ROWS independent rows."""
    n = ROWS  # ratings in a part
    metric = 1 / (REGULARIZER + np.sqrt(SPREAD**2 + 1 / PRECISION) / n)
    euler = 1 / (1 - STEP_SIZE * metric * PRECISION / 2)  # the variance of a chain with this step over the posterior's
    error = (found - 2 * MEAN / PRECISION) * np.sqrt(PRECISION)
    each = np.stack([error.mean(0), (error**2).mean(0) - euler])
    return each.mean(1) / (each.std(1, ddof=1) / np.sqrt(ROWS))


def test_draws_are_of_the_posterior(optimised):
    assert np.abs(z_scores(draws())).max() < 4  # 1 in 8000 for two of them


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("samplers/psgld.py", "jnp.sqrt(h) * z", "h * z"),
        ("samplers/psgld.py", "drift = jax.tree.map(jnp.multiply, h, g)", "drift = jax.tree.map(jnp.divide, g, h)"),
        ("samplers/psgld.py", "1 / (regularizer + jnp.sqrt(v)), v)", "1 / (regularizer + v), v)"),
        ("factorization/part.py", "np.full(B, size / B)", "np.full(B, size)"),
    ],
)
def test_power(optimised, file, old, new):
    with mutant(file, old, new):
        assert not np.abs(z_scores(draws())).max() < 8
