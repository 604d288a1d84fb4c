"""What is particular to the samplers with momentum: their law at finite steps, noisy gradients, walls."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.samplers.sghmc import fly
from hamcmc.target import linear_gaussian as lg
from tests.mutation import mutant
from tests.samplers.targets import Quartic, Z, final_positions

CURVATURE = np.array([0.1, 1.0, 1.9])


def stationary(package):
    """A function from SGHMC's settings to the exact covariances (coordinate, 2, 2) of (θ, p) on a Gaussian.

    A step is linear in (θ, p), its noise z and the gradient's noise e: the matrices are read off, and the covariance
    solves C = M C Mᵀ + N Nᵀ.
    """
    key = jax.random.key(0)

    @jax.jit
    def out(theta, p, e, epsilon, friction, noise):
        sampler = package.sghmc(lambda theta, e: e - CURVATURE * theta, friction=friction, noise=noise)
        state, _ = sampler.step(key, sampler.init(theta)._replace(momentum=p), e, epsilon)
        return jnp.stack([state.position, state.momentum], -1), jax.random.normal(key, (3,))

    def covariances(epsilon, friction, variance=0.0, noise=0.0):
        zero, one = np.zeros(3), np.ones(3)
        at = lambda *x: np.asarray(out(*x, epsilon, friction, noise)[0])
        origin, z = at(zero, zero, zero), np.asarray(out(zero, zero, zero, epsilon, friction, noise)[1])
        M = np.stack([at(one, zero, zero) - origin, at(zero, one, zero) - origin], -1)
        N = np.stack([origin / z[:, None], np.sqrt(variance) * (at(zero, zero, one) - origin)], -1)
        solve = lambda m, n: np.linalg.solve(np.eye(4) - np.kron(m, m), (n @ n.T).ravel()).reshape(2, 2)
        return np.stack([solve(m, n) for m, n in zip(M, N)])

    return covariances


def check_stationary(package):
    """By hand: Var θ = 1/k exactly, Var p = 1 and Cov(θ, p) = −h/2 at every stable step; see below for noise."""
    law = stationary(package)
    for epsilon, friction in ((0.01, 0.1), (1.0, 0.03), (1.0, 0.9)):
        h, x, heat = np.sqrt(2 * epsilon), epsilon * CURVATURE / 2, (2 - friction) / friction
        for covariance, k in zip(law(epsilon, friction), CURVATURE):
            assert np.allclose(covariance, [[1 / k, -h / 2], [-h / 2, 1]], rtol=1e-9), f"off: {covariance}"
        # In the AR(2) process of θ the kick's noise e is white and z an average of two: hence the 1 − x.
        v = 0.5 / (epsilon * heat)
        excess = epsilon * v / 2 * heat
        found = CURVATURE * law(epsilon, friction, variance=v)[:, 0, 0]
        assert np.allclose(found, 1 + excess / (1 - x), rtol=1e-9), f"off with noise: {found}"
        found = CURVATURE * law(epsilon, friction, variance=v, noise=v)[:, 0, 0]
        assert np.allclose(found, 1 + excess * x / (1 - x), rtol=1e-9), f"off with known noise: {found}"


def test_stationary_law_at_finite_steps(x64):
    check_stationary(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("half = jnp.sqrt(step_size / 2)", "half = jnp.sqrt(step_size)"),
        ("1 - (1 - a) ** 2 -", "2 * a -"),  # Euler's noise
        ("step_size / 2 * (2 - a) ** 2 * v", "step_size * 2 * v"),  # Chen et al.'s, right for a → 0
        ("kick(p, g, 2 * half)", "kick(p, g, half)"),
        ("(p + time * f)", "(p - time * f)"),
    ],
)
def test_broken_sghmc_is_noticed(old, new, x64):
    with mutant("samplers/sghmc.py", old, new) as package, pytest.raises(AssertionError, match="off"):
        check_stationary(package)


def test_without_memory_it_is_sgld(x64):
    """a → 1: θ + ε g(θ) + √(2ε) times the mean of this step's and the last one's noise. The same ε as SGLD's."""
    grad = lambda theta, _: -(theta**3)
    sampler, epsilon = hamcmc.sghmc(grad, friction=1 - 1e-13), 0.05
    state, step = sampler.init(jnp.array([0.5, -1.0])), jax.jit(sampler.step)
    theta, last, g = np.array(state.position), np.zeros(2), np.zeros(2)
    for t in range(5):
        key = jax.random.key(t)
        z = np.asarray(jax.random.normal(key, (2,)))
        theta = theta + epsilon * g + np.sqrt(2 * epsilon) * (last + z) / 2
        last, g = z, grad(theta, None)
        state, _ = step(key, state, None, epsilon)
        np.testing.assert_allclose(state.position, theta, rtol=1e-10)


def test_varying_curvature():
    quartic = Quartic(hamcmc)
    quartic.check(hamcmc.sghmc(quartic.posterior.grad), step_size=0.02, steps=100, replicas=6000, bias=0.03)


# --- noisy gradients ---


def temperature(make, *, replicas=1000):
    """Mean squared deviation over the exact posterior's, and what SGHMC should have, on minibatches of 20 of 1000."""
    data = lg.simulate(np.random.default_rng(0), 1000, np.eye(3), 10.0)
    truth, n, epsilon = lg.exact(data, 10.0), 20, 1e-4
    posterior = lg.linear_gaussian(data, 10.0)
    root = np.linalg.cholesky(truth.precision)
    z = np.random.default_rng(1).standard_normal((replicas, 3))
    starts = jnp.asarray(truth.mean + np.linalg.solve(root.T, z.T).T, jnp.float32)
    end = final_positions(make(posterior), posterior, starts, steps=200, step_size=epsilon, batch_size=n)
    found = np.mean(((np.asarray(end, float) - truth.mean) @ root) ** 2)

    grads = (data.x - data.a @ truth.mean)[:, None] * data.a / 10
    v = 1000**2 / n * grads.var(0).mean()  # of the stochastic gradient; nearly the same everywhere
    return found, 1 + epsilon * v / 2 * 1.9 / 0.1, Z * np.sqrt(2 / (3 * replicas))


def test_noise_heats_without_a_thermostat():
    """As much as theory says, which is a lot: the variance is almost six times too large."""
    found, expected, error = temperature(lambda p: hamcmc.sghmc(p.grad))
    assert expected > 5
    assert found / expected == pytest.approx(1, abs=error + 0.03)


@pytest.mark.parametrize("make", [lambda p: hamcmc.sgnht(p.grad), hamcmc.ccadl], ids=["sgnht", "ccadl"])
def test_thermostats_take_the_heat_out(make):
    found, _, error = temperature(make)
    assert found == pytest.approx(1, abs=error + 0.03)


def check_measure(package):
    """What the thermostat holds at 1 is, whatever the friction, the temperature that SGHMC's variance shows.

    That is T + (εV/2)(1+c)/(1−c), with c = e^(−ξ) kept of p, T(1−c²) the noise's variance, and 2εV that of a kick.
    """
    rub = importlib.import_module(f"{package.__name__}.samplers.sgnht").rub
    for friction, xi, noise in ((0.1, 0.105, 0.0), (0.5, np.log(2), 0.0), (0.2, 0.9, 0.7)):
        c, t = np.exp(-xi), -np.log1p(-friction) / xi
        spread = np.sqrt(t + 2 * noise / (1 - c**2))  # of the momentum, by its balance over a step
        signs = np.array([[1, 1], [1, -1]])  # a quadratic form's mean over signs is that over independent normals
        kept, _, heat = rub(
            jnp.asarray(spread * signs[:, 0]), jnp.float32(xi), jnp.asarray(signs[:, 1], float), friction
        )
        np.testing.assert_allclose(kept, c * spread * signs[:, 0], rtol=1e-5, err_msg="off")
        np.testing.assert_allclose(heat.mean(), t + noise / 2 * (1 + c) / (1 - c), rtol=1e-5, err_msg="off")


def test_measure_of_temperature():
    check_measure(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(momentum + kept + noise) / 2", "kept + noise"),  # Ding et al.'s
        ("speed**2 + share / 2", "speed**2"),
        ("share * (1 + jnp.exp(-xi))", "share"),
    ],
)
def test_broken_measure_is_noticed(old, new):
    with mutant("samplers/sgnht.py", old, new) as package, pytest.raises(AssertionError, match="off"):
        check_measure(package)


def test_covariance_of_the_gradient(model, data):
    """Σ is N²/n times the covariance within the minibatch, averaged with weight `decay`; all data have no noise."""
    first, second = (jax.tree.map(lambda x, rows=rows: x[rows], data) for rows in (slice(20), slice(20, 40)))
    step = {full: jax.jit(hamcmc.ccadl(model, full=full, decay=0.9).step) for full in (False, True)}
    init = hamcmc.ccadl(model, full=True).init(jnp.zeros(3))
    cov = lambda theta, batch: 1000**2 / 20 * np.cov(model.per_datum_grads(theta, batch), rowvar=False)

    one, _ = step[True](jax.random.key(0), init, first, 1e-4)
    np.testing.assert_allclose(one.covariance, cov(one.position, first), rtol=1e-4)
    two, _ = step[True](jax.random.key(1), one, second, 1e-4)
    np.testing.assert_allclose(two.covariance, 0.9 * one.covariance + 0.1 * cov(two.position, second), rtol=1e-4)
    diagonal = init._replace(covariance=jnp.zeros(3))
    np.testing.assert_allclose(
        step[False](jax.random.key(0), diagonal, first, 1e-4)[0].covariance, np.diag(one.covariance), rtol=1e-4
    )
    assert not step[False](jax.random.key(0), diagonal, data, 1e-4)[0].covariance.any()


def test_ccadl_on_all_data_is_sgnht(model, data):
    """There the gradient has no noise to make up for, so that both take the same steps."""
    options = {"friction": 0.2, "rate": 0.3}
    ends = []
    for sampler in (hamcmc.ccadl(model, **options), hamcmc.sgnht(model.grad, **options)):
        step, state = jax.jit(sampler.step), sampler.init(jnp.array([0.5, -1.0, 2.0]))
        for key in jax.random.split(jax.random.key(3), 3):
            state, _ = step(key, state, data, 1e-4)
        ends.append(state)
    ours, plain = ends
    np.testing.assert_allclose(ours.position, plain.position, rtol=1e-5)
    np.testing.assert_allclose(ours.momentum, plain.momentum, rtol=1e-4, atol=1e-6)
    assert ours.xi == pytest.approx(float(plain.xi), rel=1e-5)


def test_a_diagonal_covariance_rubs_as_the_whole_matrix(model, data):
    """Of noise that is uncorrelated; values in ascending order, as eigenvalues are."""
    values, momentum = jnp.array([2.0, 30.0, 500.0]), jnp.array([1.0, -2.0, 0.5])
    found = []
    for full in (False, True):
        sampler = hamcmc.ccadl(model, full=full)
        start = sampler.init(jnp.zeros(3))._replace(
            covariance=jnp.diag(values) if full else values, momentum=momentum, step=jnp.int32(1)
        )
        found.append(jax.jit(sampler.step)(jax.random.key(0), start, data, 1e-2)[0])
    diagonal, whole = found
    np.testing.assert_allclose(diagonal.position, whole.position, rtol=1e-5)
    assert diagonal.xi == pytest.approx(float(whole.xi), rel=1e-5)
    loose = jax.jit(sampler.step)(jax.random.key(0), start._replace(covariance=jnp.zeros((3, 3))), data, 1e-2)[0]
    assert np.abs(loose.position - whole.position).max() > 0.01  # the covariance does matter here


# --- walls ---


def test_a_wall_reverses_the_momentum():
    """Against a ball that goes from wall to wall, some of them many times."""
    rng = np.random.default_rng(3)
    x, p = rng.random(200), rng.normal(size=200) * 10.0 ** rng.integers(-1, 2, 200)
    mirror = hamcmc.Posterior(lambda t: 0.0, support=hamcmc.bounded(0.0, 1.0, by="mirror")).mirror
    with jax.enable_x64(True):
        position, momentum = fly(jnp.asarray(x), jnp.asarray(p), 0.7, mirror)
    bounces = []
    for i in range(200):
        left, bounces_here = 0.7, 0
        while True:
            hit = ((1 if p[i] > 0 else 0) - x[i]) / p[i]
            if hit > left:
                break
            x[i], p[i], left, bounces_here = x[i] + hit * p[i], -p[i], left - hit, bounces_here + 1
        x[i] += left * p[i]
        bounces.append(bounces_here)
    assert {0, 1, 2, 3} <= set(bounces)
    np.testing.assert_allclose(position, x, atol=1e-12)
    np.testing.assert_array_equal(momentum, p)


def check_half_normal(package, name):
    """N(0, 1) folded at 0: the mirrored chain is the plain one's absolute value, so exact at any stable step."""
    posterior = package.Posterior(
        lambda theta: 0.0,
        lambda theta, _: -0.5 * jnp.sum(theta**2),
        np.zeros(1, np.float32),
        support=package.positive(by="mirror"),
    )
    starts = jnp.abs(jax.random.normal(jax.random.key(0), (10000, 1)))
    end = final_positions(package.samplers.build(name, posterior), posterior, starts, steps=60, step_size=0.2)
    error = np.asarray(end, float).mean() - np.sqrt(2 / np.pi)
    assert abs(error) <= Z * np.sqrt((1 - 2 / np.pi) / 10000), f"mean off by {error:+.3f}"


@pytest.mark.parametrize("name", ["sghmc", "sgnht"])
def test_half_normal(name):
    check_half_normal(hamcmc, name)


@pytest.mark.slow
def test_a_wall_that_keeps_the_momentum_is_noticed():
    wall = mutant("samplers/sghmc.py", "jax.jvp(mirror, (moved,), (momentum,))", "(mirror(moved), momentum)")
    with wall as package, pytest.raises(AssertionError, match="off"):
        check_half_normal(package, "sghmc")


# --- bad input ---


@pytest.mark.parametrize("name", ["sghmc", "sgnht", "ccadl"])
@pytest.mark.parametrize("friction", [0.0, 1.0, -0.1, float("nan"), "low"])
def test_bad_friction_is_named(name, friction, model):
    with pytest.raises(ValueError, match="friction must be"):
        hamcmc.samplers.build(name, model, friction=friction)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sghmc", {"noise": -1.0}),
        ("sghmc", {"noise": jnp.array([1.0, jnp.nan, 0.0])}),
        ("sgnht", {"rate": 0.0}),
        ("ccadl", {"rate": float("inf")}),
        ("ccadl", {"decay": 1.0}),
    ],
)
def test_bad_options_are_named(name, options, model):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must "):
        hamcmc.samplers.build(name, model, **options)


def test_ccadl_needs_data():
    with pytest.raises(ValueError, match="ccadl .* no log_likelihood"):
        hamcmc.ccadl(hamcmc.Posterior(lambda theta: -jnp.sum(theta**2)))
