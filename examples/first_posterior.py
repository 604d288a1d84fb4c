"""Your first posterior: whether a dose helps, by logistic regression in one call (docs/first-posterior.md)."""

import jax.numpy as jnp
import numpy as np

import hamcmc

rng = np.random.default_rng(1)  # 2,000 patients: a constant, dose, age; and whether they recovered
x = np.column_stack([np.ones(2000), rng.normal(size=(2000, 2))]).astype(np.float32)
recovered = rng.random(2000) < 1 / (1 + np.exp(-x @ [-0.5, 1.0, -0.3]))


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, patient):
    x, recovered = patient
    return -jnp.logaddexp(0.0, jnp.where(recovered, -1.0, 1.0) * (x @ theta))


posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, recovered), init=jnp.zeros(3))
result = hamcmc.sample(posterior)
print(result.check())
print(result.summary())
