"""The bias of the published method, and of the ensemble form that lacks it, on targets whose curvature varies.

Moments are known by quadrature. A sampler's error at a step size ε has three parts. Those of the discretisation and of
the gradient's noise vanish with ε. The bias of a preconditioner that depends on the position that it moves stays.
"""

import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from hamcmc._types import Facts, Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper.beside import side_by_side
from hamcmc.paper.common import COLOURS, Reproduction, finish, styled
from hamcmc.paper.known import Known, targets
from hamcmc.paper.runs import ManyRuns
from hamcmc.samplers.base import Sampler

STEP_SIZES = (0.02, 0.004, 0.001)
TITLE = "Bias of the published samplers and of the ensemble"


class Bias(NamedTuple):
    """Relative errors at one step size, of all moments on average and of each, with standard errors over the runs."""

    step_size: float
    bias: float
    standard_error: float
    moments: tuple[float, ...]
    moments_standard_errors: tuple[float, ...]
    non_finite_runs: int


def relative_bias(
    target: Known,
    sampler: Sampler,
    step_size: float,
    *,
    positions: int,
    time: float,
    burn_in: float,
    key: Array,
    many: ManyRuns | None = None,
    look: Progress = silent,
) -> Bias:
    """Relative bias of a sampler that starts in the exact law.

    Args:
        target: the density and its moments.
        sampler: the sampler.
        step_size: ε.
        positions: how many move, in runs of one, of M (HAMCMC's interleaved chains) or of an ensemble's replicas.
        time: ε times the moves of each position.
        burn_in: the same, before the average begins.
        key: everything random follows from it.
        many: the compiled runs, if they exist already.
        look: is called now and then, and may end the runs.
    """
    many = many or measured_by(target, sampler)
    together = sampler.interleaved * sampler.replicas
    moves = 2 if sampler.replicas > 1 else together  # steps in which each position moves once
    runs = max(positions // together, 2)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    starts = jnp.asarray(target.starts(rng, runs * sampler.replicas), jnp.float32)
    first, last = (moves * round(t / step_size) for t in (burn_in, burn_in + time))
    state, *_ = many.advance(many.start_each(starts), key, 0, first, step_size, look=look)
    _, total, weight = many.advance(state, key, first, last, step_size, look=look)
    error = total / weight / target.exact - 1
    error = error[np.isfinite(error).all(1)]
    if len(error) < 2:
        nan = float("nan")
        return Bias(step_size, nan, nan, (nan,) * target.exact.size, (nan,) * target.exact.size, runs - len(error))

    def summary(x: np.ndarray) -> tuple[Any, Any]:
        """Mean over the runs, and its standard error."""
        return x.mean(0).tolist(), (x.std(0, ddof=1) / np.sqrt(len(x))).tolist()

    moments, standard_errors = summary(error)
    return Bias(step_size, *summary(error.mean(1)), tuple(moments), tuple(standard_errors), runs - len(error))


def measured_by(target: Known, sampler: Sampler) -> ManyRuns:
    """The compiled runs of one sampler, for all step sizes."""
    return ManyRuns(sampler, target.statistic, lambda t, epsilon: epsilon, minibatch=target.minibatch)


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    steps = STEP_SIZES[:2] if quick else STEP_SIZES
    # Small steps take long: there the runs are shorter and the standard errors larger.
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


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Measure the relative bias of each sampler on each target at decreasing step sizes."""
    chosen = settings(quick)
    runs = [
        (name, label, target, measured_by(target, sampler))
        for name, (make, samplers) in targets().items()
        if name in chosen["budget"]
        for target in [make()]
        for label, sampler in samplers(target.grad).items()
    ]
    work = list(product(range(len(runs)), range(len(chosen["step_sizes"]))))

    def piece(i: int, j: int) -> Callable[[Progress], Bias]:
        name, _, target, many = runs[i]
        key = jax.random.fold_in(jax.random.key(seed), len(STEP_SIZES) * i + j)
        positions, times, burn_in = (chosen["budget"][name][k] for k in ("positions", "times", "burn_in"))
        budget: Any = {"positions": positions, "time": times[j], "burn_in": burn_in, "key": key, "many": many}
        return lambda look: relative_bias(target, many.sampler, chosen["step_sizes"][j], look=look, **budget)

    found: dict[tuple[int, int], Bias] = {}
    progress(Status(0.0, f"{runs[0][0]}, {runs[0][1]}"))
    for place, result in side_by_side([piece(i, j) for i, j in work]):
        found[work[place]] = result
        name, label, *_ = runs[work[place][0]]
        progress(Status(len(found) / (len(work) + 1), f"{name}, {label}, ε = {result.step_size}"))
    measured: dict[str, dict[str, list[Bias]]] = {}
    for i, j in work:
        name, label, *_ = runs[i]
        measured.setdefault(name, {}).setdefault(label, []).append(found[i, j])
    views = _views(measured)
    rows = [[name, label, *map(_cell, found)] for name, of in views.items() for label, found in of.items()]
    return finish(
        out,
        "bias",
        TITLE,
        quick=quick,
        seed=seed,
        settings=chosen | {"exact": {name: make().exact for name, (make, _) in targets().items()}},
        columns=["target", "sampler", *(f"ε = {e}" for e in chosen["step_sizes"])],
        rows=rows,
        figures={"bias": draw(views)},
        notes=[
            "Relative bias ± standard error of second moments, whose exact values come from quadrature. Runs start in "
            "the exact law. γ = 1, λ = 0, no metric; every pair with sᵀy > 0 is accepted. m: pairs of an ensemble."
        ],
        more={"bias": {name: {k: [b._asdict() for b in v] for k, v in of.items()} for name, of in measured.items()}},
    )


def _views(measured: dict[str, dict[str, list[Bias]]]) -> dict[str, dict[str, list[Bias]]]:
    """What is shown: the mean over a target's moments; in 10-d, where errors may cancel, also the stiffest
    direction."""

    def first(b: Bias) -> Bias:
        """The error of the first moment in place of the mean."""
        return b._replace(bias=b.moments[0], standard_error=b.moments_standard_errors[0])

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


def read(rows: Sequence[Facts]) -> dict[str, dict[str, list[Bias]]]:
    """What a kept table shows, to be drawn again: relative biases in percent with standard errors, by column ε."""
    found: dict[str, dict[str, list[Bias]]] = {}
    for row in rows:
        for column, cell in row.items():
            if not column.startswith("ε = "):
                continue
            numbers = re.findall(r"[+-]?[\d.]+", cell)[:2] if cell != "diverged" else ("nan", "nan")
            bias, error = (float(n) / 100 for n in numbers)
            one = Bias(float(column.removeprefix("ε = ")), bias, error, (), (), 0)
            found.setdefault(row.get("target", ""), {}).setdefault(row["sampler"], []).append(one)
    return found


def _look(label: str) -> Record:
    """The style of a curve: a colour for each method, a marker and a line for each of its variants."""
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
def draw(views: dict[str, dict[str, list[Bias]]]) -> Figure:
    """Four panels. The naive sampler is named in text: drawn, it would squeeze all others into a line."""
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
            apart = e * 1.07 ** (i - (len(drawn) - 1) / 2)  # so that bars do not hide each other
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
