"""Your first posterior: logistic regression in one call, and whether to trust it."""

import jax
import jax.numpy as jnp
import numpy as np

import hamcmc

rng = np.random.default_rng(0)
features = rng.normal(size=(500, 3)).astype(np.float32)
true_weights = np.array([1.0, -2.0, 0.5], np.float32)
labels = (rng.uniform(size=500) < 1 / (1 + np.exp(-features @ true_weights))).astype(np.float32)


def log_prior(weights):
    """Independent standard normals."""
    return -0.5 * jnp.sum(weights**2)


def log_likelihood(weights, row):
    """One row of data."""
    x, y = row
    return y * jax.nn.log_sigmoid(x @ weights) + (1 - y) * jax.nn.log_sigmoid(-x @ weights)


posterior = hamcmc.Posterior(log_prior, log_likelihood, (features, labels), init=jnp.zeros(3))
result = hamcmc.sample(posterior)
print(result.check())
print(result.summary())
print("the data were made with", true_weights)
