"""Wholly automatic runs against exact moments: the targets of ``docs/bias.md``, and regressions on large data.

The moments of a regression are exact in the sense of importance sampling: the normal approximation at the mode
proposes, double precision weighs, and the moments of the proposal, which are known, serve as control variates. What is
left of the proposal's error is far below a percent, and the table says how much.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import hamcmc
from benchmarks.measure import Table
from hamcmc.paper import known

TOGETHER = 2**24  # rows times positions of which a log-density is computed at once
CHUNK = 10**6  # rows that are made at once
FREEDOM = 4.0  # of Student's t


class Regression(NamedTuple):
    """A generalized linear model with independent normal priors.

    Attributes:
        name: for the table.
        x: (N, D), in single precision.
        y: (N,).
        prior: (D,) standard deviations of the priors, whose means are 0.
        family: ``"logistic"``, ``"poisson"``, ``"normal"`` with unit variance, or ``"student"``, Student's t with
            :data:`FREEDOM` degrees of freedom and unit scale.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    prior: np.ndarray
    family: str

    def posterior(self) -> hamcmc.Posterior:
        """As a user writes it."""
        prior = jnp.asarray(self.prior, jnp.float32)
        return hamcmc.Posterior(
            lambda theta: -0.5 * jnp.sum((theta / prior) ** 2),
            lambda theta, row: log_likelihood(self.family, row["y"], row["x"] @ theta, jnp),
            {"x": self.x, "y": self.y},
            init=jnp.zeros(self.x.shape[1]),
        )

    def log_density(self, theta: np.ndarray) -> np.ndarray:
        """At each row of theta (S, D), in double precision."""
        total = -0.5 * ((theta / self.prior) ** 2).sum(1)
        rows = max(1, TOGETHER // len(theta))
        for start in range(0, len(self.x), rows):
            a = self.x[start : start + rows].astype(np.float64) @ theta.T
            y = self.y[start : start + rows, None].astype(np.float64)
            total += log_likelihood(self.family, y, a, np).sum(0)
        return total


def log_likelihood(family: str, y: Any, a: Any, xp: Any) -> Any:
    """Of responses y, given linear predictors a, up to a constant, with the functions of NumPy or of jax.numpy."""
    if family == "logistic":
        return y * a - xp.logaddexp(0.0, a)
    if family == "poisson":
        return y * a - xp.exp(a)
    if family == "normal":
        return -0.5 * (y - a) ** 2
    return -0.5 * (FREEDOM + 1) * xp.log1p((y - a) ** 2 / FREEDOM)


def exact_moments(
    problem: Regression, pairs: int, around: hamcmc.Laplace | None = None, directions: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Means and variances by importance sampling, and the largest standard error of a variance, relative.

    They are those of the coordinates, or of θᵀv for each column v of `directions`.
    """
    around = around or double_laplace(problem)
    v = np.eye(around.dimension) if directions is None else directions
    half = np.random.default_rng(0).standard_normal((pairs, around.dimension))
    z = np.concatenate([half, -half])
    theta = around.spread(z)
    log = problem.log_density(theta) + 0.5 * (z**2).sum(1)
    w = np.exp(log - log.max())
    w /= w.mean()
    proposed = np.sqrt(((around.root.T @ v) ** 2).sum(0))
    scaled = (theta - around.flat) @ v / proposed
    mean = (w[:, None] * scaled).mean(0)
    of_pairs = ((w[:, None] - 1) * (scaled**2 - 1)).reshape(2, pairs, -1).mean(0)
    variance = 1 + of_pairs.mean(0) - mean**2
    error = of_pairs.std(0) / np.sqrt(pairs)
    return around.flat @ v + proposed * mean, proposed**2 * variance, float(error.max())


def double_laplace(problem: Regression) -> hamcmc.Laplace:
    """The normal approximation at the mode, in double precision."""
    with jax.enable_x64(True):
        return hamcmc.laplace(problem.posterior())


def correlated(
    rng: np.random.Generator, rows: int, columns: int, condition: float, out: np.ndarray | None = None
) -> np.ndarray:
    """A column of ones, and others whose second moments have this condition number, written to `out` if it is given."""
    rotation = np.linalg.qr(rng.normal(size=(columns - 1, columns - 1)))[0].astype(np.float32)
    scales = np.geomspace(1.0, condition**-0.5, columns - 1).astype(np.float32)
    x = np.empty((rows, columns), np.float32) if out is None else out
    x[:, 0] = 1
    for start in range(0, rows, CHUNK):
        part = x[start : start + CHUNK, 1:]
        part[:] = (rng.standard_normal(part.shape, np.float32) * scales) @ rotation.T
    return x


def logistic(rows: int, columns: int, condition: float) -> Regression:
    """Correlated columns whose second moments have this condition number, and an intercept."""
    rng = np.random.default_rng(0)
    x = correlated(rng, rows, columns, condition)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ rng.normal(size=columns)))).astype(np.float32)
    name = f"logistic, {rows:,} × {columns}, condition {condition:.0e}"
    return Regression(name, x, y, np.full(columns, 10.0), "logistic")


def one_hot(rows: int, attributes: int = 8, levels: int = 10) -> Regression:
    """Attributes whose levels have geometrically falling frequencies, so that some are in a few rows only."""
    rng = np.random.default_rng(1)
    share = 0.45 ** np.arange(levels)
    codes = rng.choice(levels, size=(rows, attributes), p=share / share.sum())
    x = (codes[:, :, None] == np.arange(levels)).reshape(rows, -1).astype(np.float32)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ rng.normal(size=x.shape[1])))).astype(np.float32)
    name = f"one-hot, {rows:,} × {x.shape[1]}, rarest in {int(x.sum(0).min())} rows"
    return Regression(name, x, y, np.ones(x.shape[1]), "logistic")


def poisson(rows: int) -> Regression:
    """An income in dollars, years since 2010 and a share in thousandths, as they come."""
    rng = np.random.default_rng(2)
    z = rng.standard_normal((rows, 3))
    x = np.column_stack([np.ones(rows), 6e4 + 2e4 * z[:, 0], 5 * z[:, 1], 2e-3 + 1e-3 * z[:, 2]])
    y = rng.poisson(np.exp(0.5 + z @ [0.3, -0.2, 0.2]))
    prior = np.array([10.0, 1e-3, 10.0, 1e4])
    return Regression(
        f"Poisson, {rows:,} × 4, dollars and thousandths", x.astype(np.float32), y.astype(np.float32), prior, "poisson"
    )


def run(quick: bool) -> list[Table]:
    """Two tables: the bias at the defaults, and large data."""
    return [bias_at_defaults(3 if quick else 16), large_data(quick)]


def bias_at_defaults(seeds: int) -> Table:
    """The relative bias of second moments, over independent runs."""
    rows = []
    settings: tuple[tuple[str, Callable[[], known.Known], dict[str, Any]], ...] = (
        ("2-d ridge", known.ridge, {}),
        ("10-d", known.ten, {}),
        ("rare event, 512 rows", lambda: known.rare(False), {}),
        ("rare event, minibatches of 50", lambda: known.rare(False), {"batch_size": known.BATCH}),
    )
    for name, build, how in settings:
        target = build()
        statistic = jax.jit(jax.vmap(target.statistic))
        found, words = [], []
        for seed in range(seeds):
            result = hamcmc.sample(target.posterior, seed=seed, progress=False, **how)
            draws = np.asarray(result.posterior["theta"])
            moments = np.asarray(statistic(jnp.asarray(draws.reshape(-1, draws.shape[-1]))), np.float64).mean(0)
            found.append(moments / target.exact - 1)
            words.append(result.check().word)
        error = np.stack(found)
        each, se = error.mean(0), error.std(0, ddof=1) / np.sqrt(seeds)
        worst = int(np.argmax(np.abs(each) / se))
        rows.append(
            {
                "target": name,
                "plan": result.settings["plan"]["sampler"],
                "runs": seeds,
                "bias, mean of all moments": percent(error.mean(1)),
                "the worst moment": f"{100 * each[worst]:+.2f} ± {100 * se[worst]:.2f} %",
                "verdicts": ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words)),
            }
        )
    return Table("Bias at the defaults: relative errors of second moments over independent automatic runs", rows)


def percent(runs: np.ndarray) -> str:
    """Mean and standard error."""
    return f"{100 * runs.mean():+.2f} ± {100 * runs.std(ddof=1) / np.sqrt(len(runs)):.2f} %"


def large_data(quick: bool) -> Table:
    """Every mean and variance of automatic runs on regressions, as far as they go."""
    problems: list[tuple[Regression, int, dict[str, Any]]] = [
        (logistic(10**5 if quick else 10**6, 100, 1e5), 300 if quick else 1000, {}),
        (one_hot(30_000), 2000 if quick else 20_000, {}),
        (one_hot(30_000), 2000 if quick else 20_000, {"batch_size": 256}),
        (poisson(10**5 if quick else 10**6), 2000, {}),
        (poisson(10**5), 2000, {"batch_size": 256}),
    ]
    rows, known_moments = [], {}
    for problem, pairs, how in problems:
        if problem.name not in known_moments:
            known_moments[problem.name] = exact_moments(problem, pairs)
        mean, variance, error = known_moments[problem.name]
        result = hamcmc.sample(problem.posterior(), progress=False, **how)
        draws = np.asarray(result.posterior["theta"], np.float64).reshape(-1, len(mean))
        off = np.abs(draws.mean(0) - mean) / np.sqrt(variance)
        ratio = draws.var(0, ddof=1) / variance
        plan, ess = result.settings["plan"], result.summary()
        rows.append(
            {
                "problem": problem.name + (", batch of 256 asked" if how else ""),
                "plan": f"{plan['sampler']}, {plan['regime']}",
                "verdict": result.check().word,
                "worst mean (sd)": f"{off.max():.3f}",
                "variances": f"{ratio.min():.3f} … {ratio.max():.3f}",
                "reference ±": f"{100 * error:.1f} %",
                "least ESS": int(np.min([np.min(ess["ess_bulk"]), np.min(ess["ess_tail"])])),
                **{f"{k}, s": round(v, 1) for k, v in result.meta["costs"].items()},
            }
        )
        print(rows[-1], flush=True)
    return Table("Automatic runs on regressions: all means and variances against exact ones", rows)
