"""Figure 2 of the paper: how fast the posterior mean is found, by iterations and by the clock."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.inference.schedules import Schedule
from hamcmc.paper import fig1, tuning
from hamcmc.paper.beside import side_by_side
from hamcmc.paper.clock import each_time, seconds_per_iteration
from hamcmc.paper.common import COLOURS, Reproduction, finish, styled
from hamcmc.paper.journal import Journal
from hamcmc.paper.machine import machine
from hamcmc.paper.runs import ManyRuns
from hamcmc.samplers.base import Sampler
from hamcmc.target import linear_gaussian as model
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

TITLE = "Figure 2: error of the posterior mean, linear Gaussian model"
SIZE, NOISE_VARIANCE, EXPONENT = 10_000, 10.0, 0.51
FACTORING = "SGRLD, factoring only"
SEARCH = 1_000_000  # added to the seed of the reported runs, for the search


class Case(NamedTuple):
    """One pair of panels: data with regressors a_n of a kind and a dimension."""

    kind: str
    dimension: int

    @property
    def label(self) -> str:
        """For tables and titles."""
        return f"{self.kind} a_n, D = {self.dimension}"


KINDS = ("independent", "correlated")


def mixing(case: Case) -> np.ndarray:
    """The matrix B of a_n = B z with standard normal z.

    Independent: B = I. Correlated: figure 1's two curvatures, the large one along (1, …, 1) and the small one along
    all other directions, so that any two entries of a_n are equally correlated. D = 2 has the ridge of figure 1.
    """
    identity = np.eye(case.dimension)
    if case.kind == "independent":
        return identity
    small, large = np.sqrt(np.array(fig1.CURVATURES) * NOISE_VARIANCE / SIZE)
    along = np.full((case.dimension, case.dimension), 1 / case.dimension)
    return large * along + small * (identity - along)


def simulated(case: Case, seed: int) -> tuple[model.Data, model.Exact]:
    """Data of the model, and the exact posterior."""
    rng = np.random.default_rng([seed, KINDS.index(case.kind), case.dimension])
    data = model.simulate(rng, SIZE, mixing(case), NOISE_VARIANCE)
    return data, model.exact(data, NOISE_VARIANCE)


def error_curve(
    sampler: Sampler,
    schedule: Schedule,
    posterior: Posterior,
    mean: np.ndarray,
    times: np.ndarray,
    *,
    batch_size: int,
    runs: int,
    seed: int,
    progress: Progress = silent,
) -> np.ndarray:
    """‖θ̄ − Σεθ/Σε‖² at the given iterations: (run, time)."""

    def draw(key: Array) -> Any:
        """A minibatch."""
        rows = minibatch.draw(key, jnp.int32(0), posterior.size, batch_size, True)
        return minibatch.gather(posterior.data, rows)

    many = ManyRuns(sampler, lambda theta: theta, schedule, minibatch=draw)
    state, key = many.start(jnp.zeros(mean.size), runs), jax.random.key(seed)
    total, weight, begin, errors = 0.0, 0.0, 0, []
    for end in times:
        state, t, w = many.advance(state, key, begin, int(end), look=progress)
        total, weight, begin = total + t, weight + w, int(end)
        errors.append(((total / weight - mean) ** 2).sum(-1))
    return np.stack(errors, 1)


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "size": SIZE,
        "noise_variance": NOISE_VARIANCE,
        "batch_size": SIZE // 100,
        "exponent": EXPONENT,
        "kinds": list(KINDS),
        "curvatures": list(fig1.CURVATURES),  # of the correlated data
        "dimensions": [10, 20] if quick else [10, 100],
        "iterations": 3000 if quick else 40_000,
        "candidates": 24 if quick else 48,
        "repeats": 1 if quick else 2,
        "runs": 2 if quick else 8,
        "timed_iterations": 200 if quick else 2000,
        "timings": 3 if quick else 9,
        "search_seed_offset": SEARCH,
    }


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Tune every method by the same search, then average the error of the mean over seeds and time an iteration.

    Methods run side by side, and the clocks after them. A run that was interrupted goes on where it was: finished
    methods are in ``runs.json``.
    """
    asked, journal = settings(quick), Journal(Path(out) / "runs.json")
    times = np.unique(np.geomspace(10, asked["iterations"], 20 if quick else 60).astype(int))
    contests = [Contest(Case(kind, d), asked, seed) for kind in asked["kinds"] for d in asked["dimensions"]]
    work = [(contest, name) for contest in contests for name in contest.methods]
    new = [(contest, name) for contest, name in work if journal.get(contest.what(name)) is None]
    pieces = [partial(contest.run, name, times) for contest, name in new]
    done = len(work) - len(new)
    progress(Status(done / (len(work) + len(contests)), f"{len(new)} searches"))
    for i, result in side_by_side(pieces):
        contest, name = new[i]
        journal.put(contest.what(name), result)
        done += 1
        progress(Status(done / (len(work) + len(contests)), f"{contest.case.label}: {name}"))
    rows, found = [], {}
    for contest in contests:  # only the clocks need a machine that does nothing else
        progress(Status(done / (len(work) + len(contests)), f"{contest.case.label}: clock"))
        one = found[contest.case.label] = contest.found(journal, times)
        rows += table(contest.case, asked, times, one)
        done += 1
    spectra = "; ".join(
        f"{label}: {min(f['spectrum']):.3g} to {max(f['spectrum']):.3g}, condition number {f['condition']:.3g}"
        for label, f in found.items()
    )
    loads = ", ".join(f"{f['load']}" for f in found.values())
    iterations = asked["iterations"]
    return finish(
        out,
        "fig2",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=[
            *("a_n", "D", "method", "a", "own parameters", f"at {iterations // 8}", f"at {iterations}"),
            *("µs", "same time"),
        ],
        rows=rows,
        figures={"fig2": _draw(found)},
        notes=[
            f"‖θ̄−θ̂‖² with θ̂ = Σεθ/Σε, mean of {asked['runs']} runs (± standard error), after {iterations // 8} and "
            f"{iterations} iterations; µs per iteration of a single chain; error in the time that the fastest method "
            "takes for all of its iterations. SGRLD inverts and factors at each iteration, as the paper's footnote "
            "says; 'factoring only': a Cholesky factorization and triangular solves at each iteration. Times were "
            f"measured at loads of {loads}.",
            f"Eigenvalues of the posterior precision: {spectra}. Data: seed [{seed}, 0 or 1 for the kind, D].",
            f"Each method: {asked['candidates']} candidates × {asked['repeats']} runs of {iterations} iterations, "
            f"least mean error at the end, with seed {seed + SEARCH}; then the reported runs, with seed {seed}.",
        ],
        more={"found": found},
    )


class Contest:
    """All methods on one set of data.

    Args:
        case: the kind of data and their dimension.
        asked: the settings.
        seed: everything random follows from it.
    """

    def __init__(self, case: Case, asked: Record, seed: int):
        self.case, self.asked, self.seed = case, asked, seed
        data, self.exact = simulated(case, seed)
        self.posterior = model.linear_gaussian(data, NOISE_VARIANCE)
        self.methods = tuning.methods(self.exact.precision, SIZE, asked["batch_size"], memories=(2, 3))

    def what(self, name: str) -> Record:
        """All that the result of a method depends on."""
        return {"case": list(self.case), "method": name, "seed": self.seed, "settings": self.asked}

    def run(self, name: str, times: np.ndarray, progress: Progress) -> Record:
        """Search a method's parameters, then run the best with new seeds."""
        method, asked = self.methods[name], self.asked
        t = searched(method, self.posterior, self.exact, asked, self.seed, progress)
        sampler = method.build(self.posterior, self.exact.precision, **t.parameters)
        how: Any = {"batch_size": asked["batch_size"], "runs": asked["runs"], "seed": self.seed, "progress": progress}
        error = error_curve(sampler, t.schedule, self.posterior, self.exact.mean, times, **how)
        return {"a": t.schedule.a, "own": t.parameters, "score": t.score, "tried": t.tried, "error": error.tolist()}

    def clock(self, kept: dict[str, Record], journal: Journal) -> Record:
        """Seconds per iteration of each method, and the load of the machine before they were measured."""
        build = {name: method.build for name, method in self.methods.items()}
        timed = {n: build[n](self.posterior, self.exact.precision, **k["own"]) for n, k in kept.items()}
        timed["SGRLD, factored once"] = timed["SGRLD"]
        timed["SGRLD"] = each_time(self.posterior, self.exact.precision, invert=True)
        timed[FACTORING] = each_time(self.posterior, self.exact.precision, invert=False)
        asked = self.asked
        what = {"case": list(self.case), "clock": list(timed), "seed": self.seed, "settings": asked}
        if (clock := journal.get(what)) is None:
            load = machine()["load"]
            how: Any = {"iterations": asked["timed_iterations"], "repeats": asked["timings"]}
            how |= {"batch_size": asked["batch_size"]}
            seconds = seconds_per_iteration(timed, self.posterior, self.case.dimension, **how)
            journal.put(what, clock := {"seconds": seconds, "load": load})
        return clock

    def found(self, journal: Journal, times: np.ndarray) -> Record:
        """What the search, the runs and the clock found."""
        kept = {name: journal.kept[Journal.name(self.what(name))] for name in self.methods}
        clock = self.clock(kept, journal)
        spectrum = np.linalg.eigvalsh(self.exact.precision)
        return {
            "spectrum": spectrum,
            "condition": float(spectrum[-1] / spectrum[0]),
            "start": float(self.exact.mean @ self.exact.mean),
            "posterior_variance": float(np.trace(self.exact.covariance)),
            "iterations": times,
            "error": {name: np.asarray(k["error"]) for name, k in kept.items()},
            "seconds_per_iteration": clock["seconds"],
            "load": clock["load"],
            "tuned": {n: {"a": k["a"], **k["own"], "score": k["score"], "tried": k["tried"]} for n, k in kept.items()},
        }


def searched(
    method: tuning.Method, posterior: Posterior, exact: model.Exact, asked: Record, seed: int, progress: Progress
) -> tuning.Tuned:
    """The parameters with the least error of the mean at the end."""
    mean = jnp.asarray(exact.mean, jnp.float32)

    def score(average: Array) -> Array:
        """The squared error of an estimate."""
        return jnp.sum((average - mean) ** 2)

    return tuning.search(
        method,
        posterior,
        exact.precision,
        jnp.zeros(mean.size),
        statistic=lambda theta: theta,
        score=score,
        exponent=EXPONENT,
        iterations=asked["iterations"],
        burn_in=0,
        batch_size=asked["batch_size"],
        candidates=asked["candidates"],
        repeats=asked["repeats"],
        seed=seed + SEARCH,
        progress=progress,
    )


def table(case: Case, asked: Record, times: np.ndarray, found: Record) -> list[list[Any]]:
    """The rows of one set of data."""
    iterations, seconds = asked["iterations"], found["seconds_per_iteration"]
    common = iterations * min(seconds.values())  # when the fastest method has finished
    rows = []
    for name in (*found["error"], FACTORING):
        method = "SGRLD" if name == FACTORING else name
        t, error = found["tuned"][method], found["error"][method]
        curve = error.mean(0)
        own = ", ".join(f"{k} {v:.2g}" for k, v in t.items() if k not in ("a", "score", "tried"))
        spread = error[:, -1].std(ddof=1) / np.sqrt(len(error))
        rows.append(
            [
                *(case.kind, case.dimension, name, f"{t['a']:.2g}", own or "–"),
                f"{np.interp(iterations / 8, times, curve):.3g}",
                f"{curve[-1]:.3g} ± {spread:.1g}",
                f"{1e6 * seconds[name]:.3g}",
                f"{np.interp(common, times * seconds[name], curve):.3g}",
            ]
        )
    return rows


@styled
def _draw(found: Record) -> Figure:
    fig = Figure(layout="constrained", figsize=(8.5, 2.9 * len(found)))
    for line, (label, f) in zip(fig.subplots(len(found), 2, sharey="row", squeeze=False), found.items()):
        for method, error in f["error"].items():
            seconds = f["seconds_per_iteration"][method]
            for axes, x in zip(line, (f["iterations"], f["iterations"] * seconds)):
                axes.plot(x, error.mean(0), color=COLOURS[method], lw=1.6, label=method)
                if len(error) > 1:
                    spread = error.std(0, ddof=1) / np.sqrt(len(error))
                    low, high = np.maximum(error.mean(0) - spread, error.min(0)), error.mean(0) + spread
                    axes.fill_between(x, low, high, color=COLOURS[method], alpha=0.2, lw=0)
        x, curve = f["iterations"] * f["seconds_per_iteration"][FACTORING], f["error"]["SGRLD"].mean(0)
        line[1].plot(x, curve, color=COLOURS["SGRLD"], lw=1.2, ls="--", label=FACTORING)
        for axes, what in zip(line, ("iterations", "seconds")):
            axes.axhline(f["start"], color="0.4", lw=0.8, ls=":")
            axes.set(xscale="log", yscale="log", xlabel=what)
            axes.set_title(f"{label}\ncondition number {f['condition']:.3g}, by {what}", fontsize=10)
        line[0].set_ylabel("‖θ̄ − θ̂‖²")
    handles, labels = fig.axes[1].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return fig
