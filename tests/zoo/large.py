"""A thousand parameters, or many rows."""

import jax.numpy as jnp
import numpy as np
from scipy import stats

import hamcmc
from tests import zoo
from tests.zoo import marginals
from tests.zoo.classification import labels, logistic_likelihood
from tests.zoo.densities import cauchy, design, normal, poisson_log
from tests.zoo.hierarchical import normal_groups
from tests.zoo.regressions import conjugate, linear_posterior
from tests.zoo.scaling import correlated, onehot_data, units

MANY = {"whiten": True, "warmup": 500, "samples": 1000}  # the reference of a posterior that is nearly Gaussian


@zoo.model
def gaussian_1000() -> zoo.Case:
    """Gaussian in 1000 dimensions, neighbours correlated 0.9, sds from 0.1 to 10."""
    scale, rho = np.geomspace(0.1, 10, 1000), 0.9

    def log_density(x):
        z = x / scale
        return normal(z[0]) + normal(z[1:], rho * z[:-1], np.sqrt(1 - rho**2))

    def exact():
        return {"theta": marginals.of_distribution(stats.norm(np.zeros(1000), scale))}

    return zoo.Case(hamcmc.Posterior(log_density), jnp.zeros(1000), exact)


@zoo.model
def groups_1000() -> zoo.Case:
    """The means of 1000 groups with their mean and spread, centred, one observation of each group."""
    rng = np.random.default_rng(111)
    error = rng.uniform(0.5, 1.5, size=1000)
    y = 2 + rng.normal(size=1000) + error * rng.normal(size=1000)

    def log_prior(p):
        return normal(p["mu"], 0.0, 10.0) + cauchy(p["tau"], 2.0) + normal(p["theta"], p["mu"], p["tau"])

    def log_likelihood(p, row):
        group, y, error = row
        return normal(y, p["theta"][group], error)

    def exact():
        return {k: v for k, v in normal_groups(y, error, 2.0, 10.0).items() if k != "z"}

    data = (np.arange(1000), y, error)
    posterior = hamcmc.Posterior(log_prior, log_likelihood, data, support={"tau": hamcmc.positive()})
    return zoo.Case(posterior, {"mu": jnp.zeros(()), "tau": jnp.ones(()), "theta": jnp.zeros(1000)}, exact)


@zoo.model
def logistic_1000() -> zoo.Case:
    """Logistic regression with 1000 columns and N(0, 1) priors, 1000 rows."""
    rng = np.random.default_rng(112)
    x = 0.1 * rng.normal(size=(1000, 1000))
    y = labels(rng, x @ rng.normal(size=1000))
    nuts = {"warmup": 500, "samples": 1500}
    return zoo.Case(hamcmc.Posterior(normal, logistic_likelihood, (x, y)), jnp.zeros(1000), nuts=nuts)


@zoo.model
def linear_rows() -> zoo.Case:
    """Linear regression with 200 000 rows and 20 correlated columns, condition number 10⁴."""
    rng = np.random.default_rng(113)
    x = correlated(rng, 200_000, 20, 1e4)
    y = x @ rng.normal(size=20) + rng.normal(size=200_000)
    return zoo.Case(linear_posterior(x, y, 1.0, 10.0), jnp.zeros(20), lambda: conjugate(x, y, 1.0, 10.0), slow=True)


@zoo.model
def logistic_rows() -> zoo.Case:
    """Logistic regression with 100 000 rows and 10 columns."""
    rng = np.random.default_rng(114)
    x = design(rng, 100_000, 10)
    y = labels(rng, x @ (0.7 * rng.normal(size=10)))
    return zoo.Case(hamcmc.Posterior(normal, logistic_likelihood, (x, y)), jnp.zeros(10), nuts=MANY)


@zoo.model
def poisson_rows() -> zoo.Case:
    """Poisson regression with 50 000 rows on dollars, years and a share in thousandths, with wide priors."""
    rng = np.random.default_rng(115)
    x, scale = units(rng, 50_000)
    x[:, 2] -= 2000
    y = rng.poisson(np.exp(0.5 + (x - x.mean(axis=0)) / scale @ np.array([0.0, 0.3, -0.2, 0.2])))

    def log_likelihood(theta, row):
        x, y = row
        return poisson_log(y, x @ theta)

    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, 1e3), log_likelihood, (x, y))
    return zoo.Case(posterior, jnp.zeros(4), slow=True, nuts=MANY)


@zoo.model
def onehot_rows() -> zoo.Case:
    """Logistic regression with 30 000 rows on 80 one-hot columns of 8 attributes; some levels are rare."""
    rng = np.random.default_rng(116)
    x, y = onehot_data(rng, 30_000, 8, 10)
    nuts = {**MANY, "samples": 2000}
    return zoo.Case(hamcmc.Posterior(normal, logistic_likelihood, (x, y)), jnp.zeros(80), slow=True, nuts=nuts)


@zoo.model
def radon_rows() -> zoo.Case:
    """Varying intercepts of 200 groups, centred, 20 000 rows."""
    rng = np.random.default_rng(117)
    group, x = rng.integers(200, size=20_000), rng.normal(size=20_000)
    y = (1 + 0.5 * rng.normal(size=200))[group] + 0.3 * x + rng.normal(size=20_000)

    def log_prior(p):
        hyper = normal(p["mu"], 0.0, 5.0) + normal(p["slope"], 0.0, 5.0) + normal(p["tau"]) + normal(p["sigma"])
        return hyper + normal(p["alpha"], p["mu"], p["tau"])

    def log_likelihood(p, row):
        group, x, y = row
        return normal(y, p["alpha"][group] + p["slope"] * x, p["sigma"])

    support = {"tau": hamcmc.positive(), "sigma": hamcmc.positive()}
    scalars = {"mu": jnp.zeros(()), "slope": jnp.zeros(()), "tau": jnp.ones(()), "sigma": jnp.ones(())}
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (group, x, y), support=support)
    nuts = {"warmup": 500, "samples": 1000}
    return zoo.Case(posterior, {**scalars, "alpha": jnp.zeros(200)}, nuts=nuts)
