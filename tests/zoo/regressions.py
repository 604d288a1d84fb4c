"""Regressions on columns of unit scale."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy import special, stats

import hamcmc
from tests import zoo
from tests.zoo import marginals
from tests.zoo.densities import cauchy, design, gamma, inverse_gamma, normal, poisson_log, student_t
from tests.zoo.marginals import Marginals


def conjugate(x: np.ndarray, y: np.ndarray, sigma: float, prior_sd: float) -> Mapping[str, Marginals]:
    """The exact posterior of coefficients with prior N(0, prior_sd²) and known noise."""
    # Scaled columns keep the inversion accurate when the columns' units differ by many orders of magnitude.
    scale = 1 / np.sqrt(np.sum(x**2, axis=0) / sigma**2 + 1 / prior_sd**2)
    precision = (x * scale).T @ (x * scale) / sigma**2 + np.diag(scale**2) / prior_sd**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ ((x * scale).T @ y) / sigma**2
    return {"theta": marginals.of_gaussian(scale * mean, scale[:, None] * covariance * scale)}


def linear_posterior(x: np.ndarray, y: np.ndarray, sigma: float, prior_sd: float) -> hamcmc.Posterior:
    """Linear regression with known noise and a normal prior."""

    def log_likelihood(theta, row):
        x, y = row
        return normal(y, x @ theta, sigma)

    return hamcmc.Posterior(lambda theta: normal(theta, 0.0, prior_sd), log_likelihood, (x, y))


@zoo.model
def linear() -> zoo.Case:
    """Linear regression, 500 rows, 10 columns, known noise."""
    rng = np.random.default_rng(1)
    x = design(rng, 500, 10)
    y = x @ rng.normal(size=10) + rng.normal(size=500)
    return zoo.Case(linear_posterior(x, y, 1.0, 5.0), jnp.zeros(10), lambda: conjugate(x, y, 1.0, 5.0))


@zoo.model
def linear_noise() -> zoo.Case:
    """Linear regression, 80 rows, 6 columns, unknown noise, normal-inverse-gamma prior."""
    rng = np.random.default_rng(2)
    x = design(rng, 80, 6)
    y = x @ rng.normal(size=6) + 2 * rng.normal(size=80)
    shape, scale, spread = 2.0, 2.0, 10.0  # σ² ~ InvGamma(shape, scale), β | σ ~ N(0, (spread σ)²)

    def log_prior(p):
        sigma = p["sigma"]
        return inverse_gamma(sigma**2, shape, scale) + jnp.log(sigma) + normal(p["beta"], 0.0, spread * sigma)

    def log_likelihood(p, row):
        x, y = row
        return normal(y, x @ p["beta"], p["sigma"])

    def exact():
        precision = x.T @ x + np.eye(6) / spread**2
        mean = np.linalg.solve(precision, x.T @ y)
        a, b = shape + len(y) / 2, scale + (y @ y - mean @ precision @ mean) / 2
        variance = stats.invgamma(a, scale=b)
        sigma_mean = np.sqrt(b) * np.exp(special.gammaln(a - 0.5) - special.gammaln(a))
        sds = np.sqrt(np.diag(np.linalg.inv(precision)) * b / a)
        return {
            "beta": marginals.of_distribution(stats.t(2 * a, mean, sds)),
            "sigma": marginals.of_transformed(variance, np.sqrt, sigma_mean, np.sqrt(variance.mean() - sigma_mean**2)),
        }

    posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, y), support={"sigma": hamcmc.positive()})
    return zoo.Case(posterior, {"beta": jnp.zeros(6), "sigma": jnp.ones(())}, exact)


@zoo.model
def poisson() -> zoo.Case:
    """Poisson regression, 400 rows, 6 columns."""
    rng = np.random.default_rng(3)
    x = design(rng, 400, 6)
    y = rng.poisson(np.exp(x @ (0.4 * rng.normal(size=6))))

    def log_likelihood(theta, row):
        x, y = row
        return poisson_log(y, x @ theta)

    return zoo.Case(hamcmc.Posterior(normal, log_likelihood, (x, y)), jnp.zeros(6), nuts={"whiten": True})


@zoo.model
def negative_binomial() -> zoo.Case:
    """Negative binomial regression with unknown dispersion, 300 rows, 5 columns."""
    rng = np.random.default_rng(4)
    x = design(rng, 300, 5)
    mean = np.exp(1 + x @ (0.4 * rng.normal(size=5)))
    y = rng.poisson(rng.gamma(1.5, mean / 1.5))

    def log_prior(p):
        return normal(p["beta"], 0.0, 2.5) + gamma(p["phi"], 2.0, 0.5)

    def log_likelihood(p, row):
        (x, y), phi = row, p["phi"]
        eta = x @ p["beta"]
        total = jnp.logaddexp(eta, jnp.log(phi))
        binomial = gammaln(y + phi) - gammaln(phi)
        return binomial + y * (eta - total) + phi * (jnp.log(phi) - total)

    posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, y), support={"phi": hamcmc.positive()})
    return zoo.Case(posterior, {"beta": jnp.zeros(5), "phi": jnp.ones(())}, nuts={"whiten": True})


@zoo.model
def robust() -> zoo.Case:
    """Regression with Student-t noise of unknown scale and degrees of freedom, 250 rows, 4 columns."""
    rng = np.random.default_rng(5)
    x = design(rng, 250, 4)
    y = x @ np.array([1.0, -1.0, 0.5, 0.0]) + 0.7 * rng.standard_t(3, size=250)

    def log_prior(p):
        return normal(p["beta"], 0.0, 5.0) + cauchy(p["sigma"], 2.0) + gamma(p["nu"], 2.0, 0.2)

    def log_likelihood(p, row):
        x, y = row
        return student_t(y, p["nu"], x @ p["beta"], p["sigma"])

    support = {"sigma": hamcmc.positive(), "nu": hamcmc.positive()}
    init = {"beta": jnp.zeros(4), "sigma": jnp.ones(()), "nu": jnp.array(10.0)}
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, (x, y), support=support), init)


@zoo.model
def zero_inflated() -> zoo.Case:
    """Zero-inflated Poisson regression, 300 rows; both parts have covariates."""
    rng = np.random.default_rng(6)
    x = design(rng, 300, 4)
    rate = np.exp(x @ np.array([0.8, 0.4, -0.3, 0.0]))
    empty = rng.random(300) < 1 / (1 + np.exp(-(x @ np.array([-0.5, 0.0, 0.8, 0.0]))))
    y = np.where(empty, 0, rng.poisson(rate))

    def log_likelihood(p, row):
        x, y = row
        eta, odds = x @ p["count"], x @ p["empty"]
        count = y * eta - jnp.exp(eta) - jnp.logaddexp(0.0, odds)
        return jnp.where(y == 0, jnp.logaddexp(odds - jnp.logaddexp(0.0, odds), count), count)

    posterior = hamcmc.Posterior(
        lambda p: normal(p["count"], 0.0, 2.0) + normal(p["empty"], 0.0, 2.0), log_likelihood, (x, y)
    )
    return zoo.Case(posterior, {"count": jnp.zeros(4), "empty": jnp.zeros(4)}, nuts={"whiten": True})


@zoo.model
def weibull() -> zoo.Case:
    """Weibull survival regression with a third of the times censored, 300 rows."""
    rng = np.random.default_rng(7)
    x = design(rng, 300, 4)
    times = np.exp(x @ np.array([1.0, 0.5, -0.5, 0.2])) * rng.weibull(1.7, size=300)
    limit = rng.exponential(6.0, size=300)
    y, dead = np.minimum(times, limit), (times < limit).astype(float)

    def log_likelihood(p, row):
        x, log_time, dead = row
        z = p["shape"] * (log_time - x @ p["beta"])
        return dead * (jnp.log(p["shape"]) + z) - jnp.exp(z)

    def log_prior(p):
        return normal(p["beta"], 0.0, 3.0) + gamma(p["shape"], 2.0, 1.0)

    posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, np.log(y), dead), support={"shape": hamcmc.positive()})
    return zoo.Case(posterior, {"beta": jnp.zeros(4), "shape": jnp.ones(())})
