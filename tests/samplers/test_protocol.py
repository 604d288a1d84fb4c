"""What every sampler must do, whatever its maths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from tests.samplers.catalogue import NAMES, VARIANTS, catalogue
from tests.samplers.targets import Gaussian


@pytest.fixture(scope="module")
def target():
    g = Gaussian(hamcmc)
    g.posterior.fisher = g.precision
    return g


@pytest.fixture(scope="module")
def batch(target):
    return jax.tree.map(lambda x: x[:8], target.posterior.data)


USUAL = [pytest.param(n, marks=pytest.mark.slow) if n in VARIANTS else n for n in NAMES]


@pytest.fixture(scope="module")
def made():
    """Samplers by name, each with one step function for all tests, so that it is compiled once."""
    return {}


@pytest.fixture(scope="module", params=USUAL)
def sampler(request, target, made):
    if request.param not in made:
        made[request.param] = catalogue(hamcmc, target.posterior, target.stiffness)[request.param][0]()
    return made[request.param]


START = {"b": jnp.array([0.3, -0.2], jnp.float32), "c": jnp.array(0.1, jnp.float32)}


def start_of(sampler):
    """Where a sampler starts; an ensemble with its replicas apart."""
    if sampler.replicas == 1:
        return START
    apart = jnp.linspace(-1, 1, sampler.replicas, dtype=jnp.float32)
    return {"b": START["b"] + jnp.outer(apart, jnp.array([1.0, -0.5])) + apart[:, None] ** 2, "c": START["c"] + apart}


def test_init_and_step(sampler, batch):
    """The state keeps its structure, shapes and types; the position is the newest draw; Info is finite scalars."""
    start = start_of(sampler)
    state = jax.tree.map(jnp.asarray, sampler.init(start))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, state.position, start))
    assert int(state.step) == 0
    step = jax.jit(sampler.step)
    for t in range(5):
        before = state
        state, info = step(jax.random.key(t), state, batch, 1e-3)
        same = lambda a, b: a.shape == b.shape and a.dtype == b.dtype
        assert jax.tree.structure(state) == jax.tree.structure(before)
        assert jax.tree.all(jax.tree.map(same, state, before))
        assert int(state.step) == t + 1
        if t > 0 or not sampler.adapts_step:  # whose first step only evaluates the start
            assert not jnp.array_equal(state.position["b"], before.position["b"])
        for name, value in info._asdict().items():
            assert value.shape == (), name
            assert np.isfinite(value), name
        assert sampler.adapts_step or float(info.noise_norm) > 0
    assert sampler.settings["sampler"] in hamcmc.samplers.NAMES
    if not sampler.adapts_step:
        assert set(info._fields) >= {"grad_norm", "drift_norm", "noise_norm"}
        assert sampler.gradients_per_step in (1, 2, sampler.replicas // 2, sampler.replicas)


def test_same_key_same_step(sampler, batch):
    """A step is a pure function of its arguments, and different keys give different noise."""
    state = jax.tree.map(jnp.asarray, sampler.init(start_of(sampler)))
    step = jax.jit(sampler.step)
    if sampler.adapts_step:
        state, _ = step(jax.random.key(9), state, batch, 1e-3)
    moved = slice(None) if sampler.replicas == 1 else slice(sampler.replicas // 2)  # an ensemble's first half
    draw = lambda key: np.asarray(step(key, state, batch, 1e-3)[0].position["b"])[moved]
    assert (draw(jax.random.key(0)) == draw(jax.random.key(0))).all()
    differ = draw(jax.random.key(0)) != draw(jax.random.key(1))
    assert differ.all() or (differ.any() and sampler.settings["sampler"] == "independence")  # which stays where it is


# Of each way to keep a state one; tests/samplers/test_exact.py runs all samplers under vmap.
TOGETHER = ("psgld-corrected", "ccadl", "hamcmc-3", "ensemble", "ensemble-hmc")


@pytest.mark.parametrize(
    "sampler", [n if n in TOGETHER else pytest.param(n, marks=pytest.mark.slow) for n in NAMES], indirect=True
)
def test_vmap_and_jit_agree(sampler, batch):
    """Vmapped over chains it does to each what it does alone."""
    starts = jax.tree.map(lambda x: jnp.stack([x, x + 1]), start_of(sampler))
    keys = jax.random.split(jax.random.key(3), 2)
    together = jax.vmap(sampler.init)(starts)
    step, steps = jax.jit(sampler.step), jax.jit(jax.vmap(sampler.step, (0, 0, None, None)))
    for _ in range(4):
        together, _ = steps(keys, together, batch, 1e-3)
    for chain in range(2):
        alone = jax.tree.map(jnp.asarray, sampler.init(jax.tree.map(lambda x, c=chain: x[c], starts)))
        for _ in range(4):
            alone, _ = step(keys[chain], alone, batch, 1e-3)
        for a, b in zip(jax.tree.leaves(together.position), jax.tree.leaves(alone.position)):
            np.testing.assert_allclose(a[chain], b, rtol=2e-4, atol=1e-6)


def test_step_size_convention(sampler, batch):
    """As ε → 0 the move is √(2ε) times noise with covariance H: the same key at 4ε moves twice as far."""
    if sampler.adapts_step:
        pytest.skip("its step is what it adapts")
    state = jax.tree.map(jnp.asarray, sampler.init(start_of(sampler)))
    step = jax.jit(sampler.step)
    norms = [float(step(jax.random.key(5), state, batch, e)[1].noise_norm) for e in (1e-6, 4e-6)]
    assert norms[1] / norms[0] == pytest.approx(2, rel=1e-3)


MIRRORED = ("sgld", "hamcmc", "ensemble_hamcmc")
UNMIRRORED = ("ensemble_adjusted", "ensemble_hmc", "independence", "leimkuhler_matthews")


@pytest.mark.parametrize(
    "names",
    [(*MIRRORED, *UNMIRRORED), pytest.param(hamcmc.samplers.NAMES, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_mirror_keeps_positions_in_the_support(names):
    """With a mirror at 0 every draw of every sampler that takes one is positive."""
    posterior = hamcmc.Posterior(
        lambda theta: -jnp.sum(theta),
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2),
        np.full((8, 2), 0.05, np.float32),
        support=hamcmc.positive(by="mirror"),
    )
    posterior.fisher = np.eye(2) * 9
    for name in names:
        options = {"fisher": jnp.eye(2) * 9} if name == "sgrld" else {}
        if name in UNMIRRORED:
            with pytest.raises(ValueError, match="cannot use a mirror"):
                hamcmc.samplers.build(name, posterior)
            continue
        sampler = hamcmc.samplers.build(name, posterior, **options)
        start = jnp.full((2,) if sampler.replicas == 1 else (sampler.replicas, 2), 0.1, jnp.float32)
        state, draws, step = sampler.init(start), [], jax.jit(sampler.step)
        for key in jax.random.split(jax.random.key(0), 100):
            state, _ = step(key, state, posterior.data, 0.01)
            draws.append(state.position)
        draws = np.stack(draws)
        assert (draws >= 0).all(), name
        assert np.isfinite(draws).all(), name


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda p: hamcmc.hamcmc(p.grad, memory=1), "memory"),
        (lambda p: hamcmc.hamcmc(p.grad, memory=2.5), "memory"),
        (lambda p: hamcmc.naive(p.grad, memory=1), "memory"),
        (lambda p: hamcmc.hamcmc(p.grad, gamma=0.0), "gamma"),
        (lambda p: hamcmc.hamcmc(p.grad, gamma="oldest"), "gamma"),
        (lambda p: hamcmc.hamcmc(p.grad, damping=-1.0), "damping"),
        (lambda p: hamcmc.hamcmc(p.grad, damping=float("nan")), "damping"),
        (lambda p: hamcmc.hamcmc(p.grad, cosine=1.0), "cosine"),
        (lambda p: hamcmc.hamcmc(p.grad, metric={"b": jnp.zeros(2)}), "metric"),
        (lambda p: hamcmc.ensemble_adjusted(p, pairs=0), "pairs"),
        (lambda p: hamcmc.ensemble_hamcmc(p.grad, pairs=0), "pairs"),
        (lambda p: hamcmc.ensemble_underdamped(p.grad, friction=1.0), "friction"),
        (lambda p: hamcmc.sgld(p), "grad must be a function .* got Posterior"),
        (lambda p: hamcmc.ensemble_hamcmc(p.grad, gamma="newest"), "gamma"),
        (lambda p: hamcmc.ensemble_hamcmc(p.grad, metric="moving"), "metric"),
        (lambda p: hamcmc.ensemble_hamcmc(p.grad, metric={"b": -jnp.ones(2)}), "metric"),
        (lambda p: hamcmc.ensemble_hamcmc(p.grad, update="pairs"), "update"),
        (lambda p: hamcmc.ensemble_hamcmc(p.grad, adapt=0), "adapt"),
        (lambda p: hamcmc.ensemble_hamcmc(p.grad).init(jnp.zeros((21, 3))), "22 replicas"),
        (lambda p: hamcmc.psgld(p, decay=1.0), "decay"),
        (lambda p: hamcmc.psgld(p, regularizer=0.0), "regularizer"),
        (lambda p: hamcmc.sgfs(p, base=-1.0), "base"),
        (lambda p: hamcmc.sgrld(p.grad, jnp.ones((2, 3))), "fisher"),
        (lambda p: hamcmc.sgrld(p.grad, -jnp.eye(2)), "fisher"),
    ],
)
def test_bad_hyper_parameters_are_named(make, culprit, target):
    with pytest.raises(ValueError, match=culprit):
        make(target.posterior)
