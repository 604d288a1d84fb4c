"""The demonstration: every sampler on one strongly correlated posterior."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.diagnostics import cost
from hamcmc.diagnostics.result import Result
from hamcmc.inference.sample import sample
from hamcmc.target.linear_gaussian import Exact, exact, linear_gaussian, simulate

NOISE_VARIANCE = 10.0
SIZE, BATCH = 1000, 100
ITERATIONS, WARMUP, CHAINS, THIN = 20_000, 2000, 4, 10
RECOMMENDED = "ensemble_hamcmc"


class Row(NamedTuple):
    """How one sampler did.

    Attributes:
        sampler: its name.
        step_size: ε.
        mean_error: distance of the estimated from the exact mean, in posterior standard deviations.
        length: estimated over exact standard deviation along the ridge.
        width: the same across it.
        ess: effective samples of the slowest parameter.
        per_effective_sample: gradients for each of them.
        seconds: time of sampling.
    """

    sampler: str
    step_size: float
    mean_error: float
    length: float
    width: float
    ess: float
    per_effective_sample: float
    seconds: float


class Demo(NamedTuple):
    """What the demonstration produces: a table, a picture and the directory of the recommended sampler's run."""

    rows: list[Row]
    picture: Path
    run: Path


def demo(out: Path, *, seed: int = 0, tell: Callable[[str], None] = lambda name: None) -> Demo:
    """Sample a two-dimensional ridge with every sampler.

    The posterior is that of a linear regression with 1000 data and two nearly equal regressors. It is 20 times as long
    as wide. Every sampler gets minibatches of 100, the same number of iterations, and a step size that discretises the
    stiffest direction in the same way (about 0.03 of the largest stable one), so that the table compares how they mix.

    Args:
        out: the directory for the picture and the run.
        seed: everything random follows from it.
        tell: called with the name of each sampler before it runs.
    """
    mixing = np.array([[1.0, 0.0], [1.0, 0.1]])
    data = simulate(np.random.default_rng(seed), SIZE, mixing, NOISE_VARIANCE)
    posterior, truth = linear_gaussian(data, NOISE_VARIANCE), exact(data, NOISE_VARIANCE)
    soft, stiff = (float(v) for v in np.linalg.eigvalsh(truth.precision))
    small, whitened = 0.02 / stiff, 0.02
    average_gradient = np.sqrt(stiff) / SIZE  # about √v of pSGLD, the unit of its step size
    configurations: dict[str, tuple[float, Record]] = {
        "sgld": (small, {}),
        "psgld": (small * 10 * average_gradient, {"regularizer": 1e-3}),
        "sgfs": (whitened, {"base": soft}),
        "sgrld": (whitened, {"fisher": jnp.asarray(truth.precision, jnp.float32)}),
        "naive": (whitened, {"memory": 3, "gamma": 1 / stiff, "cosine": 0.0}),
        "hamcmc": (whitened, {"memory": 3, "gamma": 1 / stiff, "cosine": 0.0}),
        "ensemble_hamcmc": (whitened, {"pairs": 3, "metric": None}),
        "ensemble_underdamped": (whitened, {"pairs": 3, "metric": None}),
    }
    rows, draws = [], {}
    for name, (step_size, options) in configurations.items():
        tell(name)
        result = sample(
            posterior,
            name,
            jnp.asarray(truth.mean, jnp.float32),
            step_size=step_size,
            num_samples=ITERATIONS // THIN,
            thin=THIN,
            warmup=WARMUP,
            batch_size=BATCH,
            seed=seed,
            out=out / "run" if name == RECOMMENDED else None,
            overwrite=True,
            progress=False,
            **({} if name.startswith("ensemble") else {"chains": CHAINS}),  # an ensemble has 8 replicas
            **options,
        )
        rows.append(_row(name, step_size, result, truth))
        draws[name] = result.posterior["theta"][0]
    picture = out / "demo.png"
    _draw(draws, truth).savefig(picture, dpi=130)
    return Demo(rows, picture, out / "run")


def _row(name: str, step_size: float, result: Result, truth: Exact) -> Row:
    theta = result.posterior["theta"].reshape(-1, 2).astype(float)
    values, axes = np.linalg.eigh(truth.covariance)
    along = (theta - truth.mean) @ axes / np.sqrt(values)  # in units of exact standard deviations, width first
    spent = cost(result)
    return Row(
        name,
        step_size,
        float(np.linalg.norm(along.mean(0))),
        float(along[:, 1].std()),
        float(along[:, 0].std()),
        spent.ess,
        spent.gradients_per_effective_sample,
        spent.seconds,
    )


def _draw(draws: dict[str, np.ndarray], truth: Exact) -> Figure:
    """One chain of each sampler on the contours of the exact posterior."""
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    axes = figure.subplots(2, 4, sharex=True, sharey=True)
    reach = 3.3 * np.sqrt(np.diag(truth.covariance))
    x, y = (np.linspace(m - r, m + r, 200) for m, r in zip(truth.mean, reach))
    grid = np.stack(np.meshgrid(x, y), -1) - truth.mean
    distance = np.einsum("...i,ij,...j->...", grid, truth.precision, grid)
    for ax, (name, theta) in zip(axes.flat, draws.items()):
        ax.plot(*theta.T, ".", markersize=2, color="#D55E00" if "hamcmc" in name else "#0072B2", alpha=0.5)
        ax.contour(x, y, distance, levels=[1, 4, 9], colors="#333333", linewidths=0.8, linestyles="dashed")
        ax.set_title(name)
        ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("θ₁")
    for ax in axes[:, 0]:
        ax.set_ylabel("θ₂")
    figure.suptitle(f"One chain of each sampler, {ITERATIONS:,} iterations; dashed: 1, 2, 3 sd of the exact posterior")
    return figure
