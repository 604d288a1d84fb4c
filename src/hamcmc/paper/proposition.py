"""The paper's proposition: a quasi-Newton sampler that uses its own past is biased, and HAMCMC hardly is.

The target's curvature varies. An inverse Hessian that depends on the position that it moves then needs a correction Γ,
which none of these samplers has. Gradients are exact and steps small, so the bias that remains is due to that.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure
from scipy.integrate import simpson

from hamcmc._types import Facts, Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper.beside import side_by_side
from hamcmc.paper.common import COLOURS, Reproduction, finish, styled
from hamcmc.paper.runs import ManyRuns
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.hamcmc import hamcmc
from hamcmc.samplers.naive import naive
from hamcmc.samplers.sgld import sgld

STEP_SIZES = (0.02, 0.004, 0.001)
TITLE = "Bias of E(x+y)² on a target whose curvature varies"


def potential(theta: Any) -> Any:
    """U(x, y) = (x+y)⁴/4 + 2(x−y)² + x²/4 + y²/10."""
    x, y = theta[0], theta[1]
    return (x + y) ** 4 / 4 + 2 * (x - y) ** 2 + x**2 / 4 + y**2 / 10


def grad(theta: Array, _minibatch: Any = None) -> Array:
    """The gradient of the log-density, −∇U."""
    return -jax.grad(potential)(theta)


@cache
def exact_moments() -> dict[str, float]:
    """E(x+y)², E(x−y)², E x², E(x+y)⁴ by quadrature. Outside [−6, 6]² the density is below 1e-30 of its maximum."""
    grid = np.linspace(-6, 6, 1201)
    x, y = np.meshgrid(grid, grid, indexing="ij")
    density = np.exp(-potential((x, y)))

    def integrate(f: np.ndarray) -> float:
        """Over the square."""
        return float(simpson(simpson(f, x=grid), x=grid))

    z = integrate(density)
    h = {"(x+y)²": (x + y) ** 2, "(x−y)²": (x - y) ** 2, "x²": x**2, "(x+y)⁴": (x + y) ** 4}
    return {name: integrate(f * density) / z for name, f in h.items()}


def samplers() -> dict[str, Sampler]:
    """The samplers, with γ = 1, λ = 0, and every pair with sᵀy > 0 accepted."""
    options: Any = {"gamma": 1.0, "damping": 0.0, "cosine": 0.0}
    return {
        "SGLD": sgld(grad),
        "naive M=2": naive(grad, memory=2, **options),
        "HAMCMC M=2": hamcmc(grad, memory=2, **options),
        "HAMCMC M=3": hamcmc(grad, memory=3, **options),
    }


def relative_bias(
    sampler: Sampler,
    step_size: float,
    *,
    runs: int,
    time: float,
    burn_in: float,
    key: Array,
    many: ManyRuns | None = None,
    look: Progress = silent,
) -> tuple[float, float, int]:
    """Relative bias of E(x+y)², its standard error over the runs, and how many runs became non-finite.

    `time` and `burn_in` are in units of ε times iterations. `look` may end the runs.
    """
    many = many or measured_by(sampler)
    first, last = (round(t / step_size) for t in (burn_in, burn_in + time))
    state, *_ = many.advance(many.start(jnp.zeros(2), runs), key, 0, first, step_size, look=look)
    _, total, weight = many.advance(state, key, first, last, step_size, look=look)
    truth = exact_moments()["(x+y)²"]
    bias = (total / weight - truth) / truth
    finite = bias[np.isfinite(bias)]
    return float(finite.mean()), float(finite.std(ddof=1) / np.sqrt(finite.size)), int(runs - finite.size)


def measured_by(sampler: Sampler) -> ManyRuns:
    """The compiled runs of one sampler, for all step sizes."""
    return ManyRuns(sampler, lambda theta: (theta[0] + theta[1]) ** 2, lambda t, epsilon: epsilon)


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "step_sizes": STEP_SIZES,
        "runs": 512 if quick else 2048,
        "time": 8.0 if quick else 60.0,
        "burn_in": 4.0 if quick else 10.0,
        "gamma": 1.0,
        "damping": 0.0,
        "cosine": 0.0,
        "exact": exact_moments(),
    }


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Measure the relative bias of E(x+y)² of each sampler at decreasing step sizes."""
    asked = settings(quick)
    budget = {k: asked[k] for k in ("runs", "time", "burn_in")}
    compiled = {name: measured_by(sampler) for name, sampler in samplers().items()}
    work = list(product(compiled, STEP_SIZES))

    def piece(i: int) -> Callable[[Progress], tuple[float, float, int]]:
        (name, step_size), key = work[i], jax.random.fold_in(jax.random.key(seed), i)
        many = compiled[name]
        return lambda look: relative_bias(many.sampler, step_size, key=key, many=many, look=look, **budget)

    found = {}
    progress(Status(0.0, work[0][0]))
    for i, result in side_by_side([piece(i) for i in range(len(work))]):
        found[work[i]] = result
        progress(Status(len(found) / (len(work) + 1), f"{work[i][0]}, ε = {work[i][1]}"))
    rows, measured = [], {}
    for name in compiled:
        row = [name]
        for step_size in STEP_SIZES:
            bias, error, lost = found[name, step_size]
            measured.setdefault(name, []).append(
                {"step_size": step_size, "bias": bias, "standard_error": error, "non_finite_runs": lost}
            )
            row.append(f"{100 * bias:+.2f} ± {100 * error:.2f} %" + (f" ({lost} runs lost)" if lost else ""))
        rows.append(row)
    return finish(
        out,
        "proposition",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["sampler", *(f"ε = {e}" for e in STEP_SIZES)],
        rows=rows,
        figures={"proposition": draw(measured)},
        notes=[
            f"Relative bias ± standard error; exact E(x+y)² = {asked['exact']['(x+y)²']:.5f} by quadrature. Full "
            "gradients, γ = 1, λ = 0, every pair with sᵀy > 0 accepted."
        ],
        more={"bias": measured},
    )


@styled
def draw(measured: Mapping[str, Sequence[Facts]]) -> Figure:
    """All samplers, and those whose bias is small."""
    fig = Figure(layout="constrained", figsize=(8.5, 3.6))
    for axes, names in zip(fig.subplots(1, 2), (list(measured), [n for n in measured if "naive" not in n])):
        for name in names:
            e, b, s = (np.array([m[k] for m in measured[name]]) for k in ("step_size", "bias", "standard_error"))
            axes.errorbar(
                e, 100 * b, 200 * s, color=COLOURS[name], marker="o", markersize=4, capsize=3, lw=1.5, label=name
            )
        axes.axhline(0, color="0.3", lw=0.8)
        axes.set(xscale="log", xlabel="step size ε", ylabel="relative bias, %")
        axes.set_xticks(STEP_SIZES, [str(e) for e in STEP_SIZES])
        axes.minorticks_off()
    fig.axes[0].set_title("all samplers")
    fig.axes[1].set_title("without the naive one")
    fig.axes[0].legend(loc="center right", title="bars: 2 standard errors")
    return fig
