"""A factorization of ratings by one method of figure 5: the split, the search of a step size, curves and seconds.

The model is the paper's: no biases, unit variances, parts drawn with probability |Ω|/N, constant steps.
"""

import os
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc._types import PyTree, Record, Scalar
from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import partition, program, recipes
from hamcmc.factorization import sharded as factorization
from hamcmc.factorization.metric import plain_metric, row_count_metric
from hamcmc.factorization.native import Blocks
from hamcmc.factorization.ratings import Ratings
from hamcmc.factorization.sharded import Data

RATIO, ABOVE = 2.0, 3  # of neighbours in the grid of step sizes, and how many lie above a method's unit


class Method(NamedTuple):
    """A sampler as it is run here.

    Attributes:
        sampler: its name.
        options: its options.
        unit: the step size around which others are tried: a number over the greatest curvature (``"L"``), over the
            number of ratings (``"N"``), or as it is (``""``).
        metric: whether the base metric is the row-count one, which is not in the paper.
        colour: of the curve.
    """

    sampler: str
    options: Record
    unit: tuple[float, str]
    metric: bool
    colour: str


GAMMA = 8.0  # γ of HAMCMC's base γI in units of 1/L; the best of 1, 2, 4 and 8 on another synthetic set
HAMCMC = {"memory": 2, "cosine": 0.0}  # every pair with sᵀy > 0 is accepted, as published
METHODS = {
    "DSGLD": Method("sgld", {}, (0.5, "L"), False, "#0072B2"),
    "pSGLD": Method("psgld", {"regularizer": 1e-5}, (0.0625, "N"), False, "#E69F00"),
    "HAMCMC": Method("hamcmc", HAMCMC, (0.125, ""), False, "#D55E00"),
    "DSGLD, row-count base": Method("sgld", {}, (0.025, ""), True, "#0072B2"),
    "HAMCMC, row-count base": Method("hamcmc", HAMCMC, (0.025, ""), True, "#D55E00"),
}
CLAIM = ("DSGLD", "pSGLD", "HAMCMC")  # the paper's three; its claim is that the last is ahead


def sampler_options(method: Method, curvature: float) -> Record:
    """The options of a method's sampler for a problem with this greatest curvature."""
    if method.sampler != "hamcmc":
        return method.options
    return method.options | {"gamma": 1.0 if method.metric else GAMMA / curvature}


class Split(NamedTuple):
    """Ratings cut into blocks, and the start of a chain.

    Attributes:
        p: the partition of the training ratings.
        columns: the layout of the factors.
        trial: the training ratings for the search, some of which are set aside for validation.
        data: the training ratings, and the held-out ones.
        position: where chains start.
        hyper: the precisions, which stay fixed.
        curvature: L, about the greatest curvature of the negative log-density at the start.
    """

    p: partition.Partition
    columns: gaussian_mf.Layout
    trial: Data
    data: Data
    position: PyTree
    hyper: gaussian_mf.Hyper
    curvature: float


def split(ratings: Ratings, *, rank: int, blocks: int, validation: float, seed: int) -> Split:
    """Cut ratings with a held-out part into blocks. The start is that of ``hamcmc factorize``."""
    row, column, value, test = (np.asarray(x) for x in (ratings.row, ratings.column, ratings.value, ratings.test))
    shape = (len(ratings.users), len(ratings.items))
    p = partition.partition(row[~test], column[~test], shape, blocks, seed)
    aside = ~test & (np.random.default_rng([seed, 1]).random(len(test)) < validation)

    def arrange(chosen: np.ndarray) -> Blocks:
        """The chosen ratings in blocks."""
        return partition.arrange(p, row[chosen], column[chosen], value[chosen])

    learn = _alike(arrange(~test & ~aside), arrange(~test))
    look = _alike(arrange(aside), arrange(test))
    counts = [jnp.asarray(side.counts) for side in (p.rows, p.columns)]
    trial, data = (jax.device_put(Data(*pair, *counts)) for pair in zip(learn, look))
    columns = gaussian_mf.layout("paper", rank)
    asked = {"seed": seed, "rating_range": ratings.range, "variance": float(value[~test].var()), "chains": 1}
    position, hyper = program.start(asked, p, columns)
    # A row with n ratings has the curvature n h hᵀ, where w·h is about a rating and w about as long as h.
    most = max(int(side.counts.max()) for side in (p.rows, p.columns))
    return Split(p, columns, trial, data, position, hyper, 1 + most * float(np.sqrt(np.mean(value[~test] ** 2))))


def _alike(*blocks: Blocks) -> list[Blocks]:
    """The blocks padded to one length, so that one program takes them all."""
    length = max(b.columns.shape[1] for b in blocks)

    def pad(x: Any) -> Any:
        return np.pad(x, ((0, 0), (0, length - x.shape[1])))

    return [Blocks(b.indptr, pad(b.columns), pad(b.values)) for b in blocks]  # type: ignore[arg-type]


class Runner:
    """A method on a split, compiled once for all step sizes."""

    def __init__(self, s: Split, method: Method):
        self.s = s
        make = recipes.make_sampler(method.sampler, sampler_options(method, s.curvature))
        threads = min(os.cpu_count() or 1, s.p.blocks)

        def build(step_size: Scalar) -> Any:
            """The program for a step size, which may be traced."""
            device = jax.devices()[:1]
            return factorization.build(
                s.p, s.columns, make, step_size, devices=device, sample_hyper=False, threads=threads
            )

        self.begin = build(1.0).begin
        self.segment = jax.jit(lambda step_size, carry, *rest: build(step_size).segment(carry, *rest), donate_argnums=1)
        self.metric = row_count_metric(s.columns, s.hyper) if method.metric else plain_metric(s.columns)
        number, over = method.unit
        self.unit = number / {"L": s.curvature, "N": s.p.parts.sum(), "": 1.0}[over]

    def start(self, data: Data) -> factorization.Carry:
        """The state before the first iteration."""
        return self.begin(self.s.position, self.metric, self.s.hyper, jnp.zeros(data.test.columns.shape), data)

    def curve(
        self, data: Data, step_size: float, iterations: int, burn_in: int, *, seed: int, every: int = 1
    ) -> np.ndarray:
        """The RMSE after each iteration, or after every few of them; infinite once it is not a number."""
        carry, keys, found = self.start(data), factorization.keys(seed), []
        fixed, steps = np.float32(step_size), np.int32(every)
        for t in range(0, iterations, every):
            carry, trace = self.segment(fixed, carry, data, keys, steps, np.int32(t >= burn_in))
            found.append(trace.rmse)
            if len(found) % 20 == 0 and not np.isfinite(found[-1]).all():
                break
        curve = np.full(-(-iterations // every), np.inf)
        curve[: len(found)] = np.concatenate(found)
        return np.where(np.isfinite(curve), curve, np.inf)

    def seconds(self, step_size: float, steps: int) -> float:
        """The time that so many steps and one look at the ratings take."""
        carry = jax.block_until_ready(self.start(self.s.data))
        keys, began = factorization.keys(0), time.perf_counter()
        rest = (carry, self.s.data, keys, np.int32(steps), np.int32(0))
        jax.block_until_ready(self.segment(np.float32(step_size), *rest))
        return time.perf_counter() - began


def grid(unit: float, trials: int) -> np.ndarray:
    """Step sizes to try, from large to small."""
    return unit * RATIO ** (ABOVE - np.arange(trials))


def search(runner: Runner, asked: Record, seed: int) -> Record:
    """Try every step of the grid, and choose the one with the least RMSE on the validation ratings at the end."""
    tried = []
    for step_size in grid(runner.unit, asked["trials"]):
        budget = (asked["iterations"], asked["burn_in"])
        curve = runner.curve(runner.s.trial, step_size, *budget, seed=seed, every=asked["every"])
        tried.append({"step_size": float(step_size), "score": float(curve[-1])})
    best = min(range(len(tried)), key=lambda i: tried[i]["score"])
    if not np.isfinite(tried[best]["score"]):
        raise RuntimeError("no step size of the search kept the factors finite")
    return tried[best] | {"at_the_edge": best in (0, len(tried) - 1), "tried": tried}


def seconds_per_iteration(
    runners: dict[str, Runner], steps: dict[str, float], *, iterations: int, repeats: int
) -> dict[str, float]:
    """The best of several interleaved timings of each method, less the time of a look at the ratings."""
    best = {(name, n): np.inf for name in runners for n in (0, iterations)}
    for _ in range(repeats):
        for (name, n), so_far in best.items():
            best[name, n] = min(so_far, runners[name].seconds(steps[name], n))
    return {name: max(best[name, iterations] - best[name, 0], 1e-9) / iterations for name in runners}
