"""Step size and options of a sampler, found by successive halving on kernel Stein discrepancies."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_leaves

from hamcmc import _check, samplers
from hamcmc.inference.job import batch_size_of, check_start, parameters
from hamcmc.inference.schedules import Constant, Cyclical
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.registry import takes
from hamcmc.target import minibatch
from hamcmc.target.landscape import Landscape, survey
from hamcmc.target.posterior import Posterior

PyTree = Any
Progress = Callable[[str, float], None]
LANES = 4  # candidates in one call of the compiled program, which rounds of any size can then use
NEWTON_STEP = 0.5
RUNS, FEWEST_RUNS = 16, 4  # independent runs of a candidate; of an ensemble, that many replicas or runs at least
CHOICES = 8  # candidates for the step size alone; for each further option twice as many
LOOKS = 12  # at a candidate in a round
MOST_BANDS = 12
SCORE_ROWS = 512  # data, at least, in a gradient for the discrepancy
BELOW, ABOVE = 4.0, 16.0  # the step size is searched so far to both sides of where theory expects it
LADDER = (0.7, 1.4, 2.8, 5.6)  # times the step size that seems best, in the last round
AIM = 0.75  # of the tolerance
LINE_ERROR, THEORY_ERROR = 0.3, 0.4  # relative, of a bias proportional to ε, and of theory's
RUNAWAY = 25.0  # times the variance that curvature suggests


class Candidate(NamedTuple):
    """A setting in one round of the search.

    Attributes:
        round: counted from 1.
        step_size: ε.
        options: what else the search varied.
        bias: the Stein discrepancy of the band of directions where it is largest: the relative error of a variance.
        error: its standard error; infinite where the run was too short to tell.
        speed: effective samples of the slowest direction per 1000 minibatch gradients.
        out: why it went no further; empty for the one chosen.
    """

    round: int
    step_size: float
    options: dict[str, Any]
    bias: float
    error: float
    speed: float
    out: str


@dataclass(frozen=True)
class Tuned:
    """What :func:`tune` found.

    Attributes:
        step_size: a schedule for :func:`hamcmc.sample`.
        options: all options of the sampler by name, the given ones and the found ones.
        table: every candidate in every round.
        gradients: minibatch gradients spent (a pass through all data counts as N/n).
        tolerance: the bias that was allowed.
        seconds: how long it took, compilation included.
    """

    step_size: Constant | Cyclical
    options: dict[str, Any]
    table: tuple[Candidate, ...]
    gradients: int
    tolerance: float
    seconds: float = field(compare=False)

    @property
    def account(self) -> dict[str, Any]:
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
    sampler: str | Sampler = "ensemble_hamcmc",
    init: PyTree | Callable[[Array], PyTree] = None,
    *,
    search: Mapping[str, Any] | None = None,
    budget: int = 200_000,
    batch_size: int | None = None,
    tolerance: float = 0.1,
    period: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Tuned:
    r"""Find the step size of a sampler, and the options that matter to it: the fastest whose bias is within tolerance.

    **Search.** Successive halving: all candidates run the same number of gradients, the better half goes on with twice
    as many, and a last round looks along the step size. Numbers are traced, so that the candidates of one shape run
    side by side in one compiled program. All start alike, spread around the mode as the curvature there says, so that
    burn-in does not decide. The largest curvature L and the gradient's noise say where to search: steps above 1/L
    (above 1 with a metric near the inverse Hessian) are not tried, and candidates that run away or turn non-finite are
    out.

    **Score.** A kernel Stein discrepancy on stochastic gradients g of fresh minibatches, with the linear kernel: in
    coordinates x in which the curvature at the mode is 1, along a band B of directions of like curvature,

    .. math:: k_0(x, x') = \Bigl(1 + \frac{x_B^⊤ g_B}{|B|}\Bigr)\Bigl(1 + \frac{{x'_B}^⊤ g'_B}{|B|}\Bigr), \qquad
              \mathrm{KSD}_B = \Bigl|1 + \frac{\operatorname{E} x_B^⊤ g_B}{|B|}\Bigr|.

    It is 0 for draws of the target, whatever the target (Stein's identity), linear in g and so unbiased with
    minibatches, and for a Gaussian the relative error of the variances in the band: what a step too large does first.
    Kernels that see everything see this late: from 512 independent draws a variance 10 % too large stands out by 1.8
    standard deviations with this kernel along one coordinate and by 0.5 with the inverse multiquadric; in 100
    dimensions by 14 and by none.

    `bias` is the largest over the bands that the run was long enough for; `speed` the least over the bands of the
    effective samples per gradient, from the autocorrelation. Both are proportional to ε, so candidates are compared by
    speed times min(1, tolerance / bias), and the step size is where the line of the biases, through all that was seen
    and through what theory says, crosses three quarters of the tolerance.

    Args:
        posterior: log-prior, log-likelihood and data.
        sampler: a name, with `options` that are held fixed, or a :class:`Sampler`, whose step size alone is tuned.
        init: parameters to look for the mode from, or a function of a key that draws them.
        search: what to search besides or instead of the default: a name to a range (low, high), searched in
            logarithms, or to a list of choices, each of which is compiled by itself, such as ``{"pairs": [5, 10]}``;
            ``{"cyclical": [False, True]}`` tries cycles, too.
        budget: minibatch gradients to spend, about.
        batch_size: data per minibatch, as in the run to come; None for all data.
        tolerance: relative error of a variance that is acceptable.
        period: of the cyclical schedule that may be returned.
        seed: everything random follows from it.
        progress: called with what is being done and the fraction done.
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
    if isinstance(sampler, str):
        build = lambda **found: samplers.build(sampler, posterior, **options, **found)
    elif isinstance(sampler, Sampler):
        if options:
            raise ValueError(f"{', '.join(options)}: options go with a sampler given by name")
        build = lambda: sampler
    else:
        raise ValueError(f"sampler must be a name or a hamcmc.Sampler, got {sampler!r}")
    build()  # complains about bad options before any work
    begin = parameters(init, jax.random.key(seed))
    check_start(posterior, [posterior.unconstrain(begin)], batch_size)
    tell = progress or (lambda what, done: None)
    tell("looking around the mode", 0.0)
    scape = survey(posterior, begin, batch_size=batch_size, seed=seed)
    name = build().settings.get("sampler", "")
    space = default_search(name, scape, tolerance)
    if not isinstance(sampler, str):
        space = {"step_size": space["step_size"]}
    space = {k: v for k, v in space.items() if k not in options} | _checked_space(search or {}, sampler, options)
    start = posterior.unconstrain_unchecked(begin)
    trials = [_Trial(posterior, build, fixed, scape, start, batch_size, seed) for fixed in _shapes(space)]
    alive = [_Runner(trial, setting) for trial in trials for setting in _settings(space, seed)]
    rounds = max(1, int(np.ceil(np.log2(len(alive) / LANES)))) + 2
    table: list[Candidate] = []
    seen: list[_Runner] = []
    best, step = alive[0], 0.0
    for r in range(1, rounds + 1):
        tell(f"round {r} of {rounds}, {len(alive)} candidates", r / (rounds + 1))
        for trial in trials:
            mine = [a for a in alive if a.trial is trial]
            length = int(budget / rounds / len(alive) / (trial.runs * trial.cost))
            if mine:
                for runner, found, state in zip(mine, *trial.run(mine, length)):
                    runner.found, runner.state = found, state
        seen += [copy(a) for a in alive]
        ranked = sorted(alive, key=lambda a: a.rank(tolerance))
        keep = 1 if r >= rounds - 1 else len(alive) // 2
        table += [a.row(r, tolerance, i < keep) for i, a in enumerate(ranked)]
        alive = [a for a in ranked[:keep] if not a.found.out]
        if not alive:
            raise ValueError(
                f"no step size in {space['step_size']} was stable; give search={{'step_size': (low, high)}}"
            )
        best = alive[0]
        family = [s for s in seen if s.is_like(best)]
        step = largest_step(family, AIM * tolerance)
        if r == rounds - 1:  # the last round looks along the step size
            alive = [best.at(min(step * f, space["step_size"][1])) for f in LADDER]
    fixed, setting = best.trial.fixed, best.setting
    chosen = {k: v for k, v in (fixed | setting).items() if k not in ("step_size", "cyclical")}
    schedule = Cyclical(step, period) if fixed.get("cyclical") else Constant(step)
    per_pass = posterior.size / batch_size if batch_size else 1
    spent = round(scape.passes * per_pass + sum(t.spent for t in trials))
    return Tuned(schedule, {**options, **chosen}, tuple(table), spent, tolerance, time.perf_counter() - began)


def budget_for(gradients: float) -> int:
    """Of a run that takes so many gradients: a fifth of them, but enough to tell, and no more than a million."""
    return int(np.clip(gradients / 5, 50_000, 1_000_000))


def largest_step(family: Sequence["_Runner"], bias: float) -> float:
    """Where the bias reaches `bias`, on a line cε through what candidates with these options have shown.

    The bias of every sampler here is of order ε: large steps, whose bias is seen soon, tell about small ones. The line
    is fitted by least squares with weights from its own values, as the scatter of a variance is proportional to it.
    Theory counts as one observation. Never above the largest step that was tried.
    """
    stable = [c for c in family if not c.found.out]
    steps = [c.setting["step_size"] for c in stable]
    points = [(e, c.found.bias, c.found.error) for e, c in zip(steps, stable) if np.isfinite(c.found.error)]
    if stable[-1].expected is not None:
        points.append((steps[-1], stable[-1].expected, THEORY_ERROR * stable[-1].expected))
    if not points:
        return max(steps)
    e, b, error = np.array(points).T
    slope = float(np.median(b / e))
    for _ in range(10):
        scatter = np.hypot(error * (1 + slope * e) / (1 + b), LINE_ERROR * slope * e)
        slope = float(np.sum(e * b / scatter**2) / np.sum((e / scatter) ** 2))
    return min(max(steps), bias / max(slope, 1e-300))


class _Runner:
    """A candidate while it is in the search."""

    def __init__(self, trial: "_Trial", setting: dict[str, float], state: Any = None):
        self.trial, self.setting, self.state = trial, setting, state
        self.found = _Measured(np.inf, np.inf, 0.0)

    @property
    def expected(self) -> float | None:
        """Its bias by theory."""
        settings = {**self.trial.sampler.settings, **self.trial.fixed, **self.setting}
        return expected_bias(settings.get("sampler", ""), settings, self.trial.scape)

    def at(self, step_size: float) -> "_Runner":
        """The same with another step size, from here on."""
        return _Runner(self.trial, self.setting | {"step_size": step_size}, self.state)

    def is_like(self, other: "_Runner") -> bool:
        """Whether they differ in the step size at most."""
        return self.at(1.0).setting == other.at(1.0).setting and self.trial is other.trial

    def rank(self, tolerance: float) -> tuple:
        """Sorts those first that are fastest at the step at which their bias would be within tolerance."""
        f = self.found
        if f.out or (np.isfinite(f.error) and f.bias - f.error > 1):
            return (2 if f.out else 1, f.bias)
        bias = f.bias if np.isfinite(f.error) else self.expected or 0.0
        return (0, -f.speed * min(1.0, tolerance / max(bias, 1e-9)))

    def row(self, round_: int, tolerance: float, kept: bool) -> Candidate:
        """For the table."""
        f = self.found
        why = f.out or ("" if kept else "biased" if f.bias - f.error > tolerance else "slower")
        options = {k: v for k, v in (self.trial.fixed | self.setting).items() if k != "step_size"}
        return Candidate(round_, self.setting["step_size"], options, f.bias, f.error, f.speed, why)


# --- what is searched ---


def expected_bias(name: str, setting: Mapping[str, Any], scape: Landscape) -> float | None:
    """How much too large a Gaussian's variance comes out, for samplers whose theory says that.

    Along a direction of curvature a, where the stochastic gradient has variance V, a Langevin step leaves a variance
    too large by about ε(a + V)/2; with the metric 1/a by ε(1 + V/a)/2; with friction f by (2−f)/f · εV/2.
    """
    step, a, v = setting["step_size"], np.asarray(scape.curvatures, np.float64), scape.noise
    if name in ("sgld", "svrg"):
        return float(step * np.max(a + v) / 2)
    if name == "sghmc":
        return float(step * (2 / setting["friction"] - 1) * np.max(v) / 2)
    if name == "psgld":
        return float(step / (setting["regularizer"] + scape.root_square) * np.max(a + v) / 2)
    if not _is_newton(name):
        return None
    base = setting["gamma"] * np.max(a + v) if isinstance(setting.get("gamma"), float) else 0.0
    return float(step * max(np.max(1 + v / a), base) / 2)


def _is_newton(name: str) -> bool:
    """Whether its metric is about the inverse Hessian, so that steps are near 1."""
    return name == "sgrld" or takes(name, "pairs") or takes(name, "memory")


def default_search(name: str, scape: Landscape, tolerance: float) -> dict[str, tuple[float, float]]:
    """Ranges around what theory expects.

    Steps above 1/L are not tried, L the largest curvature; for samplers that know the curvature those above a half,
    which may be stable in the middle of a posterior, but not where an unknown scale is small.
    """
    steepest, root = scape.steepest, scape.root_square
    a, v = np.asarray(scape.curvatures, np.float64), scape.noise
    plain, newton = (float(2 * tolerance / np.max(x)) for x in (a + v, 1 + v / a))
    around = lambda centre, most: (min(centre, most) / BELOW, min(centre * ABOVE, most))
    if _is_newton(name):
        space = {"step_size": around(newton, NEWTON_STEP)}
        if takes(name, "memory"):
            space["gamma"] = (0.03 / steepest, 3 / steepest)
    elif name == "psgld":
        space = {"step_size": around(plain * root, np.inf), "regularizer": (root / 100, root * 10)}
    elif name == "sgfs":
        space = {"step_size": (plain / BELOW, 1.0), "base": (1.0, max(steepest, 1.0))}
    else:
        space = {"step_size": around(plain, 1 / steepest)}
    if takes(name, "friction"):
        space["friction"] = (0.01, 0.9)
    return space


def _checked_space(search: Mapping[str, Any], sampler: str | Sampler, options: Mapping) -> dict[str, Any]:
    """The user's ranges and choices; raises with the name of one at fault."""
    for name, values in search.items():
        if name in options:
            raise ValueError(f"search: {name} is given as an option, too")
        if name not in ("step_size", "cyclical") and not isinstance(sampler, str):
            raise ValueError(f"search: {name} can only be searched for a sampler given by name")
        if isinstance(values, tuple):
            ok = len(values) == 2 and all(_is_positive(v) for v in values) and values[0] <= values[1]
        else:
            ok = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
        if not ok or (name == "step_size" and not isinstance(values, tuple)):
            raise ValueError(f"search: {name} must be a range (low, high) above 0 or a list of choices, got {values!r}")
    return dict(search)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0 < value < np.inf)


def _settings(space: Mapping[str, Any], seed: int) -> list[dict[str, float]]:
    """Points of the ranges, evenly spread in logarithms: a grid for the step size alone, else a Halton sequence."""
    ranges = {k: v for k, v in space.items() if isinstance(v, tuple)}
    low, high = np.log(np.array(list(ranges.values()), float)).T
    if len(ranges) == 1:
        points = np.linspace(0, 1, CHOICES)[:, None]
    else:
        from scipy.stats import qmc  # here: it takes longer to import than JAX

        points = qmc.Halton(len(ranges), rng=np.random.default_rng(seed)).random(CHOICES * 2 ** (len(ranges) - 1))
    return [dict(zip(ranges, map(float, np.exp(low + p * (high - low))))) for p in points]


def _shapes(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of choices; each is a program of its own."""
    choices = {k: v for k, v in space.items() if not isinstance(v, tuple)}
    return [dict(zip(choices, c)) for c in itertools.product(*choices.values())]


# --- running candidates ---


class _Measured(NamedTuple):
    """What a candidate's run has shown: its bias with the standard error, its speed, and why it is out, if it is."""

    bias: float
    error: float
    speed: float
    out: str = ""


class _Trial:
    """Candidates of one shape, run side by side from one start on the same minibatches."""

    def __init__(self, posterior: Posterior, build, fixed: dict, scape: Landscape, like: PyTree, batch_size, seed: int):
        shape = {k: v for k, v in fixed.items() if k != "cyclical"}
        self.fixed, self.scape, self.spent, self.time = fixed, scape, 0.0, 0
        self.sampler = build(**shape)
        self.runs = max(FEWEST_RUNS, RUNS // self.sampler.replicas)
        pass_ = posterior.size / batch_size if batch_size else 1
        self.cost = self.sampler.gradients_per_step + posterior.extra_gradients + self.sampler.passes_per_step * pass_
        self.interleaved = self.sampler.interleaved
        make = lambda setting: build(**shape, **{k: v for k, v in setting.items() if k != "step_size"})
        self.begin, self.advance, self.look = _programs(
            posterior, make, self.sampler.replicas, scape, like, batch_size, self.runs
        )
        *self.keys, key = jax.random.split(jax.random.key(seed), 4)
        starts = scape.start(key, self.runs * self.sampler.replicas)
        self.starts = starts.reshape(self.runs, self.sampler.replicas, -1)

    def run(self, candidates: list["_Runner"], length: int) -> tuple[list["_Measured"], list[Any]]:
        """`length` iterations of each candidate, from their states or from the start."""
        unit = self.interleaved  # after so many iterations the same one of the interleaved chains has moved
        length = max(length // unit, 2 * LOOKS)
        warm = length // 4
        last = length - warm
        lags = np.unique(np.r_[0, np.geomspace(1, last, LOOKS), np.linspace(1, last, LOOKS)].astype(int))
        period = max(last // 2, 1) * unit if self.fixed.get("cyclical") else 0
        measured, after = [], []
        for i in range(0, len(candidates), LANES):
            part = candidates[i : i + LANES]
            pad = lambda items: items + [items[-1]] * (LANES - len(items))
            stacked = {k: jnp.asarray([c.setting[k] for c in pad(part)]) for k in part[0].setting}
            if self.time == 0:
                state = self.begin(stacked, self.starts)
            else:
                state = jax.tree.map(lambda *x: jnp.stack(x), *(c.state for c in pad(part)))
            t, seen = self.time, []
            for lag in lags:
                end = self.time + unit * (warm + int(lag))
                state = self.advance(self.scape.data, stacked, state, self.keys, t, end, period)
                seen.append(self.look(self.scape.data, state, self.keys[2], end))
                t = end
            x, g = (np.asarray(v, np.float64) for v in zip(*jax.device_get(seen)))
            for lane in range(len(part)):
                measured.append(self.judge(unit * lags, x[:, lane], g[:, lane]))
                after.append(jax.tree.map(lambda v, lane=lane: v[lane], state))
            looks = len(lags) * self.runs * self.sampler.replicas
            self.spent += LANES * (length * unit * self.runs * self.cost + looks)
        self.time += length * unit
        return measured, after

    def judge(self, lags: np.ndarray, x: np.ndarray, g: np.ndarray) -> _Measured:
        """From whitened positions and gradients (time, run, replica, direction) at `lags` after the warm-up."""
        if not (np.isfinite(x).all() and np.isfinite(g).all()):
            return _Measured(np.inf, np.inf, 0.0, "not finite")
        if np.mean(x[-LOOKS:] ** 2, (0, 1, 2)).max() > RUNAWAY:
            return _Measured(np.inf, np.inf, 0.0, "ran away")
        bias, error, slowest = 0.0, np.inf, 0.0
        for band in spectral_bands(np.asarray(self.scape.curvatures, np.float64)):
            time, relaxed = autocorrelation(lags, x[..., band])
            slowest = max(slowest, time)
            if relaxed > 0.5:
                b, e = (v / relaxed for v in variance_bias(x[1:, ..., band], g[1:, ..., band]))
                if not np.isfinite(error) or abs(b) - e > bias - error:  # the maximum of noisy numbers is too large
                    bias, error = abs(b), e
        copies = self.sampler.replicas * self.interleaved
        return _Measured(bias, error, 1000 * copies / (self.cost * slowest))


def _programs(posterior, make, replicas, scape, like, batch_size, runs) -> tuple[Callable, Callable, Callable]:
    """``begin(settings, starts)``, ``advance(data, settings, states, keys, begin, end, period)`` and
    ``look(data, states, key, t)``, for LANES candidates of `runs` runs each."""
    _, unravel = ravel_pytree(like)
    data_axis = None if batch_size is None else 0
    size = 0 if scape.data is None else len(tree_leaves(scape.data)[0])
    score_rows = None if batch_size is None else min(size, max(batch_size, SCORE_ROWS))
    each = lambda f: jax.vmap(jax.vmap(f))  # run, replica
    flatten = lambda tree: ravel_pytree(tree)[0]
    mirror = posterior.mirror or (lambda x: x)

    def minibatches(data, key, t, rows):
        if rows is None:
            return data
        one = lambda key: minibatch.gather(data, minibatch.draw(key, t, size, rows, True))
        return jax.vmap(one)(jax.random.split(key, runs))

    def begin(setting, starts):
        tree = each(lambda x: mirror(unravel(x)))(starts)
        return jax.vmap(make(setting).init)(tree if replicas > 1 else jax.tree.map(lambda x: x[:, 0], tree))

    def step(setting, keys, states, batch, factor):
        one = lambda key, state, batch: make(setting).step(key, state, batch, setting["step_size"] * factor)[0]
        return jax.vmap(one, (0, 0, data_axis))(keys, states, batch)

    def advance(data, settings, states, keys, begin, end, period):
        def iteration(t, states):
            batch = minibatches(data, jax.random.fold_in(keys[0], t), t, batch_size)
            step_keys = jax.random.split(jax.random.fold_in(keys[1], t), (LANES, runs))
            factor = _wave(t, period)
            return jax.vmap(step, (0, 0, 0, None, None))(settings, step_keys, states, batch, factor)

        return lax.fori_loop(begin, end, iteration, states)

    def look(data, states, key, t):
        batch = minibatches(data, key, t, score_rows)

        def one(states):
            position = states.position if replicas > 1 else jax.tree.map(lambda x: x[:, None], states.position)
            grad = lambda x, batch: flatten(scape.scoring.grad(x, batch))
            g = jax.vmap(jax.vmap(grad, (0, None)), (0, data_axis))(position, batch)
            return scape.whiten(each(flatten)(position), g)

        return jax.vmap(one)(states)

    return jax.jit(jax.vmap(begin, (0, None))), jax.jit(advance), jax.jit(look)


# --- what is measured ---


def variance_bias(x: np.ndarray, g: np.ndarray) -> tuple[float, float]:
    """−E[xᵀg]/d − 1 over all but the axis of runs (the second), and its standard error from the runs' scatter."""
    each = -np.mean(x * g, axis=(0, 2, 3)) - 1
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))


def spectral_bands(curvatures: np.ndarray) -> list[np.ndarray]:
    """Indices of directions of like curvature, within a factor of about 2: averages over them have less noise."""
    place = np.log2(curvatures / curvatures[0])
    count = int(np.clip(np.ceil(place[-1]), 1, MOST_BANDS))
    band = np.minimum((count * place / max(place[-1], 1e-9)).astype(int), count - 1)
    return [np.flatnonzero(band == b) for b in range(count) if (band == b).any()]


def autocorrelation(times: np.ndarray, x: np.ndarray) -> tuple[float, float]:
    """The integrated autocorrelation time of positions (time, …), and the mean of 1 − ρ², ρ their correlation with the
    first.

    Correlations of all pairs of times are averaged over lags within a factor of 2 and integrated up to the first below
    0.05, the tail as an exponential.
    """
    x = x.reshape(len(times), -1)
    x = x / np.sqrt(np.mean(x**2, 1, keepdims=True))
    first, second = np.triu_indices(len(times), 1)
    rho, lags = (x @ x.T / x.shape[1])[first, second], (times[second] - times[first]).astype(float)
    octave = np.floor(np.log2(lags))
    mean = lambda v: np.array([v[octave == o].mean() for o in np.unique(octave)])
    lag, curve = np.r_[0.0, mean(lags)], np.r_[1.0, mean(rho)]
    small = np.flatnonzero(curve < 0.05)
    end = small[0] if small.size else len(lag) - 1
    total = np.sum(np.diff(lag[: end + 1]) * (curve[:end] + curve[1 : end + 1]) / 2)
    left = np.clip(curve[end], 0.0, 1 - 1e-9)
    tail = left * lag[end] / -np.log(left) if left > 0 else 0.0
    return max(1.0, 2 * (total + tail)), float(1 - np.mean(rho[first == 0] ** 2))


def _wave(t: Array, period: Array) -> Array:
    """:class:`Cyclical` with a traced period; 1 for period 0."""
    every = jnp.maximum(period, 1)
    return jnp.where(period > 0, jnp.sin(jnp.pi / 2 * (every - t % every) / every) ** 2, 1.0)
