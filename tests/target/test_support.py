"""Supports: maps against autodiff and quadrature, folds, and posteriors on the half-line sampled both ways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad

import hamcmc

BIJECTIONS = [hamcmc.positive(), hamcmc.bounded(-1.0, 3.0), hamcmc.real]


@pytest.mark.parametrize("support", BIJECTIONS, ids=lambda s: s.text)
def test_jacobians_are_those_of_autodiff(support, x64):
    u = jnp.linspace(-4, 4, 33)
    slope = jax.vmap(jax.grad(support.forward))(u)
    assert_allclose(support.log_jacobian(u), np.log(slope), rtol=1e-10, atol=1e-12)
    assert_allclose(support.inverse(support.forward(u)), u, rtol=1e-9, atol=1e-12)
    assert bool(support.contains(support.forward(u)).all())


@pytest.mark.parametrize(
    ("support", "low", "high"), [(hamcmc.positive("mirror"), 0, np.inf), (hamcmc.bounded(-1, 3, "mirror"), -1, 3)]
)
def test_mirrors_fold_inside_and_leave_the_inside_alone(support, low, high):
    x = jnp.linspace(-30.0, 30.0, 601)
    folded = np.asarray(support.mirror(x))
    assert (folded >= low).all()
    assert (folded <= high).all()
    inside = np.asarray(support.contains(x))
    assert_allclose(folded[inside], x[inside], atol=1e-5)
    assert_allclose(np.abs(np.diff(folded)), 0.1, atol=1e-4)  # a fold keeps lengths (0.1 divides the edges)


def gamma_posterior(support, shape=3.0, rate=2.0):
    """θ ~ Gamma(shape, rate), as a density without data."""
    log_prior = lambda p: (shape - 1) * jnp.log(p["theta"]) - rate * p["theta"]
    return hamcmc.Posterior(log_prior, support={"theta": support})


def test_the_density_of_a_positive_parameter_integrates_right(x64):
    """E[θ] and P(θ < 1) by quadrature over the *unconstrained* variable; without the Jacobian both would be wrong."""
    posterior = gamma_posterior(hamcmc.positive())
    density = jax.jit(lambda u: jnp.exp(posterior.log_density({"theta": u})))
    total = quad(density, -20, 5)[0]
    assert quad(lambda u: np.exp(u) * density(u), -20, 5)[0] / total == pytest.approx(1.5, rel=1e-6)
    assert quad(density, -20, 0)[0] / total == pytest.approx(stats.gamma(3, scale=0.5).cdf(1), rel=1e-6)


@pytest.mark.parametrize(("way", "shape"), [("bijection", 3.0), ("mirror", 1.0)])
def test_a_gamma_posterior_sampled_both_ways(way, shape):
    """Mean and variance within 5 standard errors over 500 chains, plus a bias of the order of ε.

    Mirrored with shape 1, for with more the drift (shape − 1)/θ at the edge is beyond any Euler step.
    """
    step_size = 0.01
    result = hamcmc.sample(
        gamma_posterior(hamcmc.positive(way), shape),
        "sgld",
        {"theta": jnp.float32(1.0)},
        step_size=step_size,
        num_samples=20,
        warmup=500,
        thin=50,
        chains=500,
        progress=False,
    )
    theta = result.posterior["theta"]
    assert (theta > 0).all()
    for moment, exact in ((theta, shape / 2), ((theta - shape / 2) ** 2, shape / 4)):
        per_chain = moment.mean(1)
        error = per_chain.std() / np.sqrt(len(per_chain))
        assert abs(per_chain.mean() - exact) < 5 * error + 3 * step_size
        assert error < 0.03  # so that a missing Jacobian or noise scale cannot pass


@pytest.mark.slow
def test_an_exponential_posterior_by_mirroring_at_the_edge():
    """Exponential(1) has most of its mass at the edge, where the fold matters."""
    posterior = hamcmc.Posterior(lambda p: -jnp.sum(p), support=hamcmc.positive("mirror"))
    result = hamcmc.sample(
        posterior,
        "sgld",
        lambda key: jax.random.exponential(key, (200,)),
        step_size=0.005,
        num_samples=20,
        thin=50,
        chains=4,
        progress=False,
    )
    theta = result.posterior["theta"].reshape(4, 20, 200)
    per_walker = theta.mean(1).ravel()  # 800 independent walkers
    error = per_walker.std() / np.sqrt(per_walker.size)
    assert abs(per_walker.mean() - 1) < 5 * error + 0.02
    assert error < 0.05


def test_supports_by_name():
    posterior = hamcmc.Posterior(lambda p: 0.0 * p["a"]["s"], support={"a": {"s": hamcmc.positive()}})
    position = posterior.unconstrain({"a": {"s": jnp.exp(2.0), "r": jnp.array([-5.0])}, "b": jnp.ones(2)})
    assert float(position["a"]["s"]) == pytest.approx(2.0)
    assert float(position["a"]["r"][0]) == -5
    back = posterior.constrain(position)
    assert float(back["a"]["s"]) == pytest.approx(np.exp(2), rel=1e-6)
    assert posterior.mirror is None


def test_what_cannot_be_a_support():
    with pytest.raises(ValueError, match="finite low < high"):
        hamcmc.bounded(2, 1)
    with pytest.raises(ValueError, match="finite low < high"):
        hamcmc.bounded(0, np.inf)
    with pytest.raises(ValueError, match="'bijection' or 'mirror', got 'magic'"):
        hamcmc.positive("magic")
    named = hamcmc.Posterior(lambda p: 0.0, support={"b": hamcmc.positive()})
    with pytest.raises(ValueError, match=r"support names \['b'\], which the position does not have: \['a'\]"):
        named.constrain({"a": jnp.ones(2)})
    with pytest.raises(ValueError, match="needs a position that is a dict"):
        named.constrain(jnp.ones(2))
    with pytest.raises(ValueError, match="parameter b starts outside of its support"):
        named.unconstrain({"b": jnp.array([1.0, -1.0])})


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, -1.0), (-1.0, 0.0), (0.1, 1e6)])
def test_values_stay_inside_where_rounding_would_put_them_on_the_end(low, high):
    support = hamcmc.bounded(low, high)
    u = jnp.array([-200.0, -90.0, -20.0, 0.0, 20.0, 90.0, 200.0])
    x = support.forward(u)
    assert bool(support.contains(x).all())
    assert np.array_equal(np.asarray(support.at_end(x))[[0, 3, 6]], [True, False, True])
    assert_allclose(np.asarray(x)[3], (low + high) / 2, rtol=1e-6)


def test_a_positive_number_does_not_become_zero():
    support = hamcmc.positive()
    x = support.forward(jnp.array([-500.0, -80.0, 3.0]))
    assert bool(support.contains(x).all())
    assert np.asarray(support.at_end(x)).tolist() == [True, False, False]
    assert_allclose(support.inverse(x)[1:], [-80.0, 3.0], rtol=1e-6)
