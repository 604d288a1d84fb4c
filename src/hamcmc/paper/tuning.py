"""The search for hyper-parameters, which is the same for every method and has the same budget.

Every method gets the same number of candidates, the same iterations per candidate and the same random numbers.
Candidates come in rounds. The first round is spread over the whole ranges, and each further one over a box around the
best so far, half as wide as the box before. All ranges are searched in logarithms by a low-discrepancy sequence. The
range of the first step size is the same for all methods: four and a half decades, in units of about the largest step
that a method can take.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.stats import qmc

from hamcmc._compile import guard
from hamcmc._types import PyTree
from hamcmc.inference.many import Turn, advance
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.inference.schedules import Polynomial
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.hamcmc import hamcmc
from hamcmc.samplers.psgld import psgld
from hamcmc.samplers.sgld import sgld
from hamcmc.samplers.sgrld import sgrld
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

ROUNDS = 4  # in the last, the box is an eighth of the range wide
FIRST_STEP = (1e-3, 30.0)  # range of the first step size a^b, in units of Method.step


@dataclass(frozen=True)
class Method:
    """A sampler to be tuned.

    Attributes:
        build: ``build(posterior, fisher, **own)``, from a posterior, its Fisher matrix and the method's own parameters.
        ranges: of the own parameters.
        step: the unit of the step size.
    """

    build: Callable[..., Sampler]
    ranges: Mapping[str, tuple[float, float]]
    step: float


@dataclass(frozen=True)
class Tuned:
    """What a search found: the schedule, the method's own parameters, their score, and all candidates."""

    schedule: Polynomial
    parameters: dict[str, float]
    score: float
    tried: list[dict[str, float]]


def methods(fisher: np.ndarray, size: int, batch_size: int, memories: tuple[int, ...]) -> dict[str, Method]:
    """The methods that the paper compares on the linear Gaussian model.

    With L the largest curvature, a step of 1/L is about the largest that SGLD can take. It is 1 if the metric is near
    the inverse Hessian. pSGLD's metric is 1/√v, with v near the variance of the minibatch's mean gradient. It shrinks
    where gradients grow, so the unit of its step is √v over the mean curvature. HAMCMC's γ is the inverse curvature
    along directions that no pair knows: from a tenth of 1/L to 1/l, where l is the smallest curvature.

    Args:
        fisher: the Fisher matrix, prior included.
        size: N.
        batch_size: data per minibatch.
        memories: HAMCMC's M, one method for each.
    """
    curvatures = np.linalg.eigvalsh(fisher)
    smallest, largest, mean = float(curvatures[0]), float(curvatures[-1]), float(curvatures.mean())
    root_v = float(np.sqrt(mean / (size * batch_size)))
    quasi_newton = {"gamma": (0.1 / largest, 1 / smallest), "damping": (1e-6 * largest, 0.1 * largest)}
    return {
        "SGLD": Method(_sgld, {}, 1 / largest),
        "pSGLD": Method(
            _psgld, {"regularizer": (1e-2 * root_v, 1e2 * root_v), "forgetting": (1e-3, 0.1)}, root_v / mean
        ),
        "SGRLD": Method(_sgrld, {}, 1.0),
        **{f"HAMCMC M={m}": Method(partial(_hamcmc, memory=m), quasi_newton, 1.0) for m in memories},
    }


def _sgld(posterior: Posterior, _fisher: Any) -> Sampler:
    return sgld(posterior.grad)


def _psgld(posterior: Posterior, _fisher: Any, *, regularizer: Any, forgetting: Any) -> Sampler:
    return psgld(posterior, decay=1 - forgetting, regularizer=regularizer)


def _sgrld(posterior: Posterior, fisher: Any) -> Sampler:
    return sgrld(posterior.grad, jnp.asarray(fisher, jnp.float32))


def _hamcmc(posterior: Posterior, _fisher: Any, *, memory: int, gamma: Any, damping: Any) -> Sampler:
    """HAMCMC that accepts every pair with sᵀy > 0, as in the paper. Here that is every pair."""
    return hamcmc(posterior.grad, memory=memory, gamma=gamma, damping=damping, cosine=0.0)


def limits(method: Method) -> dict[str, tuple[float, float]]:
    """The ranges of the search: of the first step size a^b, and of the method's own parameters."""
    return {"first_step": (method.step * FIRST_STEP[0], method.step * FIRST_STEP[1]), **method.ranges}


def averages(
    sampler: Sampler,
    posterior: Posterior,
    data: PyTree,
    start: Array,
    key: Array,
    first_step: Any,
    windows: Array,
    *,
    statistic: Callable[[Array], PyTree],
    exponent: float,
    batch_size: int,
    lane: Any = 0,
) -> PyTree:
    """One run from `start`, and the averages of a statistic over windows of it, with weights ε_t.

    Args:
        sampler: the sampler.
        posterior: the target; only its size counts here, the rows are those of `data`.
        data: the rows of which minibatches are drawn.
        start: the first position, or those of an ensemble.
        key: minibatches and noise follow from it.
        first_step: ε_0; later ε_t = ε_0 (t + 1)^−`exponent`.
        windows: (window, 2), the first iteration of each window and the one after its last. They may be traced.
        statistic: a function of a position, or of the positions of an ensemble.
        exponent: b.
        batch_size: data per minibatch.
        lane: runs with the same key and another lane have the same minibatches and other noise.

    Returns:
        The statistic's averages, along a new first axis of windows.
    """

    def turn(t: Array) -> Turn:
        rows = minibatch.draw(key, t, posterior.size, batch_size, True)
        step_key = jax.random.fold_in(jax.random.fold_in(key, t), 1 + lane)
        return Turn(step_key, minibatch.gather(data, rows), first_step * (t + 1.0) ** -exponent)

    def accumulate(sums: tuple[Any, PyTree], t: Array, now: Turn, _before: Any, after: Any) -> tuple[Any, PyTree]:
        inside = (t >= windows[:, 0]) & (t < windows[:, 1])
        weight = jnp.where(inside, now.step_size, 0.0)

        def add(a: Array, x: Array) -> Array:
            """A run that is lost after a window must not spoil it, so 0 · NaN has to be 0."""
            shape = (-1, *[1] * x.ndim)
            return a + jnp.where(inside.reshape(shape), weight.reshape(shape) * x, 0.0)

        return sums[0] + weight, jax.tree.map(add, sums[1], statistic(after.position))

    shapes = jax.eval_shape(statistic, start)
    zeros = jax.tree.map(lambda x: jnp.zeros((len(windows), *x.shape), x.dtype), shapes)
    nothing = jnp.zeros(len(windows)), zeros
    end = jnp.max(windows)
    _, (weight, total) = advance(sampler, sampler.init(start), turn, 0, end, accumulate=accumulate, total=nothing)
    return jax.tree.map(lambda x: x / weight.reshape(-1, *[1] * (x.ndim - 1)), total)


def search(
    method: Method,
    posterior: Posterior,
    fisher: np.ndarray,
    start: Array,
    *,
    statistic: Callable[[Array], PyTree],
    score: Callable[[PyTree], Array],
    exponent: float,
    iterations: int,
    burn_in: int,
    batch_size: int,
    candidates: int,
    repeats: int,
    seed: int,
    progress: Progress = silent,
) -> Tuned:
    """Find the candidate with the least mean score over the repeats.

    Args:
        method: the sampler and the ranges of its parameters.
        posterior: the target.
        fisher: its Fisher matrix, prior included.
        start: where every run starts.
        statistic: what is averaged along a run, with weights ε, from iteration `burn_in` on.
        score: a function from that average to a number, the smaller the better; not finite counts as infinite.
        exponent: b of ε_t = (a/t)^b; a is searched.
        iterations: of a run.
        burn_in: iterations that do not count.
        batch_size: data per minibatch.
        candidates: how many, in all rounds.
        repeats: runs of each candidate.
        seed: everything random follows from it.
        progress: called between runs with the share of the search that is done.
    """
    ranges = limits(method)
    low, high = np.log(np.array(list(ranges.values()))).T
    window = jnp.array([[burn_in, iterations]])

    def run(p: Mapping[str, Array], key: Array) -> Array:
        sampler = method.build(posterior, fisher, **{name: p[name] for name in method.ranges})
        how: Any = {"statistic": statistic, "exponent": exponent, "batch_size": batch_size}
        found = averages(sampler, posterior, posterior.data, start, key, p["first_step"], window, **how)
        return score(jax.tree.map(lambda x: x[0], found))

    scores = jax.jit(jax.vmap(run, (0, None)))  # all candidates see the same minibatches and the same noise, drawn once
    keys = jax.random.split(jax.random.key(seed), repeats)
    sequence = qmc.Halton(len(ranges), rng=np.random.default_rng(seed))

    tried: list[tuple[float, np.ndarray]] = []
    box = low, high
    for k in range(ROUNDS):
        points = qmc.scale(sequence.random(candidates // ROUNDS), *box)
        parameters = dict(zip(ranges, jnp.exp(jnp.asarray(points.T))))
        with guard(scores, parameters, keys[0]):
            each = []
            for i, key in enumerate(keys):
                progress(Status((k + i / repeats) / ROUNDS, "search"))
                each.append(np.asarray(scores(parameters, key), np.float64))
        mean = np.mean(each, axis=0)
        tried += zip(np.where(np.isfinite(mean), mean, np.inf).tolist(), points)
        best = min(tried, key=lambda x: x[0])[1]
        half = 0.5 ** (k + 2) * (high - low)
        box = np.maximum(best - half, low), np.minimum(best + half, high)

    named = [{"score": value} | dict(zip(ranges, np.exp(p).tolist())) for value, p in tried]
    best = min(named, key=lambda c: c["score"])
    own = {name: best[name] for name in method.ranges}
    return Tuned(Polynomial(best["first_step"] ** (1 / exponent), exponent), own, best["score"], named)
