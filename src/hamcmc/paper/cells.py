"""One cell of the map of :mod:`hamcmc.paper.where`: a posterior, the score of a run, the search and the verdict."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.stats import qmc

from hamcmc._compile import guard
from hamcmc._types import Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper import tuning
from hamcmc.target import linear_gaussian as model
from hamcmc.target.posterior import Posterior

SIZE, NOISE_VARIANCE, EXPONENT = 10_000, 10.0, 0.51
SOFT = 10.0  # the smallest curvature l: the data know nine times more than the prior N(0, I)
BUDGETS = ("gradients", "time")
ROUNDS = 3  # of the search: the whole ranges, then half as wide around the two best, then a quarter
SEARCH = 1_000_000  # added to the seed of the reported runs, for the search


class Cell(NamedTuple):
    """A place of the map: D, κ and the number of stiff directions."""

    dimension: int
    condition: float
    stiff: int


class Problem(NamedTuple):
    """Data and the exact posterior, as arrays that a compiled program takes.

    Attributes:
        data: rows and observations.
        mean: of the posterior.
        whiten: (θ − mean) @ whiten is standard normal under the posterior; its columns are eigenvectors, scaled.
        precision: of the posterior.
    """

    data: model.Data
    mean: Any
    whiten: Any
    precision: Any


def problem(cell: Cell, seed: int) -> Problem:
    """Data whose posterior precision has exactly the eigenvalues of the cell, along random axes."""
    rng = np.random.default_rng([seed, *map(int, cell)])
    d, k = cell.dimension, cell.stiff
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    curvatures = SOFT * np.where(np.arange(d) < k, cell.condition, 1.0)
    rows = np.sqrt(SIZE) * np.linalg.qr(rng.standard_normal((SIZE, d)))[0]  # rowsᵀrows = N I
    a = rows * np.sqrt((curvatures - 1) * NOISE_VARIANCE / SIZE) @ axes.T
    x = a @ rng.standard_normal(d) + np.sqrt(NOISE_VARIANCE) * rng.standard_normal(SIZE)
    data = model.Data(a.astype(np.float32), x.astype(np.float32))
    exact = model.exact(data, NOISE_VARIANCE)
    return Problem(data, exact.mean, axes * np.sqrt(curvatures), exact.precision)


def divergence(mean: Array, square: Array) -> Array:
    """The score, from averages of whitened coordinates and of their squares."""
    variance = square - mean**2
    return jnp.mean(0.5 * (variance - 1 - jnp.log(variance) + mean**2), -1)


def program(method: tuning.Method, posterior: Posterior, replicas: int, asked: Record) -> Callable[..., Array]:
    """``run(problem, points, lanes, keys, windows)``: the scores (seed, candidate, window) of all candidates.

    The posterior gives the model and N; the data are the problem's, so that one program serves all of a dimension.
    """

    def run(p: Problem, point: Mapping[str, Array], lane: Array, key: Array, windows: Array) -> Array:
        sampler = method.build(posterior, p.precision, **{name: point[name] for name in method.ranges})
        start = jnp.zeros_like(p.mean) if replicas == 1 else jnp.zeros((replicas, p.mean.size))

        def statistic(theta: Array) -> tuple[Array, Array]:
            """Whitened coordinates and their squares, averaged over replicas."""
            u = (theta - p.mean) @ p.whiten
            return (u, u * u) if replicas == 1 else (u.mean(0), (u * u).mean(0))

        how: Any = {"exponent": EXPONENT, "batch_size": asked["batch_size"], "lane": lane}
        found = tuning.averages(
            sampler, posterior, p.data, start, key, point["first_step"], windows, statistic=statistic, **how
        )
        return divergence(*found)

    candidates = jax.vmap(run, (None, 0, 0, None, None))
    return jax.jit(jax.vmap(candidates, (None, None, None, 0, None)))


def contest(
    run: Callable[..., Array],
    method: tuning.Method,
    p: Problem,
    ends: tuple[int, int],
    asked: Record,
    seed: int,
    progress: Progress = silent,
) -> Record:
    """Search, then run the best candidate of each budget anew.

    Args:
        run: by :func:`program`.
        method: whose ranges are searched.
        p: the problem.
        ends: the iterations of a run at equal gradients and at equal time.
        asked: the settings.
        seed: of the reported runs.
        progress: called between the rounds of the search.

    Returns:
        For each budget: the least mean score of the search, its candidate, how many of the runs were lost, and the
        score: the mean over seeds, with its standard error, of the median over runs with the same minibatches. A run
        that was lost is infinitely bad, so the score is infinite if half of a seed's runs were lost.
    """
    ranges, count = tuning.limits(method), asked["candidates"]
    low, high = np.log(np.array(list(ranges.values()))).T
    windows = jnp.array([[end // 2, end] for end in ends])
    sequence = qmc.Halton(len(ranges), rng=np.random.default_rng(seed + SEARCH))
    arrays = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), p)

    def scores(points: np.ndarray, lanes: np.ndarray, seed: int) -> np.ndarray:
        """(seed, candidate, budget); a score that is not finite is infinite."""
        keys = jax.random.split(jax.random.key(seed), asked["seeds"])
        named = dict(zip(ranges, jnp.exp(jnp.asarray(points.T, jnp.float32))))
        given = arrays, named, jnp.asarray(lanes), keys, windows
        with guard(run, *given):
            found = np.asarray(run(*given), np.float64)
        return np.where(np.isfinite(found), found, np.inf)

    points, means = np.empty((0, len(ranges))), np.empty((0, 2))
    best, boxes = np.stack([low, low]), [(low, high)]
    for k in range(ROUNDS):
        progress(Status(k / ROUNDS, "search"))
        new = [qmc.scale(sequence.random(count // len(boxes)), *box) for box in boxes]
        points = np.concatenate([points, *new])
        means = np.concatenate([means, scores(np.concatenate(new), np.zeros(count, int), seed + SEARCH).mean(0)])
        half = 0.5 ** (k + 2) * (high - low)
        best = points[means.argmin(0)]
        boxes = [(np.maximum(b - half, low), np.minimum(b + half, high)) for b in best]
    lanes = np.tile(np.arange(count // 2), 2)
    again = scores(np.repeat(best, count // 2, 0), lanes, seed).reshape(asked["seeds"], 2, count // 2, 2)
    result = {}
    for i, budget in enumerate(BUDGETS):
        runs = again[:, i, :, i]
        by_seed = np.median(runs, 1)
        finite = np.isfinite(by_seed).all()
        result[budget] = {
            "searched": float(means[:, i].min()),
            "candidate": dict(zip(ranges, np.exp(best[i]).tolist())),
            "score": float(by_seed.mean()),
            "error": float(by_seed.std(ddof=1) / np.sqrt(len(by_seed))) if finite else np.inf,
            "lost": int((~np.isfinite(runs)).sum()),
            "iterations": ends[i],
        }
    return result


def verdict(found: Mapping[str, Record], budget: str) -> Record:
    """Who wins a cell. The search chooses HAMCMC's M, and the runs after it decide between the methods.

    Returns:
        The scores, HAMCMC's M, the winner, the ratio of HAMCMC's score to the best other one, the ratio to the better
        of SGLD and pSGLD, and the standard errors of the logarithms of both.
    """
    memory = min((n for n in found if n.startswith("HAMCMC")), key=lambda n: found[n][budget]["searched"])
    others = {n: f[budget] for n, f in found.items() if not n.startswith("HAMCMC")}
    ours = found[memory][budget]

    def against(names: list[str]) -> tuple[float, float]:
        """The ratio to the best of some, and the standard error of its logarithm."""
        best = min((others[n] for n in names), key=lambda f: f["score"])
        if not np.isfinite(ours["score"]) or not np.isfinite(best["score"]):
            return (1.0 if ours["score"] == best["score"] else ours["score"] / best["score"]), 0.0
        return ours["score"] / best["score"], float(
            np.hypot(ours["error"] / ours["score"], best["error"] / best["score"])
        )

    scores = {n: f["score"] for n, f in others.items()} | {"HAMCMC": ours["score"]}
    ratio, error = against(list(others))
    simple, simple_error = against(["SGLD", "pSGLD"])
    return {
        "scores": scores,
        "errors": {n: f["error"] for n, f in others.items()} | {"HAMCMC": ours["error"]},
        "memory": int(memory.partition("=")[2]),
        "winner": min(scores, key=lambda n: scores[n]),
        "ratio": ratio,
        "log_error": error,
        "ratio_simple": simple,
        "log_error_simple": simple_error,
    }
