"""Figure 2 of the paper: how fast the posterior mean is found, by iterations and by the clock."""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.inference import compiled
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.inference.schedules import Schedule
from hamcmc.paper import tuning
from hamcmc.paper.common import COLOURS, Reproduction, finish, styled
from hamcmc.paper.runs import ManyRuns
from hamcmc.samplers.base import Sampler, langevin, standard_normal
from hamcmc.samplers.sgrld import sgrld
from hamcmc.target import linear_gaussian as model
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

TITLE = "Figure 2: error of the posterior mean, linear Gaussian model"
SIZE, NOISE_VARIANCE, EXPONENT = 10_000, 10.0, 0.51
FACTORING = "SGRLD, factoring only"
WEAK, STRONG = 1.0, 1000.0  # curvature that the data add along most directions, and along one in 50 (at least one)


def correlated(dimension: int, seed: int) -> tuple[model.Data, model.Exact]:
    """Data with regressors a_n that vary much along few random directions, so that their entries are correlated."""
    rng = np.random.default_rng([seed, dimension])
    axes = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    curvatures = np.where(np.arange(dimension) < max(1, dimension // 50), STRONG, WEAK)
    data = model.simulate(rng, SIZE, axes * np.sqrt(curvatures * NOISE_VARIANCE / SIZE), NOISE_VARIANCE)
    return data, model.exact(data, NOISE_VARIANCE)


def each_time(posterior: Posterior, fisher: np.ndarray, *, invert: bool) -> Sampler:
    """SGRLD that works on the Fisher matrix at each iteration, although it is constant.

    With `invert`, it inverts the matrix and factors the inverse, as the paper's footnote says. Otherwise it factors the
    matrix and solves two triangular systems, which is all that is needed. The compiler would do either once, ahead of
    the loop, if the barrier did not tie the matrix to the position.
    """
    matrix = jnp.asarray(fisher, jnp.float32)

    def at(theta: Array) -> Array:
        """The matrix at a position."""
        return lax.optimization_barrier((matrix, theta))[0]

    efficient = sgrld(posterior.grad, at, correction=False)
    if not invert:
        return efficient

    def step(key, state, batch, step_size):
        theta = state.position
        h = jnp.linalg.inv(at(theta))
        drift = h @ posterior.grad(theta, batch)
        noise = jnp.linalg.cholesky(h) @ standard_normal(key, theta)
        return state._replace(position=langevin(theta, drift, noise, step_size, None), step=state.step + 1), ()

    return efficient._replace(step=step, settings={"sampler": "sgrld", "fisher": "inverted each time"})


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
        state, t, w = many.advance(state, key, begin, int(end))
        total, weight, begin = total + t, weight + w, int(end)
        errors.append(((total / weight - mean) ** 2).sum(-1))
    return np.stack(errors, 1)


def seconds_per_iteration(
    samplers: dict[str, tuple[Sampler, Schedule]],
    posterior: Posterior,
    dimension: int,
    *,
    batch_size: int,
    iterations: int,
    repeats: int,
) -> dict[str, float]:
    """The best of several interleaved timings of a single chain of each method, in the library's compiled loop."""
    start, keys, programs = jnp.zeros((1, dimension)), compiled.keys(0, 1), {}
    for name, (sampler, schedule) in samplers.items():
        segment = compiled.build(
            posterior, sampler, schedule, batch_size=batch_size, replace=True, chains=1, thin=iterations, slots=1
        )
        programs[name] = (segment, jax.vmap(sampler.init))
    best = dict.fromkeys(samplers, np.inf)
    for k in range(repeats + 1):  # the first time compiles
        for name, (segment, init) in programs.items():
            state = jax.block_until_ready(jax.tree.map(jnp.array, init(start)))  # a segment takes over its buffers
            began = time.perf_counter()
            jax.block_until_ready(segment(posterior.data, state, keys, 0, iterations, 0, False))
            if k:
                best[name] = min(best[name], (time.perf_counter() - began) / iterations)
    return best


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "size": SIZE,
        "noise_variance": NOISE_VARIANCE,
        "batch_size": SIZE // 100,
        "exponent": EXPONENT,
        "curvatures": [WEAK, STRONG],
        "dimensions": [10, 20] if quick else [10, 100],
        "iterations": 3000 if quick else 40_000,
        "candidates": 24 if quick else 48,
        "repeats": [1, 1] if quick else [2, 1],  # the error of 100 coordinates varies less from run to run
        "runs": 2 if quick else 8,
        "timed_iterations": 200 if quick else 2000,
        "timings": 3 if quick else 9,
    }


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Tune every method by the same search, then average the error of the mean over seeds and time an iteration."""
    asked = settings(quick)
    batch_size, iterations = asked["batch_size"], asked["iterations"]
    times = np.unique(np.geomspace(10, iterations, 20 if quick else 60).astype(int))
    rows, found = [], {}
    for d, dimension in enumerate(asked["dimensions"]):

        def say(what: str, part: float, d: int = d, dimension: int = dimension) -> None:
            """Report what is being done, and the part of this dimension that is done."""
            progress(Status((d + part) / len(asked["dimensions"]), f"D = {dimension}, {what}"))

        data, exact = correlated(dimension, seed)
        posterior = model.linear_gaussian(data, NOISE_VARIANCE)
        mean = jnp.asarray(exact.mean, jnp.float32)
        methods = tuning.methods(posterior, exact.precision, batch_size, memories=(2, 3))
        tuned, errors, timed = {}, {}, {}
        for i, (name, method) in enumerate(methods.items()):
            say(f"{name}: search", 0.9 * i / len(methods))
            t = tuned[name] = tuning.search(
                method,
                posterior,
                jnp.zeros(dimension),
                statistic=lambda theta: theta,
                score=lambda average, mean=mean: jnp.sum((average - mean) ** 2),
                exponent=EXPONENT,
                iterations=iterations,
                burn_in=0,
                batch_size=batch_size,
                candidates=asked["candidates"],
                repeats=asked["repeats"][d],
                seed=seed + 1_000_000,
            )
            say(f"{name}: run", 0.9 * (i + 0.8) / len(methods))
            sampler = method.build(**t.parameters)
            errors[name] = error_curve(
                sampler,
                t.schedule,
                posterior,
                exact.mean,
                times,
                batch_size=batch_size,
                runs=asked["runs"],
                seed=seed,
            )
            timed[name] = (sampler, t.schedule)
        schedule = tuned["SGRLD"].schedule
        timed["SGRLD"] = (each_time(posterior, exact.precision, invert=True), schedule)
        timed[FACTORING] = (each_time(posterior, exact.precision, invert=False), schedule)
        timed["SGRLD, factored once"] = (methods["SGRLD"].build(), schedule)
        say("clock", 0.9)
        seconds = seconds_per_iteration(
            timed,
            posterior,
            dimension,
            batch_size=batch_size,
            iterations=asked["timed_iterations"],
            repeats=asked["timings"],
        )
        common = iterations * min(seconds.values())  # when the fastest method has finished
        for name in (*errors, FACTORING):
            method = "SGRLD" if name == FACTORING else name
            t, error = tuned[method], errors[method]
            curve = error.mean(0)
            own = ", ".join(f"{k} {v:.2g}" for k, v in t.parameters.items())
            spread = error[:, -1].std(ddof=1) / np.sqrt(len(error))
            rows.append(
                [
                    dimension,
                    name,
                    f"{t.schedule.a:.2g}",
                    own or "–",
                    f"{np.interp(iterations / 8, times, curve):.3g}",
                    f"{curve[-1]:.3g} ± {spread:.1g}",
                    f"{1e6 * seconds[name]:.3g}",
                    f"{np.interp(common, times * seconds[name], curve):.3g}",
                ]
            )
        found[f"D={dimension}"] = {
            "start": float(exact.mean @ exact.mean),
            "posterior_variance": float(np.trace(exact.covariance)),
            "iterations": times,
            "error": errors,
            "seconds_per_iteration": seconds,
            "tuned": {
                n: {"a": t.schedule.a, **t.parameters, "score": t.score, "tried": t.tried} for n, t in tuned.items()
            },
        }
    return finish(
        out,
        "fig2",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["D", "method", "a", "own parameters", f"at {iterations // 8}", f"at {iterations}", "µs", "same time"],
        rows=rows,
        figures={"fig2": _draw(found)},
        notes=[
            f"‖θ̄−θ̂‖² with θ̂ = Σεθ/Σε, mean of {asked['runs']} runs (± standard error), after {iterations // 8} and "
            f"{iterations} iterations; µs per iteration of a single chain; error in the time that the fastest method "
            "takes for all of its iterations. SGRLD inverts and factors at each iteration, as the paper's footnote "
            "says; 'factoring only': a Cholesky factorization and triangular solves at each iteration.",
            f"Each method: {asked['candidates']} candidates × {' or '.join(map(str, asked['repeats']))} runs of "
            f"{iterations} iterations, least mean error at the end.",
        ],
        more={"found": found},
    )


@styled
def _draw(found: Record) -> Figure:
    fig = Figure(layout="constrained", figsize=(8.5, 6.6))
    for line, (name, f) in zip(fig.subplots(len(found), 2, sharey="row", squeeze=False), found.items()):
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
        for axes, label in zip(line, ("iterations", "seconds")):
            axes.axhline(f["start"], color="0.4", lw=0.8, ls=":")
            axes.set(xscale="log", yscale="log", xlabel=label, title=f"{name.replace('=', ' = ')}, by {label}")
        line[0].set_ylabel("‖θ̄ − θ̂‖²")
    fig.axes[1].legend(loc="lower left", fontsize=8)
    return fig
