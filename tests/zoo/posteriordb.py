"""Models of posteriordb, written anew for JAX, on the data and with the reference draws of the user's own copy.

Set the environment variable POSTERIORDB to a checkout of https://github.com/stan-dev/posteriordb. Without it these
cases do not exist. Only posteriors whose names begin with a to h are here: the others are kept for acceptance.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

import hamcmc
from tests import zoo
from tests.zoo import marginals
from tests.zoo.densities import beta, cauchy, gamma, normal, poisson_log, student_t
from tests.zoo.hierarchical import group_start
from tests.zoo.marginals import Marginals
from tests.zoo.ode import integrate

positive, share = hamcmc.positive(), hamcmc.bounded(0.0, 1.0)
NUGGET = 1e-5  # relative; posteriordb has 1e-10, with which single precision finds no Cholesky factor

_folder = os.environ.get("POSTERIORDB")
ROOT = Path(_folder) / "posterior_database" if _folder else None
MISSING = (
    None
    if ROOT and ROOT.is_dir()
    else "the posteriors of posteriordb are left out: POSTERIORDB must name a checkout of stan-dev/posteriordb"
)


def read(path: str) -> Any:
    """The JSON inside a zip file of the copy."""
    assert ROOT
    with ZipFile(ROOT / f"{path}.json.zip") as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def reference(name: str) -> dict[str, Marginals]:
    """The marginals of the reference draws, whose scalars ``beta[1]``, ``beta[2]``, … form one parameter."""
    assert ROOT
    info = json.loads((ROOT / "posteriors" / f"{name}.json").read_text())
    chains = read(f"reference_posteriors/draws/draws/{info['reference_posterior_name']}")
    columns: dict[str, list[np.ndarray]] = {}
    for scalar in chains[0]:
        draws = np.concatenate([chain[scalar] for chain in chains])
        columns.setdefault(re.sub(r"\[.*", "", scalar), []).append(draws)
    vectors = {re.sub(r"\[.*", "", scalar) for scalar in chains[0] if "[" in scalar}
    return {k: marginals.of_draws(np.stack(v, axis=1) if k in vectors else v[0]) for k, v in columns.items()}


def model(name: str) -> Callable:
    """Enter a function of the data under the name that posteriordb has for the posterior."""

    def enter(build: Callable[[dict], zoo.Case]) -> Callable:
        def case() -> zoo.Case:
            found = build({k: np.asarray(v) for k, v in read(f"data/data/{name.partition('-')[0]}").items()})
            return zoo.replace(found, published=lambda: reference(name))

        case.__name__, case.__doc__, case.__module__ = name, f"{name} of posteriordb.", __name__
        return case if MISSING else zoo.model(case)

    return enter


@model("arK-arK")
def autoregression(data: dict) -> zoo.Case:
    """Autoregression of order 5."""
    y, order = data["y"], int(data["K"])
    lags = np.column_stack([y[order - k : len(y) - k] for k in range(1, order + 1)])

    def log_prior(p):
        return normal(p["alpha"], 0.0, 10.0) + normal(p["beta"], 0.0, 10.0) + cauchy(p["sigma"], 2.5)

    def log_likelihood(p, row):
        lags, y = row
        return normal(y, p["alpha"] + lags @ p["beta"], p["sigma"])

    init = {"alpha": jnp.zeros(()), "beta": jnp.zeros(order), "sigma": jnp.ones(())}
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (lags, y[order:]), support={"sigma": positive})
    return zoo.Case(posterior, init)


@model("arma-arma11")
def arma(data: dict) -> zoo.Case:
    """ARMA(1, 1)."""
    y = data["y"]

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


def forward(emission, first, second):
    """The log-likelihood of a Markov chain with two states that go to the first state with these probabilities."""
    moves = jnp.log(jnp.stack([jnp.stack([first, 1 - first]), jnp.stack([second, 1 - second])]))

    def step(alpha, emitted):
        return logsumexp(alpha[:, None] + moves, axis=0) + emitted, None

    return logsumexp(lax.scan(step, emission[0], emission[1:])[0])


def ordered(p, name: str):
    """The two ordered values of a parameter that is sampled as the lower one and the gap."""
    return jnp.stack([p[name], p[name] + p[f"{name}_gap"]])


def two_states(p, *names: str) -> dict[str, Any]:
    """The parameters as posteriordb has them."""
    moves = {k: jnp.stack([p[k], 1 - p[k]]) for k in ("theta1", "theta2")}
    return moves | {k: ordered(p, k) for k in names}


def driving(data: dict, log_emission: Callable, lower: Any) -> zoo.Case:
    """A hidden Markov chain with two states that emits a speed u and a distance v."""
    u, v, alpha = data["u"], data["v"], data["alpha"]

    def log_density(p):
        phi, low = ordered(p, "phi"), ordered(p, "lambda")
        levels = normal(phi, np.array([0.0, 3.0])) + normal(low, np.array([0.0, 3.0]))
        moves = beta(p["theta1"], *alpha[0]) + beta(p["theta2"], *alpha[1])
        emission = log_emission(u[:, None], phi, "tau") + log_emission(v[:, None], low, "rho")
        return levels + moves + forward(emission, p["theta1"], p["theta2"])

    support = {"theta1": share, "theta2": share, "phi_gap": positive, "lambda_gap": positive, **lower}
    init = {k: jnp.ones(()) for k in ("phi", "phi_gap", "lambda", "lambda_gap")}
    init |= {"theta1": jnp.array(0.5), "theta2": jnp.array(0.5)}
    posterior = hamcmc.Posterior(log_density, support=support)
    return zoo.Case(posterior, init, quantities=lambda p: two_states(p, "phi", "lambda"))


@model("bball_drive_event_0-hmm_drive_0")
def drive_exponential(data: dict) -> zoo.Case:
    """Exponential emissions."""
    return driving(data, lambda x, rate, _: jnp.log(rate) - rate * x, {"phi": positive, "lambda": positive})


@model("bball_drive_event_1-hmm_drive_1")
def drive_normal(data: dict) -> zoo.Case:
    """Normal emissions with known sds."""
    return driving(data, lambda x, mean, sd: -0.5 * ((x - mean) / data[sd]) ** 2, {})


@model("diamonds-diamonds")
def diamonds(data: dict) -> zoo.Case:
    """Linear regression with 24 correlated columns."""
    x, y = data["X"][:, 1:], data["Y"]

    def log_prior(p):
        return normal(p["b"]) + student_t(p["Intercept"], 3.0, 8.0, 10.0) + student_t(p["sigma"], 3.0, 0.0, 10.0)

    def log_likelihood(p, row):
        x, y = row
        return normal(y, p["Intercept"] + x @ p["b"], p["sigma"])

    init = {"b": jnp.zeros(x.shape[1]), "Intercept": jnp.zeros(()), "sigma": jnp.ones(())}
    rows = (x - x.mean(axis=0), y)
    return zoo.Case(hamcmc.Posterior(log_prior, log_likelihood, rows, support={"sigma": positive}), init)


def earnings(y: np.ndarray, *columns: np.ndarray) -> zoo.Case:
    """Linear regression with flat priors."""
    x = np.column_stack([np.ones(len(y)), *columns])

    def log_likelihood(p, row):
        x, y = row
        return normal(y, x @ p["beta"], p["sigma"])

    posterior = hamcmc.Posterior(lambda p: jnp.zeros(()), log_likelihood, (x, y), support={"sigma": positive})
    return zoo.Case(posterior, {"beta": jnp.zeros(x.shape[1]), "sigma": jnp.ones(())})


model("earnings-earn_height")(lambda d: earnings(d["earn"], d["height"]))
model("earnings-log10earn_height")(lambda d: earnings(np.log10(d["earn"]), d["height"]))
model("earnings-logearn_height")(lambda d: earnings(np.log(d["earn"]), d["height"]))
model("earnings-logearn_height_male")(lambda d: earnings(np.log(d["earn"]), d["height"], d["male"]))
model("earnings-logearn_logheight_male")(lambda d: earnings(np.log(d["earn"]), np.log(d["height"]), d["male"]))


@model("earnings-logearn_interaction")
def interaction(data: dict) -> zoo.Case:
    """Height, sex and their product."""
    return earnings(np.log(data["earn"]), data["height"], data["male"], data["height"] * data["male"])


@model("earnings-logearn_interaction_z")
def interaction_z(data: dict) -> zoo.Case:
    """Standardized height, sex and their product."""
    z = (data["height"] - data["height"].mean()) / data["height"].std(ddof=1)
    return earnings(np.log(data["earn"]), z, data["male"], z * data["male"])


@model("eight_schools-eight_schools_centered")
def schools_centred(data: dict) -> zoo.Case:
    """Centred."""

    def log_density(p):
        hyper = normal(p["mu"], 0.0, 5.0) + cauchy(p["tau"], 5.0) + normal(p["theta"], p["mu"], p["tau"])
        return hyper + normal(data["y"], p["theta"], data["sigma"])

    return zoo.Case(hamcmc.Posterior(log_density, support={"tau": positive}), group_start(8, "theta"))


@model("eight_schools-eight_schools_noncentered")
def schools_noncentred(data: dict) -> zoo.Case:
    """Non-centred."""

    def log_density(p):
        hyper = normal(p["mu"], 0.0, 5.0) + cauchy(p["tau"], 5.0) + normal(p["z"])
        return hyper + normal(data["y"], p["mu"] + p["tau"] * p["z"], data["sigma"])

    def quantities(p):
        return {"mu": p["mu"], "tau": p["tau"], "theta": p["mu"] + p["tau"] * p["z"]}

    posterior = hamcmc.Posterior(log_density, support={"tau": positive})
    return zoo.Case(posterior, group_start(8, "z"), quantities=quantities)


@model("garch-garch11")
def garch(data: dict) -> zoo.Case:
    """GARCH(1, 1), uniform on α₁ + β₁ < 1."""
    y, first = data["y"], float(data["sigma1"])

    def log_density(p):
        memory = p["share"] * (1 - p["alpha1"])

        def step(variance, previous):
            variance = p["alpha0"] + p["alpha1"] * (previous - p["mu"]) ** 2 + memory * variance
            return variance, variance

        start = jnp.full((), first**2, p["mu"].dtype)
        variances = jnp.concatenate([start[None], lax.scan(step, start, y[:-1])[1]])
        return normal(y, p["mu"], jnp.sqrt(variances)) + jnp.log1p(-p["alpha1"])

    def quantities(p):
        return {k: p[k] for k in ("mu", "alpha0", "alpha1")} | {"beta1": p["share"] * (1 - p["alpha1"])}

    init = {"mu": jnp.zeros(()), "alpha0": jnp.ones(()), "alpha1": jnp.array(0.5), "share": jnp.array(0.5)}
    posterior = hamcmc.Posterior(log_density, support={"alpha0": positive, "alpha1": share, "share": share})
    return zoo.Case(posterior, init, quantities=quantities)


def root_of(x: np.ndarray, alpha, rho, noise):
    """The Cholesky factor of a squared-exponential covariance."""
    correlation = jnp.exp(-0.5 * ((x[:, None] - x) / rho) ** 2) + NUGGET * np.eye(len(x))
    return jnp.linalg.cholesky(alpha**2 * correlation + noise * np.eye(len(x)))


def length_prior(p):
    """Priors of the length and the amplitude."""
    return gamma(p["rho"], 25.0, 4.0) + normal(p["alpha"], 0.0, 2.0)


@model("gp_pois_regr-gp_pois_regr")
def gp_counts(data: dict) -> zoo.Case:
    """Counts with a Gaussian process, non-centred."""

    def process(p):
        return root_of(data["x"], p["alpha"], p["rho"], 0.0) @ p["f_tilde"]

    def log_density(p):
        return length_prior(p) + normal(p["f_tilde"]) + poisson_log(data["k"], process(p))

    def quantities(p):
        return {"rho": p["rho"], "alpha": p["alpha"], "f": process(p)}

    init = {"rho": jnp.ones(()), "alpha": jnp.ones(()), "f_tilde": jnp.zeros(len(data["x"]))}
    posterior = hamcmc.Posterior(log_density, support={"rho": positive, "alpha": positive})
    return zoo.Case(posterior, init, quantities=quantities)


@model("gp_pois_regr-gp_regr")
def gp_noise(data: dict) -> zoo.Case:
    """Gaussian-process regression; `sigma` is a variance."""

    def log_density(p):
        root = root_of(data["x"], p["alpha"], p["rho"], p["sigma"])
        observed = -0.5 * jnp.sum(solve_triangular(root, data["y"], lower=True) ** 2) - jnp.sum(jnp.log(jnp.diag(root)))
        return length_prior(p) + normal(p["sigma"]) + observed

    return zoo.Case(
        hamcmc.Posterior(log_density, support=positive), {k: jnp.ones(()) for k in ("rho", "alpha", "sigma")}
    )


@model("hmm_example-hmm_example")
def markov(data: dict) -> zoo.Case:
    """A hidden Markov chain with two ordered levels."""

    def log_density(p):
        mu = ordered(p, "mu")
        emission = -0.5 * (data["y"][:, None] - mu) ** 2
        return normal(mu, np.array([3.0, 10.0])) + forward(emission, p["theta1"], p["theta2"])

    support = {"theta1": share, "theta2": share, "mu": positive, "mu_gap": positive}
    init = {"theta1": jnp.array(0.5), "theta2": jnp.array(0.5), "mu": jnp.ones(()), "mu_gap": jnp.ones(())}
    return zoo.Case(hamcmc.Posterior(log_density, support=support), init, quantities=lambda p: two_states(p, "mu"))


@model("hudson_lynx_hare-lotka_volterra")
def hares(data: dict) -> zoo.Case:
    """Hares and lynxes."""
    y = np.log(np.concatenate([data["y_init"][None], data["y"]]))

    def log_density(p):
        a, b, c, d = p["theta"]

        def slope(state):
            return jnp.stack([(a - b * state[1]) * state[0], (-c + d * state[0]) * state[1]])

        path = jnp.concatenate([p["z_init"][None], integrate(slope, p["z_init"], len(data["y"]), 10, 0.1)])
        centre, width = np.array([1.0, 0.05, 1.0, 0.05]), np.array([0.5, 0.05, 0.5, 0.05])
        log_start, log_sigma = jnp.log(p["z_init"]), jnp.log(p["sigma"])
        prior = normal(p["theta"], centre, width) + normal(log_start, np.log(10), 1.0) + normal(log_sigma, -1.0, 1.0)
        return prior - jnp.sum(log_start) - jnp.sum(log_sigma) + normal(y, jnp.log(path), p["sigma"])

    init = {"theta": jnp.array([1.0, 0.05, 1.0, 0.05]), "z_init": jnp.full(2, 10.0), "sigma": jnp.ones(2)}
    return zoo.Case(hamcmc.Posterior(log_density, support=positive), init)
