"""The sharded program against the model written down densely."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import part as parts
from hamcmc.factorization import partition as partitions
from hamcmc.factorization.native import Blocks
from hamcmc.target.protocol import Target
from tests.factorization.sparse import low_rank
from tests.mutation import mutant

ROW, COLUMN, VALUE, SHAPE = low_rank(11, 9, 60)


def hyper_of(columns, seed=3):
    rng = np.random.default_rng(seed)
    positive = lambda s: jnp.asarray(columns.free(s) * rng.uniform(0.5, 2, columns.width), jnp.float32)
    some = lambda s: jnp.asarray(columns.free(s) * rng.normal(size=columns.width), jnp.float32)
    return gaussian_mf.Hyper(jnp.float32(1.7), some("W"), positive("W"), some("H"), positive("H"))


def log_density(W, H, columns, hyper):
    """The model as written in its docstring; W and H by row and by column of the matrix."""
    K = columns.rank
    mean = jnp.sum(W[ROW, :K] * H[COLUMN, :K], 1)
    if columns.biases:
        mean += W[ROW, K] + H[COLUMN, K + 1]
    prior = lambda x, m, precision: -0.5 * jnp.sum(precision * (x - m) ** 2)
    residuals = -0.5 * hyper.noise * jnp.sum((VALUE - mean) ** 2)
    return residuals + prior(W, hyper.W_mean, hyper.W_precision) + prior(H, hyper.H_mean, hyper.H_precision)


def mean_gradient(module, model, order, B=3):
    """The gradient of the targets of all parts, averaged over the parts, and the dense one: by rows."""
    columns = gaussian_mf.layout(model, 3)
    hyper = hyper_of(columns)
    p = partitions.partition(ROW, COLUMN, SHAPE, B)
    blocks = Blocks(*map(jnp.asarray, partitions.arrange(p, ROW, COLUMN, VALUE)))
    rng = np.random.default_rng(5)
    rows = {"W": rng.normal(size=(SHAPE[0], columns.width)), "H": rng.normal(size=(SHAPE[1], columns.width))}
    sides = {"W": p.rows, "H": p.columns}
    rows = {s: (x * columns.free(s) + columns.constant(s)).astype(np.float32) for s, x in rows.items()}
    root = {s: rng.uniform(0.5, 2, (*x.counts.shape, columns.width)).astype(np.float32) for s, x in sides.items()}
    root = {s: np.where(columns.free(s) > 0, x, 1) for s, x in root.items()}
    position = {s: jnp.asarray(sides[s].scatter(rows[s]) / root[s]) for s in rows}
    masks = {
        s: (np.arange(x.counts.shape[1]) < x.sizes[:, None])[..., None] * columns.free(s) for s, x in sides.items()
    }
    total = {s: 0.0 for s in rows}
    for part, size in enumerate(p.parts):
        n = size if order == "random" else len(ROW) / B
        likelihood = lambda W, H, part=part: module.gradient_of_part(blocks, W, H, part, resting=True, threads=1)
        g = module.PartTarget(len(ROW), module.Part(likelihood, root, hyper, masks, n)).grad(position)
        for s in rows:  # back to the model's coordinates
            total[s] += n / len(ROW) * sides[s].gather(np.asarray(g[s]) / root[s])
    exact = jax.jit(jax.grad(lambda W, H: log_density(W, H, columns, hyper), (0, 1)))(rows["W"], rows["H"])
    return total, {s: np.asarray(g) * columns.free(s) for s, g in zip("WH", exact)}


@pytest.mark.parametrize("model", ["paper", "full"])
@pytest.mark.parametrize("order", ["random", "epochs"])
def test_the_gradient_of_a_part_is_unbiased(model, order):
    found, exact = mean_gradient(parts, model, order)
    for s in "WH":
        np.testing.assert_allclose(found[s], exact[s], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mean_grad[s], self.size,", "mean_grad[s], 1,"),
        ("precision * (centre - position[s] * p.root[s])", "precision * (position[s] * p.root[s] - centre)"),
        ("weight * g * p.mask[s] * p.root[s]", "weight * g * p.mask[s]"),
        ("jnp.roll(of_H, part, 0) if resting", "jnp.roll(of_H, -part, 0) if resting"),
    ],
)
def test_power(old, new):
    with mutant("factorization/part.py", old, new):
        broken = importlib.import_module("hamcmc.factorization.part")
        found, exact = mean_gradient(broken, "full", "random")
    assert any(np.abs(found[s] - exact[s]).max() > 0.05 for s in "WH")


def test_a_target_without_a_part_only_starts_samplers():
    target = parts.PartTarget(len(ROW))
    assert isinstance(target, Target)
    with pytest.raises(ValueError, match="has no part yet"):
        target.grad({"W": jnp.zeros((1, 1, 8)), "H": jnp.zeros((1, 1, 8))})


class TestGibbs:
    def draws(self, module, n=8000):
        columns = gaussian_mf.layout("full", 2)
        rng = np.random.default_rng(0)
        self.x = rng.normal(0.3, 0.5, 40) * 1.0
        ones = jnp.ones(columns.width)
        sums = gaussian_mf.Sums(jnp.float32(30.0), self.x.sum() * ones, (self.x**2).sum() * ones, ones, 2 * ones)
        self.prior = gaussian_mf.Prior()
        draw = lambda key: module.gibbs(key, sums, 50, (40, 12), columns, self.prior)
        return jax.vmap(draw)(jax.random.split(jax.random.key(1), n))

    def z_scores(self, h):
        """Of means of draws against their exact values, from the conjugate posterior by another route."""
        prior, n = self.prior, len(self.x)
        centre = self.x.sum() / (n + prior.weight)
        spread = np.sum((self.x - self.x.mean()) ** 2) + prior.weight * n / (n + prior.weight) * self.x.mean() ** 2
        shape, rate = prior.shape + n / 2, prior.rate + spread / 2
        variance = rate / (shape - 1) / (n + prior.weight)  # of a Student-t mean
        exact = [
            (h.noise, (1 + 25) / (0.5 + 15), (1 + 25) / (0.5 + 15) ** 2),
            (h.W_precision[:, 0], shape / rate, shape / rate**2),
            (h.W_mean[:, 1], centre, variance),
            ((h.W_mean[:, 0] - centre) ** 2, variance, 2.3 * variance**2),
        ]
        return [float((np.mean(x) - mean) / np.sqrt(v / len(x))) for x, mean, v in exact]

    def test_it_draws_from_the_conjugate_posterior(self):
        h = self.draws(gaussian_mf)
        assert np.abs(self.z_scores(h)).max() < 3.5
        self.check_constants(h)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("prior.noise_shape + size / 2)", "prior.noise_shape + size)"),
            ("second - weight * mean**2", "second - n * mean**2"),
            ("/ jnp.sqrt(weight * precision)", "/ jnp.sqrt(precision)"),
        ],
    )
    def test_power(self, old, new):
        with mutant("factorization/model.py", old, new):
            broken = importlib.import_module("hamcmc.factorization.model")
            assert np.abs(self.z_scores(self.draws(broken))).max() > 5

    def check_constants(self, h):
        """Constants and padding have no hyper-parameters."""
        columns = gaussian_mf.layout("full", 2)
        assert (np.asarray(h.W_precision)[:, columns.free("W") == 0] == 0).all()
        assert (np.asarray(h.H_mean)[:, columns.free("H") == 0] == 0).all()
