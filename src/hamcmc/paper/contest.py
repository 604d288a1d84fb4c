"""The first part of the demonstration: one automatic call on many rows, and NumPyro's NUTS beside it."""

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from hamcmc.diagnostics.costs import cost
from hamcmc.diagnostics.ess import effective_size
from hamcmc.inference.display import shown
from hamcmc.inference.sample import sample
from hamcmc.paper.nuts import nuts
from hamcmc.target.posterior import Posterior

FACTORS = 3  # that the columns have in common
SHARED = 0.5, 0.98  # of the variance of a column that these explain: the least and the most
UNITS = -2, 3  # powers of ten
PRIOR = 1000.0  # standard deviation: hardly any
MANY = 100  # effective draws, from which on moments are worth comparing


class Size(NamedTuple):
    """How large the demonstration is.

    Attributes:
        rows: of the data.
        columns: coefficients, the intercept included.
        seconds: that NUTS gets for warm-up and draws.
    """

    rows: int
    columns: int
    seconds: float


FULL, QUICK = Size(300_000, 20, 25.0), Size(100_000, 10, 8.0)


class Data(NamedTuple):
    """Rows, their labels, and the coefficients that made the labels."""

    x: np.ndarray
    y: np.ndarray
    truth: np.ndarray


class Side(NamedTuple):
    """How one of the two did.

    Attributes:
        name: what it is called.
        how: its settings in words.
        seconds: of each part, in order; their sum is everything from the call to the answer.
        ess: effective draws of the poorest coefficient; NaN if there are too few draws to tell.
        ess_sd: the same for estimates of standard deviations.
        mean: of each coefficient.
        sd: of each coefficient.
        low: the 2.5 % quantile of each coefficient.
        high: the 97.5 % quantile.
    """

    name: str
    how: str
    seconds: dict[str, float]
    ess: float
    ess_sd: float
    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def total(self) -> float:
        """Seconds in all."""
        return sum(self.seconds.values())

    @property
    def rate(self) -> float:
        """Effective draws per second, everything included."""
        return self.ess / self.total


class Agreement(NamedTuple):
    """How far two posteriors are apart at most.

    Attributes:
        mean: between two means, in posterior standard deviations.
        sd: between two standard deviations, as a share.
        mean_by_chance: what is to be expected of the first, for the largest of so many, if both are right.
        sd_by_chance: what is to be expected of the second.
    """

    mean: float
    sd: float
    mean_by_chance: float
    sd_by_chance: float

    @property
    def holds(self) -> bool:
        """Whether the differences are within chance."""
        return self.mean < 1.5 * self.mean_by_chance and self.sd < 1.5 * self.sd_by_chance


class Contest(NamedTuple):
    """What came of it.

    Attributes:
        rows: of the data.
        truth: the coefficients that made the labels.
        plan: what the automatic call chose, and why.
        verdict: on its draws, in one line.
        ours: the automatic call.
        nuts: NumPyro's NUTS, or None if NumPyro is not installed.
        run: the directory of the automatic run.
    """

    rows: int
    truth: np.ndarray
    plan: str
    verdict: str
    ours: Side
    nuts: Side | None
    run: Path

    @property
    def sides(self) -> list[Side]:
        """All that ran."""
        return [self.ours] if self.nuts is None else [self.ours, self.nuts]

    @property
    def agreement(self) -> "Agreement | None":
        """Whether both found the same posterior; None unless NUTS has enough effective draws to say."""
        if self.nuts is None or not self.nuts.ess >= MANY:
            return None
        one, other = self.ours, self.nuts
        many = np.sqrt(2 * np.log(2 * len(self.truth)))  # the largest of so many standard normal deviations
        return Agreement(
            float((np.abs(one.mean - other.mean) / other.sd).max()),
            float(np.abs(one.sd / other.sd - 1).max()),
            float(many * np.sqrt(1 / one.ess + 1 / other.ess)),
            float(many * np.sqrt(0.5 / one.ess_sd + 0.5 / other.ess_sd)),
        )

    def table(self) -> list[tuple[str, list[str]]]:
        """What to compare, and its value for each side."""
        parts = [(f"  {part}", [f"{s.seconds.get(part, 0.0):.1f}" for s in self.sides]) for part in self.ours.seconds]
        return [
            ("effective draws", [number(s.ess) for s in self.sides]),
            ("seconds", [f"{s.total:.1f}" for s in self.sides]),
            *parts,
            ("effective draws per second", [number(s.rate) for s in self.sides]),
            ("  of sampling alone", [number(s.ess / s.seconds["sampling"]) for s in self.sides]),
        ]

    def notes(self) -> list[str]:
        """Settings of both, and whether they agree."""
        lines = [f"{s.name}: {s.how}." for s in self.sides]
        if (found := self.agreement) is not None:
            lines.append(
                f"The two {'agree' if found.holds else 'do not agree'}: means differ by up to {found.mean:.2f} sd, and "
                f"standard deviations by up to {found.sd:.0%}. With so few draws of NUTS, chance makes it about "
                f"{found.mean_by_chance:.2f} sd and {found.sd_by_chance:.0%}."
            )
        elif self.nuts is not None:
            lines.append("NUTS has too few effective draws to compare the posteriors.")
        return lines


def number(value: float) -> str:
    """Effective draws for people."""
    return "too few to tell" if not np.isfinite(value) else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def contest(out: Path, size: Size, *, seed: int = 0, tell: Callable[[str], None] = lambda line: None) -> Contest:
    """Sample a logistic regression by one automatic call, then by NUTS.

    Args:
        out: the directory for the run.
        size: of the data and of the time.
        seed: everything random follows from it.
        tell: called with a line about what comes next.
    """
    data = simulate(size, seed)
    posterior = logistic(data)
    tell(f"Logistic regression, {size.rows:,} rows, {size.columns} columns, correlated and in all units:")
    tell("  result = hamcmc.sample(posterior)")
    began = time.perf_counter()
    result = sample(posterior, seed=seed, out=out / "run", overwrite=True)
    total = time.perf_counter() - began
    verdict, plan = result.check(), result.settings["plan"]
    tell(f"verdict: {verdict.headline}")
    how = f"{plan['sampler']} on {plan['regime']}, as the plan says; the verdict is: {verdict.word}"
    theta = np.asarray(result.posterior["theta"], np.float64)
    ours = side("hamcmc", how, in_words(result.meta["costs"], total), cost(result).ess, theta)
    beside = None
    if find_spec("numpyro") is None:
        tell("NumPyro is not installed, so NUTS does not run beside it: pip install 'hamcmc[numpyro]'")
    else:
        tell(
            f"NumPyro's NUTS beside it, with {size.seconds:.0f} s for warm-up and draws. It is given more than most "
            "users would give it:\nthe mode to start from, and coordinates that are white there."
        )
        with shown(None, "NUTS") as show:
            found = nuts(posterior, size.seconds, seed, show)
        beside = side("NUTS", found.how, found.seconds, found.ess, found.draws)
    return Contest(size.rows, data.truth, plan["reason"], verdict.headline, ours, beside, out / "run")


def simulate(size: Size, seed: int) -> Data:
    """Correlated columns in units that differ by orders of magnitude, and labels of which about a third are true."""
    rng = np.random.default_rng(seed)
    columns = size.columns - 1
    shared, units = rng.uniform(*SHARED, columns), 10 ** rng.uniform(*UNITS, columns)
    loadings = rng.standard_normal((FACTORS, columns))
    loadings *= np.sqrt(shared / np.sum(loadings**2, 0))
    x = rng.standard_normal((size.rows, FACTORS), np.float32) @ loadings.astype(np.float32)
    x += rng.standard_normal(x.shape, np.float32) * np.sqrt(1 - shared).astype(np.float32)
    effects = rng.normal(0, 0.3, columns)
    y = rng.random(size.rows) < 1 / (1 + np.exp(1 - x @ effects))
    x *= units.astype(np.float32)
    return Data(np.insert(x, 0, 1, axis=1), y, np.insert(effects / units, 0, -1))


def logistic(data: Data) -> Posterior:
    """As a user writes it."""

    def log_prior(theta):
        """A wide normal."""
        return -0.5 * jnp.sum((theta / PRIOR) ** 2)

    def log_likelihood(theta, row):
        """Of a single row."""
        x, label = row
        return -jnp.logaddexp(0.0, jnp.where(label, -1.0, 1.0) * (x @ theta))

    return Posterior(log_prior, log_likelihood, (data.x, data.y), init=jnp.zeros(len(data.truth)))


def side(name: str, how: str, seconds: dict[str, float], ess: float, theta: np.ndarray) -> Side:
    """With the moments of draws (chain, draw, D)."""
    mean, sd = theta.mean((0, 1)), theta.std((0, 1))
    low, high = np.quantile(theta, [0.025, 0.975], axis=(0, 1))
    squares, weights = np.moveaxis((theta - mean) ** 2, 2, 0), np.ones(theta.shape[1])
    ess_sd = min(effective_size(x, weights, "mean") for x in squares)
    return Side(name, how, seconds, ess, ess_sd, mean, sd, low, high)


def in_words(costs: dict[str, float], total: float) -> dict[str, float]:
    """The parts of an automatic run, with all that is not measured counted as compiling, most of which it is."""
    named = {
        "mode": costs.get("mode", 0.0) + costs.get("tuning", 0.0),
        "compiling": 0.0,
        "warm-up": costs["adaptation"],
        "sampling": costs["sampling"],
        "verdict": costs.get("verdict", 0.0),
    }
    return named | {"compiling": max(0.0, total - sum(named.values()))}
