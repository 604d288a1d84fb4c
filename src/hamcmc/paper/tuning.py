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

from hamcmc._types import PyTree
from hamcmc.inference.many import Turn, advance
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
    """A sampler to be tuned: a function that builds it from its parameters, their ranges, and the unit of its step."""

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


def methods(posterior: Posterior, fisher: np.ndarray, batch_size: int, memories: tuple[int, ...]) -> dict[str, Method]:
    """The methods that the paper compares on the linear Gaussian model.

    With L the largest curvature, a step of 1/L is about the largest that SGLD can take. It is 1 if the metric is near
    the inverse Hessian. pSGLD's metric is 1/√v, with v near the variance of the minibatch's mean gradient. It shrinks
    where gradients grow, so the unit of its step is √v over the mean curvature.
    """
    largest, mean = float(np.linalg.eigvalsh(fisher)[-1]), float(np.trace(fisher) / len(fisher))
    root_v = np.sqrt(mean / (posterior.size * batch_size))
    riemannian = sgrld(posterior.grad, jnp.asarray(fisher, jnp.float32))
    quasi_newton = {"gamma": (0.1 / largest, 100 / largest), "damping": (1e-6 * largest, 0.1 * largest)}

    def published(memory: int) -> Method:
        """HAMCMC that accepts every pair with sᵀy > 0, as in the paper. Here that is every pair."""
        return Method(partial(hamcmc, posterior.grad, memory=memory, cosine=0.0), quasi_newton, 1.0)

    return {
        "SGLD": Method(lambda: sgld(posterior.grad), {}, 1 / largest),
        "pSGLD": Method(
            lambda regularizer, forgetting: psgld(posterior, decay=1 - forgetting, regularizer=regularizer),
            {"regularizer": (1e-2 * root_v, 1e2 * root_v), "forgetting": (1e-3, 0.1)},
            root_v / mean,
        ),
        "SGRLD": Method(lambda: riemannian, {}, 1.0),
        **{f"HAMCMC M={m}": published(m) for m in memories},
    }


def search(
    method: Method,
    posterior: Posterior,
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
) -> Tuned:
    """Find the candidate with the least mean score over the repeats.

    Args:
        method: the sampler and the ranges of its parameters.
        posterior: the target.
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
    """
    ranges = {"first_step": (method.step * FIRST_STEP[0], method.step * FIRST_STEP[1]), **method.ranges}
    low, high = np.log(np.array(list(ranges.values()))).T

    def run(p: Mapping[str, Array], key: Array) -> Array:
        own = {name: p[name] for name in method.ranges}
        sampler = method.build(**own)

        def turn(t: Array) -> Turn:
            rows = minibatch.draw(key, t, posterior.size, batch_size, True)
            step_key = jax.random.fold_in(jax.random.fold_in(key, t), 1)
            return Turn(step_key, minibatch.gather(posterior.data, rows), p["first_step"] * (t + 1.0) ** -exponent)

        def accumulate(sums: tuple[Any, PyTree], t: Array, now: Turn, _before: Any, after: Any) -> tuple[Any, PyTree]:
            weight, total = sums
            w = jnp.where(t >= burn_in, now.step_size, 0.0)
            return weight + w, jax.tree.map(lambda a, x: a + w * x, total, statistic(after.position))

        zeros = (0.0, jax.tree.map(jnp.zeros_like, statistic(start)))
        state = sampler.init(start)
        _, (weight, total) = advance(sampler, state, turn, 0, iterations, accumulate=accumulate, total=zeros)
        return score(jax.tree.map(lambda x: x / weight, total))

    scores = jax.jit(jax.vmap(run, (0, None)))  # all candidates see the same minibatches and the same noise, drawn once
    keys = jax.random.split(jax.random.key(seed), repeats)
    sequence = qmc.Halton(len(ranges), rng=np.random.default_rng(seed))

    tried: list[tuple[float, np.ndarray]] = []
    box = low, high
    for k in range(ROUNDS):
        points = qmc.scale(sequence.random(candidates // ROUNDS), *box)
        parameters = dict(zip(ranges, jnp.exp(jnp.asarray(points.T))))
        mean = np.mean([np.asarray(scores(parameters, key), np.float64) for key in keys], axis=0)
        tried += zip(np.where(np.isfinite(mean), mean, np.inf).tolist(), points)
        best = min(tried, key=lambda x: x[0])[1]
        half = 0.5 ** (k + 2) * (high - low)
        box = np.maximum(best - half, low), np.minimum(best + half, high)

    named = [{"score": value} | dict(zip(ranges, np.exp(p).tolist())) for value, p in tried]
    best = min(named, key=lambda c: c["score"])
    own = {name: best[name] for name in method.ranges}
    return Tuned(Polynomial(best["first_step"] ** (1 / exponent), exponent), own, best["score"], named)
