"""Step size and options of a sampler, found by successive halving on kernel Stein discrepancies."""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from hamcmc import _check, samplers
from hamcmc._types import Facts, PyTree, Record
from hamcmc.inference.candidates import Space, checked_space, default_search, points, shapes
from hamcmc.inference.checks import check_start
from hamcmc.inference.display import shown
from hamcmc.inference.job import batch_size_of, parameters, storable
from hamcmc.inference.progress import Progress, Status
from hamcmc.inference.schedules import Constant, Cyclical
from hamcmc.inference.trials import LANES, Contender, Trial
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.registry import MakeSampler, name_of
from hamcmc.target.landscape import survey
from hamcmc.target.posterior import Posterior

LADDER = (0.7, 1.4, 2.8, 5.6)
"""Times the step size that seems best, in the last round. The steps are a factor of 2 apart; most are above the one
that seems best, because a large bias is measured sooner and the bias is proportional to ε."""

AIM = 0.75
"""Of the tolerance. What is left covers the error of the line through the biases (see :data:`LINE_ERROR`)."""

LINE_ERROR, THEORY_ERROR = 0.3, 0.4
"""Relative errors: of taking the bias to be proportional to ε, and of the theory for Gaussian targets. At half of the
largest step that is tried, the exact bias of SGLD is a third above its tangent at 0. The second is set by hand."""

SPENT, LEAST, MOST = 5, 50_000, 1_000_000
"""The budget of ``step_size="auto"`` is a fifth of the run's gradients, so that tuning never dominates. The bounds are
set by hand: a few rounds of eight candidates see a bias of a few percent with 50 000 gradients."""


class Candidate(NamedTuple):
    """A setting in one round of the search.

    Attributes:
        round: counted from 1.
        step_size: ε.
        options: what else the search varied.
        bias: the Stein discrepancy of the band of directions where it is largest: the relative error of a variance.
        error: its standard error; infinite where the run was too short to tell.
        speed: effective samples of the slowest direction per 1000 minibatch gradients.
        out: why the candidate went no further; empty for the one chosen.
    """

    round: int
    step_size: float
    options: Record
    bias: float
    error: float
    speed: float
    out: str


@dataclass(frozen=True)
class Tuned:
    """What :func:`tune` found.

    Attributes:
        step_size: a schedule for :func:`hamcmc.sample`.
        options: all options of the sampler by name, both the given ones and those that were found.
        table: every candidate in every round.
        gradients: minibatch gradients spent (a pass through all data counts as N/n).
        tolerance: the bias that was allowed.
        seconds: how long it took, compilation included.
    """

    step_size: Constant | Cyclical
    options: Record
    table: tuple[Candidate, ...]
    gradients: int
    tolerance: float
    seconds: float = field(compare=False)

    @property
    def account(self) -> Record:
        """What was found and what it cost, for the record of a run."""
        searched = {k: self.options[k] for k in self.table[0].options if k in self.options}
        return {
            "step_size": self.step_size.step_size,
            "options": searched,
            "tolerance": self.tolerance,
            "gradients": self.gradients,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        head = f"{'round':>5}  {'ε':>9}  {'bias':>15}  {'ESS/1000 gradients':>18}  options"
        rows = [
            f"{c.round:>5}  {c.step_size:>9.3g}  {c.bias:>7.1%} ±{c.error:>6.1%}  {c.speed:>18.4g}  "
            + ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in c.options.items())
            + (f"  ({c.out})" if c.out else "")
            for c in self.table
        ]
        return "\n".join([head, *rows, f"{self.step_size}, {self.gradients:,} gradients spent"])


def tune(
    posterior: Posterior,
    sampler: str | Sampler | MakeSampler = "ensemble_hamcmc",
    init: PyTree | Callable[[Array], PyTree] = None,
    *,
    search: Facts | None = None,
    budget: int = 200_000,
    batch_size: int | None = None,
    tolerance: float = 0.1,
    period: int = 1000,
    seed: int = 0,
    progress: bool | Progress | None = None,
    **options: Any,
) -> Tuned:
    r"""Find the fastest step size of a sampler whose bias is within tolerance, and the options that matter to it.

    **Search.** The search is by successive halving: all candidates run for the same number of gradients, the better
    half goes on with twice as many, and a last round looks along the step size. Numbers are traced, so that the
    candidates of one shape run side by side in one compiled program. All start alike, spread around the mode as the
    curvature there says, so that burn-in does not decide. The largest curvature L and the gradient's noise say where to
    search. Steps above 1/L (above 1/2 with a metric near the inverse Hessian) are not tried, and candidates that run
    away or turn non-finite are out.

    **Score.** The score is a kernel Stein discrepancy with the linear kernel, on stochastic gradients g of fresh
    minibatches. In coordinates x in which the curvature at the mode is 1, along a band B of directions of like
    curvature,

    .. math:: k_0(x, x') = \Bigl(1 + \frac{x_B^⊤ g_B}{|B|}\Bigr)\Bigl(1 + \frac{{x'_B}^⊤ g'_B}{|B|}\Bigr), \qquad
              \mathrm{KSD}_B = \Bigl|1 + \frac{\operatorname{E} x_B^⊤ g_B}{|B|}\Bigr|.

    It is 0 for draws of the target, whatever the target (Stein's identity). It is linear in g and therefore unbiased
    with minibatches. For a Gaussian it is the relative error of the variances in the band, which is what too large a
    step spoils first. Kernels that see everything see this late: from 512 independent draws, a variance 10 % too large
    stands out by 1.8 standard deviations with this kernel along one coordinate and by 0.5 with the inverse
    multiquadric; in 100 dimensions by 14 and by none.

    `bias` is the largest score over the bands for which the run was long enough. `speed` is the smallest number of
    effective samples per gradient over the bands, from the autocorrelation. Both are proportional to ε, so candidates
    are compared by speed times min(1, tolerance / bias). The step size is where the line of the biases, through all
    that was seen and through what theory says, crosses three quarters of the tolerance.

    Args:
        posterior: log-prior, log-likelihood and data.
        sampler: a name, with `options` that are held fixed; or a :class:`Sampler`, or a function that makes one for the
            posterior, of which the step size alone is tuned.
        init: parameters from which to look for the mode, or a function of a key that draws them.
        search: what to search in addition to the default or instead of it: a name to a range (low, high), searched in
            logarithms, or to a list of choices, each of which is compiled by itself, such as ``{"pairs": [5, 10]}``;
            ``{"cyclical": [False, True]}`` also tries cycles.
        budget: minibatch gradients to spend, approximately.
        batch_size: data per minibatch, as in the run to come; None for all data.
        tolerance: the relative error of a variance that is acceptable.
        period: the period of the cyclical schedule that may be returned.
        seed: everything random follows from it.
        progress: True for a progress bar, None for one if stderr is a terminal, or a function that is called with a
            :class:`~hamcmc.inference.progress.Status`.
        **options: options of a sampler given by name.

    Returns:
        A :class:`Tuned`: ``sample(posterior, name, init, step_size=found.step_size, **found.options)``.

    References:
        Coullon, South and Nemeth, Efficient and generalizable tuning strategies for stochastic gradient MCMC,
        Statistics and Computing 2023.
        Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, AISTATS 2016.
    """
    began = time.perf_counter()
    budget = _check.at_least("budget", budget, 1000)
    batch_size = batch_size_of(batch_size, posterior)
    tolerance = _check.fraction("tolerance", _check.positive("tolerance", tolerance))
    _check.at_least("seed", seed, 0)
    _check.at_least("period", period, 1)
    if init is None:
        raise ValueError("init must be given: parameters to start from, or a function of a key that draws them")

    def build(**found: Any) -> Sampler:
        """The sampler with what the search found."""
        return samplers.maker(sampler, **options, **found)(posterior)

    example = build()  # complains about bad options before any work
    start = parameters(init, jax.random.key(seed))
    check_start(posterior, [posterior.unconstrain(start)], batch_size)
    with shown(progress, "tuning") as show:
        show(Status(0.0, "looking around the mode"))
        scape = survey(posterior, start, batch_size=batch_size, seed=seed)
        by_name = name_of(sampler) is not None
        space = default_search(example, scape, tolerance)
        if not by_name:
            space = {"step_size": space["step_size"]}
        space = {k: v for k, v in space.items() if k not in options} | checked_space(search or {}, by_name, options)
        position = posterior.unconstrain_unchecked(start)
        trials = [Trial(posterior, build, fixed, scape, position, batch_size, seed) for fixed in shapes(space)]
        best, step, table = _halve(trials, space, budget, tolerance, seed, show)
    fixed, setting = best.trial.fixed, best.setting
    chosen = {k: v for k, v in (fixed | setting).items() if k not in ("step_size", "cyclical")}
    schedule = Cyclical(step, period) if fixed.get("cyclical") else Constant(step)
    per_pass = posterior.size / batch_size if batch_size else 1
    spent = round(scape.passes * per_pass + sum(t.spent for t in trials))
    return Tuned(schedule, {**options, **chosen}, tuple(table), spent, tolerance, time.perf_counter() - began)


def _halve(
    trials: list[Trial], space: Space, budget: int, tolerance: float, seed: int, show: Progress
) -> tuple[Contender, float, list[Candidate]]:
    """Successive halving: the best contender, its step size, and the table of all that was seen."""
    alive = [Contender(trial, setting) for trial in trials for setting in points(space, seed)]
    rounds = max(1, int(np.ceil(np.log2(len(alive) / LANES)))) + 2
    table: list[Candidate] = []
    seen: list[Contender] = []
    best, step = alive[0], 0.0
    for r in range(1, rounds + 1):
        show(Status(r / (rounds + 1), f"round {r} of {rounds}, {len(alive)} candidates"))
        for trial in trials:
            mine = [a for a in alive if a.trial is trial]
            length = int(budget / rounds / len(alive) / (trial.runs * trial.cost))
            if mine:
                for contender, found, state in zip(mine, *trial.run(mine, length)):
                    contender.found, contender.state = found, state
        seen += [copy(a) for a in alive]
        ranked = sorted(alive, key=lambda a: a.rank(tolerance))
        keep = 1 if r >= rounds - 1 else len(alive) // 2
        table += [_row(a, r, tolerance, i < keep) for i, a in enumerate(ranked)]
        alive = [a for a in ranked[:keep] if not a.found.out]
        if not alive:
            raise ValueError(
                f"no step size in {space['step_size']} was stable: give a step_size, call hamcmc.tune with "
                "search={'step_size': (low, high)}, or sample with sampler=\"auto\", which searches for none"
            )
        best = alive[0]
        family = [s for s in seen if s.is_like(best)]
        step = largest_step(family, AIM * tolerance)
        if r == rounds - 1:  # the last round looks along the step size
            alive = [best.at(min(step * f, space["step_size"][1])) for f in LADDER]
    return best, step, table


def _row(contender: Contender, round_: int, tolerance: float, kept: bool) -> Candidate:
    """A contender as a row of the table."""
    f = contender.found
    why = f.out or ("" if kept else "biased" if f.bias - f.error > tolerance else "slower")
    options = {k: v for k, v in (contender.trial.fixed | contender.setting).items() if k != "step_size"}
    return Candidate(round_, contender.setting["step_size"], options, f.bias, f.error, f.speed, why)


def budget_for(gradients: float) -> int:
    """The budget for tuning a run that takes so many gradients."""
    return int(np.clip(gradients / SPENT, LEAST, MOST))


def largest_step(family: Sequence[Contender], bias: float) -> float:
    """The step at which the bias reaches `bias`, on a line cε through what candidates with these options have shown.

    The bias of every sampler here is of order ε, so large steps, whose bias is seen soon, tell about small ones. The
    line is fitted by least squares with weights from its own values, because the scatter of a variance is proportional
    to it. Theory counts as one observation. The result is never above the largest step that was tried."""
    stable = [c for c in family if not c.found.out]
    steps = [c.setting["step_size"] for c in stable]
    seen = [(e, c.found.bias, c.found.error) for e, c in zip(steps, stable) if np.isfinite(c.found.error)]
    expected = stable[-1].expected
    if expected is not None:
        seen.append((steps[-1], expected, THEORY_ERROR * expected))
    if not seen:
        return max(steps)
    e, b, error = np.array(seen).T
    slope = float(np.median(b / e))
    for _ in range(10):  # the weights hardly change after three or four turns
        scatter = np.hypot(error * (1 + slope * e) / (1 + b), LINE_ERROR * slope * e)
        slope = float(np.sum(e * b / scatter**2) / np.sum((e / scatter) ** 2))
    return min(max(steps), bias / max(slope, 1e-300))


def tuned(
    posterior: Posterior,
    sampler: Sampler,
    name: str | None,
    init: Any,
    settings: Record,
    options: Facts,
    progress: bool | Progress | None,
) -> tuple[Sampler, Callable, Record]:
    """The sampler, step size and settings of a run that :func:`tune` finds; only a sampler by name can change."""
    iterations = settings["warmup"] + settings["num_samples"] * settings["thin"]
    found = tune(
        posterior,
        name or sampler,
        init,
        budget=budget_for(iterations * settings["ensembles"] * sampler.gradients_per_step),
        batch_size=settings["batch_size"],
        seed=settings["seed"],
        progress=progress,
        **options,
    )
    settings = settings | {"tuning": found.account}
    if name:
        settings["options"] = storable(found.options)
        sampler = samplers.build(name, posterior, **found.options)
    return sampler, found.step_size, settings
