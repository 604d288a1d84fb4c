"""Varying effects of groups in their two parameterizations."""

import jax.numpy as jnp
import numpy as np

import hamcmc
from tests import zoo
from tests.zoo import marginals
from tests.zoo.densities import cauchy, normal
from tests.zoo.marginals import Marginals

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])  # eight schools (Rubin 1981): effects …
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])  # … and their standard errors


def normal_groups(y: np.ndarray, error: np.ndarray, scale: float, prior_sd: float) -> dict[str, Marginals]:
    """Exact marginals of y_j ~ N(θ_j, error_j²), θ_j ~ N(μ, τ²), μ ~ N(0, prior_sd²), τ ~ half-Cauchy(scale).

    Given τ everything is Gaussian; τ itself has one dimension, and is integrated out on a grid of log τ.
    """
    log_tau = np.linspace(np.log(1e-5 * scale), np.log(40 * scale), 1500)
    tau = np.exp(log_tau)[:, None]
    total = error**2 + tau**2
    precision = np.sum(1 / total, axis=1) + prior_sd**-2
    mean = np.sum(y / total, axis=1) / precision
    log_evidence = -0.5 * (
        np.sum(np.log(total), axis=1) + np.log(precision) + np.sum(y**2 / total, axis=1) - precision * mean**2
    )
    log_weight = log_evidence - np.log1p((tau[:, 0] / scale) ** 2) + log_tau
    weights = np.exp(log_weight - log_weight.max())
    weights /= weights.sum()
    shrink = tau**2 / total  # θ_j | μ, τ has the mean (1 − shrink) μ + shrink y_j and the variance shrink error²
    theta_mean = (1 - shrink) * mean[:, None] + shrink * y
    theta_sd = np.sqrt(shrink * error**2 + (1 - shrink) ** 2 / precision[:, None])
    keep = weights > 1e-9
    grid = marginals.of_grid(log_tau, log_weight)
    tau_mean = weights @ tau[:, 0]
    tau_sd = np.sqrt(weights @ (tau[:, 0] - tau_mean) ** 2)
    # z_j = (θ_j − μ)/τ has the variance and the mean of a standard normal that has seen y_j.
    z_mean = tau / total * (y - mean[:, None])
    z_sd = np.sqrt(1 - shrink + (tau / total) ** 2 / precision[:, None])
    w = weights[keep] / weights[keep].sum()
    return {
        "mu": marginals.of_mixture(w, mean[keep], precision[keep] ** -0.5),
        "tau": Marginals(np.asarray(tau_mean), np.asarray(tau_sd), np.exp(grid.quantiles)),
        "theta": marginals.of_mixture(w, theta_mean[keep], theta_sd[keep]),
        "z": marginals.of_mixture(w, z_mean[keep], z_sd[keep]),
    }


def group_start(groups: int, effects: str) -> dict:
    """A start that knows nothing."""
    return {"mu": jnp.zeros(()), "tau": jnp.ones(()), effects: jnp.zeros(groups)}


@zoo.model
def eight_schools_centred() -> zoo.Case:
    """Eight schools, centred: the effects themselves, a funnel towards τ = 0."""

    def log_density(p):
        hyper = normal(p["mu"], 0.0, 5.0) + cauchy(p["tau"], 5.0)
        return hyper + normal(p["theta"], p["mu"], p["tau"]) + normal(EFFECTS, p["theta"], ERRORS)

    def exact():
        return {k: v for k, v in normal_groups(EFFECTS, ERRORS, 5.0, 5.0).items() if k != "z"}

    posterior = hamcmc.Posterior(log_density, support={"tau": hamcmc.positive()})
    return zoo.Case(posterior, group_start(8, "theta"), exact)


@zoo.model
def eight_schools_noncentred() -> zoo.Case:
    """Eight schools, non-centred: standardized effects."""

    def log_density(p):
        hyper = normal(p["mu"], 0.0, 5.0) + cauchy(p["tau"], 5.0)
        return hyper + normal(p["z"]) + normal(EFFECTS, p["mu"] + p["tau"] * p["z"], ERRORS)

    def exact():
        return {k: v for k, v in normal_groups(EFFECTS, ERRORS, 5.0, 5.0).items() if k != "theta"}

    posterior = hamcmc.Posterior(log_density, support={"tau": hamcmc.positive()})
    return zoo.Case(posterior, group_start(8, "z"), exact)


def counties() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """County, floor and log-radon of 919 simulated houses in 85 counties; many counties have a few houses only."""
    rng = np.random.default_rng(51)
    county = np.concatenate([np.arange(85), rng.choice(85, size=919 - 85, p=rng.dirichlet(np.full(85, 0.6)))])
    floor = (rng.random(919) < 0.17).astype(float)
    level = 1.4 + 0.35 * rng.normal(size=85)
    return county, floor, level[county] - 0.65 * floor + 0.75 * rng.normal(size=919)


RADON_SUPPORT = {"tau": hamcmc.positive(), "sigma": hamcmc.positive()}


def radon_hyper(p):
    """Weak priors of the mean level, the effect of the floor and the two scales."""
    return normal(p["mu"], 0.0, 5.0) + normal(p["floor"], 0.0, 5.0) + normal(p["tau"]) + normal(p["sigma"])


def radon_start(effects: str) -> dict:
    """A start that knows nothing."""
    return {**group_start(85, effects), "floor": jnp.zeros(()), "sigma": jnp.ones(())}


@zoo.model
def radon_centred() -> zoo.Case:
    """Varying intercepts of 85 counties, centred, 919 rows."""

    def log_prior(p):
        return radon_hyper(p) + normal(p["alpha"], p["mu"], p["tau"])

    def log_likelihood(p, row):
        county, floor, y = row
        return normal(y, p["alpha"][county] + p["floor"] * floor, p["sigma"])

    return zoo.Case(
        hamcmc.Posterior(log_prior, log_likelihood, counties(), support=RADON_SUPPORT), radon_start("alpha")
    )


@zoo.model
def radon_noncentred() -> zoo.Case:
    """Varying intercepts of 85 counties, non-centred, 919 rows."""

    def log_likelihood(p, row):
        county, floor, y = row
        return normal(y, p["mu"] + p["tau"] * p["z"][county] + p["floor"] * floor, p["sigma"])

    posterior = hamcmc.Posterior(
        lambda p: radon_hyper(p) + normal(p["z"]), log_likelihood, counties(), support=RADON_SUPPORT
    )
    return zoo.Case(posterior, radon_start("z"))
