"""Time series. Where the likelihood does not factor over rows, all of the density is in `log_prior`."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

import hamcmc
from tests import zoo
from tests.zoo.densities import beta, cauchy, gamma, normal

positive, share = hamcmc.positive(), hamcmc.bounded(0.0, 1.0)


@zoo.model
def ar5() -> zoo.Case:
    """Autoregression of order 5, 200 observations."""
    rng = np.random.default_rng(81)
    weights = np.array([0.5, -0.2, 0.2, 0.1, -0.1])
    y = np.zeros(225)
    for t in range(5, 225):
        y[t] = 0.3 + weights @ y[t - 5 : t][::-1] + rng.normal()
    y = y[20:]
    lags = np.column_stack([y[5 - k : len(y) - k] for k in range(1, 6)])

    def log_prior(p):
        return normal(p["alpha"], 0.0, 10.0) + normal(p["beta"], 0.0, 10.0) + cauchy(p["sigma"], 2.5)

    def log_likelihood(p, row):
        lags, y = row
        return normal(y, p["alpha"] + lags @ p["beta"], p["sigma"])

    init = {"alpha": jnp.zeros(()), "beta": jnp.zeros(5), "sigma": jnp.ones(())}
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, (lags, y[5:]), support={"sigma": positive}), init)


@zoo.model
def arma11() -> zoo.Case:
    """ARMA(1, 1), 200 observations."""
    rng = np.random.default_rng(82)
    noise, y = 0.4 * rng.normal(size=250), np.zeros(250)
    for t in range(1, 250):
        y[t] = 0.2 + 0.8 * y[t - 1] + 0.3 * noise[t - 1] + noise[t]
    y = y[50:]

    def log_density(p):
        def step(error, pair):
            error = pair[1] - (p["mu"] + p["phi"] * pair[0] + p["theta"] * error)
            return error, error

        first = y[0] - (p["mu"] + p["phi"] * p["mu"])
        errors = lax.scan(step, first, np.column_stack([y[:-1], y[1:]]))[1]
        prior = normal(p["mu"], 0.0, 10.0) + normal(p["phi"], 0.0, 2.0) + normal(p["theta"], 0.0, 2.0)
        return prior + cauchy(p["sigma"], 2.5) + normal(errors, 0.0, p["sigma"]) + normal(first, 0.0, p["sigma"])

    init = {"mu": jnp.zeros(()), "phi": jnp.zeros(()), "theta": jnp.zeros(()), "sigma": jnp.ones(())}
    return zoo.Case(hamcmc.Posterior(log_density, support={"sigma": positive}), init)


@zoo.model
def garch11() -> zoo.Case:
    """GARCH(1, 1), 300 observations; the persistence α + β is below one."""
    rng = np.random.default_rng(83)
    y, variance = np.zeros(350), 1.0
    for t in range(350):
        y[t] = 0.1 + np.sqrt(variance) * rng.normal()
        variance = 0.3 + 0.25 * (y[t] - 0.1) ** 2 + 0.55 * variance
    y = y[50:]

    def log_density(p):
        shock, memory = p["alpha"], p["share"] * (1 - p["alpha"])  # uniform on the triangle α + β < 1 …

        def step(variance, previous):
            variance = p["base"] + shock * (previous - p["mu"]) ** 2 + memory * variance
            return variance, variance

        variances = lax.scan(step, jnp.asarray(y.var(), p["mu"].dtype), y[:-1])[1]
        sds = jnp.sqrt(jnp.concatenate([jnp.full(1, y.var(), variances.dtype), variances]))
        jacobian = jnp.log1p(-p["alpha"])  # … which has this density in α and the share
        return normal(y, p["mu"], sds) + jacobian + normal(p["mu"], 0.0, 10.0) + normal(p["base"], 0.0, 10.0)

    init = {"mu": jnp.zeros(()), "base": jnp.ones(()), "alpha": jnp.array(0.5), "share": jnp.array(0.5)}
    return zoo.Case(hamcmc.Posterior(log_density, support={"base": positive, "alpha": share, "share": share}), init)


def returns(length: int) -> np.ndarray:
    """Returns whose log-volatility is an autoregression around −1 with coefficient 0.95."""
    rng = np.random.default_rng(84)
    h = np.zeros(length)
    for t in range(1, length):
        h[t] = 0.95 * h[t - 1] + 0.25 * rng.normal()
    return np.exp((h - 1) / 2) * rng.normal(size=length)


def volatility_prior(p):
    """Priors of level, persistence and spread of the log-volatility."""
    return normal(p["mu"], 0.0, 5.0) + beta(p["phi"], 20.0, 4.0) + normal(p["sigma"], 0.0, 0.5)


def volatility_start(length: int, states: str) -> dict:
    """A start that knows nothing."""
    return {"mu": jnp.zeros(()), "phi": jnp.array(0.5), "sigma": jnp.ones(()), states: jnp.zeros(length)}


@zoo.model
def volatility_centred() -> zoo.Case:
    """Stochastic volatility with 300 log-volatilities, centred."""
    y = returns(300)

    def log_density(p):
        h, mu, phi, sigma = p["h"], p["mu"], p["phi"], p["sigma"]
        states = normal(h[0], mu, sigma / jnp.sqrt(1 - phi**2)) + normal(h[1:], mu + phi * (h[:-1] - mu), sigma)
        return volatility_prior(p) + states + normal(y, 0.0, jnp.exp(h / 2))

    support = {"phi": share, "sigma": positive}
    nuts = {"target_accept_prob": 0.95, "thin": 16}
    return zoo.Case(hamcmc.Posterior(log_density, support=support), volatility_start(300, "h"), nuts=nuts)


@zoo.model
def volatility_noncentred() -> zoo.Case:
    """Stochastic volatility with 120 standardized innovations."""
    y = returns(120)

    def log_density(p):
        phi, z = p["phi"], p["z"]

        def step(h, z):
            h = phi * h + p["sigma"] * z
            return h, h

        first = p["sigma"] / jnp.sqrt(1 - phi**2) * z[0]
        h = p["mu"] + jnp.concatenate([first[None], lax.scan(step, first, z[1:])[1]])
        return volatility_prior(p) + normal(z) + normal(y, 0.0, jnp.exp(h / 2))

    support = {"phi": share, "sigma": positive}
    nuts = {"target_accept_prob": 0.98, "thin": 2}
    return zoo.Case(hamcmc.Posterior(log_density, support=support), volatility_start(120, "z"), nuts=nuts)


@zoo.model
def hidden_markov() -> zoo.Case:
    """A hidden Markov chain with two states and Gaussian emissions, 200 observations; the means in order."""
    rng = np.random.default_rng(85)
    state, y = 0, np.zeros(200)
    for t in range(200):
        state = state if rng.random() < (0.9, 0.8)[state] else 1 - state
        y[t] = (3.0, 8.0)[state] + 1.5 * rng.normal()

    def log_density(p):
        means = jnp.stack([p["low"], p["low"] + p["gap"]])
        emission = -0.5 * ((y[:, None] - means) / p["sigma"]) ** 2 - jnp.log(p["sigma"])
        moves = jnp.log(jnp.stack([p["stay"], 1 - p["stay"]]))
        moves = jnp.stack([jnp.stack([moves[0, 0], moves[1, 0]]), jnp.stack([moves[1, 1], moves[0, 1]])])

        def step(forward, emitted):
            return logsumexp(forward[:, None] + moves, axis=0) + emitted, None

        prior = normal(p["low"], 0.0, 10.0) + normal(p["gap"], 0.0, 10.0) + normal(p["sigma"], 0.0, 5.0)
        return prior + beta(p["stay"], 4.0, 2.0) + logsumexp(lax.scan(step, emission[0], emission[1:])[0])

    init = {"low": jnp.zeros(()), "gap": jnp.ones(()), "sigma": jnp.ones(()), "stay": jnp.full(2, 0.5)}
    return zoo.Case(hamcmc.Posterior(log_density, support={"gap": positive, "sigma": positive, "stay": share}), init)


@zoo.model
def change_point() -> zoo.Case:
    """The rates of a Poisson series before and after a change, whose time is summed out, 100 observations."""
    rng = np.random.default_rng(86)
    y = rng.poisson(np.where(np.arange(100) < 40, 3.0, 1.2))
    total, seen = y.sum(), np.cumsum(y)[:-1]  # the change comes after 1 … 99 observations
    times = np.arange(1, 100)

    def log_density(p):
        early, late = p["early"], p["late"]
        before = seen * jnp.log(early) - times * early
        after = (total - seen) * jnp.log(late) - (100 - times) * late
        return gamma(early, 1.0, 1.0) + gamma(late, 1.0, 1.0) + logsumexp(before + after)

    init = {"early": jnp.ones(()), "late": jnp.ones(())}
    return zoo.Case(hamcmc.Posterior(log_density, support=positive), init)


@zoo.model
def random_walk_counts() -> zoo.Case:
    """Counts whose log-rate is a random walk of 80 steps, centred."""
    rng = np.random.default_rng(87)
    y = rng.poisson(np.exp(1 + np.cumsum(0.2 * rng.normal(size=80))))

    def log_density(p):
        f = p["f"]
        walk = normal(f[0], 0.0, 3.0) + normal(jnp.diff(f), 0.0, p["step"]) + normal(p["step"])
        return walk + jnp.sum(y * f - jnp.exp(f))

    init = {"f": jnp.zeros(80), "step": jnp.ones(())}
    posterior = hamcmc.Posterior(log_density, support={"step": positive})
    return zoo.Case(posterior, init, nuts={"target_accept_prob": 0.95, "thin": 6})


@zoo.model
def seasonal() -> zoo.Case:
    """A trend with 12 monthly effects, on 10 years of monthly observations with correlated noise."""
    rng = np.random.default_rng(88)
    time = np.arange(120) / 120
    noise = np.zeros(120)
    for t in range(1, 120):
        noise[t] = 0.6 * noise[t - 1] + 0.5 * rng.normal()
    y = 5 + 3 * time + rng.normal(size=12)[np.arange(120) % 12] + noise

    def log_density(p):
        rest = y - p["level"] - p["trend"] * time - jnp.tile(p["month"], 10)
        prior = normal(p["level"], 0.0, 10.0) + normal(p["trend"], 0.0, 10.0) + normal(p["month"], 0.0, p["spread"])
        errors = normal(rest[1:], p["phi"] * rest[:-1], p["sigma"]) + normal(rest[0], 0.0, 2 * p["sigma"])
        return prior + normal(p["spread"], 0.0, 2.0) + normal(p["sigma"], 0.0, 2.0) + errors

    support = {"spread": positive, "sigma": positive, "phi": hamcmc.bounded(-1.0, 1.0)}
    scalars = {k: jnp.zeros(()) for k in ("level", "trend", "phi")} | {k: jnp.ones(()) for k in ("spread", "sigma")}
    return zoo.Case(hamcmc.Posterior(log_density, support=support), {**scalars, "month": jnp.zeros(12)})
