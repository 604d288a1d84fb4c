"""Modules and partly frozen parameters as positions: what is sampled, what is kept, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.target import frozen

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 2)).astype(np.float32)
Y = (X @ [1.0, -0.5] + 0.3 + RNG.standard_normal(60)).astype(np.float32)


def log_prior(model):
    return -0.5 * sum(jnp.sum(x**2) for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def log_likelihood(model, row):
    x, y = row
    return -0.5 * jnp.sum((y - model(x)) ** 2)


def network(key=0):
    return eqx.nn.MLP(2, "scalar", 3, 1, activation=jnp.tanh, key=jax.random.key(key))


def exact(x):
    """Mean and covariance of the coefficients of a linear model with unit noise and N(0, I) prior."""
    a = np.concatenate([x, np.ones((len(x), 1))], 1).astype(float)
    precision = np.eye(3) + a.T @ a
    return np.linalg.solve(precision, a.T @ Y), np.linalg.inv(precision)


class Line(eqx.Module):
    """A linear model, which can be called, with a function among its leaves."""

    slope: jax.Array
    offset: jax.Array
    link: object

    def __call__(self, x):
        return self.link(x @ self.slope + self.offset)


def test_a_module_is_sampled_as_it_is():
    """Draws of a linear model have their exact posterior, and the user's functions see a whole module."""
    line = Line(jnp.zeros(2), jnp.zeros(()), lambda v: v)
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (X, Y), init=line)
    result = hamcmc.sample(posterior, progress=False)
    assert set(result.posterior) == {"slope", "offset"}
    assert result.check().word == "good"
    draws = np.concatenate([result.posterior["slope"], result.posterior["offset"][..., None]], -1).reshape(-1, 3)
    mean, covariance = exact(X)
    sd, ess = np.sqrt(np.diag(covariance)), float(np.min(result.summary()["ess_bulk"]))
    assert (np.abs(draws.mean(0) - mean) / sd < 4.5 / np.sqrt(ess)).all()
    assert (np.abs(draws.std(0) / sd - 1) < 4.5 / np.sqrt(ess)).all()
    found = result.predict(lambda model, x: jax.vmap(model)(x), X[:5])
    np.testing.assert_allclose(found.mean, X[:5] @ mean[:2] + mean[2], atol=0.06)


def test_a_part_is_sampled_and_the_rest_stays():
    model = network()
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (X, Y), init=model, sampled=["layers.1"])
    position = posterior.init
    assert [x.shape for x in jax.tree.leaves(position)] == [(1, 3), (1,)]
    again = posterior.whole(jax.tree.map(lambda x: x + 1, position))
    np.testing.assert_array_equal(again.layers[0].weight, model.layers[0].weight)
    np.testing.assert_array_equal(again.layers[1].weight, model.layers[1].weight + 1)
    assert again.activation is model.activation
    with_prior = float(posterior.log_density(position, posterior.data))
    assert with_prior == pytest.approx(
        float(log_prior(model) + sum(log_likelihood(model, (jnp.asarray(x), y)) for x, y in zip(X, Y))), rel=1e-5
    )
    by_function = hamcmc.Posterior(
        log_prior, log_likelihood, (X, Y), init=model, sampled=lambda name, leaf: name.endswith("bias")
    )
    assert [x.shape for x in jax.tree.leaves(by_function.init)] == [(3,), (1,)]


def test_dicts_can_be_frozen_in_part():
    start = {"a": jnp.ones(2), "b": {"c": jnp.full(3, 2.0), "count": jnp.arange(2)}}
    prior = lambda p: -0.5 * (jnp.sum(p["a"] ** 2) + jnp.sum(p["b"]["c"] ** 2)) + 0 * jnp.sum(p["b"]["count"])
    posterior = hamcmc.Posterior(prior, init=start, sampled=["a"])
    assert jax.tree.leaves(posterior.init)[0].shape == (2,)
    assert float(posterior.log_density(posterior.init)) == pytest.approx(-0.5 * (2 + 12))


@pytest.mark.slow
def test_chains_may_start_from_networks_of_their_own():
    posterior = hamcmc.Posterior(
        log_prior, log_likelihood, (X, Y), init=lambda key: eqx.nn.Linear(2, "scalar", key=key)
    )
    assert frozen.is_function(posterior.init)
    networks = hamcmc.Posterior(
        log_prior, log_likelihood, (X, Y), init=lambda key: eqx.nn.MLP(2, "scalar", 3, 1, key=key)
    )
    one, other = (networks.init(jax.random.key(k)) for k in (0, 1))
    assert (one.layers[0].weight != other.layers[0].weight).all()
    result = hamcmc.sample(networks, "sgld", step_size=1e-3, num_samples=5, chains=2, batch_size=10, progress=False)
    assert result.posterior["layers.0.weight"].shape == (2, 5, 3, 2)


class Counted(eqx.Module):
    weight: jax.Array
    seen: jax.Array
    link: object = jnp.tanh


class Two(eqx.Module):
    net: eqx.nn.MLP
    seen: jax.Array


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"init": Counted(jnp.ones(2), jnp.arange(3))},
            r"parameter seen cannot be sampled, because it is an array of int",
        ),
        ({"init": network(), "sampled": ["layers.7"]}, r"no parameter 'layers.7'; there are layers.0.weight"),
        ({"init": network(), "sampled": ["activation"]}, "activation cannot be sampled, because it is of type"),
        ({"init": network(), "sampled": lambda n, x: False}, "nothing to sample"),
        ({"sampled": ["a"]}, "sampled needs init"),
    ],
)
def test_what_cannot_be_sampled_is_named(how, message):
    with pytest.raises(ValueError, match=message):
        hamcmc.Posterior(log_prior, log_likelihood, (X, Y), **how)


def test_a_branch_is_sampled_without_what_is_no_array():
    part, rest = frozen.divided(Two(network(), jnp.arange(3)), ["net"])
    assert len(jax.tree.leaves(part)) == 4
    assert rest.net.activation is jnp.tanh


def test_another_module_is_refused():
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (X, Y))
    with pytest.raises(ValueError, match=r"init is a module.*Posterior"):
        hamcmc.sample(posterior, init=network(), progress=False)
    with pytest.raises(ValueError, match="another structure"):
        frozen.whole({"a": None, "b": 1.0}, {"a": 2.0})


def test_integers_of_a_module_may_be_frozen():
    posterior = hamcmc.Posterior(
        lambda m: -jnp.sum(m.weight**2), init=Counted(jnp.ones(2), jnp.arange(3)), sampled=["weight"]
    )
    assert posterior.whole(posterior.init).seen.dtype.kind == "i"
