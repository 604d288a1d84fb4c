"""The posteriors of the race, and what is known exactly about each of them.

The moments of the linear model are known, and those of the hierarchical one need a single integral. All others are
regressions whose moments come from importance sampling (:func:`benchmarks.automatic.exact_moments`), or, where the
weights are too uneven, from a long run of plain Hamiltonian Monte Carlo in double precision.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.optimize import minimize_scalar

import hamcmc
from benchmarks import automatic
from benchmarks.automatic import Regression

NODES = np.linspace(-7, 7, 57)  # of the integral, in standard deviations: the trapezoidal rule is then exact to 1e-10

UNEVEN = 0.01  # standard error of a variance above which importance sampling is not enough
CHAINS, DRAWS, BURN_IN = 64, 1000, 50  # of the long run


class Truth(NamedTuple):
    """Exact moments along directions.

    Attributes:
        directions: (D, K), columns in the flat space: eigenvectors of the Hessian or of the covariance, then all axes.
        mean: (K,) of θᵀv for each direction v.
        variance: (K,) of the same.
        error: the largest relative standard error of these variances.
    """

    directions: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    error: float


class Hierarchical(NamedTuple):
    """Normal responses with a slope and an effect for each of many groups, which have a common mean and deviation.

    The noise has unit variance, the mean, the slope and the logarithm of the deviation have standard normal priors.
    """

    name: str
    group: np.ndarray
    x: np.ndarray
    y: np.ndarray
    groups: int

    def posterior(self) -> hamcmc.Posterior:
        """As a user writes it."""

        def log_prior(theta):
            m, s, b = theta["mean"], theta["log_sd"], theta["effect"]
            effects = jnp.sum(((b - m) * jnp.exp(-s)) ** 2) + 2 * self.groups * s
            return -0.5 * (m**2 + s**2 + theta["slope"] ** 2 + effects)

        def log_likelihood(theta, row):
            return -0.5 * (row["y"] - theta["effect"][row["group"]] - theta["slope"] * row["x"]) ** 2

        init = {"effect": jnp.zeros(self.groups), "log_sd": 0.0, "mean": 0.0, "slope": 0.0}
        return hamcmc.Posterior(log_prior, log_likelihood, {"group": self.group, "x": self.x, "y": self.y}, init=init)

    def given(self, log_sd: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Log p(log_sd | y) up to a constant, and the mean and precision of (effects, mean, slope) given it."""
        j = self.groups
        x, y = self.x.astype(np.float64), self.y.astype(np.float64)
        sums = lambda v: np.bincount(self.group, v, minlength=j)
        tau = np.exp(-2 * log_sd)
        q = np.zeros((j + 2, j + 2))
        q[np.arange(j), np.arange(j)] = sums(np.ones_like(x)) + tau
        q[:j, j] = q[j, :j] = -tau
        q[:j, j + 1] = q[j + 1, :j] = sums(x)
        q[j, j], q[j + 1, j + 1] = 1 + j * tau, 1 + x @ x
        h = np.concatenate([sums(y), [0.0, x @ y]])
        mean = np.linalg.solve(q, h)
        log = 0.5 * (h @ mean - np.linalg.slogdet(q)[1] - log_sd**2) - j * log_sd
        return log, mean, q

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance in the order (effects, log_sd, mean, slope), by an integral over log_sd."""
        peak = float(minimize_scalar(lambda s: -self.given(s)[0], bracket=(-1.0, 0.0)).x)
        h = 0.5 / np.sqrt(self.groups)
        bend = (2 * self.given(peak)[0] - self.given(peak - h)[0] - self.given(peak + h)[0]) / h**2
        nodes = peak + NODES / np.sqrt(bend)
        found = [self.given(s) for s in nodes]
        w = np.exp(np.array([log for log, _, _ in found]) - found[len(found) // 2][0])
        w /= w.sum()
        at = self.groups  # where log_sd stands
        means = np.insert(np.stack([m for _, m, _ in found]), at, nodes, axis=1)
        mean = w @ means
        within = sum(wk * np.linalg.inv(q) for wk, (_, _, q) in zip(w, found))
        covariance = np.insert(np.insert(within, at, 0.0, axis=0), at, 0.0, axis=1)
        return mean, covariance + (means - mean).T @ (w[:, None] * (means - mean))


Problem = Regression | Hierarchical


class Entry(NamedTuple):
    """A problem of the race.

    Attributes:
        build: makes it, or with True a small version of it that shows whether everything works.
        pairs: of draws, for importance sampling.
        size: N.
        condition: the condition number of the columns' second moments, where the problem is one of a family.
    """

    build: Callable[[bool], Problem]
    pairs: int
    size: int
    condition: float | None = None


def linear(rows: int, columns: int, condition: float) -> Regression:
    """Normal responses with unit noise."""
    rng = np.random.default_rng(4)
    x = automatic.correlated(rng, rows, columns, condition)
    y = (x @ rng.normal(size=columns) + rng.standard_normal(rows)).astype(np.float32)
    name = f"linear Gaussian, {rows:,} × {columns}, condition {condition:.0e}"
    return Regression(name, x, y, np.full(columns, 10.0), "normal")


def student(rows: int, columns: int) -> Regression:
    """Responses with noise of Student's t, whose log-density is not concave."""
    rng = np.random.default_rng(5)
    x = automatic.correlated(rng, rows, columns, 1e2)
    y = (x @ rng.normal(size=columns) + rng.standard_t(automatic.FREEDOM, rows)).astype(np.float32)
    return Regression(f"Student-t, {rows:,} × {columns}", x, y, np.full(columns, 10.0), "student")


def hierarchical(groups: int, rows: int) -> Hierarchical:
    """Groups of very different sizes."""
    rng = np.random.default_rng(6)
    group = rng.choice(groups, rows, p=rng.dirichlet(np.full(groups, 1.0))).astype(np.int32)
    x = rng.standard_normal(rows).astype(np.float32)
    effect = 0.5 + 0.8 * rng.standard_normal(groups)
    y = (effect[group] + x + rng.standard_normal(rows)).astype(np.float32)
    return Hierarchical(f"hierarchical, {rows:,} rows in {groups:,} groups", group, x, y, groups)


def on_disk(rows: int, columns: int, condition: float, folder: Path) -> Regression:
    """A logistic regression whose columns are in a file, which is written the first time."""
    path = folder / f"race-{rows}-{columns}-{condition:.0e}.npy"
    rng = np.random.default_rng(7)
    if not path.exists():
        part = path.with_suffix(".part")
        x = np.lib.format.open_memmap(part, "w+", np.float32, (rows, columns))
        automatic.correlated(rng, rows, columns, condition, x).flush()
        part.rename(path)
    x = np.load(path, mmap_mode="r")
    rng, theta = np.random.default_rng(8), np.random.default_rng(9).normal(size=columns).astype(np.float32)
    a = np.concatenate([x[s : s + automatic.CHUNK] @ theta for s in range(0, rows, automatic.CHUNK)])
    y = (rng.random(rows) < 1 / (1 + np.exp(-a))).astype(np.float32)
    name = f"logistic, {rows:,} × {columns} on disk, condition {condition:.0e}"
    return Regression(name, x, y, np.full(columns, 10.0), "logistic")


def logistics(rows: int, condition: float) -> Entry:
    """A member of the family over which the figure is drawn."""
    columns = 20 if rows < 10**4 else 100
    pairs = {10**3: 50_000, 10**4: 50_000, 10**5: 5_000}.get(rows, 1_000)
    build = lambda small: automatic.logistic(*((1000, 5) if small else (rows, columns)), condition)
    return Entry(build, pairs, rows, condition)


# Data on disk and exact moments.
SCRATCH = Path(os.environ.get("HAMCMC_SCRATCH", Path(__file__).parent / "results" / "scratch"))
ENTRIES = {
    f"logistic-1e{n}-{condition:.0e}".replace("e+0", "e"): logistics(10**n, condition)
    for condition in (1e2, 1e5)
    for n in (3, 4, 5, 6)
}
ENTRIES |= {
    "linear": Entry(lambda small: linear(*((1000, 5) if small else (10**5, 100)), 1e5), 0, 10**5),
    "one-hot": Entry(lambda small: automatic.one_hot(*((1000, 2, 4) if small else (30_000,))), 20_000, 30_000),
    "poisson": Entry(lambda small: automatic.poisson(1000 if small else 10**5), 5_000, 10**5),
    "hierarchical": Entry(lambda small: hierarchical(*((8, 400) if small else (1000, 50_000))), 0, 50_000),
    "student": Entry(lambda small: student(*((1000, 5) if small else (10**5, 100))), 5_000, 10**5),
}


def huge(condition: float) -> Entry:
    """Ten million rows on disk."""
    build = lambda small: on_disk(*((5000, 5) if small else (10**7, 100)), condition, SCRATCH)
    return Entry(build, 100, 10**7, condition)


HUGE = {  # each needs 4 GB of disk, and as much memory again for peers that cannot read from disk
    "logistic-1e7-1e2": huge(1e2),
    "logistic-1e7-1e5": huge(1e5),
}


def truth(problem: Problem, pairs: int) -> Truth:
    """Exact moments along all eigenvectors and all axes."""
    if isinstance(problem, Hierarchical):
        mean, covariance = problem.moments()
        return along(mean, covariance)
    if problem.family == "normal":
        x = problem.x.astype(np.float64)
        precision = x.T @ x + np.diag(problem.prior**-2.0)
        return along(np.linalg.solve(precision, x.T @ problem.y), np.linalg.inv(precision))
    around = automatic.double_laplace(problem)
    directions = watched(around.precision)
    found = Truth(directions, *automatic.exact_moments(problem, pairs, around, directions))
    return found if found.error < UNEVEN else long_run(problem, around, directions)


def long_run(problem: Regression, around: hamcmc.Laplace, directions: np.ndarray) -> Truth:
    """Moments from Hamiltonian Monte Carlo in whitened coordinates, in double precision.

    Steps of 0.35 and 3 to 6 of them to a trajectory give nearly independent draws of a nearly normal posterior.
    """
    with jax.enable_x64(True):
        posterior = problem.posterior()
        flat, root = jnp.asarray(around.flat), jnp.asarray(around.root)
        data = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), posterior.data)

        def iteration(carry, key):
            z, log = carry
            k_p, k_n, k_u = jax.random.split(key, 3)
            log_density = lambda z: jax.vmap(lambda z: posterior.log_density(flat + root @ z, data))(z)
            grad = jax.grad(lambda z: log_density(z).sum())

            def leap(_, zp):
                z, p = zp[0] + 0.175 * zp[1], zp[1]
                p = p + 0.35 * grad(z)
                return z + 0.175 * p, p

            p = jax.random.normal(k_p, z.shape)
            new, q = lax.fori_loop(0, jax.random.randint(k_n, (), 3, 7), leap, (z, p))
            after = log_density(new)
            gain = after - log + 0.5 * ((p**2).sum(1) - (q**2).sum(1))
            taken = jnp.log(jax.random.uniform(k_u, gain.shape)) < gain
            z, log = jnp.where(taken[:, None], new, z), jnp.where(taken, after, log)
            return (z, log), z

        start = jnp.asarray(np.random.default_rng(0).standard_normal((CHAINS, len(flat))))
        keys = jax.random.split(jax.random.key(0), BURN_IN + DRAWS)
        _, white = jax.jit(lambda z: lax.scan(iteration, (z, jnp.full(CHAINS, -jnp.inf)), keys))(start)
    x = np.moveaxis(around.spread(np.asarray(white[BURN_IN:]).reshape(-1, len(flat))) @ directions, 0, -1)
    mean = x.mean(1)
    of_chains = ((x - mean[:, None]) ** 2).reshape(len(x), DRAWS, CHAINS).mean(1)
    variance = of_chains.mean(1)
    return Truth(directions, mean, variance, float((of_chains.std(1) / variance).max() / np.sqrt(CHAINS)))


def along(mean: np.ndarray, covariance: np.ndarray) -> Truth:
    """Moments along all directions, from those of the vector."""
    directions = watched(covariance)
    return Truth(directions, mean @ directions, ((covariance @ directions) * directions).sum(0), 0.0)


def watched(matrix: np.ndarray) -> np.ndarray:
    """The eigenvectors of a symmetric matrix, and all axes: (D, 2 D)."""
    return np.hstack([np.linalg.eigh(matrix)[1], np.eye(len(matrix))])
