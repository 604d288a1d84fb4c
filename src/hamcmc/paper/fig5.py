"""Figure 5 of the paper: matrix factorization of ratings by DSGLD, distributed pSGLD and distributed HAMCMC.

The model is the paper's: no biases, unit variances, parts drawn with probability |Ω|/N, constant steps. The curves show
the root mean squared error on held-out ratings: during burn-in that of the newest draw, and then that of the mean
prediction of all draws since.
"""

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from hamcmc import _check
from hamcmc._types import PyTree, Record, Scalar
from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import partition, program, recipes
from hamcmc.factorization import ratings as files
from hamcmc.factorization import sharded as factorization
from hamcmc.factorization.metric import plain_metric, row_count_metric
from hamcmc.factorization.native import Blocks
from hamcmc.factorization.ratings import Ratings
from hamcmc.factorization.sharded import Data
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper.common import Reproduction, finish, styled
from hamcmc.paper.ratings import load

TITLE = "Figure 5: RMSE on held-out ratings"
RATIO, ABOVE = 2.0, 3  # of neighbours in the grid of step sizes, and how many lie above a method's unit
CLAIM = ("DSGLD", "pSGLD", "HAMCMC")  # the paper's three; the claim is that the last is ahead


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
        of_base = {"gamma": 1.0 if method.metric else GAMMA / s.curvature} if method.sampler == "hamcmc" else {}
        make = recipes.make_sampler(method.sampler, method.options | of_base)
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


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "rank": 10,
        "test": 0.1,
        "validation": 0.1,
        "burn_in": 50,
        "iterations": 300 if quick else 600,
        "marks": [10, 50, 100, 300] if quick else [10, 50, 100, 300, 600],  # iterations that the table shows
        "trials": 11,
        "every": 10 if quick else 5,  # iterations between two looks in the search
        "timed_iterations": 50 if quick else 100,
        "timings": 3 if quick else 7,
        "most": 100_000 if quick else None,  # ratings
    }


def reproduce(
    out: Path,
    quick: bool = False,
    seed: int = 0,
    progress: Progress = silent,
    *,
    ratings: Path | None = None,
    blocks: int = 4,
) -> Reproduction:
    """Tune every method by the same search over step sizes, then plot the RMSE by iterations and by the clock.

    Args:
        out: where to write.
        quick: fewer ratings and iterations.
        seed: everything random follows from it.
        progress: called with each status.
        ratings: a file of ratings, such as MovieLens 1M, which the paper has; without one, synthetic ratings are used.
        blocks: B.
    """
    asked = settings(quick) | {
        "blocks": _check.at_least("blocks", blocks, 1),
        "file": None if ratings is None else str(ratings),
    }
    progress(Status(0.0, "ratings"))
    loaded, name = load(ratings, asked["most"], seed)
    held_out = files.hold_out(loaded, asked["test"], seed)
    s = split(held_out, rank=asked["rank"], blocks=blocks, validation=asked["validation"], seed=seed)
    runners, tuned, curves = {}, {}, {}
    for i, (method, how) in enumerate(METHODS.items()):
        progress(Status(0.05 + 0.85 * i / len(METHODS), f"{method}: search"))
        runners[method] = Runner(s, how)
        tuned[method] = search(runners[method], asked, seed + 1_000_000)
        progress(Status(0.05 + 0.85 * (i + 0.7) / len(METHODS), f"{method}: run"))
        step_size = tuned[method]["step_size"]
        curves[method] = runners[method].curve(s.data, step_size, asked["iterations"], asked["burn_in"], seed=seed)
    progress(Status(0.9, "clock"))
    seconds = seconds_per_iteration(
        runners,
        {method: t["step_size"] for method, t in tuned.items()},
        iterations=asked["timed_iterations"],
        repeats=asked["timings"],
    )
    claim = compare(curves, seconds, asked["marks"])
    rows = []
    for method in METHODS:
        step_size = f"{tuned[method]['step_size']:.2g}" + " (edge)" * tuned[method]["at_the_edge"]
        at = [f"{curves[method][mark - 1]:.4f}" for mark in asked["marks"]]
        rows.append([method, step_size, *at, f"{1e3 * seconds[method]:.3g}", f"{claim['same_time'][method]:.4f}"])
    title = f"{TITLE}\n{name}"
    return finish(
        out,
        "fig5",
        title,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["method", "ε", *(f"at {mark}" for mark in asked["marks"]), "ms", "same time"],
        rows=rows,
        figures={"fig5": _draw(curves, seconds, asked)},
        notes=[
            f"Data: {name}, 10 % held out. RMSE of the draw up to iteration {asked['burn_in']}, then of the mean over "
            f"all draws after it. ms per iteration on one device with {blocks} blocks, so without communication. The "
            "last column is the RMSE in the time that the fastest of the paper's three takes for all its iterations.",
            f"Each method: {asked['trials']} step sizes, each {RATIO:g} times the next, {asked['iterations']} "
            "iterations; the best has the least RMSE at the end on a tenth of the training ratings, set aside for "
            "that. 'edge': it is the largest or the smallest one that was tried. Row-count base: not in the paper.",
            f"The paper's claim, that HAMCMC is ahead of DSGLD and pSGLD: {said(claim)}.",
        ],
        more={
            "data": name,
            "curvature": s.curvature,
            "imbalance": s.p.imbalance,
            "tuned": tuned,
            "rmse": curves,
            "seconds_per_iteration": seconds,
            "claim": claim,
        },
    )


def compare(curves: dict[str, np.ndarray], seconds: dict[str, float], marks: list[int]) -> Record:
    """Whether HAMCMC is ahead at equal iterations, and in the time that the fastest of the three needs for them."""
    *others, ours = CLAIM
    fastest = min(seconds[m] for m in CLAIM)

    def at(method: str, second: float) -> float:
        """The RMSE of a method at a time."""
        iterations = np.arange(1, len(curves[method]) + 1)
        return float(np.interp(second, iterations * seconds[method], curves[method]))

    by_iterations = {mark: bool(curves[ours][mark - 1] < min(curves[m][mark - 1] for m in others)) for mark in marks}
    by_seconds = {mark: at(ours, mark * fastest) < min(at(m, mark * fastest) for m in others) for mark in marks}
    return {
        "ahead_at_equal_iterations": by_iterations,
        "ahead_at_equal_seconds": by_seconds,
        "seconds": {mark: mark * fastest for mark in marks},
        "same_time": {m: at(m, max(marks) * fastest) for m in curves},
    }


def said(claim: Record) -> str:
    """The claim in words."""
    iterations = ", ".join(
        f"{mark} {'yes' if ahead else 'no'}" for mark, ahead in claim["ahead_at_equal_iterations"].items()
    )
    times = "; ".join(
        f"{second:.2g} s {'yes' if claim['ahead_at_equal_seconds'][mark] else 'no'}"
        for mark, second in claim["seconds"].items()
    )
    return f"at equal iterations: {iterations}; at equal seconds: {times}"


@styled
def _draw(curves: dict[str, np.ndarray], seconds: dict[str, float], asked: Record) -> Figure:
    fig = Figure(layout="constrained", figsize=(9, 4.6))
    iterations = np.arange(1, asked["iterations"] + 1)
    pair = fig.subplots(1, 2, sharey=True)
    for method, curve in curves.items():
        how = METHODS[method]
        style = {"color": how.colour, "ls": "--" if how.metric else "-", "lw": 1.2 if how.metric else 1.7}
        for axes, x in zip(pair, (iterations, iterations * seconds[method])):
            axes.plot(x, np.where(np.isfinite(curve), curve, np.nan), label=method, **style)
    pair[0].axvline(asked["burn_in"], color="0.4", lw=0.8, ls=":")
    final = [c[-1] for c in curves.values() if np.isfinite(c[-1])]
    pair[0].set(xlabel="iterations", ylabel="RMSE", xscale="log")
    pair[1].set(xlabel="seconds", xscale="log")
    if final:
        pair[0].set_ylim(min(final) - 0.01, max(max(final) + 0.1, min(final) + 0.3))
    pair[1].legend(fontsize=8)
    return fig
