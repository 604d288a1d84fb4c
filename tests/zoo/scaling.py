"""Regressions on columns as a user has them: in dollars and in thousandths, correlated, one-hot, not centred."""

import jax.numpy as jnp
import numpy as np

import hamcmc
from tests import zoo
from tests.zoo.classification import labels, logistic_likelihood
from tests.zoo.densities import normal, poisson_log
from tests.zoo.regressions import conjugate, linear_posterior


def units(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A column of ones, an income in dollars, a year, a share in thousandths; and each column's scale."""
    income = 6e4 + 2e4 * rng.normal(size=rows)
    year = 2010 + 5 * rng.normal(size=rows)
    share = 2e-3 + 1e-3 * rng.normal(size=rows)
    return np.column_stack([np.ones(rows), income, year, share]), np.array([1.0, 2e4, 5.0, 1e-3])


def correlated(rng: np.random.Generator, rows: int, columns: int, condition: float) -> np.ndarray:
    """A column of ones and columns whose second-moment matrix has roughly this condition number."""
    rotation = np.linalg.qr(rng.normal(size=(columns - 1, columns - 1)))[0]
    scales = np.geomspace(1.0, condition**-0.5, columns - 1)
    return np.column_stack([np.ones(rows), rng.normal(size=(rows, columns - 1)) * scales @ rotation.T])


@zoo.model
def poisson_dollars() -> zoo.Case:
    """Poisson regression, 600 rows, on an income in dollars, a year and a share in thousandths, not centred."""
    rng = np.random.default_rng(21)
    x, scale = units(rng, 600)
    x[:, 2] -= 2010  # a year since 2010, or the intercept alone would need 400 times its sd
    y = rng.poisson(np.exp(0.8 + (x - x.mean(axis=0)) / scale @ np.array([0.0, 0.3, -0.2, 0.2])))

    def log_likelihood(theta, row):
        x, y = row
        return poisson_log(y, x @ theta)

    # A prior sd of one unit of the linear predictor for each column, and more for the intercept.
    prior_sd = np.array([10.0, 1 / 2e4, 1 / 5.0, 1 / 1e-3])
    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, prior_sd), log_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(4), nuts={"whiten": True})


@zoo.model
def logistic_dollars() -> zoo.Case:
    """Logistic regression, 800 rows, on dollars, a calendar year and a share, with one wide prior."""
    rng = np.random.default_rng(22)
    x, scale = units(rng, 800)
    y = labels(rng, (x - x.mean(axis=0)) / scale @ np.array([0.0, 1.0, -0.7, 0.5]))
    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, 1e3), logistic_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(4), nuts={"whiten": True})


@zoo.model
def linear_condition() -> zoo.Case:
    """Linear regression on 26 correlated columns, condition number 4·10⁵, 1000 rows."""
    rng = np.random.default_rng(23)
    x = correlated(rng, 1000, 26, 4e5)
    y = x @ rng.normal(size=26) + 0.5 * rng.normal(size=1000)
    return zoo.Case(linear_posterior(x, y, 0.5, 30.0), jnp.zeros(26), lambda: conjugate(x, y, 0.5, 30.0))


@zoo.model
def logistic_condition() -> zoo.Case:
    """Logistic regression on 26 correlated columns, condition number 4·10⁵, 2000 rows."""
    rng = np.random.default_rng(24)
    x = correlated(rng, 2000, 26, 4e5)
    y = labels(rng, 2 * x @ rng.normal(size=26))
    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, 30.0), logistic_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(26), nuts={"whiten": True})


@zoo.model
def earnings_dollars() -> zoo.Case:
    """Earnings in dollars on height in inches with flat priors and unknown noise, 1000 rows: sds from 10 to 10⁴."""
    rng = np.random.default_rng(25)
    height = 67 + 4 * rng.normal(size=1000)
    earnings = -6e4 + 1.2e3 * height + 1.9e4 * rng.normal(size=1000)

    def log_likelihood(p, row):
        height, earnings = row
        return normal(earnings, p["intercept"] + p["slope"] * height, p["sigma"])

    posterior = hamcmc.Posterior(
        lambda p: jnp.zeros(()), log_likelihood, (height, earnings), support={"sigma": hamcmc.positive()}
    )
    init = {"intercept": jnp.zeros(()), "slope": jnp.zeros(()), "sigma": jnp.ones(())}
    return zoo.Case(posterior, init, nuts={"whiten": True})


@zoo.model
def onehot() -> zoo.Case:
    """Logistic regression on 60 one-hot columns of 6 attributes, 3000 rows; some columns have a few ones only."""
    rng = np.random.default_rng(26)
    x, y = onehot_data(rng, 3000, 6, 10)
    posterior = hamcmc.Posterior(normal, logistic_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(60), nuts={"whiten": True})


def onehot_data(rng: np.random.Generator, rows: int, attributes: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Attributes whose levels have geometrically falling frequencies, as one-hot columns; and labels."""
    frequency = 0.45 ** np.arange(levels)
    frequency /= frequency.sum()
    codes = rng.choice(levels, size=(rows, attributes), p=frequency)
    x = np.concatenate([codes[:, a : a + 1] == np.arange(levels) for a in range(attributes)], axis=1).astype(float)
    return x, labels(rng, x @ rng.normal(size=attributes * levels))
