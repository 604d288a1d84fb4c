"""The paper's theorem: bias and mean squared error of Σεh/Σε against T for decreasing steps ε_t = (a/t)^b.

The targets are a Gaussian, whose curvature is constant, and the proposition's target, for which the theorem's
assumption fails and HAMCMC's bias does not vanish."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper import proposition
from hamcmc.paper.beside import side_by_side
from hamcmc.paper.common import COLOURS, Reproduction, finish, styled
from hamcmc.paper.runs import ManyRuns
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.hamcmc import hamcmc
from hamcmc.samplers.sgld import sgld

TITLE = "Theorem 1: error of the weighted estimator against T"
EXPONENTS = (1 / 3, 0.51, 0.7)
FIRST_STEP = 0.3
MEMORY = 2
PRECISION = np.array([[2.0, 1.2], [1.2, 1.0]])  # eigenvalues 0.2 and 2.8
EXPONENT_COLOURS = ("#56B4E9", "#D55E00", "#000000")


def gaussian_grad(theta: Array, noise: Array) -> Array:
    """−∇Ũ of N(0, PRECISION⁻¹). The minibatch is the gradient's noise, N(0, I)."""
    return -jnp.asarray(PRECISION, theta.dtype) @ theta + noise


def schedule(t: Array, first_step: Any, b: Any) -> Array:
    """ε_t = (a/t)^b with t counted from 1, given its first value a^b."""
    return first_step * (t + 1.0) ** -b


def bounds(times: np.ndarray, first_step: float, b: float, memory: int) -> tuple[np.ndarray, np.ndarray]:
    """The theorem's bounds with all constants 1: 1/L + Y/L for the bias, Y/L² + 1/L + Y²/L² for the MSE."""
    epsilon = first_step * np.arange(memory, times[-1] + 1, memory, dtype=float) ** -b  # ε_{kM}
    index = times // memory - 1
    length, square = np.cumsum(epsilon)[index], np.cumsum(epsilon**2)[index]
    return (1 + square) / length, square / length**2 + 1 / length + square**2 / length**2


def slope(times: np.ndarray, values: np.ndarray) -> float:
    """The slope of log values against log T, over the second half of the (log-spaced) times."""
    half = len(times) // 2
    return float(np.polyfit(np.log(times[half:]), np.log(np.abs(values[half:])), 1)[0])


def slope_error(
    times: np.ndarray, error: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], groups: int = 16
) -> float:
    """The standard error of the slope of ``statistic(error)``, by the jackknife over groups of runs."""
    parts = np.array_split(np.arange(len(error)), groups)
    left = [slope(times, statistic(np.delete(error, part, axis=0))) for part in parts]
    return float(np.sqrt((groups - 1) * np.var(left)))


def estimates(
    many: ManyRuns,
    start: Array,
    times: np.ndarray,
    runs: int,
    key: Array,
    *parameters: float,
    look: Progress = silent,
) -> np.ndarray:
    """Σεh/Σε of each run at each time: (run, time). `look` may end the runs."""
    state, begin, total, weight, found = many.start(start, runs), 0, 0.0, 0.0, []
    for end in times:
        state, t, w = many.advance(state, key, begin, int(end), *parameters, look=look)
        total, weight, begin = total + t, weight + w, int(end)
        found.append(total / weight)
    return np.stack(found, 1)


def mean(error: np.ndarray) -> np.ndarray:
    """The bias: the mean over the runs."""
    return error.mean(0)


def mean_square(error: np.ndarray) -> np.ndarray:
    """The mean squared error over the runs."""
    return (error**2).mean(0)


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "exponents": EXPONENTS,
        "first_step": FIRST_STEP,
        "curved_first_step": 0.05,
        "memory": MEMORY,
        "precision": PRECISION,
        "gradient_noise_variance": 1.0,
        "runs": 512 if quick else 4096,
        "iterations": 2000 if quick else 24_000,
    }


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Fit the slopes of bias and MSE beside the theorem's, and show a target on which the bias stays."""
    asked = settings(quick)
    most, runs = asked["iterations"], asked["runs"]
    times = np.unique(np.geomspace(60, most, 13).astype(int) // MEMORY * MEMORY)
    keys = jax.random.split(jax.random.key(seed), 8)
    options: Any = {"memory": MEMORY, "gamma": 1.0, "damping": 0.0, "cosine": 0.0}

    gaussian = ManyRuns(
        hamcmc(gaussian_grad, **options),
        lambda theta: theta[0] ** 2,
        schedule,
        minibatch=lambda key: jax.random.normal(key, (2,)),
    )
    samplers: dict[str, Sampler] = {
        "SGLD": sgld(proposition.grad),
        f"HAMCMC M={MEMORY}": hamcmc(proposition.grad, **options),
    }
    far, near, curved_first, middle = (
        jnp.array([3.0, 3.0]),
        jnp.array([0.4, 0.4]),
        asked["curved_first_step"],
        EXPONENTS[1],
    )
    work = [(f"Gaussian, b = {b:.2f}", gaussian, far, FIRST_STEP, b) for b in EXPONENTS]
    for name, sampler in samplers.items():
        many = ManyRuns(sampler, lambda theta: (theta[0] + theta[1]) ** 2, schedule)
        work.append((f"varying curvature, {name}", many, near, curved_first, middle))

    def piece(i: int) -> Callable[[Progress], np.ndarray]:
        _, many, start, first_step, b = work[i]
        return lambda look: estimates(many, start, times, runs, keys[i], first_step, b, look=look)

    estimated: dict[int, np.ndarray] = {}
    progress(Status(0.0, work[0][0]))
    for i, result in side_by_side([piece(i) for i in range(len(work))]):
        estimated[i] = result
        progress(Status(len(estimated) / (len(work) + 1), work[i][0]))

    truth = np.linalg.inv(PRECISION)[0, 0]
    rows, found = [], []
    for i, b in enumerate(EXPONENTS):
        error = estimated[i] - truth
        bias, mse = mean(error), mean_square(error)
        bound_bias, bound_mse = bounds(times, FIRST_STEP, b, MEMORY)
        slopes = {
            "bias": slope(times, bias),
            "bias_bound": slope(times, bound_bias),
            "mse": slope(times, mse),
            "mse_bound": slope(times, bound_mse),
        }
        errors = {"bias": slope_error(times, error, mean), "mse": slope_error(times, error, mean_square)}
        found.append(
            {
                "b": b,
                "bias": bias,
                "bias_standard_error": error.std(0, ddof=1) / np.sqrt(runs),
                "mse": mse,
                "bias_bound": bound_bias,
                "mse_bound": bound_mse,
                "slopes": slopes,
                "slope_errors": errors,
            }
        )
        rows.append(
            [
                "Gaussian",
                f"HAMCMC M={MEMORY}",
                f"{b:.2f}",
                f"{slopes['bias']:.2f} ± {errors['bias']:.2f}",
                f"{slopes['bias_bound']:.2f} ({-min(b, 1 - b):.2f})",
                f"{slopes['mse']:.2f} ± {errors['mse']:.2f}",
                f"{slopes['mse_bound']:.2f} ({-min(2 * b, 1 - b):.2f})",
                "–",
            ]
        )

    moment = proposition.exact_moments()["(x+y)²"]
    curved = {}
    for i, name in enumerate(samplers):
        error = estimated[len(EXPONENTS) + i] / moment - 1
        error = error[np.isfinite(error).all(1)]
        bias, standard_error, lost = error.mean(0), error.std(0, ddof=1) / np.sqrt(len(error)), runs - len(error)
        curved[name] = {"relative_bias": bias, "standard_error": standard_error, "non_finite_runs": lost}
        end = f"{100 * bias[-1]:+.2f} ± {100 * standard_error[-1]:.2f} %" + (f" ({lost} runs lost)" if lost else "")
        bound = bounds(times, curved_first, middle, MEMORY if name != "SGLD" else 1)[0]
        rows.append(["varying curvature", name, f"{middle:.2f}", "–", f"{slope(times, bound):.2f}", "–", "–", end])

    return finish(
        out,
        "theorem",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=[
            *("target", "sampler", "b", "bias slope", "bias bound's slope", "MSE slope", "MSE bound's slope"),
            f"bias at T = {times[-1]}",
        ],
        rows=rows,
        figures={"theorem": _draw(times, found, curved)},
        notes=[
            f"Slopes of log |bias| and log MSE against log T over T = {times[len(times) // 2]} … {times[-1]}, {runs} "
            "runs; beside them the slopes over the same T (and as T → ∞) of 1/L + Y/L and Y/L² + 1/L + Y²/L², the "
            "theorem's bounds with all constants 1. Gaussian: E x², noisy gradients. Varying curvature: relative bias "
            "of E(x+y)².",
        ],
        more={"times": times, "gaussian": found, "varying_curvature": curved},
    )


@styled
def _draw(times: np.ndarray, found: list[Record], curved: Record) -> Figure:
    fig = Figure(layout="constrained", figsize=(11, 3.9))
    bias, mse, stays = fig.subplots(1, 3)
    for f, colour in zip(found, EXPONENT_COLOURS):
        for axes, kind in ((bias, "bias"), (mse, "mse")):
            values, bound = np.abs(f[kind]), f[f"{kind}_bound"]
            label = f"b = {f['b']:.2f}: slope {f['slopes'][kind]:.2f} (bound {f['slopes'][f'{kind}_bound']:.2f})"
            axes.plot(times, values, "o-", ms=3.5, lw=1.4, color=colour, label=label)
            axes.plot(times, bound * values[-1] / bound[-1], "--", lw=1, color=colour)
        bias.fill_between(
            times,
            np.maximum(np.abs(f["bias"]) - 2 * f["bias_standard_error"], 1e-6),
            np.abs(f["bias"]) + 2 * f["bias_standard_error"],
            color=colour,
            alpha=0.15,
            lw=0,
        )
    for axes, label in ((bias, "|bias| of E x²"), (mse, "mean squared error of E x²")):
        axes.set(xscale="log", yscale="log", xlabel="T", ylabel=label, title=f"Gaussian, HAMCMC M={MEMORY}")
        axes.legend(fontsize=8, title="dashed: the bound's shape", title_fontsize=8)
    for name, c in curved.items():
        b, s = 100 * c["relative_bias"], 200 * c["standard_error"]
        stays.errorbar(times, b, s, color=COLOURS[name], marker="o", ms=3.5, capsize=2, lw=1.4, label=name)
    stays.axhline(0, color="0.3", lw=0.8)
    stays.set(xscale="log", xlabel="T", ylabel="relative bias of E(x+y)², %", title="varying curvature, b = 0.51")
    stays.legend(fontsize=8, title="bars: 2 standard errors", title_fontsize=8)
    return fig
