"""Regressions of labels: binary, ordered and unordered."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

import hamcmc
from tests import zoo
from tests.zoo.densities import bernoulli_logit, cauchy, design, normal, sigmoid, student_t


def logistic_likelihood(theta, row):
    """Logistic regression of one label."""
    x, y = row
    return bernoulli_logit(y, x @ theta)


def labels(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    """Labels 0 and 1 with log-odds `eta`."""
    return (rng.random(len(eta)) < sigmoid(eta)).astype(float)


@zoo.model
def logistic() -> zoo.Case:
    """Logistic regression, 1000 rows, 8 columns."""
    rng = np.random.default_rng(11)
    x = design(rng, 1000, 8)
    y = labels(rng, x @ rng.normal(size=8))
    return zoo.Case(hamcmc.Posterior(normal, logistic_likelihood, (x, y)), jnp.zeros(8), nuts={"whiten": True})


@zoo.model
def logistic_few() -> zoo.Case:
    """Logistic regression with 25 rows and 10 columns: a skewed posterior, where the prior matters."""
    rng = np.random.default_rng(12)
    x = design(rng, 25, 10)
    y = labels(rng, x @ (2 * rng.normal(size=10)))
    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, 3.0), logistic_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(10), nuts={"whiten": True})


@zoo.model
def separable() -> zoo.Case:
    """Logistic regression on separable labels with t(4) priors: there is no maximum of the likelihood."""
    rng = np.random.default_rng(13)
    x = design(rng, 60, 4)
    y = (x @ np.array([0.3, 2.0, -1.0, 0.0]) > 0).astype(float)
    posterior = hamcmc.Posterior(lambda theta: student_t(theta, 4.0, 0.0, 2.5), logistic_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(4), measure="quantiles", nuts={"whiten": True})


@zoo.model
def probit() -> zoo.Case:
    """Probit regression, 300 rows, 6 columns."""
    rng = np.random.default_rng(14)
    x = design(rng, 300, 6)
    y = (x @ (0.8 * rng.normal(size=6)) + rng.normal(size=300) > 0).astype(float)

    def log_likelihood(theta, row):
        x, y = row
        return log_ndtr((2 * y - 1) * (x @ theta))

    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, 2.5), log_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(6), nuts={"whiten": True})


@zoo.model
def ordered() -> zoo.Case:
    """Ordered logistic regression with 5 levels, 400 rows; cut points as a first one and positive gaps."""
    rng = np.random.default_rng(15)
    x = rng.normal(size=(400, 4))
    latent = x @ np.array([1.0, -0.7, 0.3, 0.0]) + rng.logistic(size=400)
    y = np.searchsorted(np.array([-2.0, -0.5, 0.7, 2.2]), latent)

    def log_prior(p):
        return normal(p["beta"], 0.0, 2.5) + normal(p["first"], 0.0, 5.0) + cauchy(p["gaps"], 2.0)

    def log_likelihood(p, row):
        x, y = row
        cuts = p["first"] + jnp.concatenate([jnp.zeros(1), jnp.cumsum(p["gaps"])])
        above = jax.nn.log_sigmoid(x @ p["beta"] - cuts)  # log P(y > k)
        below = jax.nn.log_sigmoid(cuts - x @ p["beta"])
        # P(y = k) = P(y > k-1) P(y ≤ k) (1 - exp(-gap)): no difference of nearly equal numbers.
        inner = above[:-1] + below[1:] + jnp.log(-jnp.expm1(-p["gaps"]))
        return jnp.concatenate([below[:1], inner, above[-1:]])[y]

    posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, y), support={"gaps": hamcmc.positive()})
    return zoo.Case(posterior, {"beta": jnp.zeros(4), "first": jnp.zeros(()), "gaps": jnp.ones(3)})


@zoo.model
def multinomial() -> zoo.Case:
    """Multinomial logistic regression with 4 classes, the last one the reference, 500 rows."""
    rng = np.random.default_rng(16)
    x = design(rng, 500, 4)
    eta = np.column_stack([x @ rng.normal(size=(4, 3)), np.zeros(500)])
    y = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)

    def log_likelihood(theta, row):
        x, y = row
        return jax.nn.log_softmax(jnp.concatenate([x @ theta, jnp.zeros(1)]))[y]

    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, 2.5), log_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros((4, 3)), nuts={"whiten": True})
