"""find_mode and laplace against modes in closed form and by Newton's method, and where there is no mode."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import hamcmc
from hamcmc.target import linear_gaussian as lg
from hamcmc.target import mode
from tests.mutation import mutant


def test_the_mode_of_a_gaussian_is_its_mean(model, data, x64):
    exact = lg.exact(data, 10.0)
    found = hamcmc.find_mode(model, jnp.full(3, 5.0), tolerance=1e-9)
    assert_allclose(found, exact.mean, rtol=1e-6)


def test_single_precision_gets_close(model, data):
    exact = lg.exact(data, 10.0)
    found = hamcmc.find_mode(model, jnp.full(3, 5.0))
    assert_allclose(found, exact.mean, atol=0.01 * np.sqrt(np.diag(exact.covariance)).min())


def test_a_minibatch_moves_the_mode_by_its_own_error(model, data):
    """On 500 of 1000 rows without replacement the mode is off by about √(1/500 − 1/1000)·√10 = 0.1 per coordinate."""
    exact = lg.exact(data, 10.0)
    found = np.asarray(hamcmc.find_mode(model, jnp.zeros(3), batch_size=500, seed=1))
    assert 0 < np.abs(found - exact.mean).max() < 0.5
    whole = hamcmc.find_mode(model, jnp.zeros(3), batch_size=1000)
    assert_allclose(whole, exact.mean, atol=1e-3)


@pytest.mark.parametrize(("way", "mode"), [("bijection", 1.5), ("mirror", 1.0)])
def test_the_mode_of_a_positive_parameter(way, mode):
    """Gamma(3, 2): mode (3−1)/2 of the parameter, and 3/2 of its logarithm's density."""
    posterior = hamcmc.Posterior(
        lambda p: 2 * jnp.log(p["theta"]) - 2 * p["theta"], support={"theta": hamcmc.positive(way)}
    )
    for start in (0.01, 30.0):
        found = hamcmc.find_mode(posterior, {"theta": jnp.float32(start)}, tolerance=1e-6)
        assert float(found["theta"]) == pytest.approx(mode, rel=2e-3)


def test_a_mirrored_parameter_stays_on_its_side():
    """N(−1, 1) on θ > 0 has its mode at the edge; off the edge, at −1 and its mirror image 1, there is none."""
    posterior = hamcmc.Posterior(lambda theta: -0.5 * (theta + 1) ** 2, support=hamcmc.positive("mirror"))
    assert 0 <= float(hamcmc.find_mode(posterior, jnp.float32(2.0))) < 0.1


def test_bad_input(model, data, tmp_path):
    with pytest.raises(ValueError, match="batch_size 2000 is larger than the data: 1000 rows"):
        hamcmc.find_mode(model, jnp.zeros(3), batch_size=2000)
    with pytest.raises(ValueError, match="iterations must be"):
        hamcmc.find_mode(model, jnp.zeros(3), iterations=0)
    with pytest.raises(ValueError, match="starts outside of its support"):
        hamcmc.find_mode(hamcmc.Posterior(lambda p: -p, support=hamcmc.positive()), jnp.float32(-1.0))
    unbounded = hamcmc.Posterior(lambda p: jnp.exp(p))
    with pytest.raises(ValueError, match="find_mode left the finite numbers in parameter theta"):
        hamcmc.find_mode(unbounded, jnp.float32(0.0))


def test_streamed_data(data, tmp_path, monkeypatch):
    monkeypatch.setattr("hamcmc.target.passes.CHUNK", 300)  # ten chunks
    rows = np.memmap(tmp_path / "a", np.float32, "w+", shape=(1000, 3))
    rows[:] = data.a
    posterior = hamcmc.Posterior(lambda t: 0.0 * t[0], lambda t, a: -0.5 * jnp.sum((a - t) ** 2), rows)
    for batch_size in (None, 1000):
        found = hamcmc.find_mode(posterior, jnp.zeros(3), batch_size=batch_size)
        assert_allclose(found, data.a.mean(0), atol=1e-4)


def test_a_soft_direction_beside_a_stiff_one():
    """The first gradient is a million times as large as that along the soft direction, which must be followed, too."""
    posterior = hamcmc.Posterior(lambda p: -0.5e6 * p["stiff"] ** 2 - 0.5 * (p["soft"] - 3) ** 2)
    found = hamcmc.find_mode(posterior, {"stiff": jnp.float32(1.0), "soft": jnp.float32(0.0)})
    assert float(found["soft"]) == pytest.approx(3, abs=0.01)
    assert float(found["stiff"]) == pytest.approx(0, abs=1e-5)


# --- laplace ---


def reference(x, y, prior_sd, family, steps=200):
    """The mode and the Hessian of a regression with a normal prior, by damped Newton steps in scaled columns."""
    x = np.asarray(x, np.float32).astype(float)
    z, theta = x * prior_sd, np.zeros(x.shape[1])
    for _ in range(steps):
        eta = np.clip(z @ theta, -30, 30)
        mean = {"normal": eta, "poisson": np.exp(eta), "logistic": 1 / (1 + np.exp(-eta))}[family]
        weight = {"normal": np.ones_like(eta), "poisson": mean, "logistic": mean * (1 - mean)}[family]
        hessian = (z * weight[:, None]).T @ z + np.eye(len(theta))
        step = np.linalg.solve(hessian, z.T @ (y - mean) - theta)
        theta = theta + step * min(1.0, 2 / np.abs(z @ step).max())
    return theta * prior_sd, hessian / np.outer(prior_sd, prior_sd)


def regression(family, x, y, prior_sd):
    sd = np.asarray(prior_sd, np.float32)

    def log_likelihood(theta, d):
        eta = d["x"] @ theta
        if family == "normal":
            return -0.5 * (d["y"] - eta) ** 2
        return d["y"] * eta - (jnp.exp(eta) if family == "poisson" else jnp.logaddexp(0.0, eta))

    data = {"x": np.asarray(x, np.float32), "y": np.asarray(y, np.float32)}
    return hamcmc.Posterior(lambda theta: -0.5 * jnp.sum((theta / sd) ** 2), log_likelihood, data)


def correlated():
    """26 columns with a condition number of 4e5."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(26, 26)))[0]
    x = rng.normal(size=(600, 26)) @ (turn * np.logspace(0, -2.7, 26)).T
    return x, x @ rng.normal(size=26) + rng.normal(size=600), np.full(26, 1e3)


def dollars():
    """Counts with columns in dollars, in thousandths, and of order 1."""
    rng = np.random.default_rng(1)
    x = np.stack([np.ones(800), rng.lognormal(11, 0.5, 800), 1e-3 * rng.normal(size=800), rng.normal(size=800)], 1)
    truth = np.array([0.5, 1e-5, 300, 0.2])
    return x, rng.poisson(np.exp(x @ truth)), np.array([10, 1e-3, 1e4, 10])


def rare():
    """Six thousand rows, of which five have the first feature, and those all with the same label."""
    rng = np.random.default_rng(2)
    x = (rng.random((6000, 8)) < 0.1).astype(float)
    x[:, 0], x[:, 1] = np.arange(6000) % 1200 == 7, 1
    y = rng.random(6000) < 1 / (1 + np.exp(2 - x @ rng.normal(size=8)))
    return x, np.where(x[:, 0], 1, y), np.full(8, 5.0)


def separable():
    x = np.random.default_rng(3).normal(size=(100, 3))
    return x, x[:, 0] > 0, np.full(3, 20.0)


def check_laplace(package, make, family):
    x, y, prior_sd = make()
    posterior = regression(family, x, y, prior_sd)
    found = package.laplace(posterior, jnp.zeros(x.shape[1]))
    mode, hessian = reference(x, y, prior_sd, family)
    assert found.converged, found.reason
    off = found.flat - mode
    assert 0.5 * off @ hessian @ off < 2e-3, "too far from the mode"  # the tolerance, and what rounding adds
    units = np.sqrt(np.diag(hessian))
    assert_allclose(found.precision / np.outer(units, units), hessian / np.outer(units, units), atol=0.02)
    inverse = found.root @ found.root.T * np.outer(units, units)
    assert_allclose(inverse @ (found.precision / np.outer(units, units)), np.eye(len(units)), atol=1e-6)
    assert_allclose(found.inverse_root @ found.root, np.eye(len(units)), atol=1e-8)
    likelihood = len(y) * -found.mean_hessian  # what is left of the precision is the prior's
    assert_allclose((found.precision - likelihood) * prior_sd**2, np.eye(len(units)), atol=1e-4 * hessian.max())
    return found


CASES = [(correlated, "normal"), (dollars, "poisson"), (rare, "logistic"), (separable, "logistic")]


@pytest.mark.parametrize(("make", "family"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_laplace_in_single_precision(make, family):
    found = check_laplace(hamcmc, make, family)
    assert "nats after" in found.reason
    assert "on all data; the Hessian is positive definite (condition number" in found.reason


@pytest.mark.parametrize(("make", "family"), CASES[:2], ids=["correlated", "dollars"])
def test_laplace_in_double_precision(make, family, x64):
    check_laplace(hamcmc, make, family)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("target/newton.py", "return float(0.5 * np.sum((", "return float(1e-8 * np.sum(("),
        (
            "target/newton.py",
            "search = _Search(objective, x, hessian)",
            "search, limit = _Search(objective, x, hessian), 1",
        ),
    ],
    ids=["too early", "too short"],
)
def test_broken_searches_are_noticed(file, old, new):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="too far|1 Newton steps"):
        check_laplace(package, dollars, "poisson")


def plenty():
    """Eight thousand rows and four columns of little correlation."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(8000, 4))
    return x, rng.random(8000) < 1 / (1 + np.exp(-x.sum(1))), np.full(4, 5.0)


def test_parts_of_the_data_come_first(monkeypatch):
    """After Newton steps on parts of the data, few gradients and one Hessian on all of them are enough."""
    monkeypatch.setattr("hamcmc.target.search.FIRST", 500)
    found = check_laplace(hamcmc, plenty, "logistic")
    assert 4 + 3 < found.gradients < 4 + 3 + 8


def test_one_step_is_enough_for_a_normal_density(model):
    assert hamcmc.laplace(model, jnp.full(3, 5.0), iterations=1).converged
    with pytest.warns(UserWarning, match="no mode after 1 Newton steps on all data: U still fell by"):
        hamcmc.find_mode(regression("poisson", *dollars()), jnp.zeros(4), iterations=1)


def test_the_anchor_of_a_control_variate():
    """mean_grad is the mean likelihood gradient at the very position, rounded as it is."""
    posterior = regression("poisson", *dollars())
    found = hamcmc.laplace(posterior, jnp.zeros(4))
    prior = -found.flat / np.array([10, 1e-3, 1e4, 10]) ** 2
    exact = np.asarray(posterior.full_grad(found.position), float)
    assert_allclose(prior + 800 * found.mean_grad, exact, atol=1e-4 * np.sqrt(np.diag(found.precision)).max())
    draws = np.concatenate([np.asarray(found.draw(4000, seed=1))])
    white = found.whiten(draws)
    assert_allclose(white.T @ white / 4000, np.eye(4), atol=5 * np.sqrt(2 / 4000))


def test_vectors_become_positions_with_scalars():
    posterior = hamcmc.Posterior(lambda p: -(p["a"] ** 2) - jnp.sum(p["b"] ** 2), init={"a": 1.0, "b": np.ones(2)})
    found = hamcmc.laplace(posterior)
    one, several = found.unravel(np.arange(3.0)), found.unravel(np.zeros((4, 3)))
    assert (float(one["a"]), one["b"].tolist()) == (0.0, [1.0, 2.0])
    assert (several["a"].shape, several["b"].shape) == ((4,), (4, 2))


@pytest.mark.parametrize("start", ["pytree", "function"])
def test_the_posterior_has_a_start_of_its_own(start, data):
    posterior = lg.linear_gaussian(data, 10.0)
    posterior.init = jnp.zeros(3) if start == "pytree" else (lambda key: jnp.zeros(3))
    assert_allclose(hamcmc.find_mode(posterior), lg.exact(data, 10.0).mean, atol=1e-3)
    assert hamcmc.laplace(posterior).converged
    assert hamcmc.laplace(hamcmc.control_variate(posterior, jnp.ones(3))).converged  # of the plain posterior


def schools(centred):
    y = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sd = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_prior(p):
        scale, z = p["tau"], p["z"]
        effect = z if centred else p["mu"] + scale * z
        prior = -jnp.log(scale) - 0.5 * ((z - p["mu"]) / scale) ** 2 if centred else -0.5 * z**2
        hyper = -0.02 * p["mu"] ** 2 - jnp.log1p((scale / 5) ** 2)
        return hyper + jnp.sum(prior - 0.5 * ((y - effect) / sd) ** 2)

    start = {"mu": 0.0, "tau": 1.0, "z": np.zeros(8)}
    return hamcmc.Posterior(log_prior, support={"tau": hamcmc.positive()}), start


def test_a_centred_hierarchy_has_no_mode():
    """Its density grows without bound as all effects become equal; the other parameterization has a mode."""
    posterior, start = schools(centred=True)
    found = hamcmc.laplace(posterior, start)
    assert not found.converged
    assert found.reason.startswith("no mode")
    with pytest.warns(UserWarning, match="find_mode did not converge: no mode"):
        hamcmc.find_mode(posterior, start)
    assert hamcmc.laplace(*schools(centred=False)).converged


def test_somebody_in_a_hurry_does_not_follow_a_density_that_only_becomes_narrower():
    """A patient search goes on to where the numbers end. With a mode at the end there is no difference."""
    ends = {}
    for patient in (True, False):
        posterior, start = schools(centred=True)
        ends[patient] = mode.approximated(*mode.prepared(posterior, start, 0), patient=patient)
    assert "narrower, along tau" in ends[False].reason
    assert not ends[False].converged
    assert 2 * ends[False].gradients < ends[True].gradients
    posterior, start = schools(centred=False)
    assert mode.approximated(*mode.prepared(posterior, start, 0), patient=False).converged


def test_densities_without_a_mode_or_with_many():
    x, y, _ = separable()
    limit = hamcmc.laplace(regression("logistic", x, y, np.full(3, np.inf)), jnp.zeros(3))
    assert (limit.converged, limit.reason[:7]) == (False, "no mode"), limit.reason
    flat = hamcmc.laplace(hamcmc.Posterior(lambda x: -0.5 * (x[0] + x[1] - 1) ** 2), jnp.zeros(2))
    assert not flat.converged
    assert flat.reason.startswith("no single mode: the density is flat")


def test_densities_that_are_not_normal():
    funnel = hamcmc.Posterior(
        lambda p: -(p["v"] ** 2) / 18 - 4.5 * p["v"] - 0.5 * jnp.sum(p["x"] ** 2) * jnp.exp(-p["v"])
    )
    found = hamcmc.laplace(funnel, {"v": 0.0, "x": np.ones(9)})
    assert found.converged
    assert float(found.mode["v"]) == pytest.approx(-40.5, abs=0.2)  # where hardly any of the mass is
    heavy = hamcmc.laplace(hamcmc.Posterior(lambda x: -2 * jnp.sum(jnp.log1p(x**2 / 3))), jnp.full(20, 50.0))
    assert heavy.converged
    assert_allclose(heavy.mode, 0, atol=0.05)
    banana = hamcmc.Posterior(lambda x: -0.5 * (x[0] / 10) ** 2 - 50 * (x[1] + 0.1 * x[0] ** 2 - 10) ** 2)
    bent = hamcmc.laplace(banana, jnp.array([15.0, 30.0]))
    assert bent.converged
    assert abs(bent.mode[0]) < 1  # a tenth of a standard deviation
    saddle = hamcmc.Posterior(lambda x: jnp.logaddexp(-0.5 * jnp.sum((x - 3) ** 2), -0.5 * jnp.sum((x + 3) ** 2)))
    assert_allclose(np.abs(hamcmc.laplace(saddle, jnp.zeros(2)).mode), 3, atol=0.05)


def test_many_parameters():
    """Beyond the size of a Hessian: a chain of 1500 neighbours in units from 1e-3 to 1e3, by L-BFGS."""
    units = np.logspace(-3, 3, 1500).astype(np.float32)

    def log_prior(x):
        u = x * units
        return -0.5 * jnp.sum(u**2) - 2 * jnp.sum((u[1:] - u[:-1]) ** 2) + jnp.sum(u) - 0.05 * jnp.sum(u**4)

    found = hamcmc.laplace(hamcmc.Posterior(log_prior), jnp.asarray(3 / units))
    assert found.converged, found.reason
    assert "products with the Hessian in conjugate gradients" in found.reason
    level = np.real(np.roots([0.2, 0, 1, -1])[np.isreal(np.roots([0.2, 0, 1, -1]))])[0]  # u + 0.2 u³ = 1
    assert_allclose(found.mode * units, level, atol=2e-3)
    diagonal = 1 + 0.6 * level**2 + 4 * np.r_[1, np.full(1498, 2), 1]
    assert_allclose(found.precision / units**2, diagonal, rtol=0.01)
    assert_allclose(found.root * np.sqrt(found.precision), 1)
    assert found.mean_hessian is None


def test_laplace_with_bad_input(model):
    with pytest.raises(ValueError, match="init is missing"):
        hamcmc.laplace(hamcmc.Posterior(lambda x: -(x**2)))
    with pytest.raises(ValueError, match="tolerance must be"):
        hamcmc.laplace(model, jnp.zeros(3), tolerance=0)
    with pytest.raises(ValueError, match="not finite at the start"):
        hamcmc.laplace(hamcmc.Posterior(lambda x: jnp.log(x)), jnp.float32(-1.0))
