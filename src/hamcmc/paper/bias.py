"""The bias of the published method, and the ensemble form without it, on targets whose curvature varies.

Moments are known by quadrature. What a sampler is off by at a step size ε is the discretisation's error, which goes
with ε, the gradient noise's, which does too, and the bias of a preconditioner that knows what it moves, which stays.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure
from scipy.integrate import simpson
from scipy.interpolate import PchipInterpolator

from hamcmc.paper import proposition
from hamcmc.paper.common import COLOURS, Ensemble, Progress, Reproduction, finish, silent, styled
from hamcmc.samplers import Sampler
from hamcmc.samplers.ensemble.langevin import ensemble_hamcmc
from hamcmc.samplers.ensemble.underdamped import ensemble_underdamped
from hamcmc.samplers.hamcmc import hamcmc
from hamcmc.samplers.naive import naive
from hamcmc.samplers.sgld import sgld
from hamcmc.target.estimators import control_variate
from hamcmc.target.posterior import Posterior

STEP_SIZES = (0.02, 0.004, 0.001)
TITLE = "Bias of the published samplers and of the ensemble"
DATA, BATCH = 512, 50  # a power of 2, so that random bits make indices that are exactly uniform


class Target(NamedTuple):
    """A density with exact moments.

    Attributes:
        grad: of the log-density.
        statistic: h of a position, one number for each moment.
        exact: E h.
        starts: ``starts(rng, n)``, draws of the density.
        minibatch: ``minibatch(key)``, what `grad` takes besides a position.
    """

    grad: Callable
    statistic: Callable[[Array], Array]
    exact: np.ndarray
    starts: Callable[[np.random.Generator, int], np.ndarray]
    minibatch: Callable[[Array], Any] | None = None


@cache
def ridge() -> Target:
    """U = (x+y)⁴/4 + 2(x−y)² + x²/4 + y²/10 of the proposition; h = (x+y)²."""
    exact = np.array([proposition.exact_moments()["(x+y)²"]])
    grids = np.linspace(-4, 4, 801), np.linspace(-4, 4, 801)
    starts = _from_grid(_density(lambda x, y: -proposition.potential((x, y)), *grids), *grids)
    return Target(proposition.grad, lambda x: (x[:1] + x[1:]) ** 2, exact, starts)


@cache
def ten() -> Target:
    """θ = A u in 10 dimensions, u_i independent with U_i = q u⁴/4 + l u²/2 + k log cosh u + d u; h_i = u_i².

    Quartic, skewed and heavy-shouldered ones in turn. A = (I + B) diag(σ), B strictly lower triangular, σ from 0.5 to
    2: each direction's curvature depends on all of the u_i.
    """
    kinds = np.array([[1.0, 0.1, 0, 0], [0, 0.5, 3, 2], [0, 0.1, 2, 0]])  # q, l, k, d
    q, l, k, d = (jnp.asarray(kinds[np.arange(10) % 3, i], jnp.float32) for i in range(4))
    b = np.tril(np.random.default_rng(0).normal(0, 0.4, (10, 10)), -1)
    mix = (np.eye(10) + b) * np.geomspace(0.5, 2, 10)
    unmix = jnp.asarray(np.linalg.inv(mix), jnp.float32)

    def grad(theta, _):
        u = unmix @ theta
        return -(q * u**3 + l * u + k * jnp.tanh(u) + d) @ unmix

    grid = np.linspace(-12, 12, 24001)
    potentials = kinds @ np.stack([grid**4 / 4, grid**2 / 2, np.logaddexp(grid, -grid), grid])
    densities = np.exp(potentials.min(1, keepdims=True) - potentials)
    second: Any = simpson(grid**2 * densities, x=grid) / simpson(densities, x=grid)
    quantiles = [_quantile(grid, p) for p in densities]

    def starts(rng, n):
        return np.stack([quantiles[i % 3](rng.random(n)) for i in range(10)], 1) @ mix.T

    return Target(grad, lambda theta: (unmix @ theta) ** 2, second[np.arange(10) % 3], starts)


def rare(reduced: bool) -> Target:
    """The target of :func:`_rare`; `reduced`: gradients with a control variate at the mode."""
    target, posterior, mode = _rare()
    return target._replace(grad=control_variate(posterior, mode).grad) if reduced else target


@cache
def _rare() -> tuple[Target, Posterior, Array]:
    """Logistic regression of a rare event on minibatches of 50 out of 512; h_i = (θ_i − Eθ_i)².

    Intercept and slope with a prior N(0, 3²) each; some 4 % of the data are ones, which makes the posterior skewed. θ
    is in units in which the Hessian at the mode is I.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=DATA)
    sign = np.where(rng.random(DATA) < 1 / (1 + np.exp(3.6 - 0.8 * x)), 1, -1)
    rows, mode, hessian = sign[:, None] * np.stack([np.ones(DATA), x], 1), np.zeros(2), np.eye(2)
    for _ in range(30):  # Newton's method
        p = 1 / (1 + np.exp(rows @ mode))
        hessian = (rows.T * (p * (1 - p))) @ rows + np.eye(2) / 9
        mode = mode + np.linalg.solve(hessian, rows.T @ p - mode / 9)
    unit = np.linalg.inv(np.linalg.cholesky(hessian)).T
    rows, mode, prior = rows @ unit, np.linalg.solve(unit, mode), unit.T @ unit / 9

    def log_density(*theta):
        each = np.logaddexp(0, -np.tensordot(rows, np.stack(theta), 1)).sum(0)
        return -each - 0.5 * np.einsum("i...,ij,j...", np.stack(theta), prior, np.stack(theta))

    grids = [np.linspace(m - 9, m + 9, 181) for m in mode]
    density, places = _density(log_density, *grids), np.stack(np.meshgrid(*grids, indexing="ij"))
    mean = (density * places).sum((1, 2))
    exact = (density * (places - mean[:, None, None]) ** 2).sum((1, 2))

    data, precision = jnp.asarray(rows, jnp.float32), jnp.asarray(prior, jnp.float32)
    log_prior = lambda theta: -0.5 * theta @ precision @ theta
    posterior = Posterior(log_prior, lambda theta, row: jax.nn.log_sigmoid(row @ theta), data)

    def minibatch(key):
        return data[jax.random.bits(key, (BATCH,), jnp.uint16) % DATA]

    centre = jnp.asarray(mean, jnp.float32)
    starts = _from_grid(density, *grids)
    target = Target(posterior.grad, lambda theta: (theta - centre) ** 2, exact, starts, minibatch)
    return target, posterior, jnp.asarray(mode, jnp.float32)


def _density(log_density: Callable, *grids: np.ndarray) -> np.ndarray:
    """On the grid, summing to 1; for a smooth density that vanishes at the edges sums are as good as integrals."""
    log = log_density(*np.meshgrid(*grids, indexing="ij"))
    density = np.exp(log - log.max())
    return density / density.sum()


def _from_grid(density: np.ndarray, *grids: np.ndarray) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Draws of a two-dimensional density, uniform within the cells of a grid."""
    cumulated = np.cumsum(density.ravel())

    def draw(rng, n):
        cells = np.unravel_index(np.searchsorted(cumulated, rng.random(n) * cumulated[-1]), [len(g) for g in grids])
        return np.stack([g[c] + (g[1] - g[0]) * (rng.random(n) - 0.5) for g, c in zip(grids, cells)], 1)

    return draw


def _quantile(grid: np.ndarray, density: np.ndarray) -> PchipInterpolator:
    cumulated = np.cumsum(density) / density.sum()
    rising = np.r_[True, np.diff(cumulated) > 1e-14]
    return PchipInterpolator(cumulated[rising], grid[rising])


def targets() -> dict[str, tuple[Callable[[], Target], Callable[[Callable], dict[str, Sampler]]]]:
    """Each target by name, and the samplers for it."""
    full: Any = {"gamma": 1.0, "damping": 0.0, "cosine": 0.0}
    still: Any = full | {"metric": None}

    def published(grad):
        return {
            "SGLD": sgld(grad),
            "naive M=2": naive(grad, memory=2, **full),
            "HAMCMC M=2": hamcmc(grad, memory=2, **full),
            "HAMCMC M=3": hamcmc(grad, memory=3, **full),
        }

    def on_ridge(grad):
        return published(grad) | {
            "ensemble, neighbours, m=1": ensemble_hamcmc(grad, pairs=1, update="neighbours", **still),
            "ensemble, neighbours, m=2": ensemble_hamcmc(grad, pairs=2, update="neighbours", **still),
            "ensemble, block, m=1": ensemble_hamcmc(grad, pairs=1, **still),
            "ensemble, block, m=2": ensemble_hamcmc(grad, pairs=2, **still),
            "ensemble, block, m=1, γ auto": ensemble_hamcmc(grad, pairs=1, **still | {"gamma": "auto"}),
            "ensemble, underdamped, m=2": ensemble_underdamped(grad, pairs=2, **still),
        }

    def on_ten(grad):
        return published(grad) | {
            "ensemble, neighbours, m=2": ensemble_hamcmc(grad, pairs=2, update="neighbours", **still),
            "ensemble, block, m=2": ensemble_hamcmc(grad, pairs=2, **still),
            "ensemble, block, m=10": ensemble_hamcmc(grad, pairs=10, **still),
            "ensemble, underdamped, m=10": ensemble_underdamped(grad, pairs=10, **still),
        }

    def on_rare(grad):
        return {k: v for k, v in published(grad).items() if k in ("SGLD", "HAMCMC M=2")} | {
            "ensemble, block, m=2": ensemble_hamcmc(grad, pairs=2, **still),
            "ensemble, block, m=2, fresh": ensemble_hamcmc(grad, pairs=2, fresh=True, **still),
        }

    return {
        "2-d ridge": (ridge, on_ridge),
        "10-d": (ten, on_ten),
        "minibatches": (lambda: rare(False), on_rare),
        "minibatches, control variate": (lambda: rare(True), on_rare),
    }


class Bias(NamedTuple):
    """Relative errors at one step size: of all moments on average, and of each; standard errors over the runs."""

    step_size: float
    bias: float
    standard_error: float
    moments: tuple[float, ...]
    moments_standard_errors: tuple[float, ...]
    non_finite_runs: int


def relative_bias(
    target: Target,
    sampler: Sampler,
    step_size: float,
    *,
    positions: int,
    time: float,
    burn_in: float,
    key: Array,
    ensemble: Ensemble | None = None,
) -> Bias:
    """Relative bias of a sampler that starts in the exact law.

    Args:
        positions: how many move, in runs of one, of M (HAMCMC's interleaved chains) or of an ensemble's replicas.
        time, burn_in: ε times the moves of each position.
    """
    ensemble = ensemble or measured_by(target, sampler)
    together = sampler.interleaved * sampler.replicas
    moves = 2 if sampler.replicas > 1 else together  # steps in which each position moves once
    runs = max(positions // together, 2)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    starts = jnp.asarray(target.starts(rng, runs * sampler.replicas), jnp.float32)
    first, last = (moves * round(t / step_size) for t in (burn_in, burn_in + time))
    state, *_ = ensemble.advance(ensemble.start_each(starts), key, 0, first, step_size)
    _, total, weight = ensemble.advance(state, key, first, last, step_size)
    error = total / weight / target.exact - 1
    error = error[np.isfinite(error).all(1)]
    if len(error) < 2:
        nan = float("nan")
        return Bias(step_size, nan, nan, (nan,) * target.exact.size, (nan,) * target.exact.size, runs - len(error))
    summary = lambda x: (x.mean(0).tolist(), (x.std(0, ddof=1) / np.sqrt(len(x))).tolist())
    moments, standard_errors = summary(error)
    return Bias(step_size, *summary(error.mean(1)), tuple(moments), tuple(standard_errors), runs - len(error))


def measured_by(target: Target, sampler: Sampler) -> Ensemble:
    """The compiled runs of one sampler, for all step sizes."""
    return Ensemble(sampler, target.statistic, lambda t, epsilon: epsilon, minibatch=target.minibatch)


def settings(quick: bool) -> dict[str, Any]:
    """What a full or a quick run does."""
    steps = STEP_SIZES[:2] if quick else STEP_SIZES
    # small steps are what takes long: there the runs are shorter and the standard errors larger
    budget = {
        "2-d ridge": {"positions": 480, "times": (60.0, 40.0, 28.0), "burn_in": 4.0},
        "10-d": {"positions": 440, "times": (40.0, 20.0, 10.0), "burn_in": 4.0},
        "minibatches": {"positions": 384, "times": (60.0, 20.0, 14.0), "burn_in": 2.0},
        "minibatches, control variate": {"positions": 384, "times": (60.0, 20.0, 14.0), "burn_in": 2.0},
    }
    if quick:
        budget = {name: {"positions": 176, "times": (6.0, 3.0), "burn_in": 1.0} for name in budget}
    return {
        "step_sizes": steps,
        "budget": budget,
        "gamma": 1.0,
        "damping": 0.0,
        "cosine": 0.0,
    }


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> Reproduction:
    """The relative bias of each sampler on each target at decreasing step sizes."""
    progress = progress or silent
    asked = settings(quick)
    work = [
        (name, label, target, sampler)
        for name, (make, samplers) in targets().items()
        if name in asked["budget"]
        for target in [make()]
        for label, sampler in samplers(target.grad).items()
    ]
    measured: dict[str, dict[str, list[Bias]]] = {}
    for i, (name, label, target, sampler) in enumerate(work):
        ensemble = measured_by(target, sampler)
        for j, step_size in enumerate(asked["step_sizes"]):
            progress(f"{name}, {label}, ε = {step_size}", (i + j / len(asked["step_sizes"])) / len(work))
            key = jax.random.fold_in(jax.random.key(seed), len(STEP_SIZES) * i + j)
            positions, times, burn_in = (asked["budget"][name][k] for k in ("positions", "times", "burn_in"))
            budget: Any = {"positions": positions, "time": times[j], "burn_in": burn_in}
            found = relative_bias(target, sampler, step_size, key=key, ensemble=ensemble, **budget)
            measured.setdefault(name, {}).setdefault(label, []).append(found)
    views = _views(measured)
    rows = [[name, label, *map(_cell, found)] for name, of in views.items() for label, found in of.items()]
    return finish(
        out,
        "bias",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked | {"exact": {name: make().exact for name, (make, _) in targets().items()}},
        columns=["target", "sampler", *(f"ε = {e}" for e in asked["step_sizes"])],
        rows=rows,
        figures={"bias": _draw(views)},
        notes=[
            "Relative bias ± standard error of second moments, whose exact values are found by quadrature; runs start "
            "in the exact law. γ = 1, λ = 0, no metric, every pair with sᵀy > 0 accepted. m: pairs of an ensemble."
        ],
        more={"bias": {name: {k: [b._asdict() for b in v] for k, v in of.items()} for name, of in measured.items()}},
    )


def _views(measured: dict[str, dict[str, list[Bias]]]) -> dict[str, dict[str, list[Bias]]]:
    """What is shown: the mean over a target's moments; as errors may cancel in 10-d, the stiffest direction's, too."""
    first = lambda b: b._replace(bias=b.moments[0], standard_error=b.moments_standard_errors[0])
    out = {}
    for name, of in measured.items():
        if name == "10-d":
            out["10-d, stiffest direction"] = {label: [first(b) for b in found] for label, found in of.items()}
            out["10-d, mean of all directions"] = of
        else:
            out[name] = of
    return out


def _cell(b: Bias) -> str:
    if not np.isfinite(b.bias):
        return "diverged"
    lost = f" ({b.non_finite_runs} runs lost)" if b.non_finite_runs else ""
    return f"{100 * b.bias:+.2f} ± {100 * b.standard_error:.2f} %{lost}"


def _look(label: str) -> dict[str, Any]:
    """A colour for each method, a marker and a line for each of its variants."""
    method = next(name for name in sorted(COLOURS, key=len, reverse=True) if label.startswith(name))
    variant = label.removeprefix(method).strip(", ")
    marker, line = {
        "neighbours, m=1": ("^", ":"),
        "neighbours, m=2": ("v", ":"),
        "block, m=1": ("s", "--"),
        "block, m=1, γ auto": ("P", "-."),
        "block, m=2, fresh": ("D", "--"),
        "block, m=10": ("X", "-"),
    }.get(variant, ("o", "-"))
    return {"color": COLOURS[method], "marker": marker, "linestyle": line, "label": label}


@styled
def _draw(views: dict[str, dict[str, list[Bias]]]) -> Figure:
    """Four panels; the naive sampler is said, not drawn, where it would squeeze all others into a line."""
    titles = {
        "2-d ridge": "2-d ridge, full gradients: E(x+y)²",
        "10-d, stiffest direction": "10-d, full gradients: E u₁², stiffest direction",
        "minibatches": "logistic regression, minibatches of 50: variances",
        "minibatches, control variate": "the same with a control variate",
    }
    fig = Figure(layout="constrained", figsize=(11, 8.2))
    known = {}
    for axes, name in zip(fig.subplots(2, 2).flat, titles):
        drawn = {label: found for label, found in views.get(name, {}).items() if "naive" not in label}
        for i, (label, found) in enumerate(drawn.items()):
            e, b, s = (np.array([getattr(f, k) for f in found]) for k in ("step_size", "bias", "standard_error"))
            apart = e * 1.07 ** (i - (len(drawn) - 1) / 2)  # or the bars hide each other
            known[label] = axes.errorbar(apart, 100 * b, 200 * s, markersize=5, capsize=2.5, lw=1.4, **_look(label))
        axes.axhline(0, color="0.2", lw=1.2, zorder=1)
        axes.set(xscale="log", xlabel="step size ε", ylabel="relative bias, %", title=titles[name])
        axes.set_xticks(STEP_SIZES, [str(e) for e in STEP_SIZES])
        axes.set_xlim(0.0006, 0.033)
        axes.minorticks_off()
        for label, found in views.get(name, {}).items():
            if "naive" in label:
                text = f"{label} is off the scale: {100 * found[-1].bias:+.0f} %"
                axes.text(0.98, 0.02, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=9)
    fig.legend(handles=list(known.values()), loc="outside lower center", ncols=4, title="bars: 2 standard errors")
    return fig
