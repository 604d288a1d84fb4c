"""The whole program on a 2 × 2 matrix against quadrature over all four parameters."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import partition as partitions
from hamcmc.factorization.metric import plain_metric
from hamcmc.factorization.recipes import make_sampler
from tests.mutation import mutant

ROW, COLUMN, VALUE = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([1.5, -0.5, 1.0], np.float32)


def exact():
    """E w_i h_j of the paper's model of rank 1: unit variances throughout."""
    grid = np.linspace(-5, 5, 51)
    w, h = (
        np.meshgrid(grid, grid, grid, grid, indexing="ij")[:2],
        np.meshgrid(grid, grid, grid, grid, indexing="ij")[2:],
    )
    u = sum(x**2 for x in (*w, *h)) / 2 + sum((x - w[i] * h[j]) ** 2 for i, j, x in zip(ROW, COLUMN, VALUE)) / 2
    density = np.exp(-u)
    return np.array([[(w[i] * h[j] * density).sum() for j in range(2)] for i in range(2)]) / density.sum()


def estimates(program, sampler="sghmc", step_size=0.01, seeds=8, sweeps=4000, **options):
    """Means of w_i h_j over long runs, one for each seed, by way of predictions of held-out ratings."""
    columns = gaussian_mf.layout("paper", 1)
    p = partitions.partition(ROW, COLUMN, (2, 2), 2)
    train = program.Blocks(*map(jnp.asarray, partitions.arrange(p, ROW, COLUMN, VALUE)))
    i, j = (x.ravel() for x in np.indices((2, 2)))
    order = np.arange(4, dtype=np.float32)
    held = partitions.arrange(p, i, j, order)  # values say which is which
    test = program.Blocks(*map(jnp.asarray, held))
    make = make_sampler(sampler, options)
    built = program.build(
        p, columns, make, step_size, devices=jax.devices()[:1], sample_hyper=False, order="epochs", sweeps=sweeps
    )
    data = program.Data(train, test, jnp.asarray(p.rows.counts), jnp.asarray(p.columns.counts))
    hyper, found = gaussian_mf.start(columns, 1.0), []
    start = {s: jnp.zeros((2, 1, 8)).at[..., 0].set(0.5) for s in "WH"}
    for seed in range(seeds):
        carry = built.begin(start, plain_metric(columns), hyper, jnp.zeros(held.columns.shape), data)
        keys, steps = program.keys(seed), jnp.int32(5)
        carry, _ = built.segment(carry, data, keys, steps, jnp.int32(1))
        mean = np.asarray(carry.predicted) / sweeps
        by_cell = np.zeros(4)
        for b in range(2):
            n = held.indptr[b, -1, -1]
            by_cell[held.values[b, :n].astype(int)] = mean[b, :n]
        found.append(by_cell)
    return np.array(found)


def z_scores(found):
    return (found.mean(0) - exact().ravel()) / (found.std(0, ddof=1) / np.sqrt(len(found)))


def test_means_of_products_are_exact(optimised):
    program = importlib.import_module("hamcmc.factorization.sharded")
    assert np.abs(z_scores(estimates(program))).max() < 5  # Student's t with 7 degrees of freedom: 0.6 % for four


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "step_size", "options"), [("sgld", 0.01, {}), ("hamcmc", 0.01, {"memory": 2, "cosine": 0.3})]
)
def test_other_samplers(optimised, sampler, step_size, options):
    program = importlib.import_module("hamcmc.factorization.sharded")
    assert np.abs(z_scores(estimates(program, sampler, step_size, sweeps=20_000, **options))).max() < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pull = precision *", "pull = 1.5 * precision *"),
        ("(z * self.mask(s, shift))", "(0.7 * z * self.mask(s, shift))"),
        ("np.full(B, size / B)", "np.full(B, size)"),
    ],
)
def test_power(optimised, old, new):
    with mutant("factorization/part.py", old, new):
        program = importlib.import_module("hamcmc.factorization.sharded")
        assert np.abs(z_scores(estimates(program))).max() > 8
