"""A log-likelihood of many rows at once is the same posterior as that of each row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.inference import auto, plan
from hamcmc.target.passes import Passes

RNG = np.random.default_rng(1)
X = RNG.standard_normal((200, 3)).astype(np.float32)
Y = (RNG.random(200) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5]))).astype(np.float32)
AT = jnp.array([0.3, -0.2, 0.1])


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def single(theta, row):
    x, y = row
    return -jnp.logaddexp(0.0, (1 - 2 * y) * (x @ theta))


def batched(theta, rows):
    x, y = rows
    assert (x.ndim, y.ndim) == (2, 1), "these are not rows"
    return -jnp.logaddexp(0.0, (1 - 2 * y) * (x @ theta))


@pytest.fixture(scope="module")
def both():
    one = hamcmc.Posterior(log_prior, single, (X, Y), init=jnp.zeros(3))
    return one, hamcmc.Posterior(log_prior, batched, (X, Y), init=jnp.zeros(3), batched=True)


def test_density_gradients_and_hessian_are_the_same(both):
    batch = jax.tree.map(lambda x: x[:20], both[0].data)
    for what in (
        lambda p: p.log_density(AT, batch),
        lambda p: p.grad(AT, batch),
        lambda p: p.per_datum_grads(AT, batch),
        lambda p: p.full_grad(AT),
        lambda p: Passes(p, AT).hessian(np.asarray(AT, float)).total,
        lambda p: hamcmc.laplace(p).precision,
    ):
        one, many = map(what, both)
        np.testing.assert_allclose(many, one, rtol=2e-5, atol=1e-5)


@pytest.mark.slow
def test_views_weigh_many_rows_as_each(both):
    found = [hamcmc.laplace(p) for p in both]
    views = [hamcmc.control_variate(p, f, order=2, importance=True) for p, f in zip(both, found)]
    rows = views[0].minibatch_indices(jax.random.key(0), 0, 16, True)
    one, many = (v.grad(AT, jax.tree.map(lambda x: x[rows], v.data)) for v in views)
    np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_run_is_the_same(both):
    one, many = (hamcmc.sample(p, progress=False) for p in both)
    np.testing.assert_allclose(many.posterior["theta"], one.posterior["theta"], atol=1e-4)


@pytest.mark.slow
def test_a_run_on_minibatches_is_the_same(both, monkeypatch):
    monkeypatch.setattr(plan, "PATIENCE", 0.0)
    monkeypatch.setattr(auto, "QUICK", 0.0)
    one, many = (hamcmc.sample(p, batch_size=40, num_samples=50, progress=False) for p in both)
    assert one.settings["plan"]["regime"] == "minibatches"
    assert many.settings["plan"]["step_size"] == pytest.approx(one.settings["plan"]["step_size"], rel=1e-3)
    np.testing.assert_allclose(many.posterior["theta"], one.posterior["theta"], atol=1e-2)


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [(lambda t, rows: jnp.sum(batched(t, rows)), r"\(\)"), (lambda t, rows: batched(t, rows)[:, None], r"\(200, 1\)")],
)
def test_a_wrong_shape_is_named(wrong, shape):
    posterior = hamcmc.Posterior(log_prior, wrong, (X, Y), init=jnp.zeros(3), batched=True)
    with pytest.raises(ValueError, match=rf"a number for each of 200 rows.*got {shape}"):
        hamcmc.sample(posterior, "sgld", step_size=1e-3, num_samples=3, progress=False)


@pytest.mark.parametrize(("many", "said"), [(False, "called with one row"), (True, "called with 200 rows")])
def test_an_error_in_the_likelihood_says_how_many_rows_it_got(many, said):
    def wrong(theta, row):
        return row[1] + jnp.zeros(7) @ theta  # of three numbers

    posterior = hamcmc.Posterior(log_prior, wrong, (X, Y), init=jnp.zeros(3), batched=many)
    with pytest.raises(TypeError, match="dot_general") as raised:
        hamcmc.sample(posterior, progress=False)
    assert said in raised.value.__notes__[-1]
