"""Large steps where the curvature varies: drifts are cut, the metric caps H, and lost replicas count for little."""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import hamcmc
from hamcmc.samplers import curvature
from hamcmc.samplers.ensemble import resting
from tests.mutation import mutant
from tests.samplers.targets import OPTIMISED, Quartic

EPSILON = 0.5


def averages(package, grad, dimension, function, *, steps, ensembles, seed=0):
    """The mean of a function over replicas and over all steps after warm-up, for each of many ensembles."""
    sampler = package.ensemble_hamcmc(grad, adapt=400)

    def one(key):
        start = jax.random.normal(key, (sampler.replicas, dimension))

        def step(t, carry):
            state, total = carry
            state, _ = sampler.step(jax.random.fold_in(key, t), state, None, EPSILON)
            return state, total + jnp.where(t >= 400, jnp.mean(function(state.position), 0), 0)

        first = (jax.tree.map(jnp.asarray, sampler.init(start)), jnp.zeros_like(function(start)[0]))
        return jax.lax.fori_loop(0, 400 + steps, step, first)[1] / steps

    keys = jax.random.split(jax.random.key(seed), ensembles)
    return np.asarray(jax.jit(jax.vmap(one), compiler_options=OPTIMISED)(keys), float)


def check_ridge(package):
    """E(x+y)² on the ridge of erratum 6 at ε = 1/2, within 1.5 % and the Monte Carlo error."""
    grad = lambda t, _: jax.grad(lambda t: -Quartic.potential(t[0], t[1]))(t)
    found = averages(package, grad, 2, lambda t: (t[:, 0] + t[:, 1]) ** 2, steps=2000, ensembles=16)
    x, y = np.meshgrid(Quartic.grid, Quartic.grid, indexing="ij")
    density = np.exp(-Quartic.potential(x, y))
    exact = float(((x + y) ** 2 * density).sum() / density.sum())
    error = found.mean() / exact - 1
    assert np.isfinite(found).all(), "not finite"
    assert abs(error) <= 0.015 + 3 * found.std() / exact / np.sqrt(len(found)), f"off by {100 * error:+.2f} %"


def check_tails(package):
    """20 independent Student-t(3) at ε = 1/2: no ensemble leaves the posterior, in warm-up or later."""
    grad = lambda x, _: -4 * x / (3 + x**2)
    quantile = stats.t(3).ppf(0.975)
    found = averages(package, grad, 20, lambda x: (jnp.abs(x) > quantile).mean(1), steps=400, ensembles=12)
    assert found.max() < 0.15, f"{100 * found.max():.0f} % of the draws are in tails of 5 %"


@pytest.mark.slow
def test_ridge():
    check_ridge(hamcmc)


@pytest.mark.slow
def test_heavy_tails():
    check_tails(hamcmc)


LANGEVIN, RESTING = "samplers/ensemble/langevin.py", "samplers/ensemble/resting.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [
        (LANGEVIN, "space, tame=True", "space", check_ridge),
        (RESTING, "jnp.where(known, WIDEST, jnp.inf)", "jnp.inf", check_tails),
    ],
)
def test_without_it(file, old, new, check):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="not finite|off|tails"):
        check(package)


def pairs(seed=0, replicas=11, dimension=6, lost=0.0):
    """Positions, gradients of a quadratic there, and their contrasts; the first replica is `lost` far away."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dimension, dimension))
    a = root @ root.T + np.eye(dimension)
    x = rng.normal(size=(replicas, dimension))
    x[0] += lost
    c = resting.helmert(replicas - 1)
    return a, x, c @ x, c @ x @ a, c


def check_lost(package):
    """A replica 10⁴ away counts as about three times as far away as the others, and y = A s still holds."""
    module = importlib.import_module(f"{package.__name__}.samplers.ensemble.resting")
    with jax.enable_x64(True):
        _, _, s, y, c = pairs()
        near = np.asarray(module.nearer(jnp.asarray(s @ s.T), c))
        np.testing.assert_allclose(near, np.eye(10), atol=1e-12, err_msg="off: nothing is far away")
        a, x, s, y, c = pairs(lost=1e4)
        near = np.asarray(module.nearer(jnp.asarray(s @ s.T), c))
        np.testing.assert_allclose(near @ s @ a, near @ y, rtol=1e-6, atol=1e-6, err_msg="off: y = A s")
        typical = np.sqrt(2 * x.shape[1])
        longest = np.linalg.norm(near @ s, axis=1).max()
        assert typical < longest < 5 * typical, f"off: contrasts as long as {longest}"


def test_a_lost_replica_counts_for_little():
    check_lost(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [("(c * w) @ (c.T -", "c @ (c.T -"), ("- (w / jnp.sum(w)) @ c.T)", ")"), ("middle / jnp.where", "1 / jnp.where")],
)
def test_broken_weights_are_noticed(old, new):
    with mutant(RESTING, old, new) as package, pytest.raises(AssertionError, match="off"):
        check_lost(package)


def test_no_column_is_longer_than_the_widest(x64):
    """The cap holds, V is still conjugate, and the noise knows the curvature that is left."""
    a, _, s, y, _ = pairs(replicas=5)
    basis = np.concatenate([s, y])
    gram = jnp.asarray(basis @ basis.T)
    lengths = {}
    for widest in (0.3, np.inf):
        f = curvature.block_factor(gram, 1e-3, 0.0, widest)
        v, u = np.asarray(f.weights).T @ s, np.asarray(f.dual).T @ y
        lengths[widest] = np.linalg.norm(v, axis=1)
        np.testing.assert_allclose(v @ u.T, np.eye(4), atol=1e-9)
        np.testing.assert_allclose(v @ a @ v.T, np.diag(f.newton), atol=1e-9)
    assert lengths[0.3].max() <= 0.3 + 1e-12
    assert lengths[np.inf].max() > 0.3


def test_drifts_are_cut(x64):
    """A gradient so large that the Gaussian of H does not know it moves a replica by the bound, in H's own norm."""
    _, x, _, _, _ = pairs()
    half = resting.RestingHalf(10, gamma=0.1, metric=None, damping=0.0, cosine=0.0, adapt=1)
    g = -x * np.where(np.arange(len(x)) == 0, 100, 1)[:, None]

    @jax.jit
    def moved(epsilon):
        r, _ = half.make(jnp.asarray(x), jnp.asarray(-x), None)
        move = partial(resting.displacement, jax.random.key(0), r, jnp.asarray(g), epsilon)
        return (move(), move(tame=True)), resting.longest(jnp.asarray(6.0), epsilon)

    for epsilon in (0.1, EPSILON, 1.0):
        ((free, noise), (tame, same)), longest = jax.tree.map(np.asarray, moved(epsilon))
        np.testing.assert_array_equal(same, noise)
        np.testing.assert_allclose(tame[1:], free[1:], rtol=1e-12)
        size = np.sqrt(g[0] @ tame[0] / epsilon * (g[0] @ tame[0]) / (g[0] @ free[0]))  # √(tᵀH⁻¹t) / ε, t ∝ Hg
        assert size == pytest.approx(longest, rel=1e-9)
    assert resting.longest(jnp.asarray(6.0), 1e-8) > 1e4  # the limit ε → 0 has no bias
