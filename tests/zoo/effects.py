"""Models with an effect for each unit: growth curves, item response, random effects, shrinkage, capture histories."""

import jax
import jax.numpy as jnp
import numpy as np

import hamcmc
from tests import zoo
from tests.zoo.densities import bernoulli_logit, binomial_logit, cauchy, gamma, normal, sigmoid

positive, share = hamcmc.positive(), hamcmc.bounded(0.0, 1.0)


@zoo.model
def growth() -> zoo.Case:
    """Growth curves of 30 rats at 5 ages, centred, weights in grams."""
    rng = np.random.default_rng(61)
    rat, age = np.repeat(np.arange(30), 5), np.tile([8.0, 15.0, 22.0, 29.0, 36.0], 30)
    level, slope = 240 + 15 * rng.normal(size=30), 6.2 + 0.5 * rng.normal(size=30)
    weight = level[rat] + slope[rat] * (age - 22) + 6 * rng.normal(size=150)

    def log_prior(p):
        hyper = normal(p["mean"], np.array([200.0, 5.0]), np.array([100.0, 5.0])) + cauchy(
            p["spread"], np.array([20.0, 1.0])
        )
        return hyper + cauchy(p["sigma"], 10.0) + normal(p["effect"], p["mean"], p["spread"])

    def log_likelihood(p, row):
        rat, age, weight = row
        effect = p["effect"][rat]
        return normal(weight, effect[0] + effect[1] * (age - 22), p["sigma"])

    support = {"spread": positive, "sigma": positive}
    init = {"mean": jnp.zeros(2), "spread": jnp.ones(2), "sigma": jnp.ones(()), "effect": jnp.zeros((30, 2))}
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, (rat, age, weight), support=support), init)


@zoo.model
def varying_slopes() -> zoo.Case:
    """Correlated intercepts and slopes of 25 groups, non-centred, with the correlation as a parameter, 500 rows."""
    rng = np.random.default_rng(62)
    group, x = rng.integers(25, size=500), rng.normal(size=500)
    effect = rng.normal(size=(25, 2)) @ np.array([[0.8, 0.3], [0.0, 0.4]]) + np.array([1.0, -0.5])
    y = effect[group, 0] + effect[group, 1] * x + 0.9 * rng.normal(size=500)

    def log_prior(p):
        hyper = normal(p["mean"], 0.0, 3.0) + normal(p["spread"]) + normal(p["sigma"], 0.0, 2.0)
        return hyper + jnp.log1p(-(p["correlation"] ** 2)) + normal(p["z"])

    def log_likelihood(p, row):
        (group, x, y), z, r = row, p["z"], p["correlation"]
        second = r * z[group, 0] + jnp.sqrt(1 - r**2) * z[group, 1]
        intercept, slope = p["mean"] + p["spread"] * jnp.stack([z[group, 0], second])
        return normal(y, intercept + slope * x, p["sigma"])

    support = {"spread": positive, "sigma": positive, "correlation": hamcmc.bounded(-1.0, 1.0)}
    scalars = {"correlation": jnp.zeros(()), "sigma": jnp.ones(())}
    init = {"mean": jnp.zeros(2), "spread": jnp.ones(2), "z": jnp.zeros((25, 2)), **scalars}
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, (group, x, y), support=support), init)


@zoo.model
def crossed() -> zoo.Case:
    """Crossed effects of 40 raters and 30 items, centred, 600 ratings."""
    rng = np.random.default_rng(63)
    rater, item = rng.integers(40, size=600), rng.integers(30, size=600)
    y = 3 + 0.5 * rng.normal(size=40)[rater] + 0.8 * rng.normal(size=30)[item] + 0.7 * rng.normal(size=600)

    def log_prior(p):
        effects = normal(p["rater"], 0.0, p["spread"][0]) + normal(p["item"], 0.0, p["spread"][1])
        return normal(p["mean"], 0.0, 5.0) + normal(p["spread"]) + normal(p["sigma"]) + effects

    def log_likelihood(p, row):
        rater, item, y = row
        return normal(y, p["mean"] + p["rater"][rater] + p["item"][item], p["sigma"])

    support = {"spread": positive, "sigma": positive}
    effects = {"rater": jnp.zeros(40), "item": jnp.zeros(30)}
    init = {"mean": jnp.zeros(()), "spread": jnp.ones(2), "sigma": jnp.ones(()), **effects}
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, (rater, item, y), support=support), init)


@zoo.model
def item_response() -> zoo.Case:
    """Item response (2PL): 100 persons, 15 items, abilities, discriminations and difficulties."""
    rng = np.random.default_rng(64)
    person, item = np.repeat(np.arange(100), 15), np.tile(np.arange(15), 100)
    ability, slope, hardness = rng.normal(size=100), np.exp(0.4 * rng.normal(size=15)), rng.normal(size=15)
    y = (rng.random(1500) < sigmoid(slope[item] * (ability[person] - hardness[item]))).astype(float)

    def log_prior(p):
        return (
            normal(p["ability"])
            + normal(jnp.log(p["slope"]), 0.0, 0.5)
            - jnp.sum(jnp.log(p["slope"]))
            + normal(p["hardness"], 0.0, 2.0)
        )

    def log_likelihood(p, row):
        person, item, y = row
        return bernoulli_logit(y, p["slope"][item] * (p["ability"][person] - p["hardness"][item]))

    init = {"ability": jnp.zeros(100), "slope": jnp.ones(15), "hardness": jnp.zeros(15)}
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (person, item, y), support={"slope": positive})
    return zoo.Case(posterior, init)


@zoo.model
def seeds() -> zoo.Case:
    """Germination on 21 plates: a binomial regression with an effect of each plate, centred, its spread small."""
    rng = np.random.default_rng(65)
    trials = rng.integers(4, 80, size=21)
    kind, extract = np.arange(21) % 2, (np.arange(21) // 2) % 2
    x = np.column_stack([np.ones(21), kind, extract, kind * extract]).astype(float)
    eta = x @ np.array([-0.5, 0.1, 1.3, -0.8]) + 0.3 * rng.normal(size=21)
    germinated = rng.binomial(trials, sigmoid(eta))

    def log_density(p):
        hyper = normal(p["beta"], 0.0, 3.0) + normal(p["tau"]) + normal(p["plate"], 0.0, p["tau"])
        return hyper + binomial_logit(germinated, trials, x @ p["beta"] + p["plate"])

    init = {"beta": jnp.zeros(4), "tau": jnp.ones(()), "plate": jnp.zeros(21)}
    posterior = hamcmc.Posterior(log_density, support={"tau": positive})
    return zoo.Case(posterior, init, nuts={"target_accept_prob": 0.99, "thin": 8})


@zoo.model
def pumps() -> zoo.Case:
    """Failure rates of 10 pumps, gamma-Poisson; the rates differ by a factor of hundred."""
    rng = np.random.default_rng(66)
    hours = np.array([94.0, 16.0, 63.0, 126.0, 5.0, 31.0, 1.0, 1.0, 2.0, 10.0])  # of running, in thousands
    failures = rng.poisson(rng.gamma(0.7, 1.2, size=10) * hours)

    def log_density(p):
        hyper = gamma(p["shape"], 1.0, 1.0) + gamma(p["rate"], 1.0, 1.0) + gamma(p["theta"], p["shape"], p["rate"])
        return hyper + jnp.sum(failures * jnp.log(p["theta"]) - hours * p["theta"])

    init = {"shape": jnp.ones(()), "rate": jnp.ones(()), "theta": jnp.ones(10)}
    return zoo.Case(hamcmc.Posterior(log_density, support=positive), init)


@zoo.model
def horseshoe() -> zoo.Case:
    """Sparse regression with a horseshoe prior, 100 rows, 30 columns, 4 of which matter; non-centred."""
    rng = np.random.default_rng(67)
    x = rng.normal(size=(100, 30))
    y = x[:, :4] @ np.array([2.0, -1.5, 1.0, 0.5]) + rng.normal(size=100)

    def log_prior(p):
        return normal(p["z"]) + cauchy(p["local"]) + cauchy(p["overall"], 0.1) + normal(p["sigma"], 0.0, 2.0)

    def log_likelihood(p, row):
        x, y = row
        return normal(y, x @ (p["z"] * p["local"] * p["overall"]), p["sigma"])

    support = {"local": positive, "overall": positive, "sigma": positive}
    init = {"z": jnp.zeros(30), "local": jnp.ones(30), "overall": jnp.ones(()), "sigma": jnp.ones(())}
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, y), support=support)
    return zoo.Case(posterior, init, measure="quantiles", hard=True, nuts={"target_accept_prob": 0.99, "thin": 4})


@zoo.model
def dogs() -> zoo.Case:
    """30 dogs learn in 25 trials to avoid a shock: logistic in the numbers of earlier avoidances and shocks."""
    rng = np.random.default_rng(68)
    shocked = np.zeros((30, 25))
    for t in range(25):
        shocks = shocked[:, :t].sum(axis=1)
        shocked[:, t] = rng.random(30) < sigmoid(1.8 - 0.35 * (t - shocks) - 0.2 * shocks)
    before = np.cumsum(shocked, axis=1) - shocked
    x = np.stack([np.ones((30, 25)), np.arange(25) - before, before], axis=-1).reshape(-1, 3)

    def log_likelihood(theta, row):
        x, y = row
        return bernoulli_logit(y, x @ theta)

    posterior = hamcmc.Posterior(lambda theta: normal(theta, 0.0, 10.0), log_likelihood, (x, shocked.ravel()))
    return zoo.Case(posterior, jnp.zeros(3), nuts={"whiten": True})


@zoo.model
def capture_recapture() -> zoo.Case:
    """Capture histories of 180 animals on 7 occasions (Cormack–Jolly–Seber): survival, and six capture rates."""
    rng = np.random.default_rng(69)
    capture = np.array([0.4, 0.6, 0.3, 0.5, 0.7, 0.35])
    table = np.zeros((6, 7))  # released on an occasion; seen next on a later one, or never again
    for first in np.repeat(np.arange(6), 30):
        last, alive = first, True
        for t in range(first, 6):
            alive = alive and rng.random() < 0.75
            if alive and rng.random() < capture[t]:
                table[last, t] += 1
                last = t + 1
        if last < 6:
            table[last, 6] += 1

    def log_density(p):
        phi, rate = p["survival"], p["capture"]
        step = jnp.log(phi) + jnp.log1p(-rate)  # survive an interval and stay unseen
        gone = jnp.concatenate([jnp.zeros(1), jnp.cumsum(step)])
        seen = gone[None, :6] - gone[:6, None] + jnp.log(phi) + jnp.log(rate)  # from occasion i to t + 1
        cells = np.triu(np.ones((6, 6), bool))
        seen = jnp.where(cells, seen, 0.0)
        never = jnp.log1p(-jnp.sum(jnp.where(cells, jnp.exp(seen), 0.0), axis=1))
        return jnp.sum(table[:, :6] * seen) + jnp.sum(table[:, 6] * never)

    init = {"survival": jnp.array(0.5), "capture": jnp.full(6, 0.5)}
    return zoo.Case(hamcmc.Posterior(log_density, support=share), init)


@zoo.model
def ability() -> zoo.Case:
    """Paired comparisons of 20 players (Bradley–Terry), 300 games, with the spread of their strengths."""
    rng = np.random.default_rng(70)
    strength = 0.9 * rng.normal(size=20)
    pair = np.array([rng.choice(20, size=2, replace=False) for _ in range(300)])
    won = (rng.random(300) < sigmoid(strength[pair[:, 0]] - strength[pair[:, 1]])).astype(float)

    def log_likelihood(p, row):
        pair, won = row
        return jax.nn.log_sigmoid((2 * won - 1) * (p["strength"][pair[0]] - p["strength"][pair[1]]))

    def log_prior(p):
        return normal(p["spread"], 0.0, 2.0) + normal(p["strength"], 0.0, p["spread"])

    init = {"spread": jnp.ones(()), "strength": jnp.zeros(20)}
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, (pair, won), support={"spread": positive}), init)
