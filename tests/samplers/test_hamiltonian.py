"""The metric and the pace that Hamiltonian trajectories learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.samplers.ensemble import hamiltonian, mass, pace
from hamcmc.samplers.ensemble.hamiltonian import HamiltonianState, careful, van_der_corput

ADAPT = 400


@jax.jit
def observe(metric, x, g, t):
    return mass.observe(metric, x, g, t, ADAPT)


@functools.cache
def learned_metric(dense, dimension=4, replicas=12, lost=False):
    """The metric after a warm-up of independent draws x of N(0, A⁻¹) with gradients −A x; and A."""
    rng = np.random.default_rng(3)
    b = rng.normal(size=(dimension, dimension))
    scales = 10.0 ** np.linspace(-1, 1, dimension)
    a = (b @ b.T + np.eye(dimension)) / np.outer(scales, scales)
    if not dense:
        a = np.diag(np.diag(a))
    root = np.linalg.cholesky(np.linalg.inv(a))
    found = mass.identity(dimension, jnp.float32, dense)
    for t in range(ADAPT):
        x = 0.3 * rng.normal(size=(replicas, dimension)) @ root.T  # far closer together than draws are
        if lost:
            x[0] = 1e4 * root.sum(1)
        # Where the posterior lies makes no difference.
        found, _ = observe(found, jnp.asarray(x + 20, jnp.float32), jnp.asarray(-x @ a, jnp.float32), jnp.int32(t))
    return found, a


@pytest.mark.parametrize("dense", [True, False])
def test_metric_is_the_inverse_hessian_wherever_replicas_are(dense):
    found, a = learned_metric(dense)
    s = np.asarray(found.push(jnp.eye(4)), float).T  # its columns are S e_i
    # With gradients −A x the metric is A⁻¹ wherever the positions are, but for the medians that they are taken from.
    np.testing.assert_allclose(s.T @ a @ s, np.eye(4), atol=0.15 if dense else 0.2)
    np.testing.assert_allclose(np.asarray(found.whiten(jnp.asarray(s.T, jnp.float32))), np.eye(4), atol=2e-3)
    np.testing.assert_allclose(np.asarray(found.pull(jnp.eye(4))), s, rtol=1e-3, atol=1e-6 * np.abs(s).max())


def test_a_lost_replica_does_not_rule_the_metric():
    found, a = learned_metric(True, lost=True)
    s = np.asarray(found.push(jnp.eye(4)), float).T
    values = np.linalg.eigvalsh(s.T @ a @ s)
    assert values[0] > 0.2
    assert values[-1] < 5


def test_metric_is_renewed_often_at_first_and_fixed_after_warmup():
    times = np.flatnonzero([mass.renewed_at(t, 600) for t in range(700)])
    assert times[0] == 10
    assert times[-1] == 540
    assert (np.diff(times) > 0).all()
    assert len(times) > 8
    found, _ = learned_metric(True)
    later, renewed = observe(found, jnp.ones((12, 4)), jnp.ones((12, 4)), jnp.int32(ADAPT))
    assert not bool(renewed)
    jax.tree.map(np.testing.assert_array_equal, later, found)


def test_step_comes_to_the_wanted_acceptance():
    """An acceptance that falls with h in a known way: exp(−h), which is 0.8 at h = 0.22."""
    now = pace.start(10, jnp.float32)
    step = jax.jit(
        lambda now, t: pace.learned(now, jnp.exp(-jnp.exp(now.log_step)), jnp.zeros(()), jnp.zeros(()), 0.8, t, 400)
    )
    for t in range(400):
        now = step(now, jnp.int32(t))
    assert float(now.now(jnp.bool_(False))[0]) == pytest.approx(-np.log(0.8), rel=0.1)


@pytest.mark.parametrize(("slope", "grows"), [(1.0, True), (-1.0, False)])
def test_path_follows_its_slope_within_limits(slope, grows):
    now = pace.start(10, jnp.float32)
    step = jax.jit(lambda now, t: pace.learned(now, jnp.float32(0.8), jnp.zeros(()), jnp.float32(slope), 0.8, t, 300))
    for t in range(300):
        now = step(now, jnp.int32(t))
    h, path = now.now(jnp.bool_(False))
    assert (float(path) > pace.FIRST_PATH) == grows
    assert float(h) * 0.99 <= float(path) <= pace.LONGEST_PATH * 1.001


def test_the_unit_of_the_slope_makes_no_difference():
    """A slope counts beside its own root mean square, from the first one on, which moves the path by the whole rate."""

    def paths(unit):
        now, found = pace.start(10, jnp.float32), []
        for t, slope in enumerate((1.0, 0.5, -2.0, 3.0)):
            value = jnp.float32(unit * slope)
            now = pace.learned(now, jnp.float32(0.8), jnp.float32(0.5), value, 0.8, jnp.int32(t), jnp.int32(100))
            found.append(float(now.log_path))
        return now, np.array(found)

    now, found = paths(1.0)
    assert found[0] - np.log(pace.FIRST_PATH) == pytest.approx(min(pace.PATH_RATE, pace.MOST_CHANGE), rel=1e-4)
    memory, square = pace.PATH_MEMORY, 0.0
    for t, slope in enumerate((1.0, 0.5, -2.0, 3.0)):
        square = memory * square + (1 - memory) * slope**2
        change = pace.PATH_RATE * slope / np.sqrt(square / (1 - memory ** (t + 1)))
        before = found[t - 1] if t else np.log(pace.FIRST_PATH)
        assert found[t] - before == pytest.approx(np.clip(change, -pace.MOST_CHANGE, pace.MOST_CHANGE), rel=1e-3)
    np.testing.assert_allclose(paths(1e6)[1], found, rtol=1e-5)
    assert float(now.rough) == pytest.approx(0.5 * (1 - (1 - pace.SMOOTHING) ** 4), rel=1e-4)


def test_the_slope_of_the_path_is_a_derivative():
    """Of E (|x' − m'|² − |x − m|²)² / 4 along exact trajectories of a Gaussian, where all are accepted and m' stays."""
    rng = np.random.default_rng(0)
    x, p = rng.normal(size=(2, 12, 3)) + 1
    at = lambda t: (x * np.cos(t) + p * np.sin(t), p * np.cos(t) - x * np.sin(t))

    def gain(t):
        squares = [np.sum((v - m) ** 2, 1) for v, m in ((at(t)[0], at(0.7)[0].mean(0)), (x, x.mean(0)))]
        return np.mean((squares[0] - squares[1]) ** 2) / 4

    position, momentum = (jnp.asarray(v, jnp.float32) for v in at(0.7))
    nothing = jnp.zeros(12)
    made = hamiltonian.Trajectory(position, momentum, nothing, position, jnp.ones(12))
    metric = mass.identity(3, jnp.float32, True)
    slope = (gain(0.7 + 1e-5) - gain(0.7 - 1e-5)) / 2e-5
    assert float(hamiltonian.path_slope(jnp.asarray(x, jnp.float32), made, metric)) == pytest.approx(slope, rel=1e-4)


def test_van_der_corput_fills_the_interval():
    numbers = np.asarray(jax.vmap(lambda i: van_der_corput(i, jnp.float32))(jnp.arange(1, 257)))
    assert (numbers > 0).all()
    assert (numbers < 1).all()
    np.testing.assert_allclose(np.sort(numbers)[:-1], np.arange(1, 256) / 256, atol=1 / 256)


def test_care_is_taken_only_where_the_way_is_rough():
    steps = jnp.arange(12)
    assert (np.asarray(jax.vmap(lambda t: careful(t, jnp.float32(0)))(steps)) == 1).all()
    rough = np.asarray(jax.vmap(lambda t: careful(t, jnp.float32(0.1)))(steps))
    assert set(rough.tolist()) == {1.0, 0.25, 0.0625}
    assert (rough == 1).mean() == pytest.approx(2 / 3)


def test_first_step_stays_and_brings_density_and_gradient():
    target = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2))
    sampler = hamcmc.ensemble_hmc(target, replicas=4, adapt=20)
    start = jnp.arange(8.0).reshape(4, 2)
    state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(start), None, 0.5)
    assert isinstance(state, HamiltonianState)
    np.testing.assert_array_equal(state.position, start)
    np.testing.assert_allclose(state.grad, -start)
    np.testing.assert_allclose(state.log_density, -0.5 * np.sum(np.asarray(start) ** 2, 1))
    assert float(info.acceptance) == 1


def test_places_without_a_density_are_never_entered():
    """U is infinite, or not a number, beyond an edge in the middle of the bulk."""
    target = hamcmc.Posterior(lambda x: jnp.where(x[0] < 0.2, -0.5 * jnp.sum(x**2), jnp.nan))
    result = hamcmc.sample(
        target, "ensemble_hmc", -jnp.ones(2), num_samples=50, adapt=60, replicas=8, seed=1, progress=False
    )
    assert result.posterior["theta"][..., 0].max() < 0.2


def test_bad_options_are_named():
    target = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2))
    for options, words in [
        ({"replicas": 3}, "replicas"),
        ({"acceptance": 1.0}, "acceptance"),
        ({"adapt": 5}, "adapt"),
        ({"metric": "resting"}, "metric"),
    ]:
        with pytest.raises(ValueError, match=words):
            hamcmc.ensemble_hmc(target, **options)
    with pytest.raises(ValueError, match="replicas"):
        hamcmc.ensemble_hmc(target).init(jnp.zeros((3, 2)))
    mirrored = hamcmc.Posterior(lambda x: -jnp.sum(x), support=hamcmc.positive("mirror"))
    with pytest.raises(ValueError, match="mirror"):
        hamcmc.ensemble_hmc(mirrored)
